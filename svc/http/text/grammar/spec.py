"""What the text of an answer must be, as a client writes it down."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from svc.errors import RequestError

MAX_SPEC_CHARS = 128 * 1024
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class Notation(Enum):
    """How it is written down."""

    JSON_SCHEMA = "JSON schema"
    REGEX = "regular expression"
    GBNF = "grammar"  # llama.cpp's
    LARK = "Lark grammar"  # llguidance's


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """`text` in its `notation`; a schema is JSON text."""

    notation: Notation
    text: str

    def __post_init__(self) -> None:
        if len(self.text) > MAX_SPEC_CHARS:
            raise RequestError(f"the {self.notation.value} is longer than {MAX_SPEC_CHARS} characters")


def schema_spec(schema: Any) -> GrammarSpec:
    """Answers in JSON that fits `schema`. RequestError if that is not an object."""
    if not isinstance(schema, Mapping):
        raise RequestError("a JSON schema must be an object")
    return GrammarSpec(Notation.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))


def choice_spec(choices: Sequence[Any]) -> GrammarSpec:
    """Answers that are one of `choices`."""
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise RequestError("choices must be strings, at least one, none of them empty")
    return GrammarSpec(Notation.REGEX, "|".join(map(regex_literal, choices)))


def regex_literal(text: str) -> str:
    """A regular expression that matches `text` alone."""
    return "".join(char if char.isalnum() and char.isascii() else f"\\x{{{ord(char):X}}}" for char in text)
