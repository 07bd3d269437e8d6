"""The settings that say how conversations become prompts, and how their answers are read: a part of `svc.config.Config`."""

from typing import Annotated, Literal

from msgspec import Meta

from svc.draft_settings import DraftSettings


class ChatSettings(DraftSettings, frozen=True, kw_only=True):
    """What requests may say themselves is the default of those that do not. (Structs have one base: hence the chain.)"""

    prefill_assistant: Annotated[
        bool,
        Meta(description="continue the last message of a conversation that ends with the assistant's, as llama-server does"),
    ] = False
    tool_call_format: Annotated[
        Literal["auto", "hermes", "qwen-xml", "llama-json", "mistral-list", "mistral"],
        Meta(description="how the model writes tool calls; auto: as its chat template does"),
    ] = "auto"
    reasoning_format: Annotated[
        Literal["auto", "deepseek", "deepseek-legacy", "none"],
        Meta(
            description="where chats have reasoning: in fields of its own, deepseek-legacy: also in the content; none: there only"
        ),
    ] = "auto"
    reasoning_fields: Annotated[
        Literal["both", "reasoning_content", "reasoning", "none"],
        Meta(
            description="field of a chat message that carries reasoning; both: clients read one or the other; none: it is left out"
        ),
    ] = "both"
    thinking: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="whether models that can reason do where a request does not say; auto: as the chat template decides"),
    ] = "auto"
    thinking_budget: Annotated[
        int, Meta(ge=-1, le=2**24, description="most tokens an answer may reason where a request does not say; -1: no limit")
    ] = -1
    canonical_tools: Annotated[
        bool,
        Meta(description="write the keys of tools in one order: clients that change it with every request spoil the cache"),
    ] = False
    mask_headers: Annotated[
        Literal["messages", "all", "off"],
        Meta(description="where lines that change with every request (x-anthropic-billing-header) are left out of the system text"),
    ] = "messages"
