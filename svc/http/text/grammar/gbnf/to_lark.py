"""GBNF made into the Lark notation of llguidance, which reads text in lexemes and always takes the longest.

A grammar over single characters would be exact but slow: masks would be computed by the parser, character by character, where a
regular expression does it hundreds of times faster. So what does not refer to itself becomes a lexeme, one regular expression, as
large as possible. A lexeme of which the longest word may be the wrong one (`[a-c]* "c"`) is taken apart until that cannot be.
"""

from svc.http.text.grammar.gbnf.inlining import with_regular_rules_inlined
from svc.http.text.grammar.gbnf.nodes import Node
from svc.http.text.grammar.gbnf.positions import TooLargeError
from svc.http.text.grammar.gbnf.reading import Reading
from svc.http.text.grammar.gbnf.syntax import parse_gbnf

MAX_ROUNDS = 40  # of taking apart, before everything is


def gbnf_to_lark(text: str) -> str:
    """RequestError when `text` is no grammar."""
    rules = with_regular_rules_inlined(parse_gbnf(text))
    apart: set[Node] = set()
    for _ in range(MAX_ROUNDS):
        reading = Reading(rules, apart)
        try:
            overlong = reading.overlong()
        except TooLargeError:
            break
        if not overlong:
            return reading.written()
        apart |= overlong
    return Reading(rules, None).written()
