"""Where snapshots are taken: which positions of a prompt, and which of those when snapshots are scarce."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class BoundaryKind(enum.Enum):
    """Positions the text side knows from the rendered template."""

    SYSTEM_END = "system_end"  # end of the stable system and tools block
    MESSAGE_START = "message_start"  # before a role header, the generation prompt's included


@dataclass(frozen=True, slots=True)
class Boundary:
    """There are `position` tokens before it."""

    position: int
    kind: BoundaryKind


class WantedKind(enum.IntEnum):
    """Why a state is captured. Among the positions of a prompt, the lower number is the more valuable."""

    PROMPT_END = 0  # the same prompt again evaluates no token
    JOIN = 1  # waiting requests resume there
    BRANCH = 2  # where the tree has shown that texts part
    MESSAGE_START = 3  # edited and regenerated messages
    SYSTEM_END = 4  # other conversations on the same system block
    SPARSE = 5  # a change somewhere in a long text
    GENERATED = 6  # every N tokens of an answer
    ANSWER_END = 7  # the next turn
    CANCELLED = 8  # a retry goes on there
    PREEMPTED = 9  # it comes back itself

    @classmethod
    def from_file(cls, number: int) -> "WantedKind":
        """The kind of that number; SPARSE for one that this program does not know."""
        try:
            return cls(number)
        except ValueError:
            return cls.SPARSE


@dataclass(frozen=True, slots=True)
class Wanted:
    """A capture to make once `position` tokens are evaluated."""

    position: int
    kind: WantedKind


SPARSE_FROM_TOKENS = 64  # distance of the last one from the end; after a change nearer than that, at most these are evaluated
LATEST_MESSAGES = 2  # message starts that come before the system end: the last message and the answer's role header


def plan_captures(
    prompt_tokens: int,
    start: int,
    boundaries: Sequence[Boundary],
    branch: int | None,
    joins: Sequence[int],
    limit: int,
    *,
    hybrid: bool = True,
) -> list[Wanted]:
    """The captures of a prompt of `prompt_tokens`, known up to `start`: at most `limit`, by ascending position.

    Only positions with start < position <= prompt_tokens, each once, under its most valuable kind. When there are more than
    `limit`: the prompt end, joins, the branch, the latest two message starts, the system end, the other message starts from the
    last to the first, and then sparse positions. `branch` is the ResumePoint's `matched_tokens`; it counts only short of the end.

    Sparse positions fill what the others leave: a prompt sent again with its last t tokens changed re-evaluates at most 2 t, or
    64 where that is more (`limit` permitting). An attention-only model resumes anywhere, so only the prompt end and joins are
    wanted there.
    """
    wanted: dict[int, WantedKind] = {}

    def add(position: int, kind: WantedKind) -> None:
        if start < position <= prompt_tokens:
            wanted[position] = min(kind, wanted.get(position, kind))

    add(prompt_tokens, WantedKind.PROMPT_END)
    for position in joins:
        add(position, WantedKind.JOIN)
    if hybrid:
        if branch is not None and branch < prompt_tokens:
            add(branch, WantedKind.BRANCH)
        for boundary in boundaries:
            system = boundary.kind is BoundaryKind.SYSTEM_END
            add(boundary.position, WantedKind.SYSTEM_END if system else WantedKind.MESSAGE_START)
    chosen = _most_valuable([Wanted(position, kind) for position, kind in wanted.items()], limit)
    if hybrid:
        sparse = sparse_positions(prompt_tokens, start, [capture.position for capture in chosen])
        chosen += [Wanted(position, WantedKind.SPARSE) for position in sparse[: max(limit - len(chosen), 0)]]
    return sorted(chosen, key=lambda capture: capture.position)


def sparse_positions(prompt_tokens: int, start: int, others: Iterable[int]) -> list[int]:
    """Positions to add, from the end backwards, so that resume points lie log-spaced from the end.

    Distances from the end are the powers of two from 64 on, each only where no other position (`others`, or `start` itself) is near
    enough to serve instead. For every t there is then a resume point (`start` is one) between t and max(2 t, 64) before the end.
    """
    distances = sorted({prompt_tokens - position for position in (*others, start) if position < prompt_tokens})
    sparse = []
    low, high = SPARSE_FROM_TOKENS // 2, SPARSE_FROM_TOKENS  # the next resume point must lie in [low, high] before the end
    while high < prompt_tokens - start:
        reach = max((distance for distance in distances if low <= distance <= high), default=0)
        if not reach:
            reach = SPARSE_FROM_TOKENS
            while reach * 2 <= high:
                reach *= 2
            sparse.append(prompt_tokens - reach)
        low, high = reach + 1, 2 * reach + 2
    return sparse


def next_generated_capture(prompt_tokens: int, known_tokens: int, every_tokens: int) -> int | None:
    """First position after `known_tokens` that is a multiple of `every_tokens` behind the prompt; None when that is 0 (off)."""
    if every_tokens <= 0:
        return None
    generated = max(known_tokens - prompt_tokens, 0)
    return prompt_tokens + (generated // every_tokens + 1) * every_tokens


def _most_valuable(candidates: list[Wanted], limit: int) -> list[Wanted]:
    messages = sorted((c.position for c in candidates if c.kind is WantedKind.MESSAGE_START), reverse=True)
    latest = set(messages[:LATEST_MESSAGES])

    def rank(capture: Wanted) -> tuple[float, int]:
        early_message = capture.kind is WantedKind.MESSAGE_START and capture.position not in latest
        return (WantedKind.SYSTEM_END + 0.5 if early_message else capture.kind, -capture.position)

    return sorted(candidates, key=rank)[: max(limit, 0)]
