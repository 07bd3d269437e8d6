"""The longest prompt allowed, checked before each step of work on a prompt that may be too long."""

from collections.abc import Iterable
from dataclasses import dataclass

from svc.errors import context_exceeded


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """At most `tokens` of them; `param` names the field that holds the prompt."""

    tokens: int
    param: str

    def check(self, at_least: int) -> None:
        """RequestError when a prompt of at least that many tokens is too long. Clients know it by its first words."""
        if at_least > self.tokens:
            raise context_exceeded(self.tokens, self.param, at_least, param=self.param, at_least=True)

    def extend(self, ids: list[int], parts: Iterable[list[int]]) -> None:
        """Appends the parts to `ids`; stops with a RequestError once there are too many."""
        for part in parts:
            ids += part
            self.check(len(ids))
