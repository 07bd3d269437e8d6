"""What has no room on the device waits on the host and comes back: nothing is evaluated twice, no step reads what is on its way."""

import random

import pytest

from svc.memory.tiers import MoveKind
from tests.fakes.fake_backend import expected_answer
from tests.slots.harness import Answer, Harness


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


def alternate(harness: Harness, *, turns: int = 3, talkers: int = 2, length: int = 85) -> list[Answer]:
    """Conversations in turn, each turn sent with all that was said before; one answer a turn."""
    said = [prompt(length, seed) for seed in range(talkers)]
    answers = []
    for turn in range(turns):
        for talker in range(talkers):
            answers.append(harness.ask(said[talker], 5))
            said[talker] = [*said[talker], *answers[-1].tokens, *prompt(20, 100 * turn + talker)]
    return answers


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("moves_lag", [0, 1, 3])
def test_two_conversations_that_do_not_fit_together(hybrid: bool, moves_lag: int) -> None:
    """With a host tier each turn evaluates only what is new; without, the other conversation's turn has cost everything."""
    small = {"hybrid": hybrid, "num_pages": 11, "num_rows": 2, "num_snapshots": 2}
    harness = Harness(**small, host_pages=40, host_snapshots=16, moves_lag=moves_lag)
    answers = alternate(harness)
    for answer in answers:
        assert answer.tokens == expected_answer(answer.sequence.request.prompt, 5)
    known = {0: 0, 1: 0}
    for number, answer in enumerate(answers):
        assert answer.cached == known[number % 2]
        known[number % 2] = answer.sequence.num_prompt + 4  # the last token of an answer has not been evaluated
    poor = Harness(**small)
    assert not hybrid or all(answer.cached == 0 for answer in alternate(poor))
    assert hybrid or sum(answer.cached for answer in alternate(poor)) < 0.6 * sum(answer.cached for answer in answers)
    counters = harness.cache.stats().counters
    assert counters.num_host_resumes == 4
    assert counters.rows_moved_in == (4 if hybrid else 0)
    assert counters.num_evicted_snapshots == counters.evicted_pages == 0
    harness.assert_nothing_leaked()


def test_who_waits_for_the_host_holds_nobody_up() -> None:
    """A stream gets a token in every step while another conversation's pages come in; that one starts when they are there."""
    harness = Harness(num_pages=24, num_rows=3, num_snapshots=4, host_pages=40, host_snapshots=16, moves_lag=3, ahead=False)
    first = harness.ask(prompt(80, 1), 2)
    for seed in (2, 3, 4):
        harness.ask(prompt(120, seed), 2)
    stream = harness.submit(prompt(20, 5), 20)
    harness.step()
    back = harness.submit(prompt(80, 1), 2)
    counts = []
    while not back.tokens:
        harness.step()
        counts.append(len(stream.tokens))
    assert counts == list(range(2, 2 + len(counts)))
    assert len(counts) == 1 + 3 + 1, "the step that asks for the moves, those they take, and the first of its own"
    assert back.sequence.cached_tokens == 80
    harness.run()
    assert back.tokens == first.tokens
    harness.assert_nothing_leaked()


def test_alone_the_step_waits_for_its_moves() -> None:
    """Nobody else to compute for: one step that only fetches, then one that answers, however long the moves take."""
    harness = Harness(num_pages=12, num_rows=2, num_snapshots=2, host_pages=40, host_snapshots=16, moves_lag=100)
    harness.ask(prompt(80, 1), 1)
    for seed in (2, 3, 4):
        harness.ask(prompt(150, seed), 1)
    again = harness.submit(prompt(80, 1), 1)
    assert harness.run() == 2
    fetching, answering = harness.backend.batches[-2:]
    assert fetching.await_moves
    assert {move.kind for move in fetching.moves} >= {MoveKind.PAGE_IN, MoveKind.ROW_IN}
    assert not fetching.chunks
    assert not answering.restores, "its state came from the host into its row"
    assert again.cached == 80


@pytest.mark.parametrize("steps_before", range(4))
@pytest.mark.parametrize("moves_lag", [0, 2])
def test_cancelled_while_its_pages_come(steps_before: int, moves_lag: int) -> None:
    """Its slot and pages go to somebody else at once, and what is still on its way writes under nobody."""
    harness = Harness(num_pages=12, num_rows=1, num_snapshots=4, host_pages=40, host_snapshots=16, moves_lag=moves_lag)
    harness.ask(prompt(80, 1), 1)
    harness.ask(prompt(150, 2), 1)
    gone = harness.submit([*prompt(80, 1), *prompt(30, 3)], 5)
    for _ in range(steps_before):
        harness.step()
    harness.cancel(gone)
    other = harness.ask(prompt(140, 4), 5)
    assert other.tokens == expected_answer(prompt(140, 4), 5)
    again = harness.ask([*prompt(80, 1), *prompt(30, 3)], 5)
    assert again.cached >= 80
    assert again.tokens == expected_answer([*prompt(80, 1), *prompt(30, 3)], 5)
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_failed_step_with_moves_forgets_what_was_known(ahead: bool) -> None:
    """What it was to move may be half there: nothing is matched any more, and who waited for it begins anew."""
    harness = Harness(num_pages=24, num_rows=3, num_snapshots=4, host_pages=40, host_snapshots=16, moves_lag=8, ahead=ahead)
    harness.ask(prompt(80, 1), 1)
    for seed in (2, 3, 4):
        harness.ask(prompt(120, seed), 1)
    stream = harness.submit(prompt(20, 5), 20)
    harness.step()
    back = harness.submit(prompt(80, 1), 3)
    harness.step()
    harness.step()
    assert not back.tokens
    assert back.sequence.cached_tokens == 80
    harness.backend.fail_next = RuntimeError("device lost")
    harness.step()
    harness.step()
    assert stream.end.error is not None
    assert not back.ended
    harness.run()
    assert back.tokens == expected_answer(prompt(80, 1), 3)
    assert back.cached == 0
    harness.assert_nothing_leaked()


def test_two_that_need_the_same_pages_from_the_host() -> None:
    """The second shares what the first fetches, and does not start before it is there."""
    harness = Harness(num_pages=24, num_rows=4, num_snapshots=6, host_pages=60, host_snapshots=20, moves_lag=2)
    harness.ask(prompt(80, 1), 1)
    for seed in (2, 3, 4):
        harness.ask(prompt(150, seed), 1)
    twins = [harness.submit([*prompt(80, 1), *prompt(9, seed)], 4) for seed in (5, 6)]
    harness.run()
    for twin, seed in zip(twins, (5, 6), strict=True):
        assert twin.cached == 80
        assert twin.tokens == expected_answer([*prompt(80, 1), *prompt(9, seed)], 4)
    fetched = [move for batch in harness.backend.batches for move in batch.moves if move.kind is MoveKind.PAGE_IN]
    assert len(fetched) == 5
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize(("host", "moves_lag"), [((0, 9), 2), ((7, 0), 2), ((40, 10), 2), ((40, 10), 0)])
def test_a_hundred_requests_with_random_cancels(hybrid: bool, host: tuple[int, int], moves_lag: int) -> None:
    """Whatever comes, goes and fails: every answer is the model's, nothing is lost."""
    harness = Harness(
        hybrid=hybrid, num_pages=30, num_rows=4, num_snapshots=6, host_pages=host[0], host_snapshots=host[1], moves_lag=moves_lag,
        capture_every=16,
    )  # fmt: skip
    rng = random.Random(7)
    trunks = [prompt(90, seed) for seed in range(6)]
    live: list[Answer] = []
    for number in range(100):
        trunk = rng.choice(trunks)
        tokens = [*trunk[: rng.randrange(91)], *prompt(rng.choice([0, 1, 5, 40]), number)]
        live.append(harness.submit(tokens or [1], max_tokens=rng.randrange(0, 20)))
        if rng.random() < 0.2:
            harness.cancel(live[rng.randrange(len(live))])
        if rng.random() < 0.01:
            harness.backend.fail_next = RuntimeError("device lost")
        for _ in range(rng.randrange(8)):
            harness.step()
    harness.run(100_000)
    for answer in live:
        wanted = expected_answer(answer.sequence.request.prompt, len(answer.tokens))
        assert answer.tokens == wanted
        assert answer.ended
    if host == (40, 10):
        assert harness.cache.stats().counters.num_host_resumes > 10
    harness.assert_nothing_leaked()
