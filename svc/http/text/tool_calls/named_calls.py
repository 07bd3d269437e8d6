"""A call whose arguments follow its name: `get_weather[ARGS]{"city": "Oslo"}`."""

import re

from svc.http.text.answer_parts import CallWriter
from svc.http.text.incremental import Parse, Reader
from svc.http.text.tool_calls.json_value import pass_value

_NAME_END = re.compile(r"[^\w.:/-]")
_MAX_BETWEEN = 120  # characters between a name and its arguments: the tag, and with some models a call's id


class NamedCall:
    """Reads one such call, its name ahead. `between`: the tag behind the name, which may be missing. `tags` end a broken call."""

    def __init__(self, reader: Reader, writer: CallWriter, between: str, tags: tuple[str, ...]) -> None:
        self._reader = reader
        self._writer = writer
        self._between = re.compile(rf"\s*(?:\S*{re.escape(between)}\s*)?")
        self._tags = tags

    def read(self) -> Parse[bool]:
        """False if this is no call: then nothing was written. True also where the text ends before that is known."""
        name: list[str] = []
        yield from self._reader.pass_until(_NAME_END, name.append)
        brace = yield from self._brace()
        if brace is None:
            self._reader.take_all()
            return True
        if not name or brace < 0 or not self._between.fullmatch(self._reader.take(brace)):
            return False
        self._reader.forget_mark()
        self._writer.call("".join(name))
        self._writer.end_call(complete=(yield from pass_value(self._reader, self._writer.arguments, self._tags)))
        return True

    def _brace(self) -> Parse[int | None]:
        """How far ahead the arguments begin; -1: not near, None: the text ends before."""
        for at in range(_MAX_BETWEEN):
            char = yield from self._reader.char(at)
            if char in ("", "{"):
                return at if char else None
        return -1
