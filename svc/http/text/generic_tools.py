"""Tools for models whose chat template knows of none: told and called in plain text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from svc.http.text.messages import normalise_messages, normalise_tools
from svc.http.text.template_habits import Message
from svc.http.text.tool_calls.call_format import HERMES

FORM = HERMES
_TELLING = """You can call the functions below. Each is described by one line of JSON.
{tools}

To call a function, write its name and its arguments in this form, and nothing else in it:
{example}
Several calls may follow one another. What the functions give back is told to you between <tool_response> and </tool_response>."""


def in_plain_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation with its tools, calls and results as texts of the system, the assistant and the user.

    RequestError for what is wrong in them, as `normalise_messages`.
    """
    plain = normalise_messages(messages)
    told = _telling(normalise_tools(tools) or [])
    first, others = (plain[0]["content"], plain[1:]) if plain[0]["role"] == "system" else ("", plain)
    system = {"role": "system", "content": f"{first}\n\n{told}" if first else told}
    return [system, *_merged(map(_as_text, others))]


def _telling(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    return _TELLING.format(tools="\n".join(functions), example=_written("NAME", '{"ARGUMENT": VALUE}'))


def _written(name: str, arguments: str) -> str:
    return f"{FORM.open}{name}{FORM.between}{arguments}{FORM.close}"


def _as_text(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [message["content"]] if message["content"] else []
    for call in calls:
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        texts.append(_written(call["function"]["name"], text))
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": "\n".join(texts)}


def _merged(messages: Iterator[Message]) -> Iterator[Message]:
    """Results, and what the user says behind them, in one message: such templates want the roles in turns."""
    last: Message | None = None
    for message in messages:
        if last is not None and last["role"] == message["role"] == "user" and last["content"].endswith("</tool_response>"):
            last = last | {"content": f"{last['content']}\n{message['content']}"}
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last
