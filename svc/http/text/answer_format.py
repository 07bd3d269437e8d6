"""How a model writes reasoning and tool calls, learned from its chat template by rendering known ones and looking at the text."""

import json
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from svc.errors import RequestError
from svc.http.text.answer_parser import AnswerParser
from svc.http.text.answer_parts import CallArguments, CallEnd, CallStart, ContentText
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.reasoning import ReasoningTags
from svc.http.text.tokenizer import CONTROL_SHAPE
from svc.http.text.tool_calls.call_format import FUNCTION_TAG, Body, CallFormat
from svc.http.text.tool_calls.offered_tools import OfferedTools

_NAMES = ("probe_first", "probe_second")
_IDS = ("probecal0", "probecal1")
_ARGUMENTS = {"probe_key": "probe_value"}
_REASONING = "probe_reasoning"
_USER = {"role": "user", "content": "probe_user"}
_TOOL = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_XML_ARGUMENTS = re.compile(r"<parameter=probe_key>\s*probe_value\s*</parameter>\s*")
_OBJECT_NAME = re.compile(r'\{[^{}]*"name"\s*:\s*"$')
_USUAL_TAGS = (ReasoningTags(), ReasoningTags("[THINK]", "[/THINK]"))
_PIECE = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|.", re.DOTALL)
_TAG_BEFORE = re.compile(r"(<[^<>\s]+>|\[[^\[\]\s]+\])\s*$")


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """None: the template knows of no such thing."""

    reasoning: ReasoningTags | None
    calls: CallFormat | None

    @property
    def tags(self) -> frozenset[str]:
        """The tags that answers have in them, tokens of their own in most vocabularies."""
        texts = [self.reasoning.open, self.reasoning.close] if self.reasoning else []
        if self.calls:
            form = self.calls
            texts += [form.open, form.between, form.close, form.separator, form.first, form.last]
        return frozenset(tag for text in texts for tag in CONTROL_SHAPE.findall(text))


NO_FORMAT = AnswerFormat(None, None)


def answer_format(template: ChatTemplate) -> AnswerFormat:
    """As `template` writes the answers of the past, its model writes new ones."""
    return AnswerFormat(_reasoning_tags(template), _call_format(template))


# -- calls ------------------------------------------------------------------------------------------------------------------------
def _call_format(template: ChatTemplate) -> CallFormat | None:
    one = _rendered_calls(template, 1)
    first = _located(one, 0)
    if first is None:
        return None
    two = _rendered_calls(template, 2)
    second = _located(two, 1)
    form = _without_ids(_from_two(one, first, two, second) if second else _from_one(one, first))
    return form if _reads(form, one) else None


def _rendered_calls(template: ChatTemplate, count: int) -> str:
    """What an answer of `count` calls alone looks like, empty if the template cannot write it."""
    calls = [{"id": _IDS[n], "type": "function", "function": {"name": _NAMES[n], "arguments": _ARGUMENTS}} for n in range(count)]
    try:
        written = _render(template, {"content": "", "tool_calls": calls})
        plain = _render(template, {"content": "probe_content"})
    except RequestError:
        return ""
    before = _shared_prefix(written, plain)
    written, plain = written.removeprefix(before), plain.removeprefix(before)
    return written.removesuffix(_shared_suffix(written, plain))


def _render(template: ChatTemplate, answer: dict[str, Any]) -> str:
    return template.render([_USER, {"role": "assistant", **answer}], tools=[_TOOL], add_generation_prompt=False)


class _Call(NamedTuple):
    """Where a call is in the text: its name begins at `start`, its arguments end at `end`."""

    body: Body
    start: int
    between: str
    end: int


def _located(text: str, index: int) -> _Call | None:
    name = _NAMES[index]
    start = text.find(name)
    if start < 0:
        return None
    head, rest = text[:start], start + len(name)
    if head.endswith(FUNCTION_TAG):
        parameters = _XML_ARGUMENTS.search(text, rest)
        return _Call(Body.XML, start, text[rest : parameters.start()], parameters.end()) if parameters else None
    brace = text.find("{", rest)
    try:
        arguments, end = json.JSONDecoder().raw_decode(text, brace) if brace > 0 else (None, 0)
    except ValueError:
        return None
    if arguments != _ARGUMENTS:
        return None
    return _Call(Body.JSON if _OBJECT_NAME.search(head) else Body.NAMED, start, text[rest:brace], end)


def _from_one(one: str, call: _Call) -> CallFormat:
    """The template writes no more than one call, so what is around all and what is around each cannot be told apart."""
    return CallFormat(call.body, one[: call.start].lstrip(), call.between, one[call.end :].rstrip())


def _from_two(one: str, first: _Call, two: str, second: _Call) -> CallFormat:
    """What is between two calls and also in front of the first opens each call, what is also behind the last closes each."""
    head, tail, joint = one[: first.start], one[first.end :], two[first.end : second.start]
    opening = _shared_suffix(head, joint)
    closing = _shared_prefix(tail, joint.removesuffix(opening))
    bare_opening = opening.lstrip()
    return CallFormat(
        body=first.body,
        open=bare_opening,
        between=first.between,
        close=closing,
        separator=joint[len(closing) :].removesuffix(bare_opening),
        first=head.removesuffix(opening).lstrip(),
        last=tail.removeprefix(closing).rstrip(),
    )


def _without_ids(form: CallFormat) -> CallFormat:
    """Some templates write the ids of calls; the models then make up their own."""
    opening, between, close = form.open, form.between, form.close
    if _IDS[0] in opening:
        opening = opening[: opening.rfind("{", 0, opening.find(_IDS[0]))] + '{"name": "'
    between = between.rpartition(_IDS[0])[2]
    if form.body is Body.JSON and "}" in close:
        close = close[close.index("}") :]
    return CallFormat(form.body, opening, between, close, form.separator, form.first, form.last)


def _reads(form: CallFormat, text: str) -> bool:
    """Whether `form` finds the one call in `text`, and nothing else."""
    parser = AnswerParser(calls=form, tools=OfferedTools([{"name": _NAMES[0]}]))
    parts = [*parser.push(text), *parser.end()]
    names = [part.name for part in parts if isinstance(part, CallStart)]
    arguments = "".join(part.text for part in parts if isinstance(part, CallArguments))
    complete = all(part.complete for part in parts if isinstance(part, CallEnd))
    is_pure = not any(isinstance(part, ContentText) for part in parts)
    return names == [_NAMES[0]] and complete and is_pure and json.loads(arguments) == _ARGUMENTS


# -- reasoning --------------------------------------------------------------------------------------------------------------------
def _reasoning_tags(template: ChatTemplate) -> ReasoningTags | None:
    """The tags that the template writes around reasoning; where it leaves out that of the past, usual ones that it speaks of."""
    written = _written_tags(template)
    if written:
        return written
    return next((tags for tags in _USUAL_TAGS if tags.open in template.source or tags.close in template.source), None)


def _written_tags(template: ChatTemplate) -> ReasoningTags | None:
    try:
        text = _render(template, {"content": "probe_content", "reasoning_content": _REASONING})
    except RequestError:
        return None
    before, _, behind = text.partition(_REASONING)
    found = _TAG_BEFORE.search(before)
    if not found:
        return None
    opening = found.group(1)
    for closing in (opening[0] + "/" + opening[1:], opening.replace("START", "END")):
        if closing != opening and behind.lstrip().startswith(closing):
            return ReasoningTags(opening, closing)
    return None


# -- texts compared: a tag is one piece, so that tags which begin alike share nothing --------------------------------------------
def _shared_prefix(one: str, other: str) -> str:
    return _joined_while_equal(_PIECE.findall(one), _PIECE.findall(other))


def _shared_suffix(one: str, other: str) -> str:
    shared = _joined_while_equal(_PIECE.findall(one)[::-1], _PIECE.findall(other)[::-1])
    return one[len(one) - len(shared) :]


def _joined_while_equal(one: list[str], other: list[str]) -> str:
    return "".join(piece for piece, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
