"""Reasoning, content and tool calls in answers that come in pieces."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.http.text.tool_calls.call_format import FORMATS, HERMES, LLAMA_JSON, MISTRAL, QWEN_XML, Body, CallFormat
from tests.fakes.answers import Call, Read, parser, read, tool, written

TOOLS = [
    tool("weather", city={"type": "string"}, days={"type": "integer"}),
    tool("write", path={"type": "string"}, text={"type": ["string", "null"]}, mode={"enum": ["a", "w", 3]}),
    tool("noop"),
]
_FORMS = [None, *FORMATS.values()]
_ids = ["none", *FORMATS]

# What markers are made of, whole and broken, and what models put between.
_FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "<function=weather>", "<function=nothing>", "</function>",
    "<parameter=", "<parameter=city>", "<parameter=text>", "<parameter=days>", "</parameter>", "[TOOL_CALLS]", "[ARGS]", "[", "]",
    "<|python_tag|>", '{"name": "weather", "arguments": {"city": "Oslo"}}',
    '{"name": "', '"parameters": {', '"arguments": ', "weather",
    "noop", '"', "\\", "\\\"", "{", "}", ",", ":", "<", ">", "/", "=", "\n", "\r\n", " ", "null", "3", "é", "🌦", "text", ";",
    "\\u00", "```json", "```", "<tools>", "</tools>",
]  # fmt: skip
_texts = st.lists(st.sampled_from(_FRAGMENTS), max_size=24).map("".join)


def _cut(text: str, seed: int) -> list[str]:
    """`text` in random pieces, mostly small ones."""
    rng, pieces, at = random.Random(seed), [], 0
    while at < len(text):
        size = rng.choice((1, 1, 2, 3, 5, 9, 40))
        pieces.append(text[at : at + size])
        at += size
    return pieces


@pytest.mark.parametrize("form", _FORMS, ids=_ids)
@settings(max_examples=150, deadline=None)
@given(text=_texts, seed=st.integers(0, 2**30), inside=st.booleans(), offered=st.booleans())
def test_pieces_give_what_the_whole_text_gives(form: CallFormat | None, text: str, seed: int, inside: bool, offered: bool) -> None:
    """However marker-like text is cut, the parts, put together, are the same."""
    tools = TOOLS if offered else []
    whole = read([text], form, tools, inside=inside)
    assert read(list(text), form, tools, inside=inside) == whole
    assert read(_cut(text, seed), form, tools, inside=inside) == whole


@pytest.mark.parametrize("form", _FORMS, ids=_ids)
@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=200), inside=st.booleans())
def test_no_text_is_an_error(form: CallFormat | None, text: str, inside: bool) -> None:
    """Any text gives parts; text without a character that markers begin with is all reasoning or all content."""
    got = read([text], form, TOOLS, inside=inside)
    if not set(text) & set("<[{"):
        expected = text.strip(" \t\r\n") if inside else text
        assert (got.reasoning, got.content) == ((expected, "") if inside else ("", expected))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@settings(max_examples=100, deadline=None)
@given(text=_texts)
def test_ends_of_calls(form: CallFormat, text: str) -> None:
    """Every call that begins also ends; arguments of complete calls in JSON or XML are an object where the model wrote one."""
    for call in read([text], form, TOOLS).calls:
        assert call.complete is not None
        if call.complete and form.body is Body.XML and not call.arguments.startswith('{"'):
            assert call.arguments == "{}" or call.arguments.startswith("{")


# -- calls written and read back ---------------------------------------------------------------------------------------------------
_strings = st.text(st.characters(codec="utf-8", exclude_characters="<\r"), max_size=12)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False) | _strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_strings, inner, max_size=3),
    max_leaves=6,
)
_weather = st.tuples(st.just("weather"), st.fixed_dictionaries({}, optional={"city": _strings, "days": st.integers()}))
_other = st.tuples(st.just("other"), st.dictionaries(st.text("abc_", min_size=1, max_size=4), _values, max_size=3))
_said = st.text(st.characters(codec="utf-8", exclude_characters="<[{ \t\r\n\x0b\x0c\x1c\x1d\x1e\x1f\x85"), max_size=10)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@settings(max_examples=150, deadline=None)
@given(calls=st.lists(st.one_of(_weather, _other), min_size=1, max_size=3), thought=_said, said=_said, seed=st.integers(0, 2**30))
def test_written_calls_are_read_back(
    form: CallFormat, calls: list[tuple[str, dict[str, Any]]], thought: str, said: str, seed: int
) -> None:
    """Reasoning, text and calls as a template writes them come out as they went in, all calls complete."""
    if form is LLAMA_JSON:
        said = ""  # bare JSON is a call only where the answer begins
        calls = [(name, arguments) for name, arguments in calls if name == "weather"]
    if form.body is Body.XML:  # untyped text is read as JSON where it is JSON, so only typed arguments come back for sure
        calls = [(name, arguments) for name, arguments in calls if name == "weather"]
    text = f"<think>\n{thought}\n</think>\n\n" + said + ("\n" * bool(said) + written(form, calls) if calls else "")
    got = read(_cut(text, seed), form, TOOLS)
    assert (got.reasoning, got.content, got.called) == (thought, said, calls)
    assert all(call.complete for call in got.calls)


@settings(max_examples=200, deadline=None)
@given(value=_values, seed=st.integers(0, 2**30))
def test_xml_arguments_of_a_known_type_are_read_back(value: Any, seed: int) -> None:
    """A value written as text comes back with its type, if the schema says which."""
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
    tools = [tool("f", x={"type": names[type(value)]})]
    assert read(_cut(written(QWEN_XML, [("f", {"x": value})]), seed), QWEN_XML, tools).called == [("f", {"x": value})]


# -- worked cases ------------------------------------------------------------------------------------------------------------------
def _xml(name: str, **arguments: str) -> str:
    return written(QWEN_XML, [(name, dict(arguments))])


def _json(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_arguments_come_as_they_are_written() -> None:
    """A string is passed on character by character, a number when it is complete, in both formats."""
    answer = parser(HERMES, TOOLS)
    answer.push('<tool_call>{"name": "write", "arguments": ')
    for char in '{"path": "a<b':
        assert Read(calls=[Call("write")]).take(answer.push(char)).calls[0].arguments == char
    answer = parser(QWEN_XML, TOOLS)
    answer.push("<tool_call>\n<function=weather>\n<parameter=city>\nNe")
    for char in 'w "York':
        assert Read(calls=[Call("weather")]).take(answer.push(char)).calls[0].arguments == json.dumps(char)[1:-1]
    assert (
        Read(calls=[Call("weather")]).take(answer.push("\n</parameter>\n<parameter=days>\n1")).calls[0].arguments == '", "days": '
    )
    assert answer.push("2") == []


@pytest.mark.parametrize("form", [HERMES, QWEN_XML])
def test_a_call_in_closed_reasoning_is_reasoning(form: CallFormat) -> None:
    """Plans and examples inside of <think> call nothing, whatever comes after."""
    call = _json("weather", "{}") + "\n" + _xml("weather", city="Oslo")
    got = read([f"<think>\nI could write\n{call}\nor\n{call}\n</think>\n\nNo."], form, TOOLS)
    assert got == Read(reasoning=f"I could write\n{call}\nor\n{call}", content="No.")


@pytest.mark.parametrize("form", [HERMES, QWEN_XML])
def test_an_answer_that_ends_with_a_call_in_open_reasoning_calls(form: CallFormat) -> None:
    """A model that forgets </think> before its call still calls; broken off in the call, it is still thinking."""
    call = _json("weather", '{"city": "Oslo"}')
    got = read(_cut("I will look.\n" + call + "\n", 1), form, TOOLS, inside=True)
    assert (got.reasoning, got.called) == ("I will look.", [("weather", {"city": "Oslo"})])
    cut = "I will look.\n" + call[:-20]
    assert read([cut], form, TOOLS, inside=True) == Read(reasoning=cut)


def test_reasoning_is_held_back_only_while_it_may_be_a_call() -> None:
    """A tag that begins no call, and a call that something follows, are passed on at once."""
    answer = parser(HERMES, TOOLS, inside=True)
    assert Read().take(answer.push("the <tool_call> tag")).reasoning == "the <tool_call> tag"
    call = _json("noop", "{}")
    assert answer.push(" as in " + call) != []
    assert answer.push("\n") == []
    assert Read().take(answer.push("x")).reasoning.endswith(call + "\nx")


def test_in_reasoning_says_where_the_answer_is() -> None:
    """Known after every piece, for counting reasoning tokens."""
    answer = parser(HERMES, TOOLS)
    states = [(answer.push(piece), answer.in_reasoning)[1] for piece in ("<thi", "nk>", "a", "</think", ">", "b")]
    assert states == [False, True, True, True, False, False]


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\n a \n</think>\n\n b \n", False, "a", "b \n"),
        (" \n<think>a</think>b", False, "a", "b"),
        ("<think></think>\n\nb", False, "", "b"),
        ("a</think>b", True, "a", "b"),
        ("<think>\na</think>b", True, "a", "b"),
        ("\n</think>\n\nb", True, "", "b"),
        ("a <think>b</think>", False, "", "a <think>b</think>"),
        ("a</think>b</think>c", True, "a", "b</think>c"),
        ("never closed \n", True, "never closed", ""),
        ("\n plain \n", False, "", "\n plain \n"),
        ("<thin", False, "", "<thin"),
        ("a</thin", True, "a</thin", ""),
    ],
)
def test_reasoning_comes_first_or_not_at_all(text: str, inside: bool, reasoning: str, content: str) -> None:
    """Worked cases, with and without a prompt that opened the reasoning; with calls looked for and without."""
    for form in (None, HERMES, QWEN_XML):
        assert read([text], form, inside=inside) == Read(reasoning, content)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        # text and white space around calls
        (f"a \n\n{_xml('noop')}\n", "a", ["{}"]),
        (f"a\n{_xml('noop')}\n b", "a\n b", ["{}"]),
        (f"{_xml('noop')}\n b \n", "b \n", ["{}"]),
        (f"\n{_xml('noop')}", "", ["{}"]),
        (f"a{_xml('noop')}b{_xml('noop')}c", "abc", ["{}", "{}"]),
        # tags inside of values
        (_xml("write", text="a </parameter> b </function></tool_call> <parameter=path> c"), "", [
            '{"text": "a </parameter> b </function></tool_call> <parameter=path> c"}']),
        (_json("write", '{"text": "</tool_call> <tool_call> \\"}}"}'), "", ['{"text": "</tool_call> <tool_call> \\"}}"}']),
        (_xml("write", text="\n  a\n\n"), "", ['{"text": "\\n  a\\n\\n"}']),
        (_xml("write", text=""), "", ['{"text": ""}']),
        ("<tool_call><function=write><parameter=text></parameter></function></tool_call>", "", ['{"text": ""}']),
        ("<tool_call>\r\n<function=write>\r\n<parameter=text>\r\na\r\n</parameter>\r\n</function>", "", ['{"text": "a"}']),
        # null or text
        (_xml("write", text="null"), "", ['{"text": null}']),
        (_xml("write", text="nullable"), "", ['{"text": "nullable"}']),
        (_xml("write", path="null"), "", ['{"path": "null"}']),
        (_xml("write", mode="3") + _xml("write", mode="w"), "", ['{"mode": 3}', '{"mode": "w"}']),
        # what models forget
        ("<function=noop>\n</function>\n</tool_call>", "", ["{}"]),
        ("<function=unknown>\n</function>\n</tool_call>", "<function=unknown>\n</function>\n</tool_call>", []),
        ("<tool_call>\n<function=noop>\n</tool_call>", "", ["{}"]),
        ("<tool_call>\n<function=write>\n<parameter=path>\nx\n<parameter=text>\ny\n</function>\n</tool_call>", "", [
            '{"path": "x", "text": "y"}']),
        ("<tool_call>\n<function=write>\n<parameter=path>\nx\n<parameter=other>\ny\n</parameter>\n</function>\n</tool_call>", "", [
            '{"path": "x\\n<parameter=other>\\ny"}']),
        ('<tool_call>\n<function=write>{"path": "x"}</function>\n</tool_call>', "", ['{"path": "x"}']),
        ('<tool_call>{"name": "noop"}\n</tool_call>', "", ["{}"]),
        ('<tool_call>{"arguments": {"a": 1}, "name": "noop"}</tool_call>', "", ['{"a": 1}']),
        ('<tool_call>{"name": "noop", "arguments": "{\\"a\\": 1}"}</tool_call>', "", ['{"a": 1}']),
        ('<tool_call>{"name": "noop", "arguments": null}</tool_call>', "", ["{}"]),
        ('<tool_call>{"name": "noop", "arguments": {}}}\n</tool_call>x', "x", ["{}"]),
        ('<tool_call>\n{"name": "noop"}\n{"name": "noop"}\n</tool_call>', "", ["{}", "{}"]),
        ('<tool_call>[{"name": "noop"}, {"name": "noop"}]</tool_call>', "", ["{}", "{}"]),
        ('<tool_call>{"name": "noop", "arguments": {}}<tool_call>{"name": "noop", "arguments": {}}', "", ["{}", "{}"]),
        # what is no call
        ("<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
        ('<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
        ("a < b <tool> <tool_call", "a < b <tool> <tool_call", []),
        # wrong JSON is given back as it is
        (_json("noop", "{a: 1}"), "", ["{a: 1}"]),
        ('<tool_call>{"name": "noop", "arguments": {"a": "x\n</tool_call>b', "b", ['{"a": "x']),
        (_json("noop", '{"a": [1}'), "", ['{"a": [1}}']),
    ],
)  # fmt: skip
def test_models_habits(text: str, content: str, calls: list[str]) -> None:
    """Worked cases of what models write, right and wrong."""
    got = read([text], QWEN_XML, TOOLS)
    assert (got.content, [call.arguments for call in got.calls]) == (content, calls)


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        (HERMES, '<tool_call>\n{"name": "write", "arguments": {"path": "x", "text": "rm -rf /', '{"path": "x", "text": "rm -rf /'),
        (HERMES, '<tool_call>\n{"name": "write", "arg', ""),
        (HERMES, '<tool_call>\n{"name": "write", "arguments": {"days": 1', '{"days": 1'),
        (QWEN_XML, "<tool_call>\n<function=write>\n<parameter=path>\n/tmp", '{"path": "/tmp'),
        (QWEN_XML, "<tool_call>\n<function=write>\n<parameter=path>\n/tmp\n</parameter>\n<para", '{"path": "/tmp"'),
        (QWEN_XML, "<tool_call>\n<function=weather>\n<parameter=days>\n1", '{"days": 1'),
        (QWEN_XML, "<tool_call>\n<function=write>\n", ""),
        (MISTRAL, '[TOOL_CALLS]write[ARGS]{"path": "x', '{"path": "x'),
        (LLAMA_JSON, '{"name": "write", "parameters": {"path": "x', '{"path": "x'),
    ],
)  # fmt: skip
def test_a_call_cut_off_keeps_what_was_written(form: CallFormat, text: str, arguments: str) -> None:
    """The arguments so far, and nothing that would make a shorter command of them: they are no valid JSON."""
    for pieces in ([text], list(text)):
        got = read(pieces, form, TOOLS)
        assert got.content == ""
        assert [(call.arguments, call.complete) for call in got.calls] == [(arguments, False)]


@pytest.mark.parametrize(
    "text", ["<tool_call>", "<tool_call>\n", "<tool_call>\n<func", '<tool_call>{"na', "<tool_call>\n<function=wea"]
)
def test_a_call_cut_off_before_its_name_leaves_nothing(text: str) -> None:
    """Markup is not shown to people."""
    assert read([f"Wait.{text}"], QWEN_XML, TOOLS) == Read(content="Wait.")


@pytest.mark.parametrize(
    "text", ['{"name": "Bob", "parameters": {}}', '{"name": "noop"}', '{"a": 1} is', "[1, 2]", "{}", '{"name": "noo', "x {}"]
)
def test_a_json_answer_is_not_a_bare_call(text: str) -> None:
    """Where calls have no tag, only an object with an offered tool's name and arguments is one."""
    assert read(list(text), LLAMA_JSON, TOOLS) == Read(content=text)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "noop", "arguments": {"a": 1}}', "", ['{"a": 1}']),
        (' \n{"name": "noop", "arguments": {}}\n{"name": "noop", "arguments": {"b": 2}}', "", ["{}", '{"b": 2}']),
        ('```json\n{"name": "noop", "arguments": {"a": "```"}}\n```', "", ['{"a": "```"}']),
        ('Sure:\n```json\n{"name": "noop", "arguments": {}}\n```\nDone.', "Sure:\nDone.", ["{}"]),
        ('<tools>\n{"name": "noop", "arguments": {}}\n</tools>', "", ["{}"]),
        ('```json\n{"name": "other", "arguments": {}}\n```', '```json\n{"name": "other", "arguments": {}}\n```', []),
        ('```json\n{"name": "noop", "size": 3}\n```', '```json\n{"name": "noop", "size": 3}\n```', []),
        ("```json\n[1]\n```", "```json\n[1]\n```", []),
        ('Use {"name": "noop", "arguments": {}}', 'Use {"name": "noop", "arguments": {}}', []),
        ('{{"name": "noop", "arguments": {"a": 1}}}', "", ['{"a": 1}']),
        ('<tool_call>\n{{"name": "noop", "arguments": {}}}\n</tool_call>', "", ["{}"]),
        ("{{x}}", "{{x}}", []),
        ('{"name": "Bob"}', '{"name": "Bob"}', []),
        ("a ```json", "a ```json", []),
    ],
)
def test_json_calls_without_their_tags(text: str, content: str, calls: list[str]) -> None:
    """At the beginning of an answer, in a fence or in other tags, an offered tool's call is one; nothing else there is."""
    for pieces in ([text], list(text)):
        got = read(pieces, HERMES, TOOLS)
        assert (got.content, [call.arguments for call in got.calls]) == (content, calls)


def test_only_the_first_call_where_calls_may_not_be_parallel() -> None:
    """Later calls are left out, the text between them is not."""
    text = f"a{_xml('noop')}b{_json('weather', '{}')}c"
    got = read(list(text), QWEN_XML, TOOLS, max_calls=1)
    assert (got.content, [call.name for call in got.calls]) == ("abc", ["noop"])
