"""The fixtures of canitoolcall: answers of real models, each with the parse that its authors hold to be right."""

from typing import Any

import pytest
from canitoolcall.checks import case_status, run_checks
from canitoolcall.chunking import ChunkStrategy, split_text
from canitoolcall.fixtures import Fixture, load_family, load_fixtures
from canitoolcall.results import Observation, ParsedToolCall, ParseResult, Status

from svc.http.text.reasoning import ReasoningTags
from svc.http.text.tool_calls.call_format import HERMES, LLAMA_JSON, MISTRAL, MISTRAL_LIST, QWEN_XML, CallFormat
from tests.fakes.answers import THINK, read

_FIXTURES = load_fixtures(families=["qwen3-xml", "qwen3-hermes", "llama", "mistral"])
_STRATEGIES = [ChunkStrategy("one"), *(ChunkStrategy("char", seed) for seed in range(4))]
_FORMS: dict[str, tuple[CallFormat, ReasoningTags]] = {
    "qwen3-xml": (QWEN_XML, THINK),
    "qwen3-hermes": (HERMES, THINK),
    "llama": (LLAMA_JSON, THINK),
    "mistral": (MISTRAL, ReasoningTags("[THINK]", "[/THINK]")),
}
_MISTRAL_LISTS = ("[TOOL_CALLS] [", "[TOOL_CALLS][")

# Their authors drop a call that the answer ends in; here its arguments are kept so far, broken off, as OpenAI does: they have been
# streamed by then. Nobody can take them for complete.
_CUT_OFF = {
    "llama/l3-truncated-inside-parameters",
    "mistral/v13think-truncated-in-arguments",
    "qwen3-hermes/bug-sglang-30480-truncated-mid-arguments",
    "qwen3-hermes/truncated-mid-arguments-no-thinking",
    "qwen3-hermes/truncated-mid-arguments-thinking",
    "qwen3-hermes/truncated-second-parallel-call",
    "qwen3-hermes/vllm-invalid-json-missing-brace",
    "qwen3-xml/q38-truncated-in-parameter",
}
_OTHER_WHITE_SPACE = {"llama/l3-sglang-text-before-python-tag"}  # none is kept here between a text and a call


def _parse(fixture: Fixture, pieces: list[str]) -> ParseResult:
    form, tags = _FORMS[fixture.family]
    if any(opening in fixture.raw_output for opening in _MISTRAL_LISTS):
        form = MISTRAL_LIST
    if fixture.raw_output.startswith("<think>"):
        tags = THINK
    tools: list[dict[str, Any]] = [dict(tool) for tool in fixture.tools]
    inside = tags.left_open_by(fixture.generation_prompt or "")
    got = read(pieces, form, tools, reasoning=tags, inside=inside)
    calls = tuple(ParsedToolCall(call.name, call.arguments) for call in got.calls)
    return ParseResult(got.content or None, got.reasoning or None, calls)


def _status(fixture: Fixture) -> Status:
    text = fixture.raw_output
    streams = {f"rand:{n}:8": _parse(fixture, split_text(text, cut)) for n, cut in enumerate(_STRATEGIES)}
    checks = run_checks(fixture, load_family(fixture.family), Observation(_parse(fixture, [text]), streams))
    return case_status(checks)


@pytest.mark.parametrize("fixture", [pytest.param(f, id=f.id) for f in _FIXTURES if "x-llama-pythonic" not in f.tags])
def test_fixture(fixture: Fixture) -> None:
    """Exactly what is expected, whole and in pieces, without markup in any field and with arguments that fit the schema."""
    expected = Status.FAIL if fixture.id in _CUT_OFF else Status.SOFT_PASS if fixture.id in _OTHER_WHITE_SPACE else Status.PASS
    assert _status(fixture) is expected


def test_what_is_cut_off_is_not_complete() -> None:
    """The calls in which our result differs are marked as broken off."""
    for fixture in _FIXTURES:
        if fixture.id in _CUT_OFF:
            form, tags = _FORMS[fixture.family]
            got = read([fixture.raw_output], form, [dict(tool) for tool in fixture.tools], reasoning=tags, inside=False)
            assert got.calls[-1].complete is False
