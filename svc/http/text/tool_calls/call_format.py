"""How a model writes a tool call, and the formats known by name."""

import re
from dataclasses import dataclass
from enum import Enum

FUNCTION_TAG = "<function="
_SPACE = " \t\r\n"
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


class Body(Enum):
    """How a call's name and arguments are written."""

    JSON = "json"  # {"name": "f", "arguments": {"x": 1}}
    XML = "xml"  # <function=f><parameter=x>1</parameter></function>
    NAMED = "named"  # f[ARGS]{"x": 1}


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The literal texts of a call, white space included, as the model's template writes them.

    A call reads: `open`, the tool's name, `between`, the arguments, `close`. Calls in a row are joined by `separator`, with `first`
    before all of them and `last` after. The arguments are a JSON object, in XML the parameters.
    """

    body: Body
    open: str
    between: str
    close: str
    separator: str = ""
    first: str = ""
    last: str = ""

    @property
    def open_tag(self) -> str:
        """What announces a call; empty where calls are bare JSON."""
        if self.body is Body.XML:
            tag = self.open.partition(FUNCTION_TAG)[0].strip(_SPACE)
        elif self.body is Body.JSON:
            tag = self.open.partition("{")[0].strip(_SPACE)
        else:
            tag = self.open.strip(_SPACE)
        return tag or self._first_tag

    @property
    def close_tag(self) -> str:
        """What ends a call; empty if only its arguments do."""
        if self.body is Body.XML:
            return self.close.partition("</function>")[2].strip(_SPACE)
        return self.close.strip(_SPACE).lstrip("}").lstrip(_SPACE)

    @property
    def outer_tags(self) -> tuple[str, ...]:
        """What is written around all calls together."""
        return tuple(tag for tag in _TAG.findall(self.first + self.last) if tag != self.open_tag)

    @property
    def _first_tag(self) -> str:
        return self.first.strip(_SPACE).rstrip("[").rstrip(_SPACE)


HERMES = CallFormat(Body.JSON, '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n")
QWEN_XML = CallFormat(Body.XML, "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "\n")
LLAMA_JSON = CallFormat(Body.JSON, '{"name": "', '", "parameters": ', "}", "; ")
MISTRAL_LIST = CallFormat(Body.JSON, '{"name": "', '", "arguments": ', "}", ", ", first="[TOOL_CALLS] [", last="]")
MISTRAL = CallFormat(Body.NAMED, "[TOOL_CALLS]", "[ARGS]", "")

# The names that a setting may give.
FORMATS = {
    "hermes": HERMES,
    "qwen-xml": QWEN_XML,
    "llama-json": LLAMA_JSON,
    "mistral-list": MISTRAL_LIST,
    "mistral": MISTRAL,
}
