"""The text side of one answer: sampled token ids in, text to send out, and the word when a stop string ends it."""

from typing import NamedTuple

from svc.http.text.detokenizer import Detokenizer
from svc.http.text.stop_strings import StopChecker
from svc.http.text.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """`text` follows what came before (often empty); `stopped`: a stop string was found, the answer's text is complete."""

    text: str
    stopped: bool


class AnswerText:
    """Called for every sampled token while a step is committed: a microsecond or two, no I/O."""

    def __init__(
        self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), *, min_tokens: int = 0, show_control: bool = False
    ) -> None:
        """A stop string counts only where all of it lies in text behind the first `min_tokens` tokens."""
        self._detokenizer = Detokenizer(tokenizer, show_control=show_control)
        self._checker = StopChecker(stop)
        self._unchecked_tokens = min_tokens

    @property
    def stop_hit(self) -> str | None:
        """The stop string that ended the answer, or None."""
        return self._checker.hit

    def push(self, token_id: int) -> TextDelta:
        """Take the next token. After a stop nothing more comes out."""
        text = self._detokenizer.push(token_id)
        if self._unchecked_tokens > 0:
            self._unchecked_tokens -= 1
            return TextDelta(text, False)
        if not text and self._checker.hit is None:
            return TextDelta("", False)
        shown, hit = self._checker.push(text)
        return TextDelta(shown, hit is not None)

    def flush(self) -> TextDelta:
        """The answer has ended otherwise: the rest of the text. An incomplete character becomes U+FFFD."""
        shown, hit = self._checker.push(self._detokenizer.flush())
        rest, hit = self._checker.flush()
        return TextDelta(shown + rest, hit is not None)
