"""Chat messages as clients send them, made into the plain list that chat templates understand.

Templates are written against one shape; clients send many. After this: `content` is a string, tool arguments are an object,
reasoning is in `reasoning_content`, only the first message may be `system`, and nothing is None. Applying it twice changes nothing.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from svc.errors import RequestError
from svc.http.text.unicode import well_formed

Message = dict[str, Any]

MAX_DEPTH = 100  # of nested objects and arrays; templates and json.dumps recurse

_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING = ("reasoning_content", "reasoning", "thinking")


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """New, plain messages; the input is not changed. RequestError names the field (`messages[3].content[0].type`).

    A system or developer message after the first becomes a user turn in its place: hoisting it to the front would change the
    prompt's beginning (and the cache with it), and many templates refuse it where it is.
    """
    if not _is_array(messages):
        raise RequestError("messages must be an array", param="messages")
    if not messages:
        raise RequestError("messages must not be empty", param="messages")
    return [_message(message, index) for index, message in enumerate(messages)]


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


def _message(message: Mapping[str, Any], index: int) -> Message:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object", param=where)
    plain: Message = {"role": _role(message, index), "content": _content(message.get("content"), f"{where}.content")}
    reasoning = _reasoning(message, where)
    if reasoning is not None:
        plain["reasoning_content"] = reasoning
    tool_calls = _tool_calls(message.get("tool_calls"), f"{where}.tool_calls")
    if tool_calls:
        plain["tool_calls"] = tool_calls
    known = {"role", "content", "tool_calls", *_REASONING}
    for key, value in message.items():
        if key not in known and value is not None:
            plain[well_formed(key)] = plain_json(value, f"{where}.{well_formed(key)}")
    for key in ("name", "tool_call_id"):
        if not isinstance(plain.get(key, ""), str):
            raise RequestError(f"{where}.{key} must be a string", param=f"{where}.{key}")
    return plain


def _role(message: Mapping[str, Any], index: int) -> str:
    role = message.get("role")
    if role not in _ROLES:
        where = f"messages[{index}].role"
        found = "is missing" if role is None else f"is {well_formed(str(role))[:40]!r}"
        raise RequestError(f"{where} {found} (supported: {', '.join(_ROLES)})", param=where)
    if role in ("system", "developer"):
        return "system" if index == 0 else "user"
    return str(role)


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return well_formed(content)
    if not _is_array(content):
        raise RequestError(f"{where} must be a string or an array of text parts", param=where)
    # Separate parts are separate texts (files, pasted blocks): without a break their words would run together.
    return "\n".join(_part(part, f"{where}[{n}]") for n, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return well_formed(part)
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} must be an object", param=where)
    kind = part.get("type")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        found = "is missing" if kind is None else f"is {well_formed(str(kind))[:40]!r}"
        raise RequestError(f"{where}.type {found}, but only text can be read here", param=f"{where}.type")
    text = part.get(key)
    if not isinstance(text, str):
        raise RequestError(f"{where}.{key} must be a string", param=f"{where}.{key}")
    return well_formed(text)


def _reasoning(message: Mapping[str, Any], where: str) -> str | None:
    for key in _REASONING:
        value = message.get(key)
        if isinstance(value, str):
            return well_formed(value)
        if value is not None:
            raise RequestError(f"{where}.{key} must be a string", param=f"{where}.{key}")
    return None


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if calls is None:
        return []
    if not _is_array(calls):
        raise RequestError(f"{where} must be an array", param=where)
    return [_tool_call(call, f"{where}[{n}]") for n, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function must be an object", param=f"{where}.function")
    if not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function.name must be a string", param=f"{where}.function.name")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    plain = plain_json({k: v for k, v in call.items() if k != "function" and v is not None}, where)
    name = well_formed(function["name"])
    return {"type": "function", **plain, "function": {"name": name, "arguments": arguments}}


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    """Templates walk through arguments key by key; clients send them as the JSON text that the model wrote."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)  # lets NaN through; plain_json does not
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where} is not valid JSON", param=where) from error
    if not isinstance(arguments, Mapping):
        raise RequestError(f"{where} must be a JSON object", param=where)
    plain: dict[str, Any] = plain_json(arguments, where)
    return plain


def _is_array(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
