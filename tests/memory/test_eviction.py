"""The hand that finds a low score, and the score itself."""

from svc.memory.eviction import WINDOW, Hand
from svc.memory.scoring import score


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


def test_score_counts_the_work_saved_and_the_age() -> None:
    """More tokens beyond the next resume point score more, the same tokens deeper in a text more still, older ones less."""
    assert score(200, 100, 0.0) > score(150, 100, 0.0) > 0.0
    assert score(100_100, 100_000, 0.0) > score(200, 100, 0.0)
    assert score(200, 100, 60.0) < score(200, 100, 0.0)
    assert score(200, 100, -5.0) == score(200, 100, 0.0)  # clocks of two callers may differ a little
