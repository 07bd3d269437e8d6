"""From the engine's events to what a client reads: one task and one place to wait, whatever the dialect."""

import asyncio
import json
from typing import Any

import pytest

from svc.http.answer import MAX_UNREAD_BYTES, Answer, AnswerBuffer, TextDelta
from svc.http.inbox import Inbox, Rounds
from svc.http.protocol import Connection
from svc.http.text.answer_text import AnswerText
from svc.slots.events import FinishReason, TokenEvent
from tests.fakes.fake_engine import FakeEngine, FakeSequence, saying
from tests.fakes.fake_text import IM_START
from tests.http.harness import Harness, parse_sse, serving
from tests.http.test_disconnect import request_bytes, socket_to, submitted, tasks_of_requests

PATIENCE_S = 10
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi", "max_tokens": 100},
    "/completion": {"prompt": "hi"},
}
NEWLINE = ord("\n")


def text_of(path: str, body: Any) -> str:
    """Of a whole answer or of one event."""
    if path == "/completion":
        return str(body["content"])
    return "".join(
        choice["text"] if "text" in choice else choice.get("message", choice.get("delta", {})).get("content", "")
        for choice in body["choices"]
    )


def reason_of(path: str, body: Any) -> Any:
    return body.get("stop_type") if path == "/completion" else body["choices"][0]["finish_reason"]


async def events(at: Harness, path: str, body: dict[str, Any]) -> list[Any]:
    return [event for event in await at.events(path, body) if event != "[DONE]"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stop", ["<|im_start|>user", "<|im_start|>", "\n<|im_start|>us"])
async def test_a_stop_string_may_spell_a_control_token(path: str, stop: str) -> None:
    """What every client of text templates sends: the answer ends at the token, which is not shown, streamed and not."""
    engine = FakeEngine(lambda request: [*b"Hello\n", IM_START, *b"user\nMe too"])
    body = {**PATHS[path], "stop": [stop, "never"]}
    async with serving(engine) as at:
        status, whole = await at.post(path, body)
        streamed = await events(at, path, body)
    shown = "Hello" if stop.startswith("\n") else "Hello\n"
    assert (status, text_of(path, whole)) == (200, shown)
    assert "".join(text_of(path, event) for event in streamed) == shown
    assert reason_of(path, whole) == reason_of(path, streamed[-1]) == ("word" if path == "/completion" else "stop")
    if path == "/completion":
        assert whole["stopping_word"] == streamed[-1]["stopping_word"] == stop
    ended_at = 7 if stop == "<|im_start|>" else 9 if stop.endswith("us") else 11
    assert [len(sequence.generated) for sequence in engine.sequences] == [ended_at] * 2


@pytest.mark.parametrize("path", PATHS)
async def test_a_control_token_that_no_stop_string_spells_is_just_hidden(path: str) -> None:
    """Text that is held back behind it comes out when it turns out to be another."""
    engine = FakeEngine(lambda request: [*b"Hello\n", IM_START, *b"usual"])
    body = {**PATHS[path], "stop": ["<|im_start|>user"], "max_tokens": 12}
    async with serving(engine) as at:
        _, whole = await at.post(path, body)
        streamed = await events(at, path, body)
    assert text_of(path, whole) == "Hello\nusual" == "".join(text_of(path, event) for event in streamed)


@pytest.mark.parametrize("path", PATHS)
async def test_tokens_of_one_turn_are_one_write(path: str) -> None:
    """A client that was not read for three tokens gets their text in one event, and everything that came in one chunk."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine()) as at, socket_to(at) as (reader, writer):
        writer.write(request_bytes(path, {**PATHS[path], "stream": True}))
        (sequence,) = await submitted(at, 1)
        await reader.readuntil(b": keep-alive\n\n\r\n")
        for turn in (b"abc", b"de"):
            for letter in turn:
                sequence.say(letter)
            size = int(await reader.readuntil(b"\r\n"), 16)
            chunk = await reader.readexactly(size)
            assert "".join(text_of(path, event) for event in parse_sse(chunk)).encode() == turn
            assert await reader.readexactly(2) == b"\r\n"
        sequence.end(FinishReason.STOP)


async def test_choices_of_one_turn_are_one_write() -> None:
    """Two choices get a token in the same step: two events, one chunk."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine()) as at, socket_to(at) as (reader, writer):
        writer.write(request_bytes("/v1/completions", {**PATHS["/v1/completions"], "stream": True, "n": 2}))
        sequences = await submitted(at, 2)
        await reader.readuntil(b": keep-alive\n\n\r\n")
        for sequence in sequences:
            sequence.say(ord("a"))
        chunk = await reader.readexactly(int(await reader.readuntil(b"\r\n"), 16))
        assert [event["choices"][0]["index"] for event in parse_sse(chunk)] == [0, 1]


async def test_tokens_of_one_step_are_written_in_one_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests they belong to; and no handler is woken for them."""
    rounds: list[int] = []
    empty, take = Rounds._empty, Inbox.take

    def noted(self: Rounds) -> None:
        rounds.append(len(self._inboxes))
        empty(self)

    def not_expected(self: Inbox) -> list[Answer]:
        woken.append(self)
        return take(self)

    woken: list[Inbox] = []
    monkeypatch.setattr(Rounds, "_empty", noted)
    monkeypatch.setattr(Inbox, "take", not_expected)
    body = request_bytes("/v1/completions", {**PATHS["/v1/completions"], "stream": True})
    async with (
        asyncio.timeout(PATIENCE_S),
        serving(FakeEngine()) as at,
        socket_to(at) as one,
        socket_to(at) as two,
        socket_to(at) as three,
    ):
        sockets = (one, two, three)
        for _, writer in sockets:
            writer.write(body)
        sequences = await submitted(at, 3)
        for reader, _ in sockets:
            await reader.readuntil(b": keep-alive\n\n\r\n")
        for letter in b"abc":
            for sequence in sequences:
                sequence.say(letter)
            for reader, _ in sockets:
                await reader.readuntil(b'"text":"%c"' % letter)
        assert rounds == [3, 3, 3]
        assert woken == []
        for sequence in sequences:
            sequence.end(FinishReason.STOP)
        for reader, _ in sockets:
            await reader.readuntil(b"[DONE]")
        assert len(woken) == 3


async def test_news_of_a_client_that_does_not_read_wait_in_its_answer() -> None:
    """What the transport holds is bounded, however long nobody reads; then the client gets all of it in order."""
    num_tokens = 20_000
    async with asyncio.timeout(60), serving(FakeEngine(context_tokens=10**6)) as at, socket_to(at) as (reader, writer):
        writer.write(request_bytes("/v1/completions", {"prompt": "hi", "stream": True, "max_tokens": 10**5}))
        (sequence,) = await submitted(at, 1)
        (connection,) = at.server.clients._open
        assert isinstance(connection, Connection)
        assert connection.transport is not None
        most = 0
        for number in range(num_tokens):
            sequence.say(ord("a") + number % 26)
            await asyncio.sleep(0)
            most = max(most, connection.transport.get_write_buffer_size())
        assert connection.writing_paused
        assert most < 2**17
        sequence.end(FinishReason.STOP)
        raw = b""
        while not raw.endswith(b"\r\n0\r\n\r\n"):
            raw += await reader.read(2**20)
    *chunks, done = parse_sse(unchunked(raw.partition(b"\r\n\r\n")[2]))
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "".join(chr(97 + n % 26) for n in range(num_tokens))


@pytest.mark.parametrize("path", PATHS)
async def test_a_bug_in_a_dialect_ends_one_answer_only(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised while its events are written, it reaches that request's handler and nobody else."""
    take = AnswerBuffer.take

    def broken(self: AnswerBuffer) -> TextDelta:
        delta = take(self)
        if delta.content == "b":
            raise ZeroDivisionError("bug")
        return delta

    monkeypatch.setattr(AnswerBuffer, "take", broken)
    body = request_bytes(path, {**PATHS[path], "stream": True})
    async with (
        asyncio.timeout(PATIENCE_S),
        serving(FakeEngine()) as at,
        socket_to(at) as (reader, writer),
        socket_to(at) as (others, writes),
    ):
        for each in (writer, writes):
            each.write(body)
        broken_one, other = await submitted(at, 2)
        for each in (reader, others):
            await each.readuntil(b": keep-alive\n\n\r\n")
        for letters in (b"ac", b"bd"):
            broken_one.say(letters[0])
            other.say(letters[1])
            await others.readuntil(b'"%c"' % letters[1])
        assert b'"server_error"' in await reader.readuntil(b"\r\n0\r\n\r\n")
        assert await at.engine.cancelled.get() is broken_one
        assert len(at.log_lines("stream_failed")) == 1
        assert not other.ended


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_one_task_per_request(n: int, stream: bool) -> None:
    """aiohttp's own, which also runs the handler; none for each choice."""
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine()) as at, socket_to(at) as (_, writer):
        before = len(tasks_of_requests())
        writer.write(request_bytes("/v1/completions", {**PATHS["/v1/completions"], "stream": stream, "n": n}))
        for sequence in await submitted(at, n):
            sequence.say(ord("a"))
        await asyncio.sleep(0)
        assert len(tasks_of_requests()) == before + 1


async def test_whole_answers_wake_their_reader_at_their_end_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from an answer that nobody reads before its end."""
    woken: list[int] = []
    put = Inbox.put

    def noted(self: Inbox, answer: Answer) -> None:
        woken.append(answer.index)
        put(self, answer)

    monkeypatch.setattr(Inbox, "put", noted)
    async with serving(FakeEngine(saying("many words"))) as at:
        _, whole = await at.post("/v1/completions", {**PATHS["/v1/completions"], "n": 2})
    assert [choice["text"] for choice in whole["choices"]] == ["many words"] * 2
    assert sorted(woken) == [0, 1]


@pytest.mark.parametrize("path", PATHS)
async def test_log_probabilities_stay_with_their_text(path: str) -> None:
    """The bytes of the tokens of an event are its text, though text is held back for stop strings and characters."""
    letters = "aé–🙂 EN END?"
    body = {**PATHS[path], "stop": ["END!", "–!"], "logprobs": 1, "top_logprobs": 1, "n_probs": 1}
    if "chat" in path:
        body["logprobs"] = True
    script = [TokenEvent(byte, -0.5, ((byte, -0.5),)) for byte in letters.encode()]
    async with serving(FakeEngine(lambda request: script)) as at:
        streamed = await events(at, path, {**body, "max_tokens": len(script)})
    told = 0
    for event in streamed:
        choice = event if path == "/completion" else event["choices"][0]
        if path == "/completion":
            raw = [entry["bytes"] for entry in choice.get("completion_probabilities", [])]
        elif "chat" in path:
            raw = [entry["bytes"] for entry in (choice["logprobs"] or {"content": []})["content"]]
        else:
            offsets = choice["logprobs"]["text_offset"] if choice["logprobs"] else []
            raw = [[byte] for byte in letters.encode()[told : told + len(offsets)]]
        told += len(raw)
        if told < len(script):  # at the end, text that was held back comes behind the tokens that have none
            assert bytes(byte for one in raw for byte in one).decode().startswith(text_of(path, event))
    assert told == len(script)
    assert "".join(text_of(path, event) for event in streamed) == letters


@pytest.mark.parametrize("moment", ["push", "flush"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_bug_in_the_text_side_ends_one_answer_only(path: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never reaches the engine: the request gets a 500 or an error event, the log gets the traceback, others go on."""
    original = getattr(AnswerText, moment)

    def broken(self: AnswerText, *arguments: int) -> Any:
        if moment == "flush" or arguments == (NEWLINE,):
            raise ZeroDivisionError("bug")
        return original(self, *arguments)

    monkeypatch.setattr(AnswerText, moment, broken)
    async with asyncio.timeout(PATIENCE_S), serving(FakeEngine(saying("ab\ncd"))) as at:
        status, whole = await at.post(path, PATHS[path])
        *streamed, error = await events(at, path, PATHS[path])
    assert (status, whole["error"]["type"]) == (500, "server_error")
    assert "".join(text_of(path, event) for event in streamed) == ("ab" if moment == "push" else "ab\ncd")
    assert error["error"]["type"] == "server_error"
    assert [line["event"] for line in map(json.loads, at.log.getvalue().splitlines()) if "exception" in line] == [
        "request_failed",
        "stream_failed",
    ]
    assert at.engine.num_open == 0


async def read_nothing(sequence: FakeSequence, most: int) -> int:
    """Tokens said until the answer ended, to a client that reads nothing."""
    top = tuple((token, -1.0) for token in range(20))
    for count in range(most):
        if sequence.ended:
            return count
        sequence.say(TokenEvent(ord("x"), -1.0, top))
        if count % 200 == 0:
            await asyncio.sleep(0)
    return most


async def test_what_waits_for_a_client_that_does_not_read_is_bounded() -> None:
    """Its own answer ends when MAX_UNREAD_BYTES wait for it; others are served meanwhile. When it reads on, it gets all of it, then
    an error and no [DONE]."""
    body = {"prompt": "hi", "stream": True, "max_tokens": 10**6, "logprobs": 20}
    async with asyncio.timeout(60), serving(FakeEngine(context_tokens=10**7)) as at, socket_to(at) as (reader, writer):
        writer.write(request_bytes("/v1/completions", body))
        (stuck,) = await submitted(at, 1)
        said = await read_nothing(stuck, 10**5)
        assert stuck.ended
        assert said > 1000
        other = asyncio.create_task(at.post("/v1/completions", {"prompt": "a"}))
        (sequence,) = await submitted(at, 1)
        sequence.end(FinishReason.STOP)
        assert (await other)[0] == 200
        raw = b""
        while not raw.endswith(b"\r\n0\r\n\r\n"):
            raw += await reader.read(2**20)
    *chunks, error = parse_sse(unchunked(raw.partition(b"\r\n\r\n")[2]))
    assert error["error"]["code"] == "slow_reader"
    assert sum(len(chunk["choices"][0]["text"]) for chunk in chunks) == said
    assert len(raw) < 2 * MAX_UNREAD_BYTES
    assert [line["error"] for line in at.log_lines() if "error" in line] == ["slow_reader"]


def unchunked(raw: bytes) -> bytes:
    """The body of a response in HTTP's chunked coding."""
    body = b""
    while raw:
        size, _, rest = raw.partition(b"\r\n")
        body, raw = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


@pytest.mark.parametrize(
    ("text", "limit", "per_second"),
    [
        ("abcd", 4, 3.0),  # ended by its length: three intervals in the fake engine's second of decoding
        ("abcd", 9, 4.0),  # a stop token came after a fourth one
        ("a", 1, 0.0),  # one token alone has no rate
        ("", 9, 0.0),  # only a stop token: nothing was generated
        ("abEND", 9, 4.0),  # a stop string: its last token is one of the answer
    ],
)
async def test_rate_counts_intervals(text: str, limit: int, per_second: float) -> None:
    """`predicted_per_second` is the number of intervals between tokens over the time that they took together."""
    body = {"prompt": "hi", "n_predict": limit, "stop": ["END"]}
    async with serving(FakeEngine(saying(text))) as at:
        _, whole = await at.post("/completion", body)
        *_, last = await events(at, "/completion", body)
    for timings in (whole["timings"], last["timings"]):
        assert timings["predicted_per_second"] == per_second
        assert timings["predicted_per_token_ms"] == pytest.approx(1000 / per_second if per_second else 0.0)
        assert timings["predicted_ms"] == 1000.0


async def test_rate_of_several_answers_counts_the_intervals_of_each() -> None:
    """Two answers of four tokens at once: six intervals in a second."""
    async with serving(FakeEngine(saying("abcd"))) as at:
        _, whole = await at.post("/v1/completions", {"prompt": "hi", "max_tokens": 4, "n": 2})
    assert (whole["timings"]["predicted_n"], whole["timings"]["predicted_per_second"]) == (8, 6.0)
