"""GBNF, llama.cpp's notation of grammars: read, and enforced exactly."""

import contextlib
import json
import re
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import RequestError
from svc.http.text.grammar.compiler import GrammarCompiler
from svc.http.text.grammar.gbnf.nodes import Chain, Chars, Choice, Node, Ref, Repeat
from svc.http.text.grammar.gbnf.syntax import parse_gbnf
from svc.http.text.grammar.spec import GrammarSpec, Notation
from svc.http.text.tokenizer import Tokenizer
from tests.fakes.fake_text import VOCAB_SIZE, byte_tokenizer
from tests.fakes.walks import accepted_texts, accepts, texts, walk

_COMPILER = GrammarCompiler(byte_tokenizer(), VOCAB_SIZE)


def _accepts(grammar: str, text: str) -> bool:
    return accepts(_COMPILER.compile(GrammarSpec(Notation.GBNF, grammar)).matcher(), text.encode())


# -- against a recognizer of our own -----------------------------------------------------------------------------------------------
def _ends(rules: Mapping[str, Node], text: str) -> set[int]:
    """Where words of the root that begin `text` end: the least solution, by going round until nothing is new."""
    known: dict[tuple[str, int], frozenset[int]] = {}

    def ends(node: Node, start: int) -> frozenset[int]:
        match node:
            case Chars(ranges):
                fits = start < len(text) and any(low <= ord(text[start]) <= high for low, high in ranges)
                return frozenset({start + 1} if fits else ())
            case Ref(name):
                return known.get((name, start), frozenset())
            case Choice(options):
                return frozenset().union(*(ends(option, start) for option in options))
            case Chain(items):
                found = frozenset({start})
                for item in items:
                    found = frozenset().union(*(ends(item, at) for at in found))
                return found
            case Repeat(inside, least, most):
                found = frozenset({start} if least == 0 else ())
                at = frozenset({start})
                for count in range(1, (least + len(text) + 1 if most is None else most) + 1):
                    at = frozenset().union(*(ends(inside, each) for each in at))
                    found |= at if count >= least else frozenset()
                return found

    before = None
    while before != known:
        before = dict(known)
        known |= {(name, start): ends(node, start) for name, node in rules.items() for start in range(len(text) + 1)}
    return set(known.get(("root", 0), ()))


_atoms = st.sampled_from(['"a"', '"b"', '"ab"', '"ba"', "[ab]", "[^b]", '""', "x", "y", "root"])
_items = st.recursive(
    _atoms,
    lambda inner: (
        st.builds("({})".format, st.lists(inner, min_size=1, max_size=3).map(" ".join))
        | st.builds("({})".format, st.lists(inner, min_size=1, max_size=3).map(" | ".join))
        | st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}"]))
    ),
    max_leaves=6,
)
_grammars = st.tuples(_items, _items, _items).map(lambda bodies: "root ::= {}\nx ::= {}\ny ::= {}".format(*bodies))


@settings(max_examples=120, deadline=None)
@given(grammar=_grammars)
def test_exactly_the_texts_of_the_grammar(grammar: str) -> None:
    """Random grammars, ambiguous and recursive ones too: of all short texts, those are accepted that a plain recognizer accepts."""
    rules = parse_gbnf(grammar)
    expected = {text for text in texts("ab", 4) if len(text) in _ends(rules, text)}
    try:
        compiled = _COMPILER.compile(GrammarSpec(Notation.GBNF, grammar))
    except RequestError:
        assert not expected
    else:
        assert accepted_texts(compiled.matcher(), "ab", 4) == expected


# -- notation ----------------------------------------------------------------------------------------------------------------------
def _lists_of(item: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(rf"(- {item}\n)+", text) is not None


def _is_sum(text: str) -> bool:
    return re.fullmatch(r"[0-9+()]*", text) is not None and isinstance(eval(text), int)


_JSON = r"""
# JSON without floats
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("grammar", "is_valid"),
    [
        ('root ::= item+\nitem ::= "- " [a-z ]+ "\\n"', _lists_of("[a-z ]+")),
        ('root ::= ("yes" | "no" | "may" "be")', lambda text: text in ("yes", "no", "maybe")),
        ('root ::= [0-9]{4} "-" [0-9]{2}', lambda text: re.fullmatch("[0-9]{4}-[0-9]{2}", text) is not None),
        ('root ::= term ("+" term)*\nterm ::= [1-9] [0-9]{0,3} | "(" root ")"', _is_sum),
        ('root ::= "(" root ")" root | ""', lambda text: _balanced(text)),
        (_JSON, lambda text: isinstance(json.loads(text, strict=False), dict)),
        ('root ::= [^\\x00-\\x1f"\\\\]+', lambda text: not set(text) & {'"', "\\", "\n"}),
        ("root ::= [а-яё]{3,5} # Cyrillic", lambda text: re.fullmatch("[а-яё]{3,5}", text) is not None),
        ('root ::= "\\u0041\\x42" [\\u00e9\\U0001F600-\\U0001F64F]', lambda text: re.fullmatch("AB[é😀-🙏]", text) is not None),
        ('root ::= [\\]\\[\\-a^] [-z] "\\"" .', lambda text: re.fullmatch(r'[\]\[\-a^][-z]"[\s\S]', text) is not None),
    ],
)
@pytest.mark.parametrize("real", [False, True], ids=["bytes", "tiny vocabulary"])
def test_walks_give_texts_of_the_grammar(grammar: str, is_valid: Callable[[str], bool], real: bool, tokenizer: Tokenizer) -> None:
    """Random answers, by single bytes and by the tokens of a vocabulary, are what an independent check calls right."""
    used = tokenizer if real else byte_tokenizer()
    compiled = GrammarCompiler(used, used.num_tokens + 5).compile(GrammarSpec(Notation.GBNF, grammar))
    finished = [text for seed in range(6) if (text := walk(compiled, used, seed, 300, hurry=12)) is not None]
    assert finished
    for text in finished:
        assert is_valid(text), text


def _balanced(text: str) -> bool:
    depth = 0
    for char in text:
        depth += {"(": 1, ")": -1}[char]
        assert depth >= 0
    return depth == 0


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('root ::= [a-c]* "c"', ["c", "abc", "cc"], ["", "ab"]),  # the longest [a-c]* is the wrong one
        ('root ::= x root | "."\nx ::= [a-c]* "c"', [".", "abcc."], ["c", "ab."]),
        ('root ::= ("a" | "ab") ("c" | "bc")', ["ac", "abc", "abbc"], ["ab"]),
        ('root ::= s ":" root | "!"\ns ::= "\\"" [^"]* "\\""', ['"a: b":!', "!"], ['"a:!']),
        ('root ::=\n  "a" |\n  "b"\n  | ( "c"\n "d" )\n', ["a", "b", "cd"], ["c"]),
        ('root ::= | "a"', ["", "a"], ["aa"]),
        ('root::="a"?some-rule\nsome-rule::="b"', ["b", "ab"], ["a"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a"]),
        ('start ::= "x"\nroot ::= start T0\nT0 ::= "y"', ["xy"], ["x"]),
    ],
)
def test_accepted_and_refused(grammar: str, yes: list[str], no: list[str]) -> None:
    """Worked cases."""
    assert [text for text in [*yes, *no] if _accepts(grammar, text)] == yes


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "no rule named root"),
        ('r ::= "a"', "no rule named root"),
        ("root ::= other", "no rule named other"),
        ('root ::= "a"\nroot ::= "b"', "line 3|line 2 .*two rules named root"),
        ('root = "a"', "line 1 .*lacks ::="),
        ('\n\nroot ::= "a', "line 3 .*not closed"),
        ("root ::= [a", "not closed"),
        ("root ::= (a", "not closed"),
        ("root ::= [z-a]", "ends before it begins"),
        ("root ::= [^\\x00-\\U0010FFFF]", "allows none"),
        ('root ::= "a"{3,2}', "lower number first"),
        ('root ::= "a"{999999}', "repeated"),
        ('root ::= "a"{x}', "cannot be read"),
        ("root ::= <think>", "single tokens"),
        ("root ::= %", "name of a rule is missing"),
        ("root ::= " + "(" * 5000, "nested more than"),
        ('root ::= root "a"', "cannot be enforced"),  # no text at all
        ("x" * 200_000, "longer than"),
    ],
)
def test_what_is_no_grammar(grammar: str, message: str) -> None:
    """One sentence with the line at fault."""
    with pytest.raises(RequestError, match=message):
        _COMPILER.compile(GrammarSpec(Notation.GBNF, grammar))


@settings(max_examples=300, deadline=None)
@given(text=st.text('root:=|"[]a-^\\(){}*+?.<!,123x#\n ', max_size=40))
def test_any_text_is_a_grammar_or_refused(text: str) -> None:
    """No text raises anything but a RequestError."""
    for grammar in (text, f"root ::= {text}"):
        with contextlib.suppress(RequestError):
            _COMPILER.compile(GrammarSpec(Notation.GBNF, grammar))


def test_rules_that_multiply_stay_rules() -> None:
    """Rules that would stand for 2^60 characters are neither written out nor refused."""
    rules = "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(60)) + '\nr60 ::= "a"'
    assert not _accepts(f"root ::= r0\n{rules}", "aa")
