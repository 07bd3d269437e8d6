"""POST /v1/responses and /v1/responses/input_tokens, as OpenAI has them."""

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from svc.http.schema import AnswerIn, HeadraceOut, JsonObject, Whole
from svc.http.timings_schema import ProgressOut, TimingsOut


class ResponsesIn(AnswerIn, kw_only=True):
    """Also of input_tokens, which looks at what makes the prompt."""

    input: str | list[JsonObject]
    instructions: str | None = None
    max_output_tokens: Whole | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning: JsonObject | None = None
    text: JsonObject | None = None
    include: list[str] | None = None
    top_logprobs: Whole | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None


class InputTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct):
    reasoning_tokens: int


class ResponsesUsage(Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class OutputText(Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: Raw | list[Any]


class ReasoningContent(Struct, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(Struct, tag_field="type", tag="message"):
    id: str
    status: str
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(Struct, tag_field="type", tag="reasoning", omit_defaults=True):
    """`encrypted_content`: asked for with `include`; the text itself, for clients that send nothing else back."""

    id: str
    summary: list[Any]
    content: list[ReasoningContent]
    status: str
    encrypted_content: str | UnsetType = UNSET


class CallItem(Struct, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: str
    namespace: str | UnsetType = UNSET


Item = MessageItem | ReasoningItem | CallItem


class ResponseOut(Struct):
    id: str
    created_at: int
    model: str
    status: str  # in_progress, completed, incomplete or failed
    output: list[Item]
    parallel_tool_calls: bool
    tool_choice: Any
    tools: list[JsonObject]
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    reasoning: JsonObject
    text: JsonObject
    usage: ResponsesUsage | None = None
    error: JsonObject | None = None
    incomplete_details: JsonObject | None = None
    completed_at: int | None = None
    object: Literal["response"] = "response"
    store: bool = False
    background: bool = False
    truncation: str = "disabled"
    previous_response_id: None = None
    metadata: JsonObject = {}
    user: None = None
    service_tier: str = "default"
    timings: TimingsOut | UnsetType = UNSET
    headrace: HeadraceOut | UnsetType = UNSET


class InputTokensOut(Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


# -- events of a stream ---------------------------------------------------------------------------------------------------------
class Event(Struct, tag_field="type"):
    sequence_number: int


class Created(Event, tag="response.created"):
    response: ResponseOut


class InProgress(Event, tag="response.in_progress"):
    response: ResponseOut
    prompt_progress: ProgressOut | UnsetType = UNSET
    timings: TimingsOut | UnsetType = UNSET


class Completed(Event, tag="response.completed"):
    response: ResponseOut
    timings: TimingsOut | UnsetType = UNSET


class Incomplete(Event, tag="response.incomplete"):
    response: ResponseOut
    timings: TimingsOut | UnsetType = UNSET


class Failed(Event, tag="response.failed"):
    response: ResponseOut


class ItemAdded(Event, tag="response.output_item.added"):
    output_index: int
    item: Item


class ItemDone(Event, tag="response.output_item.done"):
    output_index: int
    item: Item


class PartAdded(Event, tag="response.content_part.added"):
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningContent


class PartDone(Event, tag="response.content_part.done"):
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningContent


class TextDelta(Event, tag="response.output_text.delta"):
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: Raw | list[Any]
    timings: TimingsOut | UnsetType = UNSET


class TextDone(Event, tag="response.output_text.done"):
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: Raw | list[Any]


class ReasoningDelta(Event, tag="response.reasoning_text.delta"):
    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningDone(Event, tag="response.reasoning_text.done"):
    item_id: str
    output_index: int
    content_index: int
    text: str


class ArgumentsDelta(Event, tag="response.function_call_arguments.delta"):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Event, tag="response.function_call_arguments.done"):
    item_id: str
    output_index: int
    name: str
    arguments: str
