"""What clients ask for, in tokens and seconds: nine deterministic traces. A trace is a function of its seed and `Size`.

Texts are random tokens in a chat template's frame: every message begins with a role header (its start is a boundary) and ends
with an end token, which is what ends an answer too. Times of arrival are fixed, so that every policy is asked the same things in
the same order.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from svc.memory.placement import Boundary, BoundaryKind

START, END, NEWLINE, SYSTEM, USER, ASSISTANT, TOOL, THINK, THOUGHT = range(9)
FIRST_WORD, WORDS = 100, 50_000
HEADER_TOKENS = 3

Tokens = list[int]
Message = tuple[int, Tokens]  # role and text


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One request and the answer that the model will give. The client leaves once `leaves_at` positions are evaluated."""

    at_s: float
    prompt: NDArray[np.int32]
    boundaries: tuple[Boundary, ...]
    answer: NDArray[np.int32]
    leaves_at: int | None = None
    messages: tuple[Message, ...] = ()  # what the prompt was made of

    @property
    def evaluated(self) -> NDArray[np.int32]:
        """The tokens whose state is computed when all goes as said; the last of an answer never is."""
        whole = np.concatenate([self.prompt, self.answer[:-1]])
        return whole if self.leaves_at is None else whole[: self.leaves_at]


@dataclass(frozen=True, slots=True)
class Size:
    """How a trace differs from the usual one: texts so many times as long, pauses too, and so many clients per usual one."""

    text: float = 1.0
    pause: float = 1.0
    clients: float = 1.0


Trace = list[Ask]
Maker = Callable[[Generator, Size], Iterator[Ask]]


def make(maker: Maker, seed: int, size: Size) -> Trace:
    """The requests in the order in which they arrive."""
    return sorted(maker(np.random.default_rng(seed), size), key=lambda ask: ask.at_s)


# ---- text


def words(rng: Generator, size: Size, low: int, high: int) -> Tokens:
    """So many random tokens; two texts practically never begin alike."""
    count = int(rng.integers(low, high + 1) * size.text)
    return rng.integers(FIRST_WORD, FIRST_WORD + WORDS, max(count, 4)).tolist()  # type: ignore[no-any-return]


def pause(rng: Generator, size: Size, mean_s: float) -> float:
    """Between half a second and four times the mean."""
    return float(min(max(rng.exponential(mean_s), 0.5), 4 * mean_s)) * size.pause


def clients(size: Size, usual: int) -> range:
    return range(max(1, round(usual * size.clients)))


@dataclass(slots=True)
class Chat:
    """A conversation as its client sends it: messages with their roles."""

    messages: list[Message] = field(default_factory=list)
    thinks: bool = False  # whether the generation prompt opens a thinking part

    def say(self, role: int, text: Tokens) -> "Chat":
        self.messages.append((role, text))
        return self

    def copy(self) -> "Chat":
        return Chat(self.messages.copy(), self.thinks)

    def ask(self, at_s: float, answer: Tokens, leaves_at: int | None = None) -> Ask:
        """The request for an answer; it is not added to the messages."""
        tokens: Tokens = []
        boundaries = []
        for role, text in self.messages:
            boundaries.append(Boundary(len(tokens), BoundaryKind.MESSAGE_START))
            tokens += [START, role, NEWLINE, *text, END, NEWLINE]
            if role == SYSTEM:
                boundaries.append(Boundary(len(tokens), BoundaryKind.SYSTEM_END))
        boundaries.append(Boundary(len(tokens), BoundaryKind.MESSAGE_START))
        tokens += [START, ASSISTANT, NEWLINE, *([THINK] if self.thinks else [])]
        given = np.array([*answer, END], np.int32)
        inner = tuple(boundary for boundary in boundaries if boundary.position)
        return Ask(at_s, np.array(tokens, np.int32), inner, given, leaves_at, tuple(self.messages))


# ---- the traces


def chats(rng: Generator, size: Size) -> Iterator[Ask]:
    """People who chat: they read before they go on, ask for another answer, write their last message anew or go back to an earlier
    one. Half of them share a system prompt."""
    shared = words(rng, size, 500, 700)
    for number in clients(size, 8):
        chat = Chat().say(SYSTEM, shared if number % 2 else words(rng, size, 100, 300))
        now = pause(rng, size, 120)
        for _ in range(10):
            chat.say(USER, words(rng, size, 30, 220))
            answer = words(rng, size, 8, 24)
            yield chat.ask(now, answer)
            now += 10 + pause(rng, size, 40)
            while (chance := rng.random()) < 0.35:
                if chance >= 0.15:
                    chat.messages[-1] = (USER, words(rng, size, 30, 220))
                elif chance < 0.04 and len(chat.messages) > 4:
                    chat = Chat(chat.messages[:-2])
                    chat.messages[-1] = (USER, words(rng, size, 30, 220))
                answer = words(rng, size, 8, 24)
                yield chat.ask(now, answer)
                now += 10 + pause(rng, size, 20)
            chat.say(ASSISTANT, answer)


def stripped_thinking(rng: Generator, size: Size) -> Iterator[Ask]:
    """The client sends the history back without the thinking part of the answers."""
    for _ in clients(size, 6):
        chat = Chat(thinks=True).say(SYSTEM, words(rng, size, 200, 500))
        now = pause(rng, size, 100)
        for _ in range(10):
            chat.say(USER, words(rng, size, 40, 250))
            thought, answer = words(rng, size, 16, 32), words(rng, size, 8, 16)
            yield chat.ask(now, [*thought, THOUGHT, *answer])
            chat.say(ASSISTANT, answer)
            now += 10 + pause(rng, size, 45)


def tool_loops(rng: Generator, size: Size) -> Iterator[Ask]:
    """Agents that call a tool 20 times in a row, with a few seconds between; all have the same tools."""
    tools = words(rng, size, 1200, 1200)
    for _ in clients(size, 8):
        chat = Chat().say(SYSTEM, tools).say(USER, words(rng, size, 60, 300))
        now = pause(rng, size, 60)
        for _ in range(20):
            call = words(rng, size, 6, 14)
            yield chat.ask(now, call)
            chat.say(ASSISTANT, call).say(TOOL, words(rng, size, 20, 350))
            now += 2 + pause(rng, size, 3)


def in_turn(rng: Generator, size: Size) -> Iterator[Ask]:
    """Twelve conversations, each of which goes on when all the others have."""
    open_chats = [Chat().say(SYSTEM, words(rng, size, 250, 400)) for _ in clients(size, 12)]
    now = 0.0
    for _ in range(8):
        for chat in open_chats:
            chat.say(USER, words(rng, size, 100, 300))
            answer = words(rng, size, 8, 20)
            yield chat.ask(now, answer)
            chat.say(ASSISTANT, answer)
            now += 5 * size.pause


def branching(rng: Generator, size: Size) -> Iterator[Ask]:
    """From one text several ways on, from some of those several more; some are visited again."""
    for _ in clients(size, 6):
        now = pause(rng, size, 60)
        known = [Chat().say(SYSTEM, words(rng, size, 50, 200)).say(USER, words(rng, size, 800, 1600))]
        for _ in range(16):
            chat = known[min(int(rng.exponential(len(known) / 2)), len(known) - 1)].copy()
            answer = words(rng, size, 8, 20)
            yield chat.ask(now, answer)
            known.append(chat.say(ASSISTANT, answer).say(USER, words(rng, size, 50, 250)))
            now += 3 + pause(rng, size, 8)


def agents(rng: Generator, size: Size) -> Iterator[Ask]:
    """Four agents at once on one system prompt, each with a task of its own and two more turns; each team comes back once."""
    for _ in clients(size, 7):
        system = words(rng, size, 1500, 2200)
        begin = pause(rng, size, 150)
        for visit in (0.0, 240.0):
            for _ in range(4):
                chat, now = Chat().say(SYSTEM, system), begin + visit * size.pause
                for _ in range(3):
                    chat.say(USER, words(rng, size, 50, 250))
                    answer = words(rng, size, 8, 16)
                    yield chat.ask(now, answer)
                    chat.say(ASSISTANT, answer)
                    now += 6 + pause(rng, size, 6)


def documents(rng: Generator, size: Size) -> Iterator[Ask]:
    """Long documents, each asked about three times: when all the others have been asked about, in another order each time. The
    question is a message of its own, or stands at the end of the document's."""
    texts = [words(rng, size, 1500, 3500) for _ in clients(size, 12)]
    now = 0.0
    for _ in range(3):
        for number in rng.permutation(len(texts)).tolist():
            question, text = words(rng, size, 15, 60), texts[number]
            chat = Chat().say(SYSTEM, text).say(USER, question) if number % 2 else Chat().say(USER, text + question)
            yield chat.ask(now, words(rng, size, 8, 20))
            now += 4 + pause(rng, size, 6)


def cancels(rng: Generator, size: Size) -> Iterator[Ask]:
    """Clients that leave before the prompt is evaluated, or during the answer, and come back with the same; then the next turn."""
    for number in clients(size, 14):
        chat = Chat().say(SYSTEM, words(rng, size, 100, 300)).say(USER, words(rng, size, 1200, 2500))
        now = pause(rng, size, 150)
        for _ in range(3):
            answer = words(rng, size, 12, 24)
            whole = chat.ask(now, answer)
            length = len(whole.prompt)
            yield replace(whole, leaves_at=length + 8 if number % 3 == 0 else int(length * rng.uniform(0.3, 0.9)))
            now += 5 + pause(rng, size, 20)
            yield chat.ask(now, answer)
            chat.say(ASSISTANT, answer).say(USER, words(rng, size, 200, 600))
            now += 10 + pause(rng, size, 40)


def mixed_day(rng: Generator, size: Size) -> Iterator[Ask]:
    """All of the above with fewer clients, twice each, interleaved: a busy day of a quarter of an hour."""
    small = replace(size, clients=size.clients / 3)
    for _ in range(2):
        for maker in PARTS.values():
            begin = rng.uniform(0, 600) * size.pause
            yield from (replace(ask, at_s=begin + ask.at_s) for ask in maker(rng, small))


PARTS: dict[str, Maker] = {
    "chats with edits": chats,
    "stripped thinking": stripped_thinking,
    "tool loops": tool_loops,
    "twelve in turn": in_turn,
    "branching": branching,
    "four agents": agents,
    "documents thrice": documents,
    "cancel and retry": cancels,
}
TRACES: dict[str, Maker] = {**PARTS, "mixed day": mixed_day}


def least_tokens(trace: Iterable[Ask]) -> int:
    """What a perfect cache would evaluate of the prompts: of each what is behind its longest prefix that was evaluated before.

    No policy and no placement of snapshots can do with less. Retries go on where the client had left.
    """
    total = 0
    known: list[NDArray[np.int32]] = []
    for ask in trace:
        end = len(ask.prompt) if ask.leaves_at is None else min(len(ask.prompt), ask.leaves_at)
        total += end - max((common(ask.prompt[:end], other) for other in known), default=0)
        known.append(ask.evaluated)
    return total


def common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Length of the common prefix."""
    length = min(len(one), len(other))
    for end in (min(32, length), length):  # most differ at once
        differ = np.flatnonzero(one[:end] != other[:end])
        if len(differ):
            return int(differ[0])
    return length
