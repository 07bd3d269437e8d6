"""The format of reasoning and calls, learned from chat templates."""

from typing import Any

import pytest

from svc.http.text.answer_format import AnswerFormat, answer_format
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.reasoning import ReasoningTags
from svc.http.text.tool_calls.call_format import HERMES, LLAMA_JSON, MISTRAL, MISTRAL_LIST, QWEN_XML, Body, CallFormat
from tests.fakes.answers import THINK, read, tool, written
from tests.fakes.fake_text import byte_tokenizer

# Each template is a header, the answer's reasoning if it writes that, its content, and its calls in one of the ways of the field.
_HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
_CALLS = "{% for c in m.tool_calls %}{% set f = c.function %}"
_TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_THOUGHT = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"

_HERMES_CALL = '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>'
_XML_CALL = (
    "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>"
)
_LISTED_CALL = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ c.id }}"}'
_BREAK = "{{ '\\n' }}"
_NO_CALLS = "{% if m.tool_calls %}{{ raise_exception('no tools') }}{% endif %}"
_ONE_CALL = "{% if m.tool_calls | length > 1 %}{{ raise_exception('only one call') }}{% endif %}"


def _with_calls(call: str, separator: str = "", first: str = "", last: str = "") -> str:
    between = "{% if not loop.first %}{{ " + repr(separator) + " }}{% endif %}"
    return "{{ m.content }}{% if m.tool_calls %}" + first + _CALLS + between + call + "{% endfor %}" + last + "{% endif %}"


def _format(body: str) -> AnswerFormat:
    return answer_format(ChatTemplate(_HEAD + body + _TAIL, byte_tokenizer()))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_with_calls(_HERMES_CALL, "\n"), HERMES),
        (_with_calls(_BREAK + _HERMES_CALL), HERMES),
        (_THOUGHT + _with_calls(_HERMES_CALL, "\n"), HERMES),
        (_with_calls(_XML_CALL, "\n"), QWEN_XML),
        (_with_calls(_BREAK + _XML_CALL), QWEN_XML),
        (_with_calls(_XML_CALL.replace("tool_call>", "seed:tool_call>"), "\n"), CallFormat(
            Body.XML, "<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>", "\n")),
        (_ONE_CALL + _with_calls('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'), CallFormat(
            Body.JSON, LLAMA_JSON.open, LLAMA_JSON.between, LLAMA_JSON.close)),
        (_with_calls(_LISTED_CALL, ", ", "[TOOL_CALLS] [", "]"), MISTRAL_LIST),
        (_with_calls("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"), MISTRAL),
        (_with_calls("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"), CallFormat(
            Body.NAMED, "[TOOL_CALLS]", "[ARGS]", "")),
        (_with_calls("<begin>{{ f.name }}<sep>{{ f.arguments | tojson }}<end>", "", "<begins>", "<ends>"), CallFormat(
            Body.NAMED, "<begin>", "<sep>", "<end>", "", "<begins>", "<ends>")),
        (_NO_CALLS + "{{ m.content }}", None),
        ("{{ m.content }}", None),
        (_with_calls("<call>{{ f.arguments | tojson }} to {{ f.name }}</call>"), None),
    ],
)  # fmt: skip
def test_calls(body: str, expected: CallFormat | None) -> None:
    """The literal texts of a call as the template writes them, whatever its name; none where it writes none."""
    assert _format(body).calls == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_THOUGHT + "{{ m.content }}", THINK),
        (_THOUGHT.replace("think>", "seed:think>") + "{{ m.content }}", ReasoningTags("<seed:think>", "</seed:think>")),
        (_THOUGHT.replace("<think>\n", "<|START_THINKING|>").replace("\n</think>", "<|END_THINKING|>") + "{{ m.content }}",
         ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>")),
        ("{{ m.content.split('</think>')[-1] }}", THINK),
        ("{{ m.content.split('[/THINK]')[-1] }}", ReasoningTags("[THINK]", "[/THINK]")),
        ("{{ m.content }}", None),
        ("{{ m.reasoning_content }}{{ m.content }}", None),
    ],
)  # fmt: skip
def test_reasoning(body: str, expected: ReasoningTags | None) -> None:
    """The tags around the reasoning of the past, or those that the template takes out of it."""
    assert _format(body).reasoning == expected


@pytest.mark.parametrize("name", ["fixture_template", "strict_template"])
def test_templates_of_real_shape(name: str, request: pytest.FixtureRequest) -> None:
    """ChatML with Hermes calls, and the Qwen3.5 family's, which refuses conversations that it does not like."""
    found = answer_format(ChatTemplate(request.getfixturevalue(name), byte_tokenizer()))
    assert found == AnswerFormat(THINK, HERMES if name == "fixture_template" else QWEN_XML)


def test_a_found_format_reads_what_the_template_writes() -> None:
    """Calls and text around the tags of an outer list, by the format alone."""
    form = _format(_with_calls("<begin>{{ f.name }}<sep>{{ f.arguments | tojson }}<end>", "\n", "<begins>", "<ends>")).calls
    assert form
    calls: list[tuple[str, dict[str, Any]]] = [("f", {"a": 1}), ("g", {})]
    got = read(list("Well. " + written(form, calls)), form, [tool("f")])
    assert (got.content, got.called) == ("Well.", calls)


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>\n\n</think>\n\n", False),
        ("assistant\n", False),
        ("</think><think>a", True),
    ],
)
def test_a_prompt_may_leave_reasoning_open(prompt: str, inside: bool) -> None:
    """The last tag decides."""
    assert THINK.left_open_by(prompt) is inside
