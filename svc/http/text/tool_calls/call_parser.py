"""The content of an answer parted into text and tool calls, as it comes."""

from svc.http.text.answer_parts import CallWriter
from svc.http.text.incremental import Markers, Parse, Reader
from svc.http.text.tool_calls.call_format import FUNCTION_TAG, Body, CallFormat
from svc.http.text.tool_calls.json_calls import JsonCall
from svc.http.text.tool_calls.named_calls import NamedCall
from svc.http.text.tool_calls.offered_tools import OfferedTools
from svc.http.text.tool_calls.xml_calls import XmlCall

_PYTHON_TAG = "<|python_tag|>"  # in front of a bare JSON call, if the model likes
_BETWEEN_CALLS = ",;}"
# What models put around a JSON call in place of the tags that their template has; Qwen2.5-Coder nearly always does.
_WRAPPERS = {"```json": "```", "<tools>": "</tools>"}


class CallParser:
    """One answer's parser; what it finds goes to `writer`. Any text may be pushed, in any pieces.

    Models mix formats up: behind a tag, JSON and XML are both read. Without the tag, XML is if it names an offered tool, and so is
    JSON at the beginning of the answer or in one of the usual wrappers.
    What turns out to be no call is text, its tags included. A call that the end cuts off has the arguments written so far.
    """

    def __init__(self, form: CallFormat, tools: OfferedTools, writer: CallWriter) -> None:
        self._form = form
        self._tools = tools
        self._writer = writer
        self._reader = Reader()
        self._tag = form.open_tag
        self._is_json = form.body is Body.JSON
        self._wrappers = _WRAPPERS if self._is_json else {}
        opening = self._tag or (_PYTHON_TAG if self._is_json else "")
        self._openers = tuple(tag for tag in (opening, FUNCTION_TAG if form.body is Body.XML else "") if tag)
        self._marks = Markers(*self._openers, *form.outer_tags, *self._wrappers)
        self._tags = tuple(tag for tag in (form.close_tag, opening) if tag)  # they end a broken call
        self._in_list = False
        self._parsing = self._answer()
        next(self._parsing)

    @property
    def position(self) -> int:
        """How many characters are dealt with: written, or known to be markup."""
        return self._reader.position

    def push(self, text: str) -> None:
        if text:
            self._reader.feed(text)
            next(self._parsing)

    def end(self) -> None:
        """The answer has ended."""
        self._reader.end()
        next(self._parsing, None)

    def _answer(self) -> Parse[None]:
        if self._is_json:
            yield from self._bare_calls()
        while (tag := (yield from self._reader.until(self._marks, self._writer.text))) is not None:
            if tag in self._openers:
                yield from self._calls_behind(tag)
            elif tag in self._wrappers:
                yield from self._wrapped_calls(tag)
            else:
                self._reader.take(len(tag))

    def _bare_calls(self) -> Parse[None]:
        """Only at the beginning of an answer, and only of offered tools: an answer may be JSON as well."""
        self._reader.mark()
        yield from self._reader.skip_space()
        if (yield from self._reader.char()) == "{" and (yield from self._call("")):
            yield from self._further_calls("")
        else:
            self._reader.back()

    def _wrapped_calls(self, opener: str) -> Parse[None]:
        """Only of offered tools; anything else in the wrapper is text, the wrapper too."""
        reader = self._reader
        reader.mark()
        reader.take(len(opener))
        yield from reader.skip_space()
        if (yield from reader.char()) == "{" and (yield from self._call("")):
            yield from self._further_calls("")
            at = yield from reader.space_end()
            closer = self._wrappers[opener]
            if (yield from reader.starts(closer, at=at)):
                reader.take(at + len(closer))
        else:
            reader.back()
            self._writer.text(reader.take(len(opener)))

    def _calls_behind(self, tag: str) -> Parse[None]:
        self._reader.mark()
        self._reader.take(len(tag))
        if tag == FUNCTION_TAG:
            is_call = yield from self._xml_call(offered_only=True)
        elif self._form.body is Body.NAMED:
            is_call = yield from self._named_call()
        else:
            is_call = yield from self._call(tag)
        if is_call:
            yield from self._further_calls(tag)
        else:
            self._reader.back()
            self._writer.text(self._reader.take(len(tag)))

    def _further_calls(self, tag: str) -> Parse[None]:
        """What follows on a call: its closing tag, or more calls behind the same opening one."""
        reader = self._reader
        while True:
            reader.mark()
            at = yield from self._separators_end()
            end = yield from reader.starts(*self._tags, at=at)
            if end or not (yield from reader.char(at)):
                reader.take(at + len(end or "") if end == self._form.close_tag else at)
                reader.forget_mark()
                return
            reader.take(at)
            if not (yield from self._call(tag)):
                reader.back()
                return

    def _separators_end(self) -> Parse[int]:
        """How far ahead anything but separators begins. The bracket that ends a list of calls is taken."""
        at = 0
        while True:
            at = yield from self._reader.space_end(at)
            char = yield from self._reader.char(at)
            if char == "]" and self._in_list:
                self._in_list = False
                self._reader.take(at + 1)
                self._reader.mark()
                at = 0
            elif char and char in _BETWEEN_CALLS:
                at += 1
            else:
                return at

    # -- one call: False if there is none, True too where the text ends before that shows -----------------------------------------
    def _call(self, tag: str) -> Parse[bool]:
        """JSON or XML. Without a `tag` in front, only of offered tools."""
        reader = self._reader
        yield from reader.skip_space()
        char = yield from reader.char()
        if char == "[" and not self._in_list:
            self._in_list = True
            reader.take(1)
            yield from reader.skip_space()
            char = yield from reader.char()
        if char == "{":
            if (yield from reader.char(1)) == "{":  # Qwen2.5-Coder, whose template shows calls so
                reader.take(1)
            return (yield from JsonCall(reader, self._writer, self._tags, None if tag else self._tools).read())
        if (yield from reader.starts(FUNCTION_TAG)):
            reader.take(len(FUNCTION_TAG))
            return (yield from self._xml_call(offered_only=not tag))
        if not (yield from reader.may_start(FUNCTION_TAG)):
            return False
        reader.take_all()
        return True

    def _xml_call(self, *, offered_only: bool) -> Parse[bool]:
        call = XmlCall(self._reader, self._writer, self._tools, self._tag, self._form.close_tag)
        return (yield from call.read(offered_only=offered_only))

    def _named_call(self) -> Parse[bool]:
        yield from self._reader.skip_space()
        return (yield from NamedCall(self._reader, self._writer, self._form.between.strip(), self._tags).read())
