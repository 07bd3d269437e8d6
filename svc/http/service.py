"""What handlers may use: a `Service`, built whole once the model is loaded, and the `Door` that leads to it."""

import enum
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from aiohttp import web

from svc.http.errors import ApiError, model_not_found, unavailable
from svc.http.inbox import Rounds
from svc.http.options import Vocabulary
from svc.http.schema import JsonObject
from svc.http.text.answer_format import NO_FORMAT, AnswerFormat
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.grammar.compiler import GrammarCompiler
from svc.http.text.reasoning import REASONING_FIELDS, ReasoningFormat
from svc.http.text.tokenizer import Tokenizer
from svc.log import Logger
from svc.metrics import Metrics
from svc.slots.engine import EngineState
from svc.slots.events import Event
from svc.slots.operator_pins import OperatorPins
from svc.slots.request import Request
from svc.slots.slot_files import SlotFiles
from svc.slots.stats import EngineStats, Flushed, SlotView
from svc.slots.stream import TokenStream

STALLED_AFTER_S = 120.0  # no step completed for so long while there is work: the device hangs


class EngineApi(Protocol):
    """The part of `svc.slots.engine.Engine` that http uses."""

    @property
    def state(self) -> EngineState: ...

    @property
    def last_progress_s(self) -> float: ...

    @property
    def context_tokens(self) -> int: ...

    def max_requests(self, queue_share: float) -> int: ...

    def slots(self) -> list[SlotView]: ...

    def validate(self, prompt_tokens: int, max_tokens: int | None) -> int: ...

    def check_capacity(self, newcomers: int, tenant: str, queue_share: float) -> None: ...

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> TokenStream: ...

    def stats(self) -> EngineStats: ...

    @property
    def slot_files(self) -> SlotFiles | None: ...

    @property
    def pins(self) -> OperatorPins: ...

    async def flush(self) -> Flushed: ...


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What clients are told about the model."""

    name: str
    created: int  # Unix seconds
    vocab_size: int  # token ids a prompt may have: 0 to vocab_size - 1
    meta: JsonObject  # llama-server's names: n_ctx_train, n_embd, n_vocab, size, n_params
    strict_name: bool = False  # whether a request must name it right
    path: str = ""  # of its file
    aliases: tuple[str, ...] = ()  # other names that requests may say
    tags: tuple[str, ...] = ()  # the operator's words for it

    def is_called(self, name: str) -> bool:
        return name == self.name or name in self.aliases


MaskHeaders = Literal["messages", "all", "off"]


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """What the operator wants of answers whose requests say nothing."""

    reasoning_format: ReasoningFormat = ReasoningFormat.PARTED
    reasoning_fields: tuple[str, ...] = REASONING_FIELDS["both"]  # of a message, that carry reasoning
    enable_thinking: bool | None = None  # None: as the template does
    thinking_budget: int | None = None  # tokens; None: no limit
    canonical_tools: bool = False  # whether the keys of tools are written in one order, whatever order they came in
    sampling: Mapping[str, float] = field(default_factory=dict)  # values of request fields


@dataclass(frozen=True, slots=True)
class Service:
    """Everything an endpoint needs to answer."""

    engine: EngineApi
    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: the model file has none, chat is refused
    model: ModelInfo
    grammars: GrammarCompiler
    fingerprint: str  # `system_fingerprint` of answers: changes when answers may
    metrics: Metrics
    max_body_bytes: int
    keep_alive_s: float = 5.0
    show_slots: bool = True  # whether /slots answers
    isolate_keys: bool = False  # whether the holders of keys share nothing of the cache
    show_prompts: bool = False  # whether /slots may tell what people wrote
    answer_format: AnswerFormat = NO_FORMAT
    answers: AnswerSettings = AnswerSettings()
    mask_headers: MaskHeaders = "messages"  # where lines that change with every request are left out of the system text
    prefill_assistant: bool = False  # whether a final message of the assistant is continued without being asked for
    rounds: Rounds = field(default_factory=Rounds)  # in which streamed answers are written

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.tokenizer, self.model.vocab_size)

    def check_model(self, asked: str | None) -> None:
        """404 for another model's name, if the configuration wants that."""
        if self.model.strict_name and asked is not None and not self.model.is_called(asked):
            raise model_not_found(asked)


class Readiness(enum.Enum):
    """What /readyz says, and why."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STALLED = "stalled"
    FAILED = "failed"


_OF_ENGINE = {
    EngineState.STARTING: Readiness.LOADING,
    EngineState.READY: Readiness.READY,
    EngineState.DRAINING: Readiness.DRAINING,
    EngineState.STOPPED: Readiness.DRAINING,
    EngineState.FAILED: Readiness.FAILED,
}

_MESSAGES = {
    Readiness.LOADING: "Loading model",  # llama-server's words: scripts wait for them
    Readiness.DRAINING: "The server is shutting down",
    Readiness.STALLED: "The compute device does not answer",
    Readiness.FAILED: "The compute device has failed; the server needs a restart",
}


class Door:
    """Closed while the model loads; `open` once, with a complete `Service`. Owner of the answer to "is it ready?"."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` must be the engine's."""
        self._clock = clock
        self._service: Service | None = None
        self._draining = False

    def open(self, service: Service) -> None:
        assert self._service is None, "the door is open already"
        self._service = service

    def drain(self) -> None:
        """From now on not ready, whatever the engine says (it may not exist yet)."""
        self._draining = True

    @property
    def readiness(self) -> Readiness:
        if self._draining:
            return Readiness.DRAINING
        if self._service is None:
            return Readiness.LOADING
        engine = self._service.engine
        if engine.state is EngineState.READY and self._clock() - engine.last_progress_s > STALLED_AFTER_S and _has_work(engine):
            return Readiness.STALLED
        return _OF_ENGINE[engine.state]

    @property
    def stats(self) -> EngineStats | None:
        """The engine's, in whatever state it is; None before there is one."""
        return None if self._service is None else self._service.engine.stats()

    def refusal(self, readiness: Readiness) -> ApiError:
        """The 503 of a server that is not ready."""
        return unavailable(_MESSAGES[readiness], readiness.value)

    @property
    def service(self) -> Service:
        """The service; raises a 503 while there is none or it ends. A stalled or failed engine refuses by itself."""
        if self._service is None or self._draining:
            raise self.refusal(self.readiness)
        return self._service


def _has_work(engine: EngineApi) -> bool:
    stats = engine.stats()
    return stats.num_running + stats.num_waiting > 0


# What an application carries for its handlers.
DOOR = web.AppKey("door", Door)
METRICS = web.AppKey("metrics", Metrics)
LOGGER = web.AppKey("logger", Logger)
