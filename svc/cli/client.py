"""A client of any server that speaks OpenAI's chat dialect: streams one answer at a time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from svc.cli.conversation import Message
from svc.errors import HeadraceError

CONNECT_S = 10.0
LONGEST_ERROR = 500  # characters of an error body that is not JSON


class ChatError(HeadraceError):
    """The server cannot be reached or refuses the request; one sentence."""


@dataclass(slots=True)
class Reply:
    """An answer as far as it has arrived, complete or cut off. Times in seconds; counts are None if the server sent none."""

    parts: list[str] = field(default_factory=list)
    first_s: float | None = None  # from asking to the first text
    total_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None  # None: cut off

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of generation, without the first token."""
        if self.completion_tokens is None or self.completion_tokens < 2 or self.first_s is None or self.total_s <= self.first_s:
            return None
        return (self.completion_tokens - 1) / (self.total_s - self.first_s)


class ChatClient:
    """One server. An async context manager; owner of its connections."""

    def __init__(
        self, url: str, api_key: str | None = None, model: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`url` with or without /v1 at its end. `model`: None takes the first that the server names."""
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._model = model
        self._clock = clock

    async def __aenter__(self) -> "ChatClient":
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._session.close()

    async def connect(self) -> str:
        """The model's name, from the server unless one was given. ChatError if the server cannot be reached."""
        if self._model is None:
            try:
                async with self._session.get(f"{self._url}/v1/models") as response:
                    await _check(response)
                    models = msgspec.json.decode(await response.read())
                    self._model = str(models["data"][0]["id"])
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                raise ChatError(f"cannot reach {self._url}: {_reason(error)}") from None
            except (msgspec.DecodeError, KeyError, IndexError, TypeError):
                raise ChatError(f"{self._url} names no model: it does not speak OpenAI's dialect") from None
        return self._model

    async def ask(
        self, messages: Sequence[Message], settings: Mapping[str, Any], reply: Reply, on_text: Callable[[str], None]
    ) -> None:
        """Streams an answer into `reply` and, part by part, to `on_text`. Cancelling the call cancels the answer. ChatError."""
        body = {
            "model": await self.connect(),
            "messages": [message._asdict() for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **settings,
        }
        began = self._clock()
        try:
            async with self._session.post(f"{self._url}/v1/chat/completions", json=body) as response:
                await _check(response)
                async for event in events(response.content.iter_any()):
                    text = _take(event, reply)
                    reply.total_s = self._clock() - began
                    if text:
                        reply.first_s = reply.total_s if reply.first_s is None else reply.first_s
                        reply.parts.append(text)
                        on_text(text)
                        await asyncio.sleep(0)  # lets Ctrl-C end the answer here, even if all of it has arrived already
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ChatError(f"the connection to {self._url} failed: {_reason(error)}") from None
        if reply.finish_reason is None:
            raise ChatError(f"{self._url} broke the answer off")


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a Server-Sent Events stream, up to [DONE] or its end; lines may be cut anywhere. ChatError."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                return
            if data:
                try:
                    yield msgspec.json.decode(data, type=dict[str, Any])
                except msgspec.DecodeError:
                    raise ChatError("the server sent an event that is not a JSON object") from None


def _take(event: dict[str, Any], reply: Reply) -> str:
    """Adds an event to `reply` and returns its text. ChatError if it is an error event."""
    if error := event.get("error"):
        raise ChatError(_message(error))
    if usage := event.get("usage"):
        reply.prompt_tokens, reply.completion_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    for choice in event.get("choices") or ():
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        return str((choice.get("delta") or {}).get("content") or "")
    return ""


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    body = await response.read()
    try:
        raise ChatError(_message(msgspec.json.decode(body)["error"]))
    except (msgspec.DecodeError, KeyError, TypeError):
        text = body.decode("utf-8", "replace").strip()[:LONGEST_ERROR]
        raise ChatError(f"the server answered with status {response.status}{': ' + text if text else ''}") from None


def _message(error: Any) -> str:
    return f"the server refused: {error['message'] if isinstance(error, dict) and 'message' in error else error}"


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "it does not answer"
    return str(error) or type(error).__name__
