"""Reasoning: the tags around it, and the fields of an answer that carry it."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What a model writes around its reasoning."""

    open: str = "<think>"
    close: str = "</think>"

    def left_open_by(self, prompt: str) -> bool:
        """Whether an answer to `prompt` begins inside of reasoning."""
        return prompt.rfind(self.open) > prompt.rfind(self.close)


class ReasoningField(Enum):
    """The names of the field of a message that carries reasoning: servers disagree, and clients with them."""

    REASONING_CONTENT = ("reasoning_content",)
    REASONING = ("reasoning",)
    BOTH = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """What becomes of reasoning: `parted` from the content or left in it, tags and all; `kept`: both."""

    parted: bool
    kept: bool = False


# llama-server's names.
REASONING_FORMATS = {
    "none": ReasoningFormat(parted=False, kept=True),
    "deepseek": ReasoningFormat(parted=True),
    "deepseek-legacy": ReasoningFormat(parted=True, kept=True),
    "auto": ReasoningFormat(parted=True),
}
