"""Strings as JSON can carry them, made into strings that have a UTF-8 form."""

import re

_HIGH, _LOW = rb"u[dD][89abAB][0-9a-fA-F]{2}", rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
# A backslash that no other escapes (an odd run of them), and one surrogate escape or two that make a pair.
_SURROGATES = re.compile(rb"\\(?<!\\\\)((?:\\\\)*+)(?:" + _HIGH + rb"\\" + _LOW + rb"|(" + _HIGH + rb"|" + _LOW + rb"))")


def well_formed(text: str) -> str:
    """`text` with split surrogate pairs joined and lone surrogates replaced by U+FFFD; well-formed text comes back as it is."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def well_formed_json(body: bytes | bytearray) -> bytes | bytearray:
    """JSON text with the escapes of lone surrogates (`"\\ud83d"`) replaced by U+FFFD's; its length does not change.

    Clients cut text inside an emoji, and JavaScript and Python then write half of its pair, which no decoder takes.
    """
    if rb"\ud" not in body and rb"\uD" not in body:
        return body
    return _SURROGATES.sub(lambda found: found[0] if found[2] is None else rb"\%sufffd" % found[1], body)
