"""A call written as a JSON object: `{"name": "f", "arguments": {"x": 1}}`, or with "parameters" in place of "arguments".

The arguments are passed on as the model writes them, valid or not; nothing of the rest of the object is.
"""

from collections.abc import Container

from svc.http.text.answer_parts import CallWriter
from svc.http.text.incremental import Parse, Reader
from svc.http.text.tool_calls.json_value import pass_value, read_string

_NAME = "name"
_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("id", "type")


class JsonCall:
    """Reads one such object, the brace ahead. `tags` end it where it is broken.

    `only`: it is a call only if it names one of these tools and has arguments, and no member that calls do not have. Then a JSON
    answer is not mistaken for one. None: what has a name is a call.
    """

    def __init__(self, reader: Reader, writer: CallWriter, tags: tuple[str, ...], only: Container[str] | None = None) -> None:
        self._reader = reader
        self._writer = writer
        self._tags = tags
        self._only = only
        self._name: str | None = None
        self._held: list[str] = []  # arguments that came before the name
        self._has_arguments = False
        self._started = False

    def read(self) -> Parse[bool]:
        """False if the object is no call: then nothing was written. True also where the text ends before that is known."""
        self._reader.take(1)
        whole = yield from self._members()
        if not self._started:
            return self._only is None and not (yield from self._reader.char())
        if whole and not self._has_arguments:
            self._writer.arguments("{}")
        self._writer.end_call(complete=whole)
        return True

    def _members(self) -> Parse[bool]:
        """True if the object is read to its closing brace."""
        reader = self._reader
        while True:
            yield from reader.skip_space()
            char = yield from reader.char()
            if char == "}":
                reader.take(1)
                return True
            if char == ",":
                reader.take(1)
            elif char != '"' or not (yield from self._member()):
                return False

    def _member(self) -> Parse[bool]:
        reader = self._reader
        key = yield from read_string(reader, self._tags)
        yield from reader.skip_space()
        if key is None or (yield from reader.char()) != ":":
            return False
        reader.take(1)
        yield from reader.skip_space()
        if key == _NAME and self._name is None:
            return (yield from self._read_name())
        if key in _ARGUMENTS and not self._has_arguments:
            return (yield from self._read_arguments())
        if self._only is not None and not self._started and key not in _OTHERS:
            return False
        return (yield from pass_value(reader, _ignore, self._tags))

    def _read_name(self) -> Parse[bool]:
        if (yield from self._reader.char()) != '"':
            return False
        name = yield from read_string(self._reader, self._tags)
        if not name or (self._only is not None and name not in self._only):
            return False
        self._name = name
        if self._only is None or self._has_arguments:
            self._start(name)
        return True

    def _read_arguments(self) -> Parse[bool]:
        self._has_arguments = True
        if self._name is not None and not self._started:
            self._start(self._name)
        char = yield from self._reader.char()
        if char and char in "{[":
            return (yield from pass_value(self._reader, self._write, self._tags))
        if char == '"':  # the object's text in a string
            text = yield from read_string(self._reader, self._tags)
            self._write(text if text else "{}" if text is not None else "")
            return text is not None
        pieces: list[str] = []
        ended = yield from pass_value(self._reader, pieces.append, self._tags)
        text = "".join(pieces)
        self._write("{}" if text in ("", "null") and ended else text)
        return ended

    def _start(self, name: str) -> None:
        self._started = True
        self._reader.forget_mark()
        self._writer.call(name)
        self._writer.arguments("".join(self._held))

    def _write(self, text: str) -> None:
        if self._started:
            self._writer.arguments(text)
        else:
            self._held.append(text)


def _ignore(text: str) -> None:
    pass
