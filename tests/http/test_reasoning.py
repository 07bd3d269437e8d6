"""Reasoning over HTTP: parted from the content, counted, bounded."""

from typing import Any

import pytest

from svc.http.service import AnswerSettings
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.reasoning import REASONING_FIELDS, ReasoningFormat
from tests.fakes.fake_engine import FakeEngine, allowed_tokens, saying
from tests.fakes.fake_text import CHATML, REASONING_CHATML
from tests.http.harness import TOKENIZER, serving

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
REASONING = ChatTemplate(REASONING_CHATML, TOKENIZER)
SAID = "Let me think.\n</think>\n\nFour."
NUM_REASONING = len("Let me think.\n</think>")


async def _answer(text: str, settings: AnswerSettings | None = None, **fields: Any) -> Any:
    async with serving(FakeEngine(saying(text)), template=REASONING, answers=settings or AnswerSettings()) as at:
        status, answer = await at.post(CHAT, BODY | fields)
    assert status == 200, answer
    return answer


async def _deltas(text: str, **fields: Any) -> list[dict[str, Any]]:
    async with serving(FakeEngine(saying(text)), template=REASONING) as at:
        events = await at.events(CHAT, BODY | fields)
    return [chunk["choices"][0]["delta"] for chunk in events[:-1] if chunk["choices"]]


async def test_an_answer_that_begins_inside_of_its_reasoning() -> None:
    """The prompt has opened it: content begins behind the closing tag, and usage counts the tokens before."""
    answer = await _answer(SAID)
    message = answer["choices"][0]["message"]
    assert message["content"] == "Four."
    assert message["reasoning_content"] == message["reasoning"] == "Let me think."
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": NUM_REASONING}
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_an_answer_that_opens_its_reasoning_itself() -> None:
    """Thinking was turned off in the prompt, and the model thinks nevertheless."""
    answer = await _answer("<think>\nHm.\n</think>\n\nFour.", enable_thinking=False)
    assert answer["choices"][0]["message"]["reasoning"] == "Hm."
    assert (await _answer("Four.", enable_thinking=False))["choices"][0]["message"] == {
        "content": "Four.", "role": "assistant", "refusal": None,
    }  # fmt: skip


async def test_a_stream_of_reasoning() -> None:
    """Both fields in each delta of reasoning, then the content; joined, it is the whole answer."""
    deltas = await _deltas(SAID)
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Let me think."
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Let me think."
    assert "".join(delta.get("content", "") for delta in deltas) == "Four."
    first_content = next(n for n, delta in enumerate(deltas) if delta.get("content"))
    assert not any("reasoning" in delta for delta in deltas[first_content:])


@pytest.mark.parametrize(
    ("fields", "content", "reasoning"),
    [
        ({"reasoning_format": "none"}, SAID, None),
        ({"reasoning_format": "deepseek"}, "Four.", "Let me think."),
        ({"reasoning_format": "deepseek-legacy"}, "<think>Let me think.</think>Four.", "Let me think."),
        ({"reasoning_format": "deepseek-legacy", "include_reasoning": False}, "Four.", None),
        ({"separate_reasoning": False}, SAID, None),
        ({"include_reasoning": False}, "Four.", None),
        ({"reasoning": {"exclude": True}}, "Four.", None),
    ],
)
async def test_what_becomes_of_it(fields: dict[str, Any], content: str, reasoning: str | None) -> None:
    """In its fields, in the content with its tags, or left out, in the words of four servers."""
    message = (await _answer(SAID, **fields))["choices"][0]["message"]
    assert (message["content"], message.get("reasoning"), message.get("reasoning_content")) == (content, reasoning, reasoning)
    deltas = await _deltas(SAID, **fields)
    assert "".join(delta.get("content", "") for delta in deltas) == content
    assert "".join(delta.get("reasoning", "") for delta in deltas) == (reasoning or "")


async def test_the_operators_settings() -> None:
    """Where the request says nothing: the form, the fields, whether to think and how long."""
    in_content = await _answer(SAID, AnswerSettings(reasoning_format=ReasoningFormat.IN_CONTENT))
    assert in_content["choices"][0]["message"]["content"] == SAID
    one_field = await _answer(SAID, AnswerSettings(reasoning_fields=REASONING_FIELDS["reasoning"]))
    assert set(one_field["choices"][0]["message"]) == {"content", "role", "refusal", "reasoning"}
    async with serving(FakeEngine(saying("x")), template=REASONING, answers=AnswerSettings(enable_thinking=False)) as at:
        await at.post(CHAT, BODY)
        await at.post(CHAT, BODY | {"enable_thinking": True})
    prompts = [TOKENIZER.decode(sequence.request.prompt) for sequence in at.engine.sequences]
    assert [prompt.endswith("<think>\n\n</think>\n\n") for prompt in prompts] == [True, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking_budget": 9}, {"thinking_budget_tokens": 9}, {"reasoning_budget": 9.0}, {"reasoning": {"max_tokens": 9}},
        {"thinking": {"type": "enabled", "budget_tokens": 9}}, {"thinking_token_budget": 9}, {"reasoning_budget_tokens": 9},
    ],
)  # fmt: skip
async def test_the_budget_is_kept_exactly(fields: dict[str, Any]) -> None:
    """After as many tokens of reasoning, nothing but the closing tag may come; behind it everything may."""
    async with serving(FakeEngine(), template=REASONING) as at, at.client.post(CHAT, json=BODY | fields | {"stream": True}):
        sequence = await at.engine.submitted.get()
        for letter in b"thinking.":
            assert allowed_tokens(sequence.request) is None
            sequence.say(letter)
        for letter in b"</think>":
            assert allowed_tokens(sequence.request) == [letter]
            sequence.say(letter)
        assert allowed_tokens(sequence.request) is None


async def test_a_budget_that_is_not_used_up() -> None:
    """Reasoning that ends by itself is followed by content of any length."""
    text = "ab</think>" + "c" * 40
    answer = await _answer(text, thinking_budget=20)
    assert answer["choices"][0]["message"]["content"] == "c" * 40


async def test_a_grammar_behind_a_budget() -> None:
    """The grammar begins where the reasoning ends, forced or not."""
    body = BODY | {"thinking_budget": 2, "guided_choice": ["yes"], "stream": True}
    async with serving(FakeEngine(), template=REASONING) as at, at.client.post(CHAT, json=body):
        sequence = await at.engine.submitted.get()
        for letter in b"hm</think>":
            sequence.say(letter)
        assert set(allowed_tokens(sequence.request) or []) == {ord("y"), ord("\n")}


async def test_a_model_that_does_not_reason() -> None:
    """Tags in its answers are text, and a budget means nothing."""
    plain = ChatTemplate(CHATML, TOKENIZER)
    async with serving(FakeEngine(saying(SAID)), template=plain) as at:
        _, answer = await at.post(CHAT, BODY | {"thinking_budget": 1})
    assert answer["choices"][0]["message"]["content"] == SAID
    assert at.engine.sequences[0].request.constraint is None


async def test_reasoning_and_logprobs_of_all_tokens() -> None:
    """Log probabilities are told of every token, whatever part it belongs to, in a stream as in a whole answer."""
    whole = (await _answer(SAID, logprobs=True))["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in whole) == SAID
    async with serving(FakeEngine(saying(SAID)), template=REASONING) as at:
        events = await at.events(CHAT, BODY | {"logprobs": True, "return_token_ids": True})
    choices = [chunk["choices"][0] for chunk in events[:-1] if chunk["choices"]]
    told = [entry["token"] for choice in choices if choice.get("logprobs") for entry in choice["logprobs"]["content"]]
    assert "".join(told) == SAID
    assert bytes(token for choice in choices for token in choice.get("token_ids", [])).decode() == SAID
