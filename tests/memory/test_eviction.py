"""The hand that finds a low score."""

from svc.memory.eviction import WINDOW, Hand


def test_hand_moves_on() -> None:
    """A ring larger than the window is looked at part by part, the lowest of each part found, everything within few calls."""
    hand, seen = Hand(), set[int]()
    scores = [float((index * 37) % 200) for index in range(200)]
    for _ in range(4):
        looked_at: list[int] = []

        def score_of(index: int, looked_at: list[int] = looked_at) -> float:
            looked_at.append(index)
            return scores[index]

        index, lowest = hand.find(200, score_of)
        assert index is not None
        assert len(looked_at) == WINDOW
        assert lowest == scores[index] == min(scores[index] for index in looked_at)
        seen.update(looked_at)
    assert seen == set(range(200))
    assert hand.num_candidates == 4 * WINDOW


def test_hand_goes_on_until_it_finds_one() -> None:
    """A single candidate among many that must stay is found, wherever the hand is; without any, each is looked at once."""
    hand = Hand()
    for _ in range(3):
        assert hand.find(200, lambda index: 1.0 if index == 150 else None) == (150, 1.0)
    before = hand.num_candidates
    assert hand.find(200, lambda index: None) == (None, 0.0)
    assert hand.num_candidates == before + 200


def test_hand_over_a_ring_that_shrinks() -> None:
    """Candidates may become fewer between searches, down to none."""
    hand = Hand()
    for count in (200, 3, 1, 0, 5):
        index, _ = hand.find(count, float)
        assert index is None if not count else 0 <= index < count  # type: ignore[operator]
