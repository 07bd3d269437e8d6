"""The cases to measure, one per row of the table, from lists of sizes."""

from collections.abc import Iterator
from dataclasses import dataclass

from svc.errors import ConfigError

MOST_TOKENS = 2**24  # as for `ctx`


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    prompt: int = 0  # tokens evaluated; 0: generation is measured
    generate: int = 0  # tokens of each sequence, one a step
    batch: int = 1
    depth: int = 0  # tokens before, evaluated before the round

    @property
    def name(self) -> str:
        what = f"prompt {self.prompt}" if self.prompt else f"generate {self.generate}"
        return what + (f" x {self.batch}" if self.batch > 1 else "") + (f" behind {self.depth}" if self.depth else "")

    @property
    def row_tokens(self) -> int:
        """Length of its longest sequence."""
        return self.depth + max(self.prompt, 1) + self.generate + 1


def numbers(flag: str, text: str, *, least: int = 0, most: int = MOST_TOKENS) -> list[int]:
    """Parses "1,2,4" into rising numbers without repeats; ConfigError naming the flag."""
    words = [word.strip() for word in text.split(",")]
    found = sorted({int(word) for word in words}) if all(word.isdecimal() and word.isascii() for word in words) else []
    if not found or found[0] < least or found[-1] > most:
        raise ConfigError(f"{flag} must be whole numbers from {least} to {most} with commas between, not {text!r}")
    return found


def one_number(flag: str, text: str, *, least: int, most: int) -> int:
    if not (text.isdecimal() and text.isascii() and least <= int(text) <= most):
        raise ConfigError(f"{flag} must be a whole number from {least} to {most}, not {text!r}")
    return int(text)


def wanted_cases(prompts: list[int], generates: list[int], batches: list[int], depths: list[int]) -> Iterator[Case]:
    """The cases in the order of the table: prompts, and single answers if 1 is among the batches, at every depth; batches at the
    smallest depth (usually 0). A size of 0 leaves its cases out."""
    for depth in depths:
        yield from (Case(prompt=prompt, depth=depth) for prompt in prompts if prompt)
        yield from (Case(generate=generate, depth=depth) for generate in generates if generate and 1 in batches)
    for batch in batches:
        yield from (Case(generate=generate, batch=batch, depth=depths[0]) for generate in generates if generate and batch > 1)
