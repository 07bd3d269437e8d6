"""Every notation made into one: llguidance's Lark."""

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import regex_to_lark

from svc.http.text.grammar.gbnf.to_lark import gbnf_to_lark
from svc.http.text.grammar.spec import GrammarSpec, Notation

# Text that must come may be spelled by any tokens. Otherwise all of it would be tokenized in every step, which has no bound.
FREE_TOKENS = '%llguidance {"no_forcing": true}\n'
_OWN_OPTIONS = re.compile(r"^[ \t]*%llguidance\b.*$", re.MULTILINE)
# White space only where people put it: with as much as JSON allows, a model may write nothing else for ever.
_JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ",[ ]?",
    "key_separator": ":[ ]?",
    "lenient": False,
    "coerce_one_of": False,
}


def as_lark(spec: GrammarSpec) -> str:
    """RequestError if it is no grammar of its notation."""
    match spec.notation:
        case Notation.JSON_SCHEMA:
            return FREE_TOKENS + "start: " + json_rule(json.loads(spec.text))
        case Notation.REGEX:
            return FREE_TOKENS + f"start: /{regex_to_lark(spec.text, '')}/"
        case Notation.GBNF:
            return FREE_TOKENS + gbnf_to_lark(spec.text)
        case Notation.LARK:
            return FREE_TOKENS + _OWN_OPTIONS.sub("", spec.text)


def json_rule(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """JSON that fits `schema`, to be used in a rule. `lenient`: what cannot be enforced is left out."""
    return "%json " + json.dumps({**schema, "x-guidance": {**_JSON_OPTIONS, "lenient": lenient}}, ensure_ascii=False)


def literal(text: str) -> str:
    """`text` itself, to be used in a rule."""
    return json.dumps(text, ensure_ascii=False)
