"""JSON text that models write: whether it is valid, and Python's notation of the same values made into it."""

import json
import re

# Python's notation in pieces. Not `ast.literal_eval`: deep or large text can end the process in the compiler behind it.
_PIECE = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<word>[A-Za-z_]\w*)|[0-9][0-9.]*(?:[eE][+-]?[0-9]+)?|[-{}\[\]:,\s]""",
    re.DOTALL,
)
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}


def is_json(text: str) -> bool:
    """Whether `text` is strict JSON: no NaN, no infinity."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def json_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def string_value(quoted: str) -> str:
    """What a JSON string means, its quotes included; raw control characters are let through. What is no JSON means itself."""
    try:
        value = json.loads(quoted, strict=False)
    except ValueError:
        return quoted[1:-1]
    assert isinstance(value, str)
    return value


def python_to_json(text: str) -> str | None:
    """JSON of a Python list or dictionary of strings, numbers, True, False and None; None if `text` is not one."""
    written: list[str] = []
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None or (piece["word"] and piece["word"] not in _WORDS):
            return None
        at = piece.end()
        written.append(json_string(_unquoted(piece["string"])) if piece["string"] else _WORDS.get(piece.group(), piece.group()))
    made = "".join(written)
    return made if is_json(made) else None


def _unquoted(literal: str) -> str:
    return _ESCAPE.sub(_unescaped, literal[1:-1])


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code is None:
        return _ESCAPED.get(escape[4], escape[4])
    number = int(code, 16)
    return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"


def _refuse(constant: str) -> None:
    raise ValueError(constant)
