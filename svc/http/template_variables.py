"""The variables that a request sets for its chat template: `chat_template_kwargs`, and whether and how hard to think.

Clients ask for thinking in four ways, and templates read it under several names; all of them are set. A template that reads none
of them ignores them.
"""

import json
from typing import Any

from svc.errors import RequestError
from svc.http.fields import shown, unsupported
from svc.http.schema import ApplyTemplateIn, ChatIn, JsonObject

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SWITCHES = {"enabled": True, "disabled": False}


def template_variables(body: ChatIn | ApplyTemplateIn) -> JsonObject:
    """What `chat_template_kwargs` says counts before `enable_thinking`, and that before the other fields."""
    reasoning = body.reasoning or {}
    effort = _effort("reasoning_effort", body.reasoning_effort) or _effort("reasoning.effort", reasoning.get("effort"))
    wishes = (body.enable_thinking, False if effort == "none" else None, _enabled(reasoning), _thinking(body.thinking))
    variables: JsonObject = {}
    for wish in wishes:
        if wish is not None:
            variables |= {"enable_thinking": wish, "thinking": wish}
            break
    if effort not in (None, "none"):
        variables["reasoning_effort"] = effort
    return variables | (body.chat_template_kwargs or {})


def _effort(param: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value in EFFORTS):
        return value
    raise RequestError(f"{param} must be one of {', '.join(EFFORTS)}, not {shown(value)}.", param=param)


def _enabled(reasoning: JsonObject) -> bool | None:
    """The switch of OpenRouter's `reasoning` object."""
    _refuse(reasoning, "reasoning", "max_tokens")
    if reasoning.get("exclude"):
        _refuse(reasoning, "reasoning", "exclude")
    return _switch("reasoning.enabled", reasoning.get("enabled"))


def _thinking(value: bool | JsonObject | None) -> bool | None:
    """The switch of `thinking`: true, false, or an object with a type ("adaptive" leaves it to the template)."""
    if not isinstance(value, dict):
        return value
    _refuse(value, "thinking", "budget_tokens")
    kind = value.get("type")
    if kind not in (None, "adaptive", "auto", *_SWITCHES):
        message = f"thinking.type must be enabled, disabled or adaptive, not {shown(kind)}."
        raise RequestError(message, param="thinking.type")
    return _SWITCHES.get(kind) if isinstance(kind, str) else None


def _switch(param: str, value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{param} must be true or false, not {shown(value)}.", param=param)
    return value


def _refuse(settings: JsonObject, name: str, key: str) -> None:
    if settings.get(key) is not None:
        raise unsupported(f"{name}.{key}", json.dumps(settings[key]))
