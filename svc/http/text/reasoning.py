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


class ReasoningFormat(Enum):
    """What becomes of an answer's reasoning."""

    PARTED = "parted"  # it has fields of its own
    IN_CONTENT = "in content"  # it stays there, tags and all
    BOTH = "both"  # it has fields of its own, and is in the content of chats too, between its tags


# llama-server's names.
REASONING_FORMATS = {
    "auto": ReasoningFormat.PARTED,
    "deepseek": ReasoningFormat.PARTED,
    "deepseek-legacy": ReasoningFormat.BOTH,
    "none": ReasoningFormat.IN_CONTENT,
}

# The fields of a message that carry reasoning, by the setting's value: servers disagree on the name, and clients with them.
REASONING_FIELDS = {
    "both": ("reasoning_content", "reasoning"),
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "none": (),
}
