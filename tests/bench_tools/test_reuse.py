"""The comparison of what is evaluated again: its requests share what their names say, and answers are counted right."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.peers import draw_reuse, reuse
from tests.bench.peers.servers import Asked, Messages, read_answer

TEXT = "".join(f"word{number} " for number in range(2000))


class RecordingServer:
    """Keeps what it is asked; each answer's text is its number."""

    name = "recording"

    def __init__(self) -> None:
        self.asked: list[tuple[Messages, int]] = []

    def ask(self, messages: Messages, max_tokens: int) -> Asked:
        self.asked.append((messages, max_tokens))
        return Asked(0.5, 100, 10, f"answer {len(self.asked)}")


def test_requests_of_a_round() -> None:
    """What each case shares with the ones before it."""
    server = RecordingServer()
    chat = reuse.Chat(server, TEXT, 1)
    for ask in reuse.CASES.values():
        ask(chat)
    assert [limit for _, limit in server.asked] == [1, 1, reuse.ANSWER_TOKENS, *[1] * (4 + reuse.AGENTS)]
    cold, again, kept, following, edited, branch, back, *agents = [messages for messages, _ in server.asked]
    assert cold == again == kept
    assert [message["role"] for message in cold] == ["system", *["user", "assistant"] * (reuse.TURNS - 1), "user"]
    assert following[: len(cold)] == cold
    assert following[len(cold)]["content"] == "answer 3"  # its own
    assert edited[:-1] == following[:-1]
    assert edited[-1] != following[-1]
    assert branch[:-1] == cold[:3]
    assert branch[3]["role"] == cold[3]["role"] == "user"
    assert branch[3] != cold[3]
    assert back == following
    assert len({json.dumps(messages) for messages in agents}) == reuse.AGENTS
    assert len({messages[0]["content"] for messages in agents}) == 1


def test_a_new_chat_is_unknown_from_its_beginning() -> None:
    one, two = (reuse.chat(TEXT, number)[0]["content"] for number in (1, 2))
    assert one[:7] != two[:7]


def test_a_text_begins_again_at_its_end() -> None:
    text = reuse.Text("abcde", 3)
    assert [text.take(4), text.take(3)] == ["deab", "cde"]


def test_an_answer_is_counted() -> None:
    """Usage and timings come in different events, or in one; text from all of them."""
    events: list[dict[str, Any]] = [
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"content": None}}], "timings": {"prompt_n": 3}},
        {"choices": [{"delta": {"content": "b"}}]},
        {"choices": [], "usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 7}}},
    ]
    assert read_answer(events, 0.1) == Asked(0.1, 10, 3, "ab")
    events[1]["timings"] = {"prompt_n": 4}
    with pytest.raises(ValueError, match="3 evaluated tokens, timings 4"):
        read_answer(events, 0.1)


def test_requests_made_together_are_one_row(tmp_path: Path) -> None:
    """Tokens in sum, time until the last one's first token; a picture can be drawn of it."""
    case = reuse.Case("any")
    case.add("headrace", [Asked(0.1, 100, 10, ""), Asked(0.2, 100, 1, "")])
    case.add("llama.cpp", [Asked(0.4, 200, 150, "")])
    assert reuse.markdown([case], ["headrace", "llama.cpp"]).splitlines()[-1] == "| any | 200 | 11 | 150 | 200 | 400 | 2.0 |"
    rows = [{"name": case.name, "evaluated": case.evaluated}]
    draw_reuse.draw({"model": "m", "time": "t", "cases": rows}, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
