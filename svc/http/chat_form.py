"""Parts of a chat request, as the other dialects make them out of their own."""

from typing import Any

from svc.errors import RequestError
from svc.http.fields import shown
from svc.http.schema import AnswerIn, JsonObject


def common_fields(body: AnswerIn) -> JsonObject:
    """The fields that every request for an answer has."""
    return {name: getattr(body, name) for name in AnswerIn.__struct_fields__}


def function_tool(tool: JsonObject, param: str, parameters: Any) -> JsonObject:
    """A tool whose name and description stand in it, with `parameters` from wherever the dialect has them."""
    function = {"name": text_in(tool, "name", param), "description": tool.get("description") or "", "parameters": parameters}
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def function_call(id: str, name: str, arguments: str | JsonObject) -> JsonObject:
    """One of an assistant message's `tool_calls`."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_in(item: JsonObject, key: str, param: str) -> str:
    """A member that must be a text; RequestError naming it under `param`."""
    value = item.get(key)
    if not isinstance(value, str):
        raise RequestError(f"{param}.{key} must be a text, not {shown(value)}.", param=f"{param}.{key}")
    return value


def ends_with_an_answer(messages: list[JsonObject]) -> bool:
    """Whether the final message is one of the assistant that could be continued."""
    final = messages[-1] if messages else {}
    return final.get("role") == "assistant" and not final.get("tool_calls") and not final.get("function_call")
