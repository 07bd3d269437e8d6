"""How clients ask for thinking, made into the variables that chat templates read."""

from typing import Any

import pytest

from svc.errors import RequestError
from svc.http.schema import ApplyTemplateIn, ChatIn
from svc.http.template_variables import template_variables

ON, OFF = {"enable_thinking": True, "thinking": True}, {"enable_thinking": False, "thinking": False}


def _variables(**fields: Any) -> dict[str, Any]:
    of_template = template_variables(ApplyTemplateIn(messages=[], **fields))
    assert template_variables(ChatIn(messages=[], **fields)) == of_template
    return of_template


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"enable_thinking": True}, ON),
        ({"enable_thinking": False}, OFF),
        ({"thinking": True}, ON),
        ({"thinking": {"type": "enabled"}}, ON),
        ({"thinking": {"type": "disabled"}}, OFF),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": None, "display": "omitted"}}, ON),
        ({"reasoning": {"enabled": False}}, OFF),
        ({"reasoning": {"effort": "low", "exclude": False}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": "none"}}, OFF),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, OFF),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high", "enabled": True}}, ON | {"reasoning_effort": "low"}),
        ({"enable_thinking": True, "reasoning_effort": "none"}, ON),
        ({"enable_thinking": False, "thinking": {"type": "enabled"}}, OFF),
        (
            {"chat_template_kwargs": {"enable_thinking": True, "x": 1}, "enable_thinking": False},
            OFF | {"enable_thinking": True, "x": 1},
        ),
        ({"chat_template_kwargs": {"reasoning_effort": "mine"}, "reasoning_effort": "low"}, {"reasoning_effort": "mine"}),
    ],
)
def test_variables(fields: dict[str, Any], variables: dict[str, Any]) -> None:
    """Both names of the switch are set; what is more exact counts first."""
    assert _variables(**fields) == variables


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"reasoning": {"effort": ["low"]}}, "reasoning.effort"),
        ({"reasoning": {"enabled": "yes"}}, "reasoning.enabled"),
        ({"reasoning": {"max_tokens": "many"}}, "reasoning.max_tokens"),
        ({"reasoning": {"max_tokens": True}}, "reasoning.max_tokens"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"thinking": {"type": ["enabled"]}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": []}}, "thinking.budget_tokens"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    """Unknown words, and limits of thinking that are no numbers."""
    with pytest.raises(RequestError) as error:
        template_variables(ChatIn(messages=[], **fields))
    assert error.value.param == param
    assert param in str(error.value)


def test_no_budget_is_no_thinking() -> None:
    """A budget of 0 turns the template's thinking off, unless the request turns it on; the operator's word counts last."""
    assert template_variables(ChatIn(messages=[], thinking_budget=0)) == OFF
    assert template_variables(ChatIn(messages=[], thinking_budget=5)) == {}
    assert template_variables(ChatIn(messages=[], thinking_budget=0, enable_thinking=True)) == ON
    assert template_variables(ChatIn(messages=[]), default_thinking=False) == OFF
    assert template_variables(ChatIn(messages=[], thinking=True), default_thinking=False) == ON
