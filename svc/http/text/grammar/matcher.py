"""One answer held to a grammar: tokens in, masks of the tokens that may come next out."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum, auto
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

Words = NDArray[np.uint32]  # bit i % 32 of word i // 32: whether token i is allowed

MAX_FORCED_BYTES = 64
MAX_BREAKS = 2  # tokens of line breaks between reasoning and answer: templates write them there


class Stage(Enum):
    """Where the answer is."""

    START = auto()  # nothing yet: it may reason first
    REASONING = auto()  # free, but it must not end here
    BEHIND_REASONING = auto()
    GRAMMAR = auto()


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What a matcher knows of tokens."""

    token_bytes: Sequence[bytes]
    free: Words  # everything but control tokens
    breaks: tuple[int, ...]  # tokens that are one or two line breaks
    single_bytes: tuple[int, ...]  # the tokens of single bytes, if there are all 256, else none
    encode: Callable[[str], list[int]]  # text as the model has learned to spell it

    def bytes_of(self, token: int) -> bytes:
        return self.token_bytes[token] if token < len(self.token_bytes) else b""


class Matcher:
    """Tokens are taken in order; `rollback` takes the last ones back. Not for two threads at once.

    `accept` only notes the token, so it is cheap on the event loop; whoever asks next has the work.
    """

    def __init__(self, core: LLMatcher, vocabulary: TokenTable, *, close: bytes = b"", open_id: int | None = None) -> None:
        """`core` is this matcher's own. `close` ends the reasoning that the answer begins in, or may begin with token `open_id`."""
        self._core = core
        self._vocabulary = vocabulary
        self._close = close
        self._open_id = open_id
        self._stage = Stage.REASONING if close and open_id is None else Stage.START
        self._taken: list[_Taken] = []
        self._noted: list[int] = []  # tokens accepted and not taken yet
        self._is_broken = False  # the grammar was too much

    def fork(self) -> "Matcher":
        """A copy that goes its own way."""
        fork = copy(self)
        fork._core, fork._taken, fork._noted = self._core.deep_copy(), self._taken.copy(), self._noted.copy()
        return fork

    def accept(self, token: int) -> None:
        """The answer's next token."""
        self._noted.append(token)

    def mask(self) -> Words:
        """What may come next. Nothing may when the answer does not fit the grammar, or the grammar is too much for one step."""
        self._take_noted()
        if self._stage is Stage.REASONING:
            return self._vocabulary.free
        words = np.zeros_like(self._vocabulary.free)
        if self._fits:
            self._core.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            self._is_broken = bool(self._core.is_error())
            for token in () if self._is_broken else self._allowed_besides():
                words[token // 32] |= np.uint32(1 << token % 32)
        return words if self._fits else np.zeros_like(words)

    def forced_after(self, token: int) -> list[int]:
        """`forced`, if `token` came next."""
        self.accept(token)
        tokens = self.forced()
        self.rollback(1)
        return tokens

    def forced(self) -> list[int]:
        """Tokens that spell the text that must come next, as far as they are certain; often none."""
        self._take_noted()
        if not self._fits or self._stage is not Stage.GRAMMAR:
            return []
        text = self._forced_bytes().decode("utf-8", "ignore")
        tokens = self._vocabulary.encode(text)[:-1]  # what follows may change the last one
        return tokens[: self._core.validate_tokens(tokens)]

    def _forced_bytes(self) -> bytes:
        """Byte after byte, as long as only one may come."""
        forced = bytearray()
        words = np.zeros_like(self._vocabulary.free)
        while len(forced) < MAX_FORCED_BYTES and not self._core.is_accepting():
            self._core.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            allowed = [
                token for token in self._vocabulary.single_bytes if words[token // 32] >> np.uint32(token % 32) & np.uint32(1)
            ]
            if len(allowed) != 1 or self._core.try_consume_tokens(allowed) != 1:
                break
            forced += self._vocabulary.bytes_of(allowed[0])
        self._core.rollback(len(forced))
        return bytes(forced)

    def rollback(self, count: int) -> None:
        """Takes the last `count` tokens back."""
        noted = min(count, len(self._noted))
        del self._noted[len(self._noted) - noted :]
        if count > noted:
            assert count - noted <= len(self._taken)
            undone = self._taken[noted - count :]
            del self._taken[noted - count :]
            self._stage = undone[0].stage
            self._is_broken |= not self._core.rollback(sum(taken.matched for taken in undone))

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        self._take_noted()
        return self._stage is not Stage.REASONING and self._fits and bool(self._core.is_accepting())

    @property
    def is_finished(self) -> bool:
        """Whether nothing but the end may follow."""
        return self.is_accepting and bool(self._core.is_stopped())

    # -- tokens taken -------------------------------------------------------------------------------------------------------------
    @property
    def _fits(self) -> bool:
        return not self._is_broken and (self._stage is not Stage.GRAMMAR or self._taken[-1].matched)

    def _take_noted(self) -> None:
        noted, self._noted = self._noted, []
        for token in noted:
            self._take(token)

    def _take(self, token: int) -> None:
        before, matched = self._stage, False
        if before is Stage.REASONING:
            self._stage = Stage.BEHIND_REASONING if self._closes(token) else before
        elif token in self._allowed_besides():
            self._stage = Stage.REASONING if before is Stage.START else before
        else:
            matched = self._fits and self._core.try_consume_tokens([token]) == 1
            self._stage = Stage.GRAMMAR
        self._taken.append(_Taken(token, before, matched))

    def _closes(self, token: int) -> bool:
        """Whether the reasoning's closing tag ends in `token`."""
        text = self._vocabulary.bytes_of(token)
        before = b"".join(self._vocabulary.bytes_of(taken.token) for taken in self._taken[1 - len(self._close) :])
        return self._close in before[len(before) - len(self._close) + 1 :] + text

    def _allowed_besides(self) -> Iterable[int]:
        """Tokens that may come next though the grammar does not know them."""
        if self._stage is Stage.START and self._open_id is not None:
            return (self._open_id,)
        if self._stage is Stage.BEHIND_REASONING:
            breaks = takewhile(lambda taken: taken.stage is Stage.BEHIND_REASONING, reversed(self._taken))
            return self._vocabulary.breaks if len(list(breaks)) < MAX_BREAKS else ()
        return ()


@dataclass(frozen=True, slots=True)
class _Taken:
    token: int
    stage: Stage  # before it
    matched: bool  # by the grammar
