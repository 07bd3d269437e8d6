"""Answers held to JSON schemas, regular expressions and choices: whatever is drawn, the text fits."""

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import RequestError
from svc.http.text.grammar.compiler import GrammarCompiler
from svc.http.text.grammar.matcher import Matcher
from svc.http.text.grammar.spec import ANY_OBJECT, GrammarSpec, Notation, choice_spec, schema_spec
from svc.http.text.pretokenize import PRE_TOKENIZERS, byte_alphabet
from svc.http.text.tokenizer import Tokenizer, TokenType
from tests.fakes.answers import THINK
from tests.fakes.fake_text import VOCAB_SIZE, byte_tokenizer
from tests.fakes.walks import accepted_texts, accepts, allowed, is_allowed, walk

_BYTES = byte_tokenizer()
_COMPILER = GrammarCompiler(_BYTES, VOCAB_SIZE)


def _regex(text: str) -> GrammarSpec:
    return GrammarSpec(Notation.REGEX, text)


def _finished(spec: GrammarSpec, tokenizer: Tokenizer, seeds: int = 4) -> list[str]:
    compiler = _COMPILER if tokenizer is _BYTES else GrammarCompiler(tokenizer, tokenizer.num_tokens)
    compiled = compiler.compile(spec)
    texts = [walk(compiled, tokenizer, seed, 400, hurry=30) for seed in range(seeds)]
    return [text for text in texts if text is not None]


# -- JSON schemas ------------------------------------------------------------------------------------------------------------------
_names = st.sampled_from(["a", "b", "some name", "é"])
_leaves = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.lists(st.integers(-20, 20), min_size=2, max_size=2).map(
        lambda ends: {"type": "integer", "minimum": min(ends), "maximum": max(ends)}
    ),
    st.just({"type": "number", "minimum": 0, "exclusiveMaximum": 1}),
    st.lists(st.integers(0, 8), min_size=2, max_size=2).map(
        lambda ends: {"type": "string", "minLength": min(ends), "maxLength": max(ends)}
    ),
    st.sampled_from(["[0-9]{3}", "^[a-z]{1,4}$", "^(yes|no)$"]).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.lists(st.one_of(st.integers(-5, 5), st.text("xyz é\"\\", max_size=4), st.booleans(), st.none()), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    ),
    st.one_of(st.integers(-(2**53), 2**53), st.text(max_size=5), st.just({"k": [1, None]})).map(lambda value: {"const": value}),
    st.sampled_from(["uuid", "ipv4"]).map(lambda name: {"type": "string", "format": name}),
)  # fmt: skip


def _object(members: dict[str, Any], required: bool, more: bool) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": sorted(members) if required else [], "additionalProperties": more}


_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(_object, st.dictionaries(_names, inner, max_size=3), st.booleans(), st.just(False)),
        st.builds(lambda items, most: {"type": "array", "items": items, "minItems": 1, "maxItems": most}, inner, st.integers(1, 3)),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        st.lists(inner, min_size=1, max_size=2).map(lambda items: {"type": "array", "prefixItems": items, "items": False}),
    ),
    max_leaves=5,
)  # fmt: skip
_FORMATS = jsonschema.FormatChecker(["uuid", "ipv4"])


def _check(text: str, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema, format_checker=_FORMATS).validate(json.loads(text))


@settings(max_examples=60, deadline=None)
@given(schema=_schemas)
def test_any_answer_fits_its_schema(schema: dict[str, Any]) -> None:
    """Random schemas, random answers by single bytes: what is finished validates, by an implementation of others."""
    for text in _finished(schema_spec(schema), _BYTES, seeds=2):
        _check(text, schema)


_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": ["integer", "null"], "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 3},
        "parent": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}]},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["new", "old", "ünicode"]}},
}


def test_a_schema_with_the_tokens_of_a_vocabulary(tokenizer: Tokenizer) -> None:
    """Tokens of several characters: the same holds."""
    texts = _finished(schema_spec(_PERSON), tokenizer, seeds=12)
    assert texts
    for text in texts:
        _check(text, _PERSON)
        assert text == text.strip()


def test_any_object(tokenizer: Tokenizer) -> None:
    """JSON mode: an object, whatever is in it."""
    texts = _finished(schema_spec(ANY_OBJECT), tokenizer, seeds=8)
    assert texts
    for text in texts:
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "uniqueItems": True}, "at uniqueItems: Unimplemented"),
        ({"properties": {"x": {"not": {"type": "string"}}}}, "at properties.x.not: Unimplemented"),
        ({"properties": {"x": {"type": "string", "format": "foo"}}}, "at properties.x.format: Unknown format"),
        ({"anyOf": [{"type": "null"}, {"type": "frob"}]}, r"at anyOf\[1\].type: Invalid type"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"$ref": "#/nowhere"}, "does not exist"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "Unsatisfiable"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "at oneOf"),
        ({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}, "at uniqueItems"),
        ({"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(1200)}}, "cannot be enforced"),
        ({"enum": ["x" * 200_000]}, "longer than"),
        ({"const": 2**53 + 1}, "at const: integers beyond"),
        ({"properties": {"x": {"enum": [1, -(2**53) - 1]}}}, r"at properties.x.enum\[1\]: integers beyond"),
        ({"const": {"k": [2**53 + 1]}}, r"at const.k\[0\]: integers beyond"),
        ({"type": "integer", "maximum": 10**20}, "at maximum: integers beyond"),
        ({"properties": {"k" * 9000: {"const": 2**53 + 1}}}, r"at k{394}\.const: integers beyond"),
        ([], "must be an object"),
        (True, "must be an object"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(schema: Any, message: str) -> None:
    """One sentence that names the part; nothing is left out in silence, whatever options the schema brings."""
    with pytest.raises(RequestError, match=message) as error:
        _COMPILER.compile(schema_spec(schema))
    assert "\n" not in str(error.value)
    assert "%llguidance" not in str(error.value)


# -- regular expressions and choices -----------------------------------------------------------------------------------------------
_patterns = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^b]", ".", "(?:)"]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{''.join(parts)})")
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})")
        | st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?", "+?"]))
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(pattern=_patterns)
def test_exactly_the_texts_of_a_regular_expression(pattern: str) -> None:
    """Of all short texts, those are accepted that Python's re matches in full."""
    expected = {text for text in _texts_ab(4) if re.fullmatch(pattern, text)}
    try:
        compiled = _COMPILER.compile(_regex(pattern))
    except RequestError:
        assert not expected - {""}
    else:
        assert accepted_texts(compiled.matcher(), "ab", 4) == expected


def _texts_ab(longest: int) -> list[str]:
    return [bin(n)[3:].replace("0", "a").replace("1", "b") for n in range(1, 2 ** (longest + 1))]


@pytest.mark.parametrize("pattern", [r"\d{3}-\d{4}", "(?i)yes|no", "^[a-z/]+$", r"[^\n]{1,20}\n", r"\p{Lu}\p{Ll}*", "a\nb|\"/'"])
def test_drawn_texts_match_the_regular_expression(pattern: str, tokenizer: Tokenizer) -> None:
    """With tokens of several characters too."""
    python = pattern.replace(r"\p{Lu}\p{Ll}*", r"[^\W\d_]+")
    for used in (_BYTES, tokenizer):
        texts = _finished(_regex(pattern), used, seeds=6)
        assert texts
        assert all(re.fullmatch(python, text) for text in texts)


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", r"\bword\b", "(?=a)", "*", "[z-a]", "a{3,2}"])
def test_a_regular_expression_that_cannot_be_enforced_is_refused(pattern: str) -> None:
    """A sentence, not an exception of the library's."""
    with pytest.raises(RequestError, match="this regular expression cannot be enforced"):
        _COMPILER.compile(_regex(pattern))


def test_choices() -> None:
    """One of them, also where one begins another or looks like a pattern."""
    choices = ["a", "ab", "b.", "[ab]", 'say "é"\n']
    compiled = _COMPILER.compile(choice_spec(choices))
    assert all(accepts(compiled.matcher(), choice.encode()) for choice in choices)
    assert accepted_texts(compiled.matcher(), "ab.[]", 4) == {"a", "ab", "b.", "[ab]"}
    for bad in ([], [""], [1]):
        with pytest.raises(RequestError, match="at least one"):
            choice_spec(bad)


def test_lark_grammars_are_taken_as_they_are() -> None:
    """The notation of llguidance itself, whose options the server sets."""
    spec = GrammarSpec(Notation.LARK, '%llguidance {"no_forcing": false}\nstart: "a" b+\nb: "b" | "(" b ")"')
    assert accepted_texts(_COMPILER.compile(spec).matcher(), "ab()", 4) == {"ab", "abb", "abbb", "a(b)"}
    with pytest.raises(RequestError, match="this Lark grammar cannot be enforced"):
        _COMPILER.compile(GrammarSpec(Notation.LARK, "start: %%"))


def test_the_same_grammar_is_compiled_once() -> None:
    """Compiled grammars are kept by what they say."""
    assert _COMPILER.compile(schema_spec(_PERSON)) is _COMPILER.compile(schema_spec(json.loads(json.dumps(_PERSON))))


# -- one answer --------------------------------------------------------------------------------------------------------------------
def _matcher(pattern: str, **reasoning: Any) -> Matcher:
    return _COMPILER.compile(_regex(pattern)).matcher(**reasoning)


def _taking(matcher: Matcher, text: str) -> Matcher:
    for token in text.encode():
        matcher.accept(token)
    return matcher


def test_masks_of_one_answer() -> None:
    """What may come, byte by byte; the end only where the grammar allows it, and nothing else where it is finished."""
    matcher = _matcher("ab?")
    assert (allowed(matcher.mask()), matcher.is_accepting, matcher.is_finished) == ([ord("a")], False, False)
    matcher.accept(ord("a"))
    assert (set(allowed(matcher.mask())), matcher.is_accepting, matcher.is_finished) == ({ord("b"), *_BYTES.eos_ids}, True, False)
    matcher.accept(ord("b"))
    assert (set(allowed(matcher.mask())), matcher.is_accepting, matcher.is_finished) == (set(_BYTES.eos_ids), True, True)


def test_control_tokens_and_rows_without_a_token_never_come() -> None:
    """Not even where any text may; a vocabulary may be smaller than the model's output."""
    matcher = GrammarCompiler(_BYTES, VOCAB_SIZE + 77).compile(_regex("(?s).*")).matcher()
    words = matcher.mask()
    assert len(words) == -(-(VOCAB_SIZE + 77) // 32)
    assert set(allowed(words)) & set(range(256, 400)) == set(_BYTES.eos_ids)


def test_an_answer_that_does_not_fit_allows_nothing_more() -> None:
    """An empty mask, no exception; taken back, it goes on."""
    matcher = _taking(_matcher("abc"), "ax")
    assert allowed(matcher.mask()) == []
    assert not matcher.is_accepting
    matcher.accept(ord("c"))
    matcher.rollback(2)
    assert allowed(matcher.mask()) == [ord("b")]


@settings(max_examples=60, deadline=None)
@given(moves=st.lists(st.one_of(st.sampled_from("ab<>/think\nx"), st.integers(1, 4)), max_size=25), inside=st.booleans())
def test_rollback_gives_what_taking_fewer_gives(moves: list[str | int], inside: bool) -> None:
    """After any tokens taken and taken back, the mask is that of a new matcher which has taken what is left."""
    grammar = _COMPILER.compile(_regex("[ab]{1,6}x?"))
    tags = {"reasoning": THINK, "inside": True} if inside else {}
    matcher, text = grammar.matcher(**tags), ""
    for move in moves:
        if isinstance(move, str):
            matcher.accept(ord(move))
            text += move
        else:
            count = min(move, len(text))
            matcher.rollback(count)
            text = text[: len(text) - count]
        if len(text) % 2:  # sometimes asked in between, sometimes not
            matcher.mask()
    fresh = _taking(grammar.matcher(**tags), text)
    assert matcher.mask().tolist() == fresh.mask().tolist()
    assert matcher.is_accepting == fresh.is_accepting


@settings(max_examples=60, deadline=None)
@given(taken=st.text("ab<>/think\nx", max_size=12), drafts=st.text("ab<>/think\nx", max_size=4), inside=st.booleans())
def test_a_fork_goes_its_own_way(taken: str, drafts: str, inside: bool) -> None:
    """It allows what a new matcher does after all those tokens, and the one it came from what it did before."""
    grammar = _COMPILER.compile(_regex("[ab]{1,6}x?"))
    tags = {"reasoning": THINK, "inside": True} if inside else {}
    matcher = _taking(grammar.matcher(**tags), taken)
    before, forced = matcher.mask().tolist(), matcher.forced()
    fork, fresh = _taking(matcher.fork(), drafts), _taking(grammar.matcher(**tags), taken + drafts)
    assert fork.mask().tolist() == fresh.mask().tolist()
    assert fork.forced() == fresh.forced()
    assert matcher.mask().tolist() == before
    assert matcher.forced() == forced


def test_reasoning_is_free_and_does_not_end_the_answer() -> None:
    """Where the prompt has opened it: any text but the end, until it closes; then at most two line breaks, or the grammar."""
    matcher = _matcher("ab", reasoning=THINK, inside=True)
    for text in ("Let me", " </thin", "</think"):
        _taking(matcher, text)
        assert set(allowed(matcher.mask())) == set(range(256))
        assert not matcher.is_accepting
    _taking(matcher, ">")
    assert set(allowed(matcher.mask())) == {ord("\n"), ord("a")}
    _taking(matcher, "\n\n")
    assert allowed(matcher.mask()) == [ord("a")]
    assert _taking(matcher, "ab").is_finished


def _tokenizer_with(*tokens: str, ends: bool = True) -> Tokenizer:
    """Bytes, then `tokens`, which any text may contain, then an end if there is one."""
    letters = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
    texts = [*letters, *tokens, *(["<|im_end|>"] if ends else [])]
    kinds = [TokenType.NORMAL] * 256 + [TokenType.USER_DEFINED] * len(tokens) + [TokenType.CONTROL] * ends
    return Tokenizer(texts, kinds, [], PRE_TOKENIZERS["qwen2"], eos_id=len(texts) - 1 if ends else None)


def test_a_model_may_open_its_reasoning_itself() -> None:
    """At the very beginning and by the tag's own token; what follows then is free."""
    tokenizer = _tokenizer_with("<think>", "</think>")
    compiled = GrammarCompiler(tokenizer, 259).compile(_regex("ab"))
    matcher = compiled.matcher(reasoning=THINK)
    assert set(allowed(matcher.mask())) == {ord("a"), 256}
    matcher.accept(256)
    assert is_allowed(matcher.mask(), ord("x"))
    matcher.accept(257)
    assert set(allowed(matcher.mask())) == {ord("a"), ord("\n")}
    assert accepts(compiled.matcher(reasoning=THINK), b"ab")
    assert not is_allowed(compiled.matcher().mask(), 256)


def test_forced_tokens() -> None:
    """The text that must come, as the model spells it, but for the last token, which may turn out longer."""
    matcher = _taking(_matcher("ab(hello|help)x?"), "a")
    assert matcher.forced() == list(b"bhe")
    assert allowed(matcher.mask()) == [ord("b")]
    assert _taking(matcher, "bhel").forced() == []
    assert _matcher("a{100000}", reasoning=THINK, inside=True).forced() == []


def test_forced_tokens_of_a_vocabulary(tokenizer: Tokenizer) -> None:
    """They are the beginning of the encoded text, and the grammar takes them."""
    matcher = GrammarCompiler(tokenizer, tokenizer.num_tokens).compile(_regex("x the whole world and more(ab|c)")).matcher()
    matcher.accept(tokenizer.encode("x", parse_special=False)[0])
    forced = matcher.forced()
    expected = tokenizer.encode(" the whole world and more", parse_special=False)
    assert forced == expected[: len(forced)]
    assert len(forced) >= len(expected) - 2
    for token in forced:
        assert is_allowed(matcher.mask(), token)
        matcher.accept(token)


def test_a_model_without_an_end_has_no_grammar() -> None:
    """No answer could end."""
    with pytest.raises(RequestError, match="no token that ends an answer"):
        GrammarCompiler(_tokenizer_with(ends=False), 256).compile(_regex("a"))
