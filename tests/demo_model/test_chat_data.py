"""What the model was taught is what the server's chat template writes."""

import random
import re

import pytest

from svc.http.text.template_env import template_environment
from tests.demo_model.scripts import SCRIPTS, load_script

chat_data = load_script("chat_data")
NOVEL = """CHAPTER I

"How pleasant," said Emma, "to see you!"

"Indeed it is," he answered; "I am just come from London,"

"And how is Mr. Knightley?" she asked.

He was silent. Mr. Elton had been very well in the morning. The rain came on. They walked to the house, where everybody
was waiting for them in the drawing-room, with great impatience, and nobody spoke.

Nothing more was said."""


def render(messages: list[dict[str, str]], **variables: object) -> str:
    source = (SCRIPTS / "template.jinja").read_text()
    return template_environment().from_string(source).render(messages=messages, **variables)


def test_render_is_the_template() -> None:
    """A rendered training conversation equals the template's text for the same messages."""
    turns = [("system", "Be kind."), ("user", "Hello."), ("assistant", "Good day!"), ("user", "Who?"), ("assistant", "I.")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert chat_data.render(turns, no_thinking=False) == render(messages)


def test_no_thinking_is_the_prompt_with_thinking_off() -> None:
    """The last answer stands where generation starts with enable_thinking false."""
    prompt = render([{"role": "user", "content": "Hello."}], add_generation_prompt=True, enable_thinking=False)
    taught = chat_data.render([("user", "Hello."), ("assistant", "Good day!")], no_thinking=True)
    assert taught == prompt + "Good day!<|im_end|>\n"


def test_tool_preamble_is_the_template() -> None:
    tools = [chat_data.WEATHER_TOOL]
    assert render([{"role": "user", "content": "Rain?"}], tools=tools) == (
        f"<|im_start|>system\n{chat_data.tool_preamble(tools)}<|im_end|>\n<|im_start|>user\nRain?<|im_end|>\n"
    )


def test_speeches_become_turns() -> None:
    """Narration goes, speech stays whole, a trailing comma becomes a full stop."""
    rng = random.Random(0)
    found = {tuple(turns) for _ in range(20) for turns in chat_data._speeches(NOVEL.split("\n\n")[1:], rng)}
    assert found == {
        (("user", "How pleasant, to see you!"), ("assistant", "Indeed it is, I am just come from London.")),
        (("user", "Indeed it is, I am just come from London."), ("assistant", "And how is Mr. Knightley?")),
    }


@pytest.mark.parametrize("seed", range(5))
def test_conversations_are_whole(seed: int) -> None:
    """Each ends with an answer, roles alternate after the system turn, and the same seed makes the same ones."""
    made = chat_data.dialogues([NOVEL] * 5, random.Random(seed), passes=3)
    assert made == chat_data.dialogues([NOVEL] * 5, random.Random(seed), passes=3)
    for text in made:
        roles = re.findall(r"<\|im_start\|>(\w+)\n", text)
        asked = roles[1:] if roles[0] == "system" else roles
        assert asked == ["user", "assistant"] * (len(asked) // 2)
        assert text.endswith("<|im_end|>\n")
        assert text.count("<|im_end|>") == len(roles)
