"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic has them."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from svc.http.schema import AnswerIn, HeadraceOut, JsonObject


class MessagesIn(AnswerIn, kw_only=True):
    """Also of count_tokens, which looks at what makes the prompt."""

    messages: list[JsonObject]
    system: str | list[Any] | None = None
    stop_sequences: list[str] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: JsonObject | None = None
    thinking: JsonObject | None = None
    output_config: JsonObject | None = None
    output_format: JsonObject | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: JsonObject | None = None


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """`signature`: other servers prove by it that the text is theirs; here nothing depends on it."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Any


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(Struct):
    """`input_tokens` are those evaluated; those that the cache spared are beside them."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageOut(Struct):
    id: str
    model: str
    content: list[Block]
    usage: MessagesUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    headrace: HeadraceOut | UnsetType = UNSET


# -- events of a stream ---------------------------------------------------------------------------------------------------------
class MessageStart(Struct, tag_field="type", tag="message_start"):
    message: MessageOut


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputDelta(Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: Delta


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    index: int


class StopOut(Struct):
    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    delta: StopOut
    usage: MessagesUsage
    headrace: HeadraceOut | UnsetType = UNSET


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    pass
