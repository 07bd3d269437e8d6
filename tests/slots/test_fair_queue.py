"""Tenants take turns in the waiting queue."""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest

from svc.errors import QueueFullError
from svc.slots.admission import MAX_OVERTAKEN
from svc.slots.request import Sequence
from tests.slots.harness import Answer, Harness


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(997), k=length)


@dataclass
class Watch:
    """Every sequence of a harness in the order of its first admission, with those that waited then."""

    harness: Harness
    order: list[Sequence] = field(default_factory=list)

    def step(self) -> bool:
        waiting = [answer.sequence for answer in self.harness.answers.values() if not answer.sequence.had_slot]
        more = self.harness.step()
        # Of one step's admissions the queue's turns are the order; slots are sorted otherwise, so one row a step is free.
        admitted = [sequence for sequence in waiting if sequence.had_slot]
        assert len(admitted) <= 1
        self.order += admitted
        return more


def turns(answers: list[tuple[str, int]], rows: int = 1) -> list[str]:
    """The names (tenant and number of arrival) of requests that arrive together, in the order of their slots."""
    harness = Harness(num_rows=rows)
    names: dict[Sequence, str] = {}
    for number, (tenant, priority) in enumerate(answers):
        sequence = harness.submit(prompt(5, number), 2, tenant=tenant, priority=priority).sequence
        names[sequence] = f"{tenant}{number}"
    watch = Watch(harness)
    while watch.step():
        pass
    return [names[sequence] for sequence in watch.order]


@pytest.mark.parametrize(
    ("arrivals", "order"),
    [
        ("aaa", "a0 a1 a2"),
        ("aaabbc", "a0 b3 c5 a1 b4 a2"),
        ("aab", "a0 b2 a1"),
        ("abab", "a0 b1 a2 b3"),
        ("aaab bbb", "a0 b3 a1 b5 a2 b6 b7"),
    ],
)
def test_tenants_take_turns(arrivals: str, order: str) -> None:
    """One of each in the order in which the tenants came; a tenant's own in the order of arrival."""
    requests = [(tenant, 0) for tenant in arrivals.replace(" ", "-")]
    assert [name for name in turns(requests) if name[0] != "-"] == order.split()


def test_priority_goes_before_turns() -> None:
    """A higher priority of one tenant goes before another tenant's turn."""
    assert turns([("a", 0), ("a", 1), ("b", 0), ("a", 1), ("b", 1)]) == ["a1", "b4", "a3", "a0", "b2"]


def test_a_flood_does_not_delay_another_tenant() -> None:
    """Of 200 queued requests of one tenant one goes before the first of another, whenever that comes."""
    harness = Harness(num_rows=1)
    flood = [harness.submit(prompt(5, seed), 2, tenant="flood") for seed in range(200)]
    watch = Watch(harness)
    for _ in range(40):
        watch.step()
    before = len(watch.order)
    assert before > 5
    late = harness.submit(prompt(5, 999), 2, tenant="late")
    while not late.sequence.had_slot:
        watch.step()
    assert len(watch.order) - before <= 2  # itself, and at most one of the flood
    while watch.step():
        pass
    assert all(answer.ended for answer in flood)


def test_cancelled_requests_cost_no_turn() -> None:
    """A tenant that gives up 50 requests while they wait is served next, as if they had never been."""
    harness = Harness(num_rows=1)
    for seed in range(50):
        harness.submit(prompt(5, seed), 2, tenant="busy")
    given_up = [harness.submit(prompt(5, 100 + seed), 2, tenant="other") for seed in range(50)]
    watch = Watch(harness)
    watch.step()
    for answer in given_up:
        harness.cancel(answer)
    last = harness.submit(prompt(5, 999), 2, tenant="other")
    while not last.sequence.had_slot:
        watch.step()
    assert len(watch.order) <= 3


def test_a_share_of_the_queue() -> None:
    """A tenant with a share is refused beyond it while others still find places; those that a free slot awaits do not count."""
    harness = Harness(num_rows=1, max_queue=10)
    scheduler = harness.scheduler
    scheduler.check_capacity(4, "a", 0.3)
    with pytest.raises(QueueFullError) as refused:
        scheduler.check_capacity(5, "a", 0.3)
    assert refused.value.code == "queue_share"
    harness.submit(prompt(5, 0), 50, tenant="a", queue_share=0.3)
    harness.step()
    for seed in (1, 2, 3):
        harness.submit(prompt(5, seed), 2, tenant="a", queue_share=0.3)
    with pytest.raises(QueueFullError):
        harness.submit(prompt(5, 9), 2, tenant="a", queue_share=0.3)
    for seed in range(7):
        harness.submit(prompt(5, seed), 2, tenant="b")
    with pytest.raises(QueueFullError) as full:
        harness.submit(prompt(5, 9), 2, tenant="b")
    assert full.value.code == "queue_full"
    harness.run()
    scheduler.check_capacity(4, "a", 0.3)
    assert (scheduler.max_requests(0.3), scheduler.max_requests(0.001), scheduler.max_requests()) == (4, 2, 11)


def waited_for(watch: Watch, arrivals: dict[Sequence, int], late: Sequence) -> Counter[str]:
    """Of each other tenant, how many got their first slot while `late` waited."""
    mine = watch.order.index(late)
    return Counter(s.request.tenant for s in watch.order[arrivals[late] : mine] if s.request.tenant != late.request.tenant)


@pytest.mark.parametrize("seed", range(30))
def test_any_arrivals(seed: int) -> None:
    """Random tenants, arrivals and cancels, memory for all: everybody is served, a tenant's requests in the order of arrival, and
    a tenant that had nothing waiting waits for at most one request of each other tenant."""
    rng = random.Random(seed)
    harness = Harness(num_rows=1, num_pages=64)
    watch = Watch(harness)
    tenants = "abcdef"[: rng.randint(1, 6)]
    arrivals: dict[Sequence, int] = {}  # number of admissions before it came
    firsts: list[Sequence] = []
    answers: list[Answer] = []

    def submit() -> None:
        tenant = rng.choices(tenants, [2.0**-index for index in range(len(tenants))])[0]
        idle = not any(not a.ended and not a.sequence.had_slot and a.sequence.request.tenant == tenant for a in answers)
        answer = harness.submit(prompt(rng.randint(1, 9), rng.getrandbits(30)), rng.randint(1, 4), tenant=tenant)
        answers.append(answer)
        arrivals[answer.sequence] = len(watch.order)
        if idle:
            firsts.append(answer.sequence)

    for _ in range(60):
        kind = rng.random()
        if kind < 0.4:
            for _ in range(rng.choice([1, 1, 2, 12])):
                submit()
        elif kind < 0.5 and answers:
            harness.cancel(rng.choice(answers))
        else:
            watch.step()
    while watch.step():
        pass
    assert all(answer.ended for answer in answers)
    by_tenant: dict[str, list[int]] = defaultdict(list)
    for sequence in watch.order:
        by_tenant[sequence.request.tenant].append(sequence.order)
    assert all(orders == sorted(orders) for orders in by_tenant.values())
    for first in firsts:
        if first in watch.order:
            assert max(waited_for(watch, arrivals, first).values(), default=0) <= 1
    harness.assert_nothing_leaked()


@pytest.mark.parametrize("seed", range(6))
def test_one_that_does_not_fit_is_passed_by_few(seed: int) -> None:
    """A long prompt among short ones of several tenants, where memory is short: at most 16 are admitted past it in its turn, and
    while it waits for its turn one of each other tenant."""
    rng = random.Random(seed)
    harness = Harness(num_pages=40, num_rows=8, context=500)
    for number in range(3):
        harness.submit(prompt(60, number), 120, tenant="a")
    harness.step()
    long = harness.submit(prompt(480, 999), 4, tenant=rng.choice("ab"))
    shorts: list[Answer] = []
    passed, steps = 0, 0
    while not long.sequence.had_slot:
        steps += 1
        assert steps < 5000
        for _ in range(rng.randint(0, 3)):
            if len(shorts) < 300:
                shorts.append(harness.submit(prompt(5, rng.getrandbits(30)), 8, tenant=rng.choice("abc")))
        before = {answer.sequence for answer in shorts if answer.sequence.had_slot}
        harness.step()
        passed += sum(answer.sequence.had_slot and answer.sequence not in before for answer in shorts)
    assert 0 < passed <= MAX_OVERTAKEN + 2
    harness.run()
    assert long.ended
    assert all(answer.ended for answer in shorts)
    harness.assert_nothing_leaked()
