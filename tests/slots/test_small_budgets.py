"""Any budget the server accepts serves any trace: no assertion, no livelock, no needless waiting, every answer right."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from svc.memory import prefix_tree
from svc.memory.placement import Boundary, BoundaryKind
from svc.slots.events import FinishReason
from svc.slots.request import Sequence
from tests.fakes.fake_backend import expected_answer
from tests.slots.harness import Answer, Harness

PAGE = 4  # few tokens a page, so that short traces cross many


@pytest.fixture(autouse=True)
def paths_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of a path are kept at every second node, so that short traces meet them."""
    monkeypatch.setattr(prefix_tree, "KEPT_EVERY", 2)


@dataclass
class Budget:
    """The smallest that `plan_memory` accepts, and some more."""

    num_rows: int
    num_pages: int
    num_snapshots: int
    host_pages: int
    host_snapshots: int
    hybrid: bool

    @classmethod
    def random(cls, rng: random.Random) -> "Budget":
        rows = rng.randint(1, 5)
        host = rng.random() < 0.25
        return cls(
            num_rows=rows,
            num_pages=2 * rows + rng.choice([0, 0, 1, 2, rng.randint(0, 40)]),
            num_snapshots=rows + rng.choice([0, 0, 1, rng.randint(0, 20)]),
            host_pages=rng.randint(1, 20) if host else 0,
            host_snapshots=rng.randint(1, 6) if host else 0,
            hybrid=rng.random() < 0.8,
        )


@dataclass
class Talk:
    """One conversation: the text so far, and the answer that is awaited."""

    text: list[int]
    starts: list[int] = field(default_factory=list)  # message starts
    answers: list[Answer] = field(default_factory=list)


class Trace:
    """Chats with edits, regenerates, branches in mid-page, tool loops, several choices, cancels and joins, on one harness."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.budget = Budget.random(self.rng)
        self.harness = Harness(
            hybrid=self.budget.hybrid,
            num_pages=self.budget.num_pages,
            num_rows=self.budget.num_rows,
            num_snapshots=self.budget.num_snapshots,
            host_pages=self.budget.host_pages,
            host_snapshots=self.budget.host_snapshots,
            moves_lag=self.rng.randint(0, 2),
            page_tokens=PAGE,
            chunk=self.rng.choice([6, 16, 64]),
            context=100_000,
            capture_every=self.rng.choice([0, 0, 7]),
            ahead=self.rng.random() < 0.5,
        )
        self.context = self.harness.scheduler.context_tokens
        self.shared = self._tokens(self.rng.randint(1, max(1, self.context // 2)))
        self.talks = [Talk(list(self.shared)) for _ in range(self.rng.randint(1, 6))]
        self.asked: list[tuple[Answer, list[int], int]] = []
        self.preempted_at: dict[Sequence, list[int]] = {}
        self._watch()

    def _watch(self) -> None:
        preempt = self.harness.scheduler._preempt

        def note(slot: Any, now: float) -> bool:
            self.preempted_at.setdefault(slot.sequence, []).append(slot.planned)
            return preempt(slot, now)

        self.harness.scheduler._preempt = note  # type: ignore[method-assign]

    def _tokens(self, count: int) -> list[int]:
        return self.rng.choices(range(997), k=count)

    def ask(self, talk: Talk, prompt: list[int]) -> None:
        prompt = prompt[: self.context]
        starts = tuple(Boundary(start, BoundaryKind.MESSAGE_START) for start in talk.starts if start < len(prompt))
        longest = self.context - len(prompt) + 1
        max_tokens = self.harness.scheduler.answer_tokens(len(prompt), self.rng.choice([0, 1, 3, 12, longest]))
        for choice in range(self.rng.choice([1, 1, 1, 3])):
            answer = self.harness.submit(
                prompt,
                max_tokens,
                choice=choice,
                boundaries=starts,
                priority=self.rng.choice([0, 0, 0, 1]),
                tenant=self.rng.choice("aaab"),
            )
            talk.answers.append(answer)
            self.asked.append((answer, prompt, max_tokens))

    def act(self) -> None:
        """One thing that a client does."""
        talk = self.rng.choice(self.talks)
        kind = self.rng.random()
        if kind < 0.15 and talk.answers:
            self.harness.cancel(self.rng.choice(talk.answers))
        elif kind < 0.35 and talk.text:  # a branch in mid-page, or an edited message
            cut = self.rng.choice([*talk.starts, self.rng.randint(1, len(talk.text))])
            self.ask(talk, talk.text[: max(cut, 1)] + self._tokens(self.rng.randint(0, 6)))
        elif kind < 0.5:  # again
            self.ask(talk, talk.text or self._tokens(1))
        else:  # the next turn, with the answer where there is one
            done = [answer for answer in talk.answers if answer.ended]
            if done and len(talk.text) < self.context - 8:
                talk.text = [*talk.text, *done[-1].tokens]
            talk.starts.append(len(talk.text))
            talk.text = (talk.text + self._tokens(self.rng.randint(1, 9)))[: self.context]
            self.ask(talk, talk.text)

    def run(self, num_acts: int) -> None:
        for _ in range(num_acts):
            self.act()
            for _ in range(self.rng.choice([0, 0, 1, 3, 10])):
                self.harness.step()
        self.harness.run(limit=20_000)

    def verify(self) -> None:
        for answer, prompt, max_tokens in self.asked:
            assert answer.ended
            tokens = expected_answer(prompt, max_tokens, choice=answer.sequence.request.choice)
            if answer.end.reason is FinishReason.CANCELLED:
                tokens = tokens[: len(answer.tokens)]
            else:
                assert answer.end.reason is FinishReason.LENGTH
            assert answer.tokens == tokens
        for positions in self.preempted_at.values():
            assert positions == sorted(set(positions)), f"preempted at {positions}: no progress in between"
        self.harness.assert_nothing_leaked()


@pytest.mark.parametrize("block", range(10))
def test_any_accepted_budget_serves_any_trace(block: int) -> None:
    """Every request ends, with the answer of an uncached run; the memory adds up after each step; between two preemptions a
    sequence comes further than ever before."""
    for seed in range(10 * block, 10 * block + 10):
        trace = Trace(seed)
        trace.run(30)
        trace.verify()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(100))
def test_any_accepted_budget_serves_any_trace_at_length(block: int) -> None:
    """The same, thousands of times."""
    for seed in range(10_000 + 50 * block, 10_000 + 50 * block + 50):
        trace = Trace(seed)
        trace.run(40)
        trace.verify()
