"""The order of roles, where a template does not take every one."""

from typing import Any

import pytest

from svc.http.text.template_habits import ROLES, Habits
from svc.http.text.turns import arranged


def _turns(*roles: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)]


SYSTEMS = ("system", "system", "user", "system", "assistant", "system")


@pytest.mark.parametrize(
    ("habits", "roles"),
    [
        (Habits(), ("system", "user", "user", "user", "assistant", "user")),
        (Habits(system_first=False), ("user", "user", "user", "user", "assistant", "user")),
        (Habits(system_second=True), ("system", "system", "user", "user", "assistant", "user")),
        (Habits(system_late=True), ("system", "user", "user", "system", "assistant", "system")),
        (Habits(system_second=True, system_late=True), SYSTEMS),
        (Habits(system_first=False, system_late=True), ("user", "system", "user", "system", "assistant", "system")),
    ],
)
def test_system_messages_where_they_are_taken(habits: Habits, roles: tuple[str, ...]) -> None:
    """Others are user turns in their place: no message moves, none is lost."""
    given = _turns(*SYSTEMS)
    placed = arranged(given, habits)
    assert tuple(message["role"] for message in placed) == roles
    assert [message["content"] for message in placed] == [message["content"] for message in given]


ALTERNATING = Habits(runs=frozenset(ROLES) - {"user", "assistant"}, system_first=False)


def test_turns_that_must_alternate_are_merged() -> None:
    """Two of one role that follow each other become one, with a blank line between their texts."""
    merged = arranged(_turns("system", "user", "assistant", "assistant", "user", "tool", "tool"), ALTERNATING)
    assert [(message["role"], message["content"]) for message in merged] == [
        ("user", "system 0\n\nuser 1"),
        ("assistant", "assistant 2\n\nassistant 3"),
        ("user", "user 4"),
        ("tool", "tool 5"),
        ("tool", "tool 6"),
    ]


def test_a_merged_message_has_everything_of_both() -> None:
    """Texts and parts in their order, the reasoning of both, calls of the second; nothing joins a message that calls tools."""
    parts = [{"type": "text", "text": "b"}]
    assert arranged([{"role": "user", "content": "a", "name": "x"}, {"role": "user", "content": parts}], ALTERNATING) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, *parts], "name": "x"}
    ]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
    answers = [
        {"role": "assistant", "content": "", "reasoning_content": "h"},
        {"role": "assistant", "content": "", "reasoning_content": "m", "tool_calls": [call]},
    ]
    merged = [{"role": "assistant", "content": "", "reasoning_content": "h\n\nm", "tool_calls": [call]}]
    assert arranged(answers, ALTERNATING) == merged
    assert len(arranged([*merged, {"role": "assistant", "content": "x"}], ALTERNATING)) == 2


def test_the_beginning_of_a_conversation_stays_when_it_goes_on() -> None:
    """Messages that come later change nothing before the turn that they belong to."""
    given = _turns("system", "user", "assistant", "system", "user", "assistant", "tool", "user")
    for habits in (Habits(), ALTERNATING, Habits(system_second=True, system_late=True)):
        whole = arranged(given, habits)
        for length in range(1, len(given)):
            begun = arranged(given[:length], habits)
            assert whole[: len(begun) - 1] == begun[:-1]
