"""A call written as Qwen's XML: `<function=f>`, `<parameter=x>`, value, `</parameter>`, `</function>`, tags on lines of their own.

Values are not escaped, so a value may contain the very tags that end it. One line break on each side of a value is markup; a value
that begins behind a line break ends at a tag that begins a line or ends one. Tags elsewhere in it are text.
"""

from svc.http.text.answer_parts import CallWriter
from svc.http.text.incremental import Markers, Parse, Reader
from svc.http.text.tool_calls.argument_types import ArgumentType
from svc.http.text.tool_calls.call_format import FUNCTION_TAG
from svc.http.text.tool_calls.json_text import json_string
from svc.http.text.tool_calls.json_value import pass_value
from svc.http.text.tool_calls.offered_tools import OfferedTools

_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"
_END_FUNCTION = "</function>"
_ANY_TAG = Markers("<")
_PERHAPS_END = Markers("\r\n<", "\n<", "<")
_AROUND_NAMES = " \t\"'"


class XmlCall:
    """Reads one such call, the text behind `<function=` ahead. `open_tag` and `close_tag` are around it; they may be empty."""

    def __init__(self, reader: Reader, writer: CallWriter, tools: OfferedTools, open_tag: str, close_tag: str) -> None:
        self._reader = reader
        self._writer = writer
        self._tools = tools
        self._next_tags = tuple(tag for tag in (close_tag, open_tag, FUNCTION_TAG) if tag)  # what may follow on a call
        self._tool = ""
        self._keys: set[str] = set()

    def read(self, *, offered_only: bool) -> Parse[bool]:
        """False if this is no call: then nothing was written. True also where the text ends before that is known."""
        name_end = yield from self._reader.line_until(">")
        if name_end is None:
            self._reader.take_all()
            return True
        self._tool = self._reader.take(max(0, name_end)).strip(_AROUND_NAMES)
        if not self._tool or (offered_only and self._tool not in self._tools):
            return False
        self._reader.take(1)
        self._reader.forget_mark()
        self._writer.call(self._tool)
        self._writer.end_call(complete=(yield from self._arguments()))
        return True

    def _arguments(self) -> Parse[bool]:
        """False if the text ends in them."""
        yield from self._reader.skip_space()
        if (yield from self._reader.char()) == "{":
            whole = yield from pass_value(self._reader, self._writer.arguments, self._next_tags)
            return (yield from self._to_end(parameters=False)) and whole
        if not (yield from self._to_end(parameters=True)):
            return False
        self._writer.arguments("}" if self._keys else "{}")
        return True

    def _to_end(self, *, parameters: bool) -> Parse[bool]:
        """Reads `parameters` up to the end of the call, and drops other text; False if the text ends before."""
        reader = self._reader
        while (yield from reader.until(_ANY_TAG, _ignore)):
            tag = yield from reader.starts(_PARAMETER, _END_FUNCTION, *self._next_tags)
            if tag == _END_FUNCTION:
                reader.take(len(tag))
            if tag is not None and tag != _PARAMETER:
                return True
            reader.take(1)
            if tag and parameters and not (yield from self._parameter()):
                return False
        return False

    def _parameter(self) -> Parse[bool]:
        """One parameter, from behind the `<` of its tag; False if the text ends in it."""
        key_end = yield from self._reader.line_until(">")
        if key_end is None:
            return False
        if key_end < 0:
            return True  # a broken tag: dropped as other text is
        key = self._key(key_end)
        self._reader.take(key_end + 1)
        if key in self._keys:  # what was sent of the first cannot be taken back
            return (yield from self._value(_Value(None, ArgumentType())))
        self._writer.arguments(("{" if not self._keys else ", ") + json_string(key) + ": ")
        self._keys.add(key)
        return (yield from self._value(_Value(self._writer, self._tools.argument_type(self._tool, key))))

    def _key(self, end: int, at: int = 0) -> str:
        """The parameter named in the tag that begins (but for its `<`) `at` characters ahead."""
        return self._reader.peek(at + len(_PARAMETER) - 1, end).strip(_AROUND_NAMES)

    def _value(self, value: "_Value") -> Parse[bool]:
        """False if the text ends in it."""
        reader = self._reader
        line_break = yield from reader.starts("\r\n", "\n")
        if line_break:
            reader.take(len(line_break))
        while (stop := (yield from reader.until(_PERHAPS_END, value.text))) is not None:
            indent = len(stop) - 1
            end = yield from self._end_of_value(indent, free=not line_break or indent > 0 or value.is_empty)
            if end is not None:
                reader.take(end)
                value.close()
                return True
            value.text(reader.take(len(stop)))
        value.break_off()
        return False

    def _end_of_value(self, indent: int, *, free: bool) -> Parse[int | None]:
        """How much to take if the value ends at the tag `indent` characters ahead, else None. `free`: tags may be at this place."""
        reader = self._reader
        tag = yield from reader.starts(_END_PARAMETER, _PARAMETER, _END_FUNCTION, *self._next_tags, at=indent)
        if tag is None:
            return None
        behind = indent + len(tag)
        following = yield from reader.space_end(behind)
        if tag == _END_PARAMETER and (free or "\n" in reader.peek(behind, following)):
            followed = yield from reader.may_start(_PARAMETER, _END_FUNCTION, *self._next_tags, at=following)
            return behind if followed else None
        if not free:
            return None
        if tag == _PARAMETER:  # the end of the value is missing, if this is the next parameter
            key_end = yield from reader.line_until(">", at=behind)
            key = self._key(key_end, indent + 1) if key_end is not None and key_end >= 0 else ""
            return indent if key not in self._keys and self._tools.has_parameter(self._tool, key) else None
        return indent if (yield from reader.may_start(*self._next_tags, at=following)) else None


class _Value:
    """Writes one argument: text as it comes, anything else at its end. `writer` None: nowhere."""

    def __init__(self, writer: CallWriter | None, kind: ArgumentType) -> None:
        self._writer = writer
        self._kind = kind
        self._held: list[str] = []
        self._opened = False  # a JSON string is being written
        self.is_empty = True

    def text(self, text: str) -> None:
        self.is_empty = False
        if self._opened:
            self._write(json_string(text)[1:-1])
            return
        self._held.append(text)
        if self._kind.is_text and not self._kind.may_be_null("".join(self._held)):
            self._open()

    def close(self) -> None:
        self._write('"' if self._opened else self._kind.to_json("".join(self._held)))

    def break_off(self) -> None:
        """The text has ended: nothing is closed, so that nobody takes the arguments for complete."""
        if self._kind.is_text and not self._opened:
            self._open()
        elif not self._opened:
            self._write("".join(self._held))

    def _open(self) -> None:
        self._opened = True
        self._write(json_string("".join(self._held))[:-1])

    def _write(self, text: str) -> None:
        if self._writer is not None:
            self._writer.arguments(text)


def _ignore(text: str) -> None:
    pass
