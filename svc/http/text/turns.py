"""Whose turn a message is, where a template does not take every order of roles."""

from svc.http.text.template_habits import REASONING_KEYS, Habits, Message

_BREAK = "\n\n"  # between the contents of messages that become one


def arranged(messages: list[Message], habits: Habits) -> list[Message]:
    """Plain `messages` in an order of roles that the template takes.

    A system message that the template does not take where it is becomes a user turn in its place. It is not moved to the front:
    that would change the beginning of the prompt, and with it everything that is cached.
    """
    return _merged(_with_tool_names(_placed(messages, habits)), habits)


def _placed(messages: list[Message], habits: Habits) -> list[Message]:
    """System messages only where the template takes them."""
    placed: list[Message] = []
    for message in messages:
        if message["role"] == "system" and not _takes_system(placed, habits):
            message = message | {"role": "user"}
        placed.append(message)
    return placed


def _takes_system(before: list[Message], habits: Habits) -> bool:
    if not before:
        return habits.system_first
    if all(message["role"] == "system" for message in before):
        return habits.system_second
    return habits.system_late


def _with_tool_names(messages: list[Message]) -> list[Message]:
    """Tool results with the name of the tool: some templates write it, and most clients send only the call's id."""
    names: dict[str, str] = {}
    named: list[Message] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            if isinstance(call.get("id"), str):
                names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and "name" not in message and message.get("tool_call_id") in names:
            message = message | {"name": names[message["tool_call_id"]]}
        named.append(message)
    return named


def _merged(messages: list[Message], habits: Habits) -> list[Message]:
    """Two messages of one role that follow each other become one where the template wants roles to alternate."""
    merged: list[Message] = []
    for message in messages:
        if merged and _joins(merged[-1], message, habits):
            merged[-1] = _joined(merged[-1], message)
        else:
            merged.append(message)
    return merged


def _joins(first: Message, second: Message, habits: Habits) -> bool:
    role = first["role"]
    return role == second["role"] and role not in habits.runs and "tool_calls" not in first


def _joined(first: Message, second: Message) -> Message:
    """One message with the texts of both. Other keys: the second's, and of the first those that the second lacks."""
    joined = {**first, **second}
    contents = [message["content"] for message in (first, second) if message["content"]]
    if contents and all(isinstance(content, str) for content in contents):
        joined["content"] = _BREAK.join(contents)
    elif contents:
        parts = [[{"type": "text", "text": content}] if isinstance(content, str) else content for content in contents]
        joined["content"] = [part for content in parts for part in content]
    for key in REASONING_KEYS:
        if key in first and key in second:
            joined[key] = _BREAK.join((first[key], second[key]))
    return joined
