"""A request in the form of OpenAI's responses as one of chat: the same conversation, tools and limits."""

import base64
import binascii
import json
from typing import Any

from svc.errors import RequestError
from svc.http.chat_form import common_fields, function_call, text_in
from svc.http.fields import shown, unsupported
from svc.http.responses.schema import ResponsesIn
from svc.http.responses.tools import chat_tools, joined_name
from svc.http.schema import ChatIn, JsonObject

INCLUDES = ("reasoning.encrypted_content", "message.output_text.logprobs")
IGNORED_INCLUDES = (
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
)  # of what is never in an answer here
_SEAL = "headrace:"


def as_chat(body: ResponsesIn) -> ChatIn:
    """RequestError names the field."""
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    conversation = _Conversation()
    if body.instructions:
        conversation.messages.append({"role": "system", "content": body.instructions})
    for n, item in enumerate(items):
        conversation.add(item, f"input[{n}]")
    reasoning = body.reasoning or {}
    includes = _includes(body.include)
    return ChatIn(
        **common_fields(body) | {"response_format": _format(body)},
        messages=conversation.messages,
        max_completion_tokens=body.max_output_tokens,
        tools=chat_tools(body.tools) if body.tools else None,
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning={key: value for key, value in reasoning.items() if key in ("effort", "max_tokens", "enabled", "exclude")},
        logprobs=True if body.top_logprobs or INCLUDES[1] in includes else None,
        top_logprobs=body.top_logprobs,
        enable_thinking=body.enable_thinking,
        chat_template_kwargs=body.chat_template_kwargs,
        return_progress=body.return_progress,
        timings_per_token=body.timings_per_token,
    )


def wants_sealed_reasoning(body: ResponsesIn) -> bool:
    """Whether reasoning comes in a form that the client gives back unread."""
    return INCLUDES[0] in (body.include or ())


def sealed(text: str) -> str:
    """A reasoning as `encrypted_content`. It is no secret here; clients only send it back."""
    return _SEAL + base64.b64encode(text.encode()).decode()


def unsealed(value: Any) -> str:
    """The text in `encrypted_content`; nothing if another server has sealed it."""
    if not isinstance(value, str) or not value.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(value.removeprefix(_SEAL), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _includes(values: list[str] | None) -> list[str]:
    for n, value in enumerate(values or ()):
        if value not in INCLUDES + IGNORED_INCLUDES:
            raise RequestError(f"include[{n}] must be one of {', '.join(INCLUDES)}, not {shown(value)}.", param=f"include[{n}]")
    return values or []


class _Conversation:
    """Items one after the other; reasoning, text and calls of one answer are one message of chat."""

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []

    def add(self, item: JsonObject, param: str) -> None:
        kind = item.get("type", "message")
        match kind:
            case "message":
                self._add_message(item, param)
            case "reasoning":
                self._add_reasoning(item)
            case "function_call":
                name, arguments, id = (text_in(item, key, param) for key in ("name", "arguments", "call_id"))
                if item.get("namespace"):
                    name = joined_name(text_in(item, "namespace", param), name)
                call = function_call(id, name, arguments)
                self._answer().setdefault("tool_calls", []).append(call)
            case "function_call_output":
                output = item.get("output")
                content = output if isinstance(output, str) else _texts(output, f"{param}.output")
                self.messages.append({"role": "tool", "tool_call_id": text_in(item, "call_id", param), "content": content})
            case _:
                raise unsupported(f"{param}.type", json.dumps(kind)[:80])

    def _add_message(self, item: JsonObject, param: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in ("user", "assistant", "system", "developer"):
            message = f"{param}.role must be user, assistant, system or developer, not {shown(role)}."
            raise RequestError(message, param=f"{param}.role")
        texts = content if isinstance(content, str) else _texts(content, f"{param}.content")
        last = self.messages[-1] if self.messages else {}
        if role == "assistant" and last.get("role") == "assistant" and not last["content"] and "tool_calls" not in last:
            last["content"] = texts  # its reasoning came before
        else:
            self.messages.append({"role": role, "content": texts})

    def _add_reasoning(self, item: JsonObject) -> None:
        parts = _listed(item.get("content")) or _listed(item.get("summary"))
        text = "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
        text = text or unsealed(item.get("encrypted_content"))
        if text:
            self.messages.append({"role": "assistant", "content": "", "reasoning_content": text})

    def _answer(self) -> JsonObject:
        """The message that a call belongs to."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _listed(value: Any) -> list[JsonObject]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _texts(content: Any, param: str) -> list[JsonObject]:
    if not isinstance(content, list):
        raise RequestError(f"{param} must be a text or a list of parts, not {shown(content)}.", param=param)
    for n, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in ("input_text", "output_text", "text", "refusal"):
            kind = part.get("type") if isinstance(part, dict) else part
            raise RequestError(f"{param}[{n}].type is {shown(kind)}, but only text can be read here.", param=f"{param}[{n}].type")
    return content


def _format(body: ResponsesIn) -> JsonObject | None:
    form = (body.text or {}).get("format")
    if form is None:
        return body.response_format
    if not isinstance(form, dict):
        raise RequestError(f"text.format must be an object, not {shown(form)}.", param="text.format")
    if form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}
    return form
