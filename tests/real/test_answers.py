"""Tokens of texts and greedy answers against llama-server's, and what the prefix cache gives real conversations."""

from pathlib import Path
from typing import Any

import pytest

from tests.bench.peers.servers import Server
from tests.real.conftest import messages
from tests.tolerances import CLEAR_MARGIN

VOCAB = Path(__file__).parents[1] / "data" / "vocab"
pytestmark = pytest.mark.timeout(7200)  # of a large model on a busy machine
MAX_TOKENS = 48
PROMPTS = [
    "What is the capital of France?",
    "Name the planets of the solar system.",
    "What is 17 + 25?",
    "Write a Python function that returns the factorial of n.",
    "Translate 'good morning' into Spanish.",
    "Explain in one sentence what an operating system does.",
    "List three uses of a hammer.",
    "Who wrote Romeo and Juliet?",
    "Write a haiku about the sea.",
    "What does HTTP status 404 mean?",
    "Sort these numbers: 9, 4, 7, 1.",
    "Write a SQL query that counts the rows of the table users.",
    "Why is the sky blue?",
    "Give me a synonym for 'happy'.",
    "Was ist die Hauptstadt von Österreich?",
    "Complete the sentence: The quick brown fox",
    "What is the difference between a list and a tuple in Python?",
    "Convert 1,000,000 metres to kilometres.",
    "Write a bash command that finds all files larger than 10 MB.",
    "请用一句话介绍北京。",
]


def texts() -> list[str]:
    """The texts of llama.cpp's own tokenizer tests, and the prompts."""
    return [*(VOCAB / "ggml-vocab-qwen35.inp").read_text().split("\n__ggml_vocab_test__\n"), *PROMPTS]


def test_tokens_of_texts(ours: Server, peer: Server) -> None:
    """Every text has the same ids, digits and line ends and several scripts among them."""
    for text in texts():
        body = {"content": text, "add_special": True, "parse_special": False}
        assert ours.post("/tokenize", body)["tokens"] == peer.post("/tokenize", body)["tokens"], repr(text)


def greedy(server: Server, question: str) -> dict[str, Any]:
    body = {"messages": messages(question), "temperature": 0, "max_tokens": MAX_TOKENS, "logprobs": True, "top_logprobs": 2}
    return server.post("/v1/chat/completions", body)


def margin(step: dict[str, Any]) -> float:
    """By how much the best token was ahead of the second, in nats."""
    first, second = (top["logprob"] for top in step["top_logprobs"][:2])
    return float(first - second)


def test_greedy_answers(ours: Server, peer: Server, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Token by token the same, or different where neither server was sure. After that the two say different things."""
    whole, agreed, unclear = 0, 0, []
    for question in PROMPTS:
        found, expected = greedy(ours, question), greedy(peer, question)
        assert found["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"], question
        steps = zip(*(answer["choices"][0]["logprobs"]["content"] for answer in (found, expected)), strict=False)
        for number, (mine, yours) in enumerate(steps):
            if mine["bytes"] != yours["bytes"]:
                least = min(margin(mine), margin(yours))
                said = f"{question!r}, token {number}: {mine['token']!r}, llama.cpp {yours['token']!r}, margin {least:.3f}"
                assert least < CLEAR_MARGIN, said
                unclear.append(least)
                break
            agreed += 1
        else:
            whole += 1
            assert [answer["choices"][0]["finish_reason"] for answer in (found, expected)] in (["stop"] * 2, ["length"] * 2)
    with capsys.disabled():
        print(f"\n{model.stem}: {whole} of {len(PROMPTS)} answers the same, {agreed} tokens before the first difference;", end=" ")
        print("margins there:", ", ".join(f"{least:.3f}" for least in sorted(unclear)) or "none")
    assert whole >= len(PROMPTS) // 4
    assert agreed >= len(PROMPTS) * MAX_TOKENS // 4


def test_an_edited_question_resumes_where_it_was_changed(ours: Server) -> None:
    """A model without recurrent state resumes at any token: all before the changed word is cached, and the answer is the one
    that nothing cached gives."""
    system = "You are a terse assistant. " + " ".join(f"Rule {n}: be brief." for n in range(40))
    asked = {"temperature": 0, "max_tokens": 16}

    def ask(question: str, **others: object) -> dict[str, Any]:
        return ours.post("/v1/chat/completions", {"messages": messages(question, system), **asked, **others})

    cold = ask("Name a river in Egypt.", cache_prompt=False)
    ask("Name a river in Germany.")
    edited = ask("Name a river in Egypt.")
    usage = edited["usage"]
    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 12
    assert edited["choices"] == cold["choices"]
    again = ask("Name a river in Egypt.")
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]
    assert again["choices"] == cold["choices"]
