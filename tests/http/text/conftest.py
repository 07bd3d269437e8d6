"""Vocabularies of real and tiny models as plain metadata (see tests/data/vocab), and tokenizers built from them once."""

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from svc.http.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[2] / "data"


def _metadata(name: str, pre: str) -> dict[str, Any]:
    """GGUF metadata from the compact form: the 256 byte tokens, then one token per merge, then the added ones."""
    stored = json.loads(lzma.decompress((DATA / "vocab" / f"{name}.json.xz").read_bytes()))
    merged = ["".join(merge.split(" ", 1)) for merge in stored["merges"]]
    plain = [*stored["byte_tokens"], *merged]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": plain + [text for text, _ in stored["added"]],
        "tokenizer.ggml.token_type": [1] * len(plain) + [kind for _, kind in stored["added"]],
        "tokenizer.ggml.merges": stored["merges"],
        **{f"tokenizer.ggml.{key}": value for key, value in stored["ids"].items()},
    }


@pytest.fixture(scope="session")
def metadata() -> Callable[[str, str], dict[str, Any]]:
    """(`qwen2` | `tiny`, pre-tokenizer) -> GGUF metadata of that vocabulary."""
    return _metadata


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The vocabulary of the tiny qwen35 models."""
    return Tokenizer.from_metadata(_metadata("tiny", "qwen35"))


@pytest.fixture(scope="session")
def fixture_template() -> str:
    """The chat template inside the tiny models' files."""
    return (DATA / "text" / "fixture-chat-template.jinja").read_text()


@pytest.fixture(scope="session")
def strict_template() -> str:
    """A template with the habits of the Qwen3.5 family: see the comment at its top."""
    return (DATA / "text" / "strict-chat-template.jinja").read_text()
