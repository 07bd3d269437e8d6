"""Chat messages as clients send them, made into the plain list that a chat template takes.

Templates are written against one shape, or nearly so; clients send many. After this: roles are system, user, assistant or tool;
content is what the template takes, text or a list of text parts; tool arguments are an object or a text; reasoning has every name
that the template reads; nothing else is None. The order of roles is settled in `turns.py`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from svc.errors import RequestError
from svc.http.text.template_habits import PLAIN, REASONING_KEYS, Habits, Message
from svc.http.text.turns import arranged
from svc.http.text.unicode import well_formed

MAX_DEPTH = 100  # of nested objects and arrays; templates and json.dumps recurse

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SAME_ROLES = {"developer": "system", "function": "tool"}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING_PARTS = {"thinking": "thinking", "reasoning": "text", "reasoning_text": "text"}
_SECRET_PARTS = ("redacted_thinking",)  # nothing that can be read
_ARGUMENTS = "arguments"  # the name of the one argument that holds a text which is no object
_HANDLED = {"role", "content", "tool_calls", "function_call", *REASONING_KEYS}


def normalise_messages(messages: Sequence[Mapping[str, Any]], habits: Habits = PLAIN) -> list[Message]:
    """New, plain messages; the input is not changed. RequestError names the field (`messages[3].content[0].type`)."""
    if not _is_array(messages):
        raise RequestError("messages must be an array", param="messages")
    if not messages:
        raise RequestError("messages must not be empty", param="messages")
    return arranged([_message(message, f"messages[{n}]", habits) for n, message in enumerate(messages)], habits)


def normalise_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tool definitions as plain objects in their given key order, or None when there are none."""
    if tools is None:
        return None
    if not _is_array(tools):
        raise RequestError("tools must be an array", param="tools")
    plain: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RequestError(f"tools[{index}] must be an object", param=f"tools[{index}]")
        plain.append(plain_json(tool, f"tools[{index}]"))
    return plain or None


def plain_json(value: Any, param: str, *, depth: int = 0) -> Any:
    """A copy of `value` out of dict, list, str, int, finite float, bool and None alone, its strings well-formed.

    RequestError naming `param` for anything else and for more than MAX_DEPTH levels.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth >= MAX_DEPTH:
        raise RequestError(f"{param} is nested more than {MAX_DEPTH} levels deep", param=param)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {well_formed(key): plain_json(item, param, depth=depth + 1) for key, item in value.items()}
    if _is_array(value):
        return [plain_json(item, param, depth=depth + 1) for item in value]
    raise RequestError(f"{param} holds a value that JSON cannot carry ({type(value).__name__})", param=param)


def _message(message: Mapping[str, Any], where: str, habits: Habits) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object", param=where)
    role = _role(message, where)
    texts, thoughts = _content(message.get("content"), f"{where}.content")
    plain: Message = {"role": role, "content": _in_form(texts, role, habits)}
    reasoning = _reasoning(message, thoughts, where)
    if reasoning is not None:
        plain |= dict.fromkeys(habits.reasoning_keys, reasoning)
    calls = _tool_calls(message, where, habits)
    if calls:
        plain["tool_calls"] = calls
        if not plain["content"]:
            plain["content"] = habits.empty_content
    for key, value in message.items():
        if key not in _HANDLED and value is not None:
            plain[well_formed(key)] = plain_json(value, f"{where}.{well_formed(key)}")
    for key in ("name", "tool_call_id"):
        if not isinstance(plain.get(key, ""), str):
            raise RequestError(f"{where}.{key} must be a string", param=f"{where}.{key}")
    return plain


def _role(message: Mapping[str, Any], where: str) -> str:
    role = message.get("role")
    if role not in _ROLES:
        found = "is missing" if role is None else f"is {well_formed(str(role))[:40]!r}"
        raise RequestError(f"{where}.role {found} (supported: {', '.join(_ROLES)})", param=f"{where}.role")
    return _SAME_ROLES.get(str(role), str(role))


# -- content ------------------------------------------------------------------------------------------------------------------


def _content(content: Any, where: str) -> tuple[str | list[str], list[str]]:
    """(text, or texts of the parts; thoughts among the parts)."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return well_formed(content), []
    if not _is_array(content):
        raise RequestError(f"{where} must be a string or an array of text parts", param=where)
    texts: list[str] = []
    thoughts: list[str] = []
    for n, part in enumerate(content):
        kind = str(part.get("type")) if isinstance(part, Mapping) else ""
        if kind in _REASONING_PARTS:
            thoughts.append(_thought(part, f"{where}[{n}]"))
        elif kind not in _SECRET_PARTS:
            texts.append(_text(part, f"{where}[{n}]"))
    return texts, thoughts


def _in_form(texts: str | list[str], role: str, habits: Habits) -> str | list[dict[str, str]]:
    """The texts as the template takes them: a client's list stays a list where it may."""
    if role in habits.part_roles and (isinstance(texts, list) or role not in habits.text_roles):
        return [{"type": "text", "text": text} for text in ([texts] if isinstance(texts, str) else texts)]
    # Separate parts are separate texts (files, pasted blocks): without a break their words would run together.
    return texts if isinstance(texts, str) else "\n".join(texts)


def _text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return well_formed(part)
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} must be an object", param=where)
    kind = part.get("type")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        found = "is missing" if kind is None else f"is {well_formed(str(kind))[:40]!r}"
        raise RequestError(f"{where}.type {found}, but only text can be read here", param=f"{where}.type")
    return _string(part.get(key), f"{where}.{key}")


def _thought(part: Mapping[str, Any], where: str) -> str:
    """The text of a thinking part: a string under one of two names, or text parts (Mistral's)."""
    key = _REASONING_PARTS[part["type"]]
    value = part.get(key, part.get("reasoning"))
    if _is_array(value):
        return "".join(_text(inner, f"{where}.{key}[{n}]") for n, inner in enumerate(value))
    return _string(value, f"{where}.{key}")


def _reasoning(message: Mapping[str, Any], thoughts: list[str], where: str) -> str | None:
    """What the message says of its thinking under the first of its names; else its thinking parts."""
    for key in REASONING_KEYS:
        if message.get(key) is not None:
            return _string(message[key], f"{where}.{key}")
    return "\n".join(thoughts) if thoughts else None


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{where} must be a string", param=where)
    return well_formed(value)


# -- tool calls ---------------------------------------------------------------------------------------------------------------


def _tool_calls(message: Mapping[str, Any], where: str, habits: Habits) -> list[dict[str, Any]]:
    """The calls of `tool_calls`, or else the one of `function_call`, the older form."""
    calls, where_calls = message.get("tool_calls"), f"{where}.tool_calls"
    if calls is None:
        old = message.get("function_call")
        return [] if old is None else [_named_call({}, old, f"{where}.function_call", habits)]
    if not _is_array(calls):
        raise RequestError(f"{where_calls} must be an array", param=where_calls)
    return [_tool_call(call, f"{where_calls}[{n}]", habits) for n, call in enumerate(calls)]


def _tool_call(call: Any, where: str, habits: Habits) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    others = {} if function is None else plain_json({k: v for k, v in call.items() if k != "function" and v is not None}, where)
    return _named_call(others, function, f"{where}.function", habits)


def _named_call(others: dict[str, Any], function: Any, where: str, habits: Habits) -> dict[str, Any]:
    if not isinstance(function, Mapping):
        raise RequestError(f"{where} must be an object", param=where)
    name = _string(function.get("name"), f"{where}.name")
    arguments = _arguments(function.get("arguments"), f"{where}.arguments", habits)
    return {"type": "function", **others, "function": {"name": name, "arguments": arguments}}


def _arguments(arguments: Any, where: str, habits: Habits) -> dict[str, Any] | str:
    """Templates walk through arguments key by key, or write them as a text; clients send them as the text that the model wrote,
    which may be anything. It has been accepted once, so it is accepted for as long as the conversation lasts.
    """
    if arguments is None:
        arguments = ""
    if isinstance(arguments, str):
        text = well_formed(arguments)
        found = _json_object(text)
    elif isinstance(arguments, Mapping):
        found = plain_json(arguments, where)
        text = json.dumps(found, ensure_ascii=False)
    else:
        raise RequestError(f"{where} must be a JSON object, or a string with one", param=where)
    if found is None:
        return text if habits.text_arguments else {_ARGUMENTS: text}
    return found if habits.object_arguments else text or "{}"


def _json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` spells; nothing and null are an empty one. None for everything else, and for an object with
    numbers that no float holds or more than MAX_DEPTH levels.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text)  # lets NaN and numbers out of range through; plain_json does not
        return plain_json(value or {}, "") if value is None or isinstance(value, Mapping) else None
    except (ValueError, RecursionError, RequestError):
        return None


def _is_array(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
