"""How clients ask for thinking, made into the variables that chat templates read."""

from typing import Any

import pytest

from svc.errors import RequestError
from svc.http.schema import ApplyTemplateIn
from svc.http.template_variables import template_variables

ON, OFF = {"enable_thinking": True, "thinking": True}, {"enable_thinking": False, "thinking": False}


def _variables(**fields: Any) -> dict[str, Any]:
    return template_variables(ApplyTemplateIn(messages=[], **fields))


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
        ({"reasoning": {"max_tokens": 100}}, "reasoning.max_tokens"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"thinking": {"type": ["enabled"]}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    """Unknown words, and limits of thinking, which nothing here keeps."""
    with pytest.raises(RequestError) as error:
        _variables(**fields)
    assert error.value.param == param
    assert param in str(error.value)
