"""What a chat template takes: templates differ in how they want messages, and say so only when they fail or drop something.

So each is asked once, when it is loaded, with small conversations: does it accept them, and write what they say?
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from svc.errors import RequestError

Message = dict[str, Any]
Tools = list[dict[str, Any]]
Render = Callable[[list[Message], Tools | None], str]

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Habits:
    """The defaults are what most templates share."""

    text_roles: frozenset[str] = frozenset(ROLES)  # content may be a string
    part_roles: frozenset[str] = frozenset()  # content may be a list of parts, {"type": "text", "text": ...}
    object_arguments: bool = True  # a tool call's arguments may be an object; else they are JSON text
    text_arguments: bool = True  # a tool call's arguments may be a text that is no JSON object
    empty_content: str | None = ""  # content of a message that only calls tools
    reasoning_keys: tuple[str, ...] = REASONING_KEYS[:1]  # the names under which reasoning is read
    system_first: bool = True  # a system message may come first
    system_second: bool = False  # and others directly behind it
    system_late: bool = False  # and others anywhere
    runs: frozenset[str] = frozenset(ROLES)  # roles of which two messages in a row are not refused


PLAIN = Habits()


def probe_habits(render: Render, names: Collection[str]) -> Habits:
    """The habits of a template that reads `names`. `render` raises RequestError when the template refuses or fails."""
    probe = _Probe(render)
    for role in ("user", "system", "assistant"):
        probe.learn_form(role)
    empty, object_arguments, text_arguments = _call_habits(probe)
    probe.call = _call(_OBJECT if object_arguments else _JSON, empty)
    probe.learn_form("tool")
    return Habits(
        text_roles=probe.text_roles,
        part_roles=probe.part_roles,
        object_arguments=object_arguments,
        text_arguments=text_arguments,
        empty_content=empty,
        reasoning_keys=tuple(key for key in REASONING_KEYS if key in names) or PLAIN.reasoning_keys,
        system_first=probe.shows("system", "user"),
        system_second=probe.shows("system", "system", "user"),
        system_late=probe.shows("user", "assistant", "system", "user"),
        runs=frozenset(role for role in ROLES if role not in _TWICE or probe.accepts(*_TWICE[role])),
    )


_TWICE = {"user": ("user", "user"), "assistant": ("user", "assistant", "assistant", "user")}
_CALL_ID = "probe0001"  # nine letters and digits, which some templates insist on
_TOOL = {
    "type": "function",
    "function": {"name": "probetool", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_OBJECT, _JSON, _NO_JSON = {"probekey": "probevalue"}, '{"probekey": "probevalue"}', "probearguments"


def _call(arguments: Any, empty: str | None) -> list[Message]:
    function = {"name": "probetool", "arguments": arguments}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    return [{"role": "user", "content": "probeuser"}, {"role": "assistant", "content": empty, "tool_calls": [call]}]


def _call_habits(probe: "_Probe") -> tuple[str | None, bool, bool]:
    """(empty_content, object_arguments, text_arguments). A template that writes no calls at all gets the defaults."""
    for empty in ("", None):
        as_object = probe.text(_call(_OBJECT, empty))
        as_text = probe.text(_call(_JSON, empty))
        takes_object = _has(as_object, "probetool", "probekey", "probevalue") and not _has(as_object, "{'probekey'")
        takes_text = _has(as_text, "probetool", _JSON)
        if (takes_object or takes_text) and not (empty is None and _has(as_object if takes_object else as_text, "None")):
            return empty, takes_object, _has(probe.text(_call(_NO_JSON, empty)), "probetool", _NO_JSON)
    return PLAIN.empty_content, PLAIN.object_arguments, PLAIN.text_arguments


class _Probe:
    """Asks a template, in the forms that it has learned so far. `call` are messages with a tool call as the template wants it."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self.text_roles = frozenset(ROLES)
        self.part_roles: frozenset[str] = frozenset()
        self.call: list[Message] = []

    def learn_form(self, role: str) -> None:
        """Whether the content of `role` may be text, or parts. Neither: it is not written at all, so it stays text."""
        as_text = _has(self._said(role, "probeone"), "probeone")
        as_parts = self._said(role, _parts("probeone", "probetwo"))
        # Both parts, and not as Python or JSON writes a list.
        if _has(as_parts, "probeone", "probetwo") and not _has(as_parts, "'probeone") and not _has(as_parts, '"probeone'):
            self.part_roles |= {role}
            if not as_text:
                self.text_roles -= {role}

    def shows(self, *roles: str) -> bool:
        """Whether the template accepts messages of `roles` and writes their contents in their order."""
        return _has(self.text(_speaking(roles)), *(message["content"] for message in _speaking(roles)))

    def accepts(self, *roles: str) -> bool:
        return self.text(_speaking(roles)) is not None

    def text(self, messages: list[Message]) -> str | None:
        """What the template makes of `messages`, without tools or else with one; None when it refuses both."""
        formed = [self._formed(message) for message in messages]
        for tools in (None, [_TOOL]):
            try:
                return self._render(formed, tools)
            except RequestError:
                continue
        return None

    def _said(self, role: str, content: Any) -> str | None:
        """What the template makes of a conversation in which `role` says `content`."""
        message = {"role": role, "content": content}
        conversations = {
            "user": [message],
            "system": [message, *_speaking(["user"])],
            "assistant": [*_speaking(["user"]), message, *_speaking(["user"])],
            "tool": [*self.call, message | {"tool_call_id": _CALL_ID, "name": "probetool"}],
        }
        return self.text(conversations[role])

    def _formed(self, message: Message) -> Message:
        text = message["content"]
        if message["role"] in self.text_roles or not isinstance(text, str):
            return message
        return message | {"content": _parts(text)}


def _speaking(roles: Sequence[str]) -> list[Message]:
    return [{"role": role, "content": f"probe{n}{role}"} for n, role in enumerate(roles)]


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _has(text: str | None, *words: str) -> bool:
    """Whether `words` come in `text` in this order."""
    at = 0
    for word in words:
        at = -1 if text is None else text.find(word, at)
        if at < 0:
            return False
        at += len(word)
    return True
