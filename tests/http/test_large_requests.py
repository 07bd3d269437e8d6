"""Large bodies: refused before they cost anything, else worked on in a thread while the loop goes on."""

import asyncio
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from svc.http.text.chat_template import ChatTemplate
from svc.http.text.tokenizer import Tokenizer
from svc.http.text_threads import INLINE_BYTES, LONG_BYTES, LONG_THREADS, ORDINARY_THREADS, TextThreads
from svc.slots.events import FinishReason
from tests.fakes.fake_engine import FakeEngine, saying
from tests.fakes.fake_text import CONTROLS, IM_END, ids
from tests.http.harness import serving

CHAT, COMPLETIONS, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
BODY_LIMIT = 64 * 2**20
LARGE = {
    CHAT: {"messages": [{"role": "user", "content": "many words " * 300}]},
    COMPLETIONS: {"prompt": "many words " * 300},
    NATIVE: {"prompt": ["many words ", 65] * 300},
    "/tokenize": {"content": "many words " * 300},
    "/detokenize": {"tokens": [65] * 3000},
    "/apply-template": {"messages": [{"role": "user", "content": "many words " * 300}]},
}


@pytest.fixture
def threads_seen(monkeypatch: pytest.MonkeyPatch) -> set[threading.Thread]:
    """The threads in which anything was rendered, encoded or decoded."""
    seen: set[threading.Thread] = set()

    def watch(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            seen.add(threading.current_thread())
            return original(*args, **kwargs)

        monkeypatch.setattr(kind, name, watched)

    watch(ChatTemplate, "_render")
    watch(Tokenizer, "_encode_plain")
    watch(Tokenizer, "decode")
    return seen


@pytest.fixture
def nothing_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rendering and no encoding may happen in this test."""

    def never(*_: Any, **__: Any) -> None:
        pytest.fail("worked on a request that was to be refused")

    monkeypatch.setattr(ChatTemplate, "_render", never)
    monkeypatch.setattr(Tokenizer, "_encode_plain", never)


@pytest.mark.parametrize("path", LARGE)
async def test_large_request_is_prepared_off_the_loop(path: str, threads_seen: set[threading.Thread]) -> None:
    """Rendered, encoded and decoded in a thread of the server's own, never in the loop's."""
    async with serving(FakeEngine(saying("x"))) as at:
        status, _ = await at.post(path, LARGE[path])
    assert status == 200
    assert threads_seen
    assert threading.main_thread() not in threads_seen


async def test_many_tokens_of_slots_are_decoded_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """With texts to show, which may be all that every slot holds; counts alone are told at once."""
    seen: list[threading.Thread] = []
    decode = Tokenizer.decode_known

    def watched(self: Tokenizer, tokens: list[int]) -> str:
        seen.append(threading.current_thread())
        return decode(self, tokens)

    monkeypatch.setattr(Tokenizer, "decode_known", watched)
    body = {"prompt": "x" * 3000, "stream": True}
    async with serving(FakeEngine(), show_prompts=True) as at, at.client.post(COMPLETIONS, json=body) as response:
        sequence = await at.engine.submitted.get()
        _, (taken, _) = await at.get("/slots")
        sequence.end(FinishReason.STOP)
        await response.read()
    assert taken["prompt"] == "x" * 3000
    assert seen
    assert threading.main_thread() not in seen


async def test_loop_turns_while_a_large_request_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work waits for a hundred turns of the loop's: it could not end if the loop stood still until it has ended."""
    turned = threading.Event()
    render = ChatTemplate._render

    def slow(*args: Any, **kwargs: Any) -> Any:
        assert turned.wait(10)
        return render(*args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "_render", slow)
    async with serving(FakeEngine(saying("x"))) as at:
        answer = asyncio.create_task(at.post(CHAT, LARGE[CHAT]))
        for _ in range(100):
            await asyncio.sleep(0)
        for path in ("/v1/models", "/props", "/slots", "/health", "/metrics"):
            async with at.client.get(path) as response:
                assert response.status == 200
        assert (await at.post("/tokenize", {"content": "a"}))[0] == 200
        assert not answer.done()
        turned.set()
        assert (await answer)[0] == 200


@pytest.mark.usefixtures("nothing_done")
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x"}] * 5000}, "messages"),
        (COMPLETIONS, {"prompt": [65] * 5000}, "prompt"),
        (COMPLETIONS, {"prompt": [[65], [65] * 5000]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": "x" * (4096 * max(map(len, CONTROLS)) + 1)}, "prompt"),
        (COMPLETIONS, {"prompt": "<|im_end|>" * 10_000}, "prompt"),
        (NATIVE, {"prompt": ["a", 65] * 2500}, "prompt"),
        (NATIVE, {"prompt": " " * 11_000_000}, "prompt"),
        ("/apply-template", {"messages": [{"role": "user", "content": "x"}] * 5000}, "messages"),
        ("/tokenize", {"content": "x" * (2**22 + 1)}, "content"),
    ],
)
async def test_too_long_is_seen_by_its_length(path: str, body: Any, param: str) -> None:
    """More messages, ids, parts or control tokens than the context, or more text than its longest tokens hold: nothing is done."""
    async with serving(FakeEngine(saying("x"), context_tokens=4096), max_body_bytes=BODY_LIMIT) as at:
        status, answer = await at.post(path, body)
    assert (status, answer["error"]["param"]) == (400, param)
    if path != "/tokenize":
        assert answer["error"]["code"] == "context_length_exceeded"
        assert answer["error"]["message"].startswith("This model's maximum context length is 4096 tokens")
    assert at.engine.sequences == []


@pytest.mark.parametrize(("path", "param"), [(CHAT, "messages"), (COMPLETIONS, "prompt"), (NATIVE, "prompt")])
async def test_encoding_ends_where_the_context_does(path: str, param: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a text of many slices, no more are encoded than show that it is too long."""
    encoded: list[str] = []
    encode = Tokenizer._encode_plain
    monkeypatch.setattr(Tokenizer, "_encode_plain", lambda self, text: encoded.append(text) or encode(self, text))
    text = "many words " * 20_000
    body = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    async with serving(FakeEngine(saying("x"), context_tokens=40_000)) as at:
        status, answer = await at.post(path, body)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "context_length_exceeded", param)
    assert sum(map(len, encoded)) < 80_000


async def test_text_that_cannot_be_cut_is_named() -> None:
    """Eleven million spaces: a 400 with the field, no traceback, and the next request is served."""
    async with serving(FakeEngine(saying("x"), context_tokens=10**6), max_body_bytes=BODY_LIMIT) as at:
        for path, param in ((CHAT, "messages"), (COMPLETIONS, "prompt"), ("/tokenize", "content")):
            text = " " * (11_000_000 if param != "content" else 2**22)
            body = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {param: text}
            status, answer = await at.post(path, body)
            assert (status, answer["error"]["param"]) == (400, param)
            assert "no word ends" in answer["error"]["message"]
        assert (await at.post(COMPLETIONS, {"prompt": "a"}))[0] == 200
    assert "Traceback" not in at.log.getvalue()


@pytest.mark.parametrize(("num_bytes", "num_threads"), [(LONG_BYTES + 1, LONG_THREADS), (LONG_BYTES, ORDINARY_THREADS)])
async def test_texts_do_not_keep_all_others_waiting(num_bytes: int, num_threads: int) -> None:
    """As many as there are threads are worked on at once; one more waits for them. Others do not."""
    threads, entered, go_on = TextThreads(), threading.Semaphore(0), threading.Event()

    def wait() -> str:
        entered.release()
        assert go_on.wait(10)
        return "ended"

    waiting = [asyncio.create_task(threads.run(num_bytes, wait)) for _ in range(num_threads)]
    last = asyncio.create_task(threads.run(num_bytes, lambda: "last"))
    for _ in waiting:
        while not entered.acquire(blocking=False):  # noqa: ASYNC110
            await asyncio.sleep(0)
    other_bytes = 2 * LONG_BYTES + 1 - num_bytes
    assert await threads.run(other_bytes, threading.current_thread) is not threading.main_thread()
    assert await threads.run(INLINE_BYTES, threading.current_thread) is threading.current_thread()
    assert not last.done()
    go_on.set()
    assert [await task for task in [*waiting, last]] == ["ended"] * num_threads + ["last"]
    threads.close()


async def test_closing_drops_what_has_not_begun() -> None:
    """The work under way ends, what waits behind it never begins, and new work is refused."""
    threads, entered, go_on, begun = TextThreads(), threading.Semaphore(0), threading.Event(), []
    running = [
        asyncio.create_task(threads.run(INLINE_BYTES + 1, lambda: (entered.release(), go_on.wait(10))))
        for _ in range(ORDINARY_THREADS)
    ]
    waiting = asyncio.create_task(threads.run(INLINE_BYTES + 1, begun.append, 1))
    for _ in running:
        while not entered.acquire(blocking=False):  # noqa: ASYNC110
            await asyncio.sleep(0)
    threads.close()
    go_on.set()
    await asyncio.gather(*running)
    with pytest.raises((asyncio.CancelledError, CancelledError)):
        await waiting
    assert begun == []
    with pytest.raises(RuntimeError):
        await threads.run(INLINE_BYTES + 1, begun.append, 2)


async def test_large_prompts_reach_the_engine_whole() -> None:
    """The same ids as a short one of its parts, whatever thread it went through."""
    async with serving(FakeEngine(saying("x"), context_tokens=10**6), max_body_bytes=BODY_LIMIT) as at:
        for prompt in ("many words<|im_end|>" * 20_000, [*b"many words", IM_END] * 20_000, ["many", " words", IM_END] * 20_000):
            assert (await at.post(NATIVE, {"prompt": prompt, "n_predict": 1, "response_fields": ["index"]}))[0] == 200
    for sequence in at.engine.sequences:
        assert list(sequence.request.prompt) == ids("many words<|im_end|>") * 20_000
