"""The tools that a request offers, and which of them the answer may or must call."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from svc.errors import RequestError
from svc.http.fields import shown, unsupported
from svc.http.schema import JsonObject
from svc.http.text.grammar.tool_grammar import CallableTool
from svc.http.text.messages import MAX_DEPTH

_FIRST = ("type", "function", "name", "description", "parameters", "properties", "required")
_CHOICES = ("none", "auto", "required", "any")  # "any": Mistral's word


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """`offered` is what the template writes; `callable` those that may be called now."""

    offered: tuple[JsonObject, ...] = ()
    callable: tuple[CallableTool, ...] = ()
    required: bool = False  # the answer is calls and nothing else
    parallel: bool = True  # more than one
    some_only: bool = False  # not all that are offered are callable

    @property
    def callable_offers(self) -> tuple[JsonObject, ...]:
        """Those of `offered` that may be called."""
        names = {tool.name for tool in self.callable}
        return tuple(tool for tool in self.offered if tool.get("function", tool).get("name") in names)

    @property
    def has_strict(self) -> bool:
        return any(tool.strict for tool in self.callable)


NO_TOOLS = ToolOptions()


def tool_options(
    tools: Sequence[JsonObject] | None, choice: str | JsonObject | None, parallel: bool | None, *, canonical: bool = False
) -> ToolOptions:
    """RequestError names the field at fault. Nothing is offered where no tool may be called.

    `canonical`: keys are offered in one order, whatever order they came in.
    """
    known = [_callable(tool, f"tools[{n}]") for n, tool in enumerate(tools or ())]
    mode, names = _choice(choice)
    if mode == "none" or not (known or mode == "required"):
        return NO_TOOLS
    if not known:
        raise RequestError("tool_choice asks for a call, but there are no tools.", param="tool_choice")
    if names is None:
        allowed = known
    else:
        allowed = [tool for tool in known if tool.name in names]
        for name in names:
            if all(tool.name != name for tool in known):
                raise RequestError(f"tool_choice names {shown(name)}, which is not among the tools.", param="tool_choice")
    offered = tuple(map(in_order, tools or ())) if canonical else tuple(tools or ())
    return ToolOptions(offered, tuple(allowed), mode == "required", parallel is not False, len(allowed) < len(known))


def in_order(value: Any, depth: int = 0) -> Any:
    """`value` with the keys of all objects in it in one order: those that say most first, the others by the alphabet."""
    if depth > MAX_DEPTH:
        return value  # refused by what reads it
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
        return {name: in_order(value[name], depth + 1) for name in names}
    return [in_order(item, depth + 1) for item in value] if isinstance(value, list) else value


def _callable(tool: JsonObject, param: str) -> CallableTool:
    kind = tool.get("type", "function")
    if kind != "function":
        raise unsupported(f"{param}.type", json.dumps(kind)[:80])
    function = tool.get("function", tool)
    if not isinstance(function, dict):
        raise RequestError(f"{param}.function must be an object, not {shown(function)}.", param=f"{param}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{param}.function.name must be a text, not {shown(name)}.", param=f"{param}.function.name")
    return CallableTool(name, function.get("parameters"), strict=function.get("strict") is True)


def _choice(choice: str | JsonObject | None) -> tuple[str, list[str] | None]:
    """("none", "auto" or "required", the names that may be called; None: all)."""
    if choice is None:
        return "auto", None
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise RequestError(f"tool_choice must be none, auto, required or a function, not {shown(choice)}.", param="tool_choice")
        return ("required" if choice == "any" else choice), None
    match choice.get("type"):
        case "function":
            function = choice.get("function", choice)
            return "required", [_name(function, "tool_choice.function")]
        case "allowed_tools":
            return _allowed(choice.get("allowed_tools", choice))
        case str(kind) if kind in _CHOICES:
            return _choice(kind)
        case other:
            raise unsupported("tool_choice.type", json.dumps(other)[:80])


def _allowed(value: Any) -> tuple[str, list[str] | None]:
    param = "tool_choice.allowed_tools"
    tools = value.get("tools") if isinstance(value, dict) else None
    if not isinstance(tools, list) or value.get("mode", "auto") not in ("auto", "required"):
        raise RequestError(f"{param} must have a mode (auto or required) and a list of tools.", param=param)
    if not tools:
        raise RequestError(f"{param}.tools must name a tool; for none of them tool_choice is none.", param=f"{param}.tools")
    functions = [tool.get("function", tool) if isinstance(tool, dict) else tool for tool in tools]
    return value.get("mode", "auto"), [_name(function, f"{param}.tools[{n}]") for n, function in enumerate(functions)]


def _name(function: Any, param: str) -> str:
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RequestError(f"{param}.name must be a text, not {shown(name)}.", param=f"{param}.name")
    return name
