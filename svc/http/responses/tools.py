"""The tools of a responses request as functions of chat.

A namespace groups functions: each is offered under a joined name, and a call of it has both parts again. Tools that only OpenAI's
servers can run are left out where clients offer them unasked; the model may always answer without them.
"""

import json
from collections.abc import Iterator, Sequence

from svc.errors import RequestError
from svc.http.chat_form import function_tool, text_in
from svc.http.fields import shown, unsupported
from svc.http.schema import JsonObject

_LEFT_OUT = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11", "image_generation")


def chat_tools(tools: Sequence[JsonObject]) -> list[JsonObject]:
    """RequestError names the field."""
    return [function for n, tool in enumerate(tools) for function in _functions(tool, f"tools[{n}]")]


def joined_name(namespace: str, name: str) -> str:
    """The name of a namespace's function in the prompt."""
    return f"{namespace.rstrip('_')}__{name}"


def names_in_namespaces(tools: Sequence[JsonObject]) -> dict[str, tuple[str, str]]:
    """Namespace and name by joined name, of tools that `chat_tools` took."""
    namespaces = [tool for tool in tools if tool.get("type") == "namespace"]
    return {
        joined_name(namespace["name"], function["name"]): (namespace["name"], function["name"])
        for namespace in namespaces
        for function in namespace["tools"]
    }


def _functions(tool: JsonObject, param: str) -> Iterator[JsonObject]:
    match tool.get("type"):
        case "function" if isinstance(tool.get("function"), dict):
            yield tool  # chat's form
        case "function":
            yield _function(tool, param)
        case "namespace":
            yield from _in_namespace(tool, param)
        case kind if kind not in _LEFT_OUT:
            raise unsupported(f"{param}.type", json.dumps(kind)[:80])


def _in_namespace(namespace: JsonObject, param: str) -> Iterator[JsonObject]:
    prefix, functions = text_in(namespace, "name", param), namespace.get("tools")
    if not isinstance(functions, list):
        raise RequestError(f"{param}.tools must be a list, not {shown(functions)}.", param=f"{param}.tools")
    for n, function in enumerate(functions):
        place = f"{param}.tools[{n}]"
        if not isinstance(function, dict) or function.get("type") != "function":
            kind = function.get("type") if isinstance(function, dict) else function
            raise unsupported(f"{place}.type", json.dumps(kind)[:80])
        yield _function(function | {"name": joined_name(prefix, text_in(function, "name", place))}, place)


def _function(tool: JsonObject, param: str) -> JsonObject:
    return function_tool(tool, param, tool.get("parameters") or {"type": "object", "properties": {}})
