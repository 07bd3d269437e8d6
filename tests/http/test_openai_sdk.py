"""The `openai` SDK as a client: what users run must understand every answer, error and stream."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from svc.errors import DrainingError, QueueFullError
from svc.slots.events import FinishReason, TokenEvent
from svc.slots.request import Request
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import Harness, serving

USER = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def sdk(at: Harness, max_retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="none", max_retries=max_retries) as client:
        yield client


async def test_chat() -> None:
    async with serving(FakeEngine(saying("Hello"), cached=lambda request: 7)) as at, sdk(at) as client:
        answer = await client.chat.completions.create(model="m", messages=USER, logprobs=True, top_logprobs=0)  # type: ignore[arg-type]
        choice = answer.choices[0]
        assert (choice.message.content, choice.message.role, choice.finish_reason) == ("Hello", "assistant", "stop")
        assert choice.logprobs
        assert choice.logprobs.content
        assert choice.logprobs.content[0].bytes == [ord("H")]
        assert answer.usage
        assert answer.usage.prompt_tokens_details
        assert answer.usage.prompt_tokens_details.cached_tokens == 7


async def test_chat_stream() -> None:
    async with serving(FakeEngine(saying("Héllo"))) as at, sdk(at) as client:
        stream = await client.chat.completions.create(
            model="m",
            messages=USER,
            stream=True,
            stream_options={"include_usage": True},  # type: ignore[arg-type]
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "Héllo"
        assert chunks[-1].usage
        assert chunks[-1].usage.completion_tokens == 6


async def test_chat_stream_helper() -> None:
    """`.stream()` accumulates deltas by its own rules; its final message is the whole answer."""
    async with serving(FakeEngine(saying("Hello"))) as at, sdk(at) as client:
        async with client.chat.completions.stream(model="m", messages=USER) as stream:  # type: ignore[arg-type]
            final = await stream.get_final_completion()
        assert (final.choices[0].message.content, final.choices[0].finish_reason) == ("Hello", "stop")


async def test_completions() -> None:
    async with serving(FakeEngine(saying("Hello"))) as at, sdk(at) as client:
        answer = await client.completions.create(model="m", prompt=["a", "b"], logprobs=1)
        assert [choice.text for choice in answer.choices] == ["Hello", "Hello"]
        assert answer.choices[0].logprobs
        assert answer.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4]
        stream = await client.completions.create(model="m", prompt=[1, 2], stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello"


async def test_options_and_choices() -> None:
    """Two choices with logprobs, a stop list, a seed and the newer name of max_tokens, whole and streamed."""

    def script(request: Request) -> list[TokenEvent]:
        first = TokenEvent(ord("A") + request.choice, -0.5, ((ord("A"), -0.5), (ord("Z"), -3.0)))
        return [first, *(TokenEvent(byte, -1.0, ()) for byte in b"b END c")]

    async with serving(FakeEngine(script)) as at, sdk(at) as client:
        options = {"stop": ["nothing", " END"], "seed": 11, "max_completion_tokens": 50, "logprobs": True, "top_logprobs": 2}
        answer = await client.chat.completions.create(model="m", messages=USER, n=2, **options)  # type: ignore[call-overload]
        stream = await client.chat.completions.create(model="m", messages=USER, n=2, stream=True, **options)  # type: ignore[call-overload]
        chunks = [choice async for chunk in stream for choice in chunk.choices]
        assert [choice.message.content for choice in answer.choices] == ["Ab", "Bb"]
        assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
        best = answer.choices[1].logprobs.content[0]
        assert (best.token, best.logprob, [top.token for top in best.top_logprobs]) == ("B", -0.5, ["A", "Z"])
        for index, text in enumerate(("Ab", "Bb")):
            assert "".join(choice.delta.content or "" for choice in chunks if choice.index == index) == text
            assert [choice.finish_reason for choice in chunks if choice.index == index][-1] == "stop"
        assert answer.usage.completion_tokens == 2 * len("Ab END")
    requests = [sequence.request for sequence in at.engine.sequences]
    assert [(request.choice, request.params.seed, request.max_tokens) for request in requests] == [(0, 11, 50), (1, 11, 50)] * 2


async def test_completions_with_options() -> None:
    """Echo, several choices, a stop list, usage at the end of a stream."""
    async with serving(FakeEngine(saying("Hello. You"))) as at, sdk(at) as client:
        answer = await client.completions.create(model="m", prompt="Say ", echo=True, n=2, stop=["."], seed=3, max_tokens=20)
        assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [
            (0, "Say Hello", "stop"),
            (1, "Say Hello", "stop"),
        ]
        stream = await client.completions.create(model="m", prompt="a", stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "Hello. You"
        assert chunks[-1].choices == []
        assert chunks[-1].usage
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (1, 10)


async def test_models() -> None:
    async with serving(FakeEngine()) as at, sdk(at) as client:
        models = [model.id async for model in client.models.list()]
        assert models == ["tiny/model"]
        assert (await client.models.retrieve("tiny/model")).id == "tiny/model"


async def test_error_classes() -> None:
    """Each status is the SDK's own exception, with the field and code in it."""
    async with serving(FakeEngine(saying("x"), context_tokens=50)) as at, sdk(at) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as bad:
            await create(model="m", messages=USER, temperature=-1)  # type: ignore[arg-type]
        assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
        with pytest.raises(openai.BadRequestError) as long:
            await create(model="m", messages=[{"role": "user", "content": "x" * 100}])
        assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
        assert "This model's maximum context length is" in str(long.value)  # what litellm knows it by
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
        at.engine.refusal = QueueFullError("full", retry_after_s=1)
        with pytest.raises(openai.RateLimitError):
            await create(model="m", messages=USER)  # type: ignore[arg-type]
        at.engine.refusal = DrainingError("ends")
        with pytest.raises(openai.InternalServerError) as ends:
            await create(model="m", messages=USER)  # type: ignore[arg-type]
        assert ends.value.status_code == 503


async def test_error_in_mid_stream() -> None:
    """What was received stays, then the SDK raises APIError with our message."""
    async with serving(FakeEngine()) as at, sdk(at) as client:
        stream = await client.chat.completions.create(model="m", messages=USER, stream=True)  # type: ignore[arg-type]
        sequence = await at.engine.submitted.get()
        sequence.say(ord("A"))
        sequence.end(FinishReason.ERROR, "broken")
        received: list[str | None] = []

        async def read() -> None:
            async for chunk in stream:
                received.append(chunk.choices[0].delta.content)

        with pytest.raises(openai.APIError, match="failed to answer"):
            await read()
        assert received == ["", "A"]


async def test_leaving_a_stream_cancels_it() -> None:
    """`break` and close, as an application does when its user presses stop."""
    async with serving(FakeEngine()) as at, sdk(at) as client:
        stream = await client.chat.completions.create(model="m", messages=USER, stream=True)  # type: ignore[arg-type]
        sequence = await at.engine.submitted.get()
        sequence.say(ord("A"))
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        assert await at.engine.cancelled.get() is sequence
