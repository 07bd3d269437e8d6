"""The control tokens that a chat template writes, known by their spelling: for model files that type them as text."""

import re
from collections.abc import Callable
from contextlib import suppress

from svc.errors import RequestError
from svc.http.text.template_habits import Message
from svc.http.text.tokenizer import CONTROL_SHAPE

_BAR_MARKER = re.compile(r"<[|｜][^<>\s]+[|｜]>")
_PROBE = [
    {"role": "system", "content": "probesystem"},
    {"role": "user", "content": "probeuser"},
    {"role": "assistant", "content": "probeassistant"},
    {"role": "user", "content": "probeagain"},
]


def template_markers(render: Callable[[list[Message]], str], source: str) -> frozenset[str]:
    """Spellings in the template's own text that only a control token can have: `<|...|>` anywhere, and anything in angle or square
    brackets between an assistant's message and the next one (not `<think>`, which models write themselves).

    `render` raises RequestError when the template refuses: it is asked with a system message, else without.
    """
    markers = frozenset(_BAR_MARKER.findall(source))
    for probe in (_PROBE, _PROBE[1:]):
        with suppress(RequestError):
            text = render(probe)
            _, _, behind = text.partition(probe[-2]["content"])
            between, _, _ = behind.partition(probe[-1]["content"])
            return markers.union(_BAR_MARKER.findall(text), CONTROL_SHAPE.findall(between))
    return markers
