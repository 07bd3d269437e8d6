"""The replay over HTTP: what is sent, what is counted, and which budgets the two servers get."""

from pathlib import Path
from typing import Any

import pytest

from svc.config import BUNDLED_MODEL
from svc.gguf.gguf_file import GgufFile
from svc.http.text.tokenizer import Tokenizer
from tests.bench.peers.servers import Setting
from tests.bench.replay import over_http
from tests.bench.replay.device import LAYOUT
from tests.bench.replay.over_http import OURS, OURS_DIVIDED, PEER, Counts, Filled, HttpRow
from tests.bench.replay.traces import ASSISTANT, SYSTEM, THOUGHT, TRACES, USER, Ask, Chat, Size, make

WORDS = [f"w{number}" for number in range(1000)]


class PerfectServer:
    """Keeps every text; a character is a token. Each answer is its number."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._known: list[str] = []

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/v1/chat/completions"
        self.bodies.append(body)
        prompt, answer = "".join(f"<{m['role']}>{m['content']}" for m in body["messages"]), f"answer {len(self.bodies)}"
        cached = max((len(common(prompt, known)) for known in self._known), default=0)
        self._known.append(f"{prompt}<assistant>{answer}")
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": cached}}
        return {"choices": [{"message": {"content": answer}}], "usage": usage}


def common(one: str, other: str) -> str:
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def talk() -> list[Ask]:
    """A turn, the next one, and that again by a client that leaves after two tokens of the answer, or before it."""
    chat = Chat().say(SYSTEM, [100, 101]).say(USER, [102])
    first = chat.ask(0.0, [200, 201, 202])
    chat.say(ASSISTANT, [200, 201, 202]).say(USER, [103])
    second = chat.ask(1.0, [203])
    length = len(second.prompt)
    return [first, second, chat.ask(2.0, [204, 205, 206], length + 2), chat.ask(3.0, [207], length - 1)]


def test_a_trace_is_sent_with_the_servers_own_answers() -> None:
    server = PerfectServer()
    counts = over_http.replay(server, talk(), WORDS)
    assert [body["max_tokens"] for body in server.bodies] == [3, 1, 2]  # the last one leaves before there is an answer
    first, second, again = [body["messages"] for body in server.bodies]
    assert first == [{"role": "system", "content": "w100 w101"}, {"role": "user", "content": "w102"}]
    assert second == [*first, {"role": "assistant", "content": "answer 1"}, {"role": "user", "content": "w103"}]
    assert again == second
    prompts = ["<system>w100 w101<user>w102", "<assistant>answer 1<user>w103"]
    assert counts == Counts(3, 3 * len(prompts[0]) + 2 * len(prompts[1]), len(prompts[0]) + len("<user>w103"))


def test_thoughts_are_not_sent_back() -> None:
    """Of an answer that the trace sends back without its thinking part, the trace's own words are sent."""
    chat = Chat(thinks=True).say(USER, [102])
    asks = [chat.ask(0.0, [200, THOUGHT, 201])]
    asks.append(chat.say(ASSISTANT, [201]).say(USER, [103]).ask(1.0, [202]))
    server = PerfectServer()
    over_http.replay(server, asks, WORDS)
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["w102", "w201", "w103"]


@pytest.mark.parametrize("name", TRACES)
def test_every_trace_can_be_sent(name: str) -> None:
    """Each prompt is made of its messages, and in words it is as long as in tokens, but for the frames of messages."""
    for ask in make(TRACES[name], 3, Size(text=0.3, clients=0.3)):
        body = over_http.body_of(ask, {}, WORDS)
        assert [message["role"] for message in body["messages"]] == [over_http.ROLES[role] for role, _ in ask.messages]
        words = sum(len(message["content"].split()) for message in body["messages"])
        frames = 5 * len(ask.messages) + 3
        assert len(ask.prompt) - frames - words in (0, 1)  # one where the generation prompt opens a thinking part
        assert body["max_tokens"] >= 1 or not over_http.whole_prompt(ask)


def test_words_are_single_tokens() -> None:
    words = over_http.words_of(BUNDLED_MODEL)
    tokenizer = Tokenizer.from_metadata(GgufFile.open(BUNDLED_MODEL).metadata)
    assert len(words) == len(set(words)) > 500
    assert len(tokenizer.encode(" " + " ".join(words), parse_special=False)) < 1.02 * len(words)


def test_a_quarter_and_its_bytes() -> None:
    """A quarter of both, but at least what the longest request and the slots need."""
    assert Filled(4000, 400).part(4, 1000) == Filled(1000, 100)
    assert Filled(40, 4).part(4, 1000) == Filled(1000 // 32 + 3, 4)
    assert (LAYOUT.page_bytes, LAYOUT.snapshot_bytes) == (512, 576)
    assert Filled(100, 100).divided(LAYOUT, 256) == Filled(127, 76)  # of 108,800 bytes 65,024 and 43,776
    assert Filled(10, 20).num_bytes(LAYOUT) == 10 * LAYOUT.page_bytes + (20 + 4) * LAYOUT.snapshot_bytes


def test_what_is_filled_is_read_from_the_metrics() -> None:
    text = "# HELP headrace_kv_pages_used KV pages\n# TYPE x gauge\nheadrace_kv_pages_used 12\nheadrace_snapshot_ring_used 7.0\n"
    assert over_http.filled(text) == Filled(12, 7)
    with pytest.raises(ValueError, match="no snapshot_ring_used among the metrics"):
        over_http.filled("headrace_kv_pages_used 12\n")


def test_a_row_against_a_peer(tmp_path: Path) -> None:
    """Headrace itself with the bundled model; the program in llama-server's place is a second one that keeps next to nothing."""
    peer = tmp_path / "llama-server"
    peer.write_text(PEER_SCRIPT)
    peer.chmod(0o755)
    trace = make(TRACES["branching"], 1, Size(text=0.1, clients=0.1))[:5]
    row = over_http.row("branching", trace, Setting(BUNDLED_MODEL, 512, over_http.SLOTS, 1), tmp_path)
    assert row.enough[PEER].evaluated == row.short[PEER].evaluated == row.enough[PEER].prompt_tokens
    assert row.enough[OURS].requests == row.short[OURS].requests == row.short[OURS_DIVIDED].requests == 5
    assert row.enough[OURS].evaluated < 0.6 * row.enough[OURS].prompt_tokens
    assert row.cache_ram_mib == -(-row.budget_bytes // 2**20)


PEER_SCRIPT = """#!/usr/bin/env python3
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = sum(len(message["content"].split()) for message in body["messages"])
        usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": 0}}
        self.answer({"choices": [{"message": {"content": "x"}}], "usage": usage})

    def answer(self, found):
        text = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def test_a_missed_bar_is_said() -> None:
    def row(ours: int) -> HttpRow:
        enough = {OURS: Counts(5, 1000, 100), PEER: Counts(5, 1010, 300)}
        short = {OURS: Counts(5, 1000, ours), OURS_DIVIDED: Counts(5, 1000, 100), PEER: Counts(5, 1010, 400)}
        return HttpRow("branching", Filled(40, 20), Filled(10, 5), 1 << 20, 1, enough, short)

    assert over_http.missed([row(133), row(134)]) == ["branching: 0.34 of llama-server's tokens, not 0.33"]
    assert (
        over_http.markdown([row(134)]).splitlines()[-1] == "| branching | 5, 1,000 | 100 | 300 | 134 | 100 | 400 | 1 | 0.34, 0.25 |"
    )
