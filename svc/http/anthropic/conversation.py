"""A request in Anthropic's form as one of chat: the same conversation, tools and limits."""

import json
from collections.abc import Iterator
from typing import Any

from svc.errors import RequestError
from svc.http.anthropic.schema import MessagesIn
from svc.http.chat_form import common_fields, ends_with_an_answer, function_call, function_tool, text_in
from svc.http.fields import shown, unsupported
from svc.http.schema import ChatIn, JsonObject

_TEXTS = ("text", "input_text")


def as_chat(body: MessagesIn) -> ChatIn:
    """RequestError names the field."""
    messages = [message for n, each in enumerate(body.messages) for message in _messages(each, f"messages[{n}]")]
    if body.system:
        system = [body.system] if isinstance(body.system, str) else body.system
        blocks = [_text(block, f"system[{n}]") for n, block in enumerate(system)]
        messages.insert(0, {"role": "system", "content": "\n".join(block for block in blocks if block)})
    choice, parallel = _tool_choice(body.tool_choice)
    return ChatIn(
        **common_fields(body) | {"stop": _stops(body), "response_format": _format(body)},
        messages=messages,
        tools=[_tool(tool, f"tools[{n}]") for n, tool in enumerate(body.tools)] if body.tools else None,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        thinking=body.thinking,
        reasoning_effort=_effort(body.output_config),
        enable_thinking=body.enable_thinking,
        chat_template_kwargs=body.chat_template_kwargs,
        continue_final_message=ends_with_an_answer(messages),  # it is the beginning of the answer
    )


def _stops(body: MessagesIn) -> str | list[str] | None:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop
    return stops if body.stop_sequences is None else [*body.stop_sequences, *(stops or [])]


# -- messages -------------------------------------------------------------------------------------------------------------------
def _messages(message: JsonObject, param: str) -> Iterator[JsonObject]:
    """Tool results are messages of their own, in front of what the user says beside them."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise RequestError(f"{param}.role must be user, assistant or system, not {shown(role)}.", param=f"{param}.role")
    if isinstance(content, str) or content is None:
        yield {"role": role, "content": content}
        return
    if not isinstance(content, list):
        raise RequestError(f"{param}.content must be a text or a list of blocks, not {shown(content)}.", param=f"{param}.content")
    blocks = [(_checked(block, f"{param}.content[{n}]"), f"{param}.content[{n}]") for n, block in enumerate(content)]
    yield from _of_assistant(blocks) if role == "assistant" else _of_user(role, blocks)


def _of_user(role: str, blocks: list[tuple[JsonObject, str]]) -> Iterator[JsonObject]:
    texts: list[JsonObject] = []
    for block, param in blocks:
        if block["type"] == "tool_result":
            yield _tool_result(block, param)
        else:
            texts.append({"type": "text", "text": _text(block, param)})
    if texts:
        yield {"role": role, "content": texts}


def _tool_result(block: JsonObject, param: str) -> JsonObject:
    id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(id, str):
        raise RequestError(f"{param}.tool_use_id must be a text, not {shown(id)}.", param=f"{param}.tool_use_id")
    if isinstance(content, list):
        content = "\n".join(_text(each, f"{param}.content[{n}]") for n, each in enumerate(content))
    elif content is not None and not isinstance(content, str):
        raise RequestError(f"{param}.content must be a text or a list of blocks, not {shown(content)}.", param=f"{param}.content")
    return {"role": "tool", "tool_call_id": id, "content": content or ""}


def _of_assistant(blocks: list[tuple[JsonObject, str]]) -> Iterator[JsonObject]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[JsonObject] = []
    for block, param in blocks:
        match block["type"]:
            case "thinking":
                thoughts.append(text_in(block, "thinking", param))
            case "redacted_thinking":
                pass  # nothing that can be read
            case "tool_use":
                name, id = text_in(block, "name", param), text_in(block, "id", param)
                calls.append(function_call(id, name, block.get("input") or {}))
            case _:
                texts.append(_text(block, param))
    message: JsonObject = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    yield message


def _checked(block: Any, param: str) -> JsonObject:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise RequestError(f"{param} must be a block with a type, not {shown(block)}.", param=param)
    return block


def _text(block: Any, param: str) -> str:
    """The text of a block, or of a document that is text."""
    if isinstance(block, str):
        return block
    kind = _checked(block, param)["type"]
    if kind in _TEXTS:
        return text_in(block, "text", param)
    source = block.get("source")
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        return text_in(source, "data", f"{param}.source")
    raise RequestError(f"{param}.type is {shown(kind)}, but only text can be read here.", param=f"{param}.type")


# -- tools ----------------------------------------------------------------------------------------------------------------------
def _tool(tool: JsonObject, param: str) -> JsonObject:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise unsupported(f"{param}.type", json.dumps(kind)[:80])
    return function_tool(tool, param, tool.get("input_schema") or {"type": "object"})


def _tool_choice(choice: JsonObject | None) -> tuple[str | JsonObject | None, bool | None]:
    """(tool_choice, parallel_tool_calls) of chat."""
    if choice is None:
        return None, None
    parallel = False if choice.get("disable_parallel_tool_use") else None
    match choice.get("type"):
        case "auto" | "none" as mode:
            return mode, parallel
        case "any":
            return "required", parallel
        case "tool":
            return {"type": "function", "function": {"name": choice.get("name")}}, parallel
        case other:
            raise RequestError(f"tool_choice.type must be auto, any, tool or none, not {shown(other)}.", param="tool_choice.type")


def _format(body: MessagesIn) -> JsonObject | None:
    """The schema of the answer, under the two names that it has had."""
    value = body.output_format if body.output_format is not None else (body.output_config or {}).get("format")
    if value is None:
        return body.response_format
    if not isinstance(value, dict) or value.get("type") != "json_schema":
        raise RequestError(f"output_config.format must be of type json_schema, not {shown(value)}.", param="output_config.format")
    return {"type": "json_schema", "json_schema": {"schema": value.get("schema")}}


def _effort(config: JsonObject | None) -> str | None:
    effort = (config or {}).get("effort")
    if effort is not None and not isinstance(effort, str):
        raise RequestError(f"output_config.effort must be a text, not {shown(effort)}.", param="output_config.effort")
    return effort
