"""Token ids to text, one token at a time: a character comes out when its last byte is there."""

import codecs
from collections.abc import Container

from svc.http.text.tokenizer import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """What all `push` and the final `flush` return, joined, is what `Tokenizer.decode` gives for the same ids.

    Control tokens (`<|im_end|>`) have no text unless `show_control` or they are `shown`; user-defined ones (`<think>`) do.
    """

    def __init__(self, tokenizer: Tokenizer, *, show_control: bool = False, shown: Container[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._bytes = tokenizer.shown_bytes(show_control=show_control)
        self._shown = shown
        self._decoder = _new_decoder("replace")
        self._inside = False  # a character that is not complete

    def push(self, token_id: int) -> str:
        """Text that `token_id` completes, often empty. An id beyond the vocabulary (a padded output row) has no text."""
        if not 0 <= token_id < len(self._bytes):
            return ""
        if token_id in self._shown:
            return self._decoder.decode(self._tokenizer.token_bytes(token_id))
        data = self._bytes[token_id]
        if not self._inside and data.isascii():  # mostly; it spares the decoder, which is in Python
            return data.decode("ascii")
        text = self._decoder.decode(data)
        self._inside = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """Text for bytes of a character that was never completed; nothing may be pushed afterwards."""
        return self._decoder.decode(b"", True)
