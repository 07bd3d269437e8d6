"""What of a refused request may be in the log: the names of its fields, as far as they are names that we have given them."""

import re

from svc.http.decoding import REQUESTS
from svc.http.known_fields import KNOWN_FIELDS

# Inside of messages and tools, whose objects have no schema of their own.
_INNER = {"role", "content", "type", "text", "name", "tool_calls", "function", "arguments", "reasoning_content", "include_usage"}
KNOWN = frozenset(_INNER | {known.name for known in KNOWN_FIELDS}).union(*(kind.__struct_fields__ for kind in REQUESTS))
_PART = re.compile(r"(\w+)((?:\[(?:\d{1,9}|\.\.\.)\])*)", re.ASCII)
_MAX_PARTS = 8


def loggable(param: str) -> str:
    """A field's path with `*` for every name in it that the client has made up, such as a key of `logit_bias`."""
    return ".".join(map(_loggable_part, param.split(".")[:_MAX_PARTS]))


def _loggable_part(part: str) -> str:
    match = _PART.fullmatch(part)
    return part if match and match[1] in KNOWN else "*"
