"""The longest that an answer may reason: at the budget, the tag that ends reasoning is forced."""

from collections.abc import Callable
from copy import copy
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]  # bit i % 32 of word i // 32: whether token i is allowed


class InnerConstraint(Protocol):
    """What else the tokens of the answer must obey."""

    def accept(self, token: int) -> None: ...

    def forced_after(self, token: int) -> list[int]: ...

    def mask(self) -> Words | None: ...

    def fork(self) -> "InnerConstraint": ...


class ThinkingBudget:
    """One answer's `slots.request.Constraint`. Reasoning has at most `budget` tokens, the tags around it not counted."""

    def __init__(
        self,
        budget: int,
        *,
        close: list[int],
        open_id: int | None,
        inside: bool,
        num_tokens: int,
        closes: Callable[[list[int]], bool],
        inner: InnerConstraint | None = None,
    ) -> None:
        """`close`: the tokens of the closing tag. `inside`: the prompt has opened the reasoning; else `open_id` does, if it comes
        first. `closes`: whether the closing tag ends in the last of these tokens. `num_tokens`: the size of a mask.
        """
        self._budget = budget
        self._close = close
        self._open_id = open_id
        self._num_tokens = num_tokens
        self._closes = closes
        self._inner = inner
        self._reasoning: list[int] | None = [] if inside else None  # the tokens of it; None: not in it
        self._may_open = not inside and open_id is not None
        self._num_forced = 0

    def fork(self) -> "ThinkingBudget":
        """A copy that goes its own way."""
        fork = copy(self)
        fork._inner = self._inner.fork() if self._inner is not None else None
        fork._reasoning = None if self._reasoning is None else self._reasoning.copy()
        return fork

    def accept(self, token: int) -> None:
        if self._inner is not None:
            self._inner.accept(token)
        if self._may_open:
            self._may_open = False
            if token == self._open_id:
                self._reasoning = []
        elif self._reasoning is not None:
            if len(self._reasoning) >= self._budget:
                self._num_forced += 1
            self._reasoning.append(token)
            if self._num_forced == len(self._close) or self._closes(self._reasoning):
                self._reasoning = None

    def forced_after(self, token: int) -> list[int]:
        """What the inner constraint says: reasoning forces nothing."""
        return self._inner.forced_after(token) if self._inner is not None else []

    def mask(self) -> Words | None:
        """The next token of the closing tag once the budget is used up."""
        if self._reasoning is None or len(self._reasoning) < self._budget:
            return self._inner.mask() if self._inner is not None else None
        token = self._close[self._num_forced]
        words = np.zeros(-(-self._num_tokens // 32), np.uint32)
        words[token // 32] = np.uint32(1) << np.uint32(token % 32)
        return words
