"""The tools that a request offers to the model."""

from collections.abc import Iterable, Mapping
from typing import Any

from svc.http.text.tool_calls.argument_types import ArgumentType, argument_type


class OfferedTools:
    """Names and parameter schemas. What has another shape than OpenAI's tools is left out: others refuse it."""

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self._parameters: dict[str, Any] = {}
        for tool in tools:
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                self._parameters[function["name"]] = function.get("parameters")
        self._types: dict[tuple[str, str], ArgumentType] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def parameters(self, name: str) -> Any:
        """The schema of the tool's arguments, None if it has none."""
        return self._parameters.get(name)

    def has_parameter(self, tool: str, key: str) -> bool:
        return key in self._properties(tool)

    def argument_type(self, tool: str, key: str) -> ArgumentType:
        """That of one argument; of any type where the schema says nothing."""
        known = self._types.get((tool, key))
        if known is None:
            known = argument_type(self._properties(tool).get(key), self._parameters.get(tool))
            self._types[tool, key] = known
        return known

    def _properties(self, tool: str) -> Mapping[str, Any]:
        schema = self._parameters.get(tool)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        return properties if isinstance(properties, Mapping) else {}
