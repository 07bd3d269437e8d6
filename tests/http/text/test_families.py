"""Conversations as clients send them, through templates with the habits of known families."""

from datetime import datetime
from typing import Any

import pytest

from svc.errors import RequestError
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.tokenizer import Tokenizer
from svc.memory.placement import BoundaryKind
from tests.http.text.families import FAMILIES, Family

EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
TOOLS = [{"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}}}]


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _call(arguments: Any) -> dict[str, Any]:
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}


SYSTEM = {"role": "system", "content": "be brief."}
USER = {"role": "user", "content": "first question"}
ANSWER = {"role": "assistant", "content": "first answer", "tool_calls": None, "reasoning_content": None}
AGAIN = {"role": "user", "content": "second question"}
RESULT = {"role": "tool", "content": "forty-two", "tool_call_id": "call00001"}
# What must come out, in this order, of each.
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], tuple[str, ...]]] = {
    "plain": ([USER, ANSWER, AGAIN], ("first question", "first answer", "second question")),
    "parts": (
        [USER | {"content": _parts("one", "two")}, ANSWER | {"content": _parts("three")}, AGAIN],
        ("one", "two", "three", "second question"),
    ),
    "developer": ([SYSTEM | {"role": "developer"}, USER], ("be brief.", "first question")),
    "two systems": ([SYSTEM, SYSTEM | {"content": "be kind."}, USER], ("be brief.", "be kind.", "first question")),
    "late system": ([USER, ANSWER, SYSTEM, AGAIN], ("first question", "first answer", "be brief.", "second question")),
    "system at the end": ([USER, ANSWER, AGAIN, SYSTEM], ("first question", "first answer", "second question", "be brief.")),
    "system in parts": ([SYSTEM | {"content": _parts("rule one", "rule two")}, USER], ("rule one", "rule two", "first question")),
    "two users": ([USER, AGAIN], ("first question", "second question")),
    "two answers": ([USER, ANSWER, ANSWER | {"content": "more"}, AGAIN], ("first answer", "more", "second question")),
}
WITH_TOOLS: dict[str, tuple[list[dict[str, Any]], tuple[str, ...]]] = {
    "object": ([USER, _call({"key": "value"}), RESULT], ("first question", "look", "key", "value", "forty-two")),
    "text": ([USER, _call('{"key": "value"}'), RESULT], ("first question", "look", "key", "value", "forty-two")),
    "empty": ([USER, _call(""), RESULT], ("first question", "look", "forty-two")),
    "null": ([USER, _call(None), RESULT], ("first question", "look", "forty-two")),
    "no JSON": ([USER, _call("{key:value"), RESULT], ("first question", "look", "{key:value", "forty-two")),
    "infinite": ([USER, _call('{"key": 1e400}'), RESULT], ("first question", "look", "1e400", "forty-two")),
    "encoded twice": ([USER, _call('"{}"'), RESULT], ("first question", "look", "{}", "forty-two")),
    "result in parts": (
        [USER, _call("{}"), RESULT | {"content": _parts("forty", "two")}], ("first question", "look", "forty", "two")
    ),
    "older form": (
        [USER, {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}],
        ("first question", "look"),
    ),
}  # fmt: skip
CALLING = [name for name in FAMILIES if name not in ("gemma", "vision")]  # these write no calls


def _in_order(text: str, words: tuple[str, ...]) -> bool:
    at = 0
    for word in words:
        at = text.find(word, at)
        if at < 0:
            return False
        at += len(word)
    return True


def _starts(
    family: Family, template: ChatTemplate, tokenizer: Tokenizer, messages: list[dict[str, Any]], **options: Any
) -> list[int]:
    """The message starts of the prompt, after checks that hold for every prompt."""
    prompt = template.encode_chat(messages, **options)
    text = template.render(messages, **options)
    assert list(prompt.ids) == tokenizer.encode(text, parse_special=True)
    openers = {tokenizer.control_tokens[opener] for opener in family.openers}
    starts = [at for at, token in enumerate(prompt.ids) if token in openers]
    assert [b.position for b in prompt.boundaries if b.kind is BoundaryKind.MESSAGE_START] == starts
    assert {b.position for b in prompt.boundaries} == set(starts)
    return starts


@EVERY
def test_habits_are_learned(family: Family) -> None:
    """As the template was written."""
    assert family.template()._habits == family.habits


@EVERY
@pytest.mark.parametrize("case", CONVERSATIONS)
def test_conversations(family: Family, case: str) -> None:
    """Nothing is refused, lost or moved, and every message start is a boundary."""
    messages, words = CONVERSATIONS[case]
    template, tokenizer = family.template(), family.tokenizer()
    text = template.render(messages, add_generation_prompt=True)
    assert _in_order(text, words), text
    assert "None" not in text
    assert all(text.count(word) == 1 for word in words)
    starts = _starts(family, template, tokenizer, messages, add_generation_prompt=True)
    assert starts


@pytest.mark.parametrize("name", CALLING)
@pytest.mark.parametrize("case", WITH_TOOLS)
def test_tool_calls(name: str, case: str) -> None:
    """Arguments in every form that clients send, bad ones too, and results."""
    family = FAMILIES[name]
    messages, words = WITH_TOOLS[case]
    template, tokenizer = family.template(), family.tokenizer()
    if (name, case) == ("mistral", "older form"):
        with pytest.raises(RequestError, match="length 9"):  # the older form has no ids
            template.render(messages, add_generation_prompt=True)
        return
    for tools in (None, TOOLS):
        text = template.render(messages, tools=tools, add_generation_prompt=True)
        start = text.rfind("first question")
        written = text[start:].replace('\\"', '"')  # inside of a JSON text
        assert _in_order(written, words), text
        assert "None" not in text
        _starts(family, template, tokenizer, messages, tools=tools, add_generation_prompt=True)


@EVERY
def test_a_conversation_that_goes_on_repeats_its_beginning(family: Family) -> None:
    """Up to the start of the answer, a prompt begins that of the next turn; late system messages do not change that.

    Except for a template that moves the system message to the last turn.
    """
    template, tokenizer = family.template(), family.tokenizer()
    turns = [USER, ANSWER, AGAIN, ANSWER | {"content": "later"}, SYSTEM, {"role": "user", "content": "third question"}]
    before: list[int] = []
    for length in (1, 3, 6):
        ids = template.encode_chat(turns[:length], add_generation_prompt=True).ids.tolist()
        starts = _starts(family, template, tokenizer, turns[:length], add_generation_prompt=True)
        assert ids[: len(before)] == before
        before = ids[: starts[-1]]
    assert before


@EVERY
def test_the_system_block_ends_where_the_conversation_begins(family: Family) -> None:
    """SYSTEM_END at the first message of the user, if there is something before it."""
    template, tokenizer = family.template(), family.tokenizer()
    prompt = template.encode_chat([SYSTEM, USER], add_generation_prompt=True)
    ends = [b.position for b in prompt.boundaries if b.kind is BoundaryKind.SYSTEM_END]
    if family.name in ("mistral", "gemma"):  # the system message is part of the user's
        assert ends == []
        return
    (end,) = ends
    assert "be brief." in tokenizer.decode(prompt.ids[:end])
    assert "first question" in tokenizer.decode(prompt.ids[end:])
    other = template.encode_chat([SYSTEM, USER | {"content": "other"}], add_generation_prompt=True)
    assert other.ids[:end] == prompt.ids[:end]


@EVERY
@pytest.mark.parametrize("content", ["the answer is", _parts("the", "answer is")])
def test_the_final_message_can_be_continued(family: Family, content: Any) -> None:
    """The prompt ends with its text, whatever form it had."""
    template, tokenizer = family.template(), family.tokenizer()
    prompt = template.encode_chat([USER, ANSWER | {"content": content}], add_generation_prompt=False, continue_final_message=True)
    assert tokenizer.decode(prompt.ids).endswith("answer is")


@EVERY
def test_control_tokens_in_text_stay_text(family: Family) -> None:
    """In every form of content and arguments: no control token and no boundary comes of what a person or a model wrote."""
    template = family.template()

    def prompt(word: str) -> tuple[list[int], list[BoundaryKind]]:
        messages = [
            SYSTEM | {"content": word},
            USER | {"content": _parts(word, word)},
            _call(f"{{{word}") | {"reasoning": word},
            RESULT | {"content": _parts(word)},
            ANSWER | {"content": word, "name": word},
            AGAIN,
            SYSTEM | {"content": word},
        ]
        if family.name not in CALLING:
            messages = [*messages[:2], *messages[4:]]
        encoded = template.encode_chat(messages, tools=TOOLS, add_generation_prompt=True, kwargs={"reasoning_effort": word})
        return [token for token in encoded.ids if token >= 256], [b.kind for b in encoded.boundaries]

    assert prompt("".join(family.controls)) == prompt("word")


def test_no_user_message_where_the_template_allows_it() -> None:
    """It is the template that decides."""
    for name, refuses in (("hermes", False), ("llama3", False), ("qwen35", True)):
        template = FAMILIES[name].template()
        if refuses:
            with pytest.raises(RequestError, match="No user query"):
                template.render([SYSTEM], add_generation_prompt=True)
        else:
            assert "be brief." in template.render([SYSTEM], add_generation_prompt=True)


def test_variables() -> None:
    """The date of today, the tools as a text, and what the request says."""
    assert "Today Date: 01 Dec 2026" in FAMILIES["llama3"].template().render([USER], add_generation_prompt=True)
    assert "Today Date: never" in FAMILIES["llama3"].template().render(
        [USER], add_generation_prompt=True, kwargs={"date_string": "never"}
    )
    firefunction = ChatTemplate("Today is {{ datetime }}.", FAMILIES["hermes"].tokenizer(), now=lambda: datetime(2026, 12, 1))
    assert firefunction.render([USER], add_generation_prompt=True) == "Today is Dec 01 2026."
    harmony = FAMILIES["harmony"].template()
    assert "Reasoning: high" in harmony.render([USER], add_generation_prompt=True, kwargs={"reasoning_effort": "high"})
    assert "hm<|end|>" in harmony.render([USER, _call("{}") | {"reasoning": "hm"}, RESULT], add_generation_prompt=True)
    without_bos = ChatTemplate("{% set start = bos_token + 'x' %}{{ start }}", FAMILIES["hermes"].tokenizer())
    assert without_bos.render([USER], add_generation_prompt=True) == "x"
    functions = ChatTemplate("{{ functions }}", FAMILIES["hermes"].tokenizer())
    assert functions.render([USER], tools=TOOLS, add_generation_prompt=True).startswith('[\n    {\n        "type": "function"')
    assert functions.render([USER], add_generation_prompt=True) == ""  # Firefunction puts it behind a text without asking
    assert (
        ChatTemplate("{{ functions is defined }}", FAMILIES["hermes"].tokenizer()).render([USER], add_generation_prompt=True)
        == "False"
    )


def test_a_template_for_tools() -> None:
    """It is used when the conversation has tools, with habits of its own; errors in it are the model file's."""
    tokenizer = FAMILIES["hermes"].tokenizer()
    plain, tool_use = (
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{{ tools | length }}{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}",
    )
    template = ChatTemplate(plain, tokenizer, tool_use=tool_use)
    assert template.render([USER], add_generation_prompt=True) == "first question"
    assert template.render([USER], tools=[], add_generation_prompt=True) == "first question"
    assert template.render([USER], tools=TOOLS, add_generation_prompt=True) == "1first question"
    ids = template.encode_chat([USER], tools=TOOLS, add_generation_prompt=True).ids
    assert tokenizer.decode(ids) == "1first question"
