"""A real server process and the few requests the scenarios need of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from tests.e2e.server_process import GGUF, ServerProcess

MODEL = GGUF / "tiny-qwen35moe-Q4_K_M.gguf"
MESSAGE_OPENER = "<|im_start|>"

Message = dict[str, str]


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


@dataclass
class Reply:
    """An answer as a client saw it."""

    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float]
    prompt_tokens: int
    cached: int
    finish_reason: str | None

    @property
    def bits(self) -> list[tuple[int, float]]:
        """Tokens with their log probabilities: equal only if the logits were."""
        return list(zip(self.ids, self.logprobs, strict=True))

    @property
    def evaluated(self) -> int:
        return self.prompt_tokens - self.cached


class Server:
    """`async with Server("--ctx", "8192") as server`: a fresh process on a free port, gone afterwards."""

    model = MODEL

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._killed = False

    async def __aenter__(self) -> "Server":
        self.process = ServerProcess(self.model, *self._flags)
        await asyncio.to_thread(self.process.__enter__)
        self.url = self.process.url
        self._session = aiohttp.ClientSession(self.url, timeout=aiohttp.ClientTimeout(total=300))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._session.close()
        try:
            if error is None and not self._killed:
                code = await asyncio.to_thread(self.process.stop)
                assert code == 0, f"exit code {code}: {self.process.lines[-40:]}"
        finally:
            self.process.__exit__(kind, error, trace)

    async def kill(self) -> None:
        """As a machine does it: the process has no time for anything. Leave the context then."""
        self._killed = True
        self.process.process.kill()
        await asyncio.to_thread(self.process.process.wait)

    # -- requests ---------------------------------------------------------------------------------------------------------------
    async def complete(self, prompt: list[int], max_tokens: int = 8, **fields: Any) -> Reply:
        """POST /v1/completions with token ids, greedy."""
        body = self._body(prompt=prompt, max_tokens=max_tokens, logprobs=0, **fields)
        answer = await self._post("/v1/completions", body)
        choice = answer["choices"][0]
        return self._reply(answer, choice, choice["logprobs"]["token_logprobs"], prompt)

    async def chat(self, messages: list[Message], max_tokens: int = 8, **fields: Any) -> Reply:
        """POST /v1/chat/completions, greedy."""
        answer = await self._post(
            "/v1/chat/completions", self._body(messages=messages, max_tokens=max_tokens, logprobs=True, **fields)
        )
        choice = answer["choices"][0]
        content = choice["logprobs"]["content"] if choice["logprobs"] else []
        return self._reply(answer, choice, [entry["logprob"] for entry in content])

    async def stream(self, path: str, **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """Events of a streamed answer; leaving the iteration closes the connection."""
        async with self._session.post(path, json=self._body(stream=True, **fields)) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    async def status(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a POST that may be refused."""
        async with self._session.post(path, json=body) as response:
            return response.status, await response.json()

    async def metric(self, name: str) -> float:
        return (await self.metrics())[name]

    async def metrics(self) -> dict[str, float]:
        """Unlabelled samples by name, without the prefix."""
        async with self._session.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#") and "{" not in line)
        return {name.removeprefix("headrace_"): float(value) for name, value in samples}

    async def until_idle(self) -> None:
        """Until nothing is seated, waiting or being saved."""
        while True:
            metrics = await self.metrics()
            if not (metrics["num_requests_running"] or metrics["num_requests_waiting"] or metrics["kv_pages_held"]):
                return
            await asyncio.sleep(0.02)  # another process: there is nothing to wait on

    def _body(self, **fields: Any) -> dict[str, Any]:
        return {"temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(path, json=body) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer

    def _reply(
        self, answer: dict[str, Any], choice: dict[str, Any], logprobs: list[float], prompt: list[int] | None = None
    ) -> Reply:
        usage = answer["usage"]
        prompt_ids = answer.get("prompt_token_ids") or choice.get("prompt_token_ids") or prompt
        assert prompt_ids is not None
        reply = Reply(
            prompt_ids=prompt_ids,
            ids=choice["token_ids"],
            logprobs=logprobs,
            prompt_tokens=usage["prompt_tokens"],
            cached=usage["prompt_tokens_details"]["cached_tokens"],
            finish_reason=choice["finish_reason"],
        )
        assert len(reply.prompt_ids) == reply.prompt_tokens
        return reply


def common_prefix(left: list[int], right: list[int]) -> int:
    """Tokens both begin with."""
    length = min(len(left), len(right))
    return next((i for i in range(length) if left[i] != right[i]), length)


def message_starts(reply: Reply, opener: int) -> list[int]:
    """Positions of the role headers, the generation prompt's last."""
    return [position for position, token in enumerate(reply.prompt_ids) if token == opener]
