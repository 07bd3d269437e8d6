"""The text side of one answer: sampled token ids in, parts to send out, and the stop string that ends it.

A token passes the detokenizer, the stop strings, and a parser where the answer may have parts other than content. Each may hold
text back; none of them sees text that an earlier one still holds.
"""

from collections.abc import Container, Sequence
from typing import Protocol

from svc.http.text.answer_parts import ContentText, Part
from svc.http.text.detokenizer import Detokenizer
from svc.http.text.indentation import IndentationCheck
from svc.http.text.stop_strings import StopChecker, StopStrings
from svc.http.text.tokenizer import Tokenizer


class TextParser(Protocol):
    """Divides one answer's text into parts. It decides on the text alone, never on where a piece of it ends."""

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends in reasoning."""

    @property
    def num_calls(self) -> int:
        """Tool calls begun."""

    @property
    def has_all_calls(self) -> bool:
        """Whether the last call that the answer may have has ended."""

    def push(self, text: str) -> Sequence[Part]:
        """Takes the next text; gives the parts that are certain now."""

    def end(self) -> Sequence[Part]:
        """The text has ended: the rest of the parts."""


class AnswerText:
    """Called for every sampled token while a step is committed: a microsecond or two, no I/O."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: StopStrings | None = None,
        *,
        min_tokens: int = 0,
        show_control: bool = False,
        parser: TextParser | None = None,
        shown: Container[int] = (),
        min_indent: int = 0,
    ) -> None:
        """A stop string counts only where all of it lies behind the first `min_tokens` tokens.

        It may spell control tokens, which have no text in the answer unless `show_control`, or if they are `shown`: the tags that
        the parser looks for. Without a `parser` all is content. `min_indent`: the white space that lines begin with, but the first.
        """
        self._detokenizer = Detokenizer(tokenizer, show_control=show_control, shown=shown)
        self._checker = StopChecker(stop) if stop is not None else None
        self._spellings = {} if show_control else tokenizer.control_spellings
        self.has_new_line = False  # in the text that came out
        self.reasoning_tokens = 0  # those in which the answer was reasoning, its tags included
        self._unchecked_tokens = min_tokens
        self._parser = parser
        self._indentation = IndentationCheck(min_indent) if min_indent else None

    @property
    def stop_hit(self) -> str | None:
        """The stop string that ended the answer: its text is complete, nothing more comes out."""
        return self._checker.hit if self._checker else None

    @property
    def has_left_block(self) -> bool:
        """Whether a line was not indented enough: nothing more comes out."""
        return self._indentation is not None and self._indentation.hit

    @property
    def complete(self) -> bool:
        """Whether the answer ends here: at a stop string, at a line, or with all the tool calls that it may have."""
        checker, parser = self._checker, self._parser
        if self.has_left_block:
            return True
        return (checker is not None and checker.hit is not None) or (parser is not None and parser.has_all_calls)

    @property
    def num_calls(self) -> int:
        """Tool calls that it has, the one under way included."""
        return self._parser.num_calls if self._parser else 0

    @property
    def has_all_calls(self) -> bool:
        """Whether it has as many tool calls as it may have: what follows would be left out."""
        return self._parser is not None and self._parser.has_all_calls

    def push(self, token_id: int) -> Sequence[Part]:
        """Takes the next token."""
        parser = self._parser
        if parser is None:
            return self._push(token_id)
        was_reasoning = parser.in_reasoning
        parts = self._push(token_id)
        self.reasoning_tokens += was_reasoning or parser.in_reasoning
        return parts

    def _push(self, token_id: int) -> Sequence[Part]:
        text = self._detokenizer.push(token_id)
        if self._checker is None:
            return self._parts(text)
        if self._unchecked_tokens > 0:
            self._unchecked_tokens -= 1
            return self._parts(text)
        return self._parts(self._checker.push(text, hidden=self._spellings.get(token_id, "")))

    def flush(self) -> Sequence[Part]:
        """The answer has ended: the rest of the text, if no stop string has cut it off. An incomplete character becomes U+FFFD."""
        text = self._detokenizer.flush()
        if self._checker is not None:
            text = self._checker.push(text) + self._checker.flush()
        parts = self._parts(text)
        return parts if self._parser is None else [*parts, *self._parser.end()]

    def _parts(self, text: str) -> Sequence[Part]:
        if self._indentation is not None:
            text = self._indentation.push(text)
        if not text:
            return ()
        self.has_new_line = self.has_new_line or "\n" in text
        return (ContentText(text),) if self._parser is None else self._parser.push(text)
