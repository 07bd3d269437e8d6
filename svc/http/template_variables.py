"""The variables that a request sets for its chat template: `chat_template_kwargs`, and whether and how hard to think.

Clients ask for thinking in four ways, and templates read it under several names; all of them are set. A template that reads none
of them ignores them.
"""

from typing import Any

from svc.errors import RequestError
from svc.http.fields import shown
from svc.http.schema import ApplyTemplateIn, ChatIn, JsonObject

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SWITCHES = {"enabled": True, "disabled": False}


BUDGETS = ("thinking_budget", "thinking_budget_tokens", "thinking_token_budget", "reasoning_budget", "reasoning_budget_tokens")


def thinking_budget(body: ChatIn) -> tuple[str, float | None]:
    """(the field that bounds the reasoning, its value); None where no field does."""
    fields: list[tuple[str, Any]] = [(name, getattr(body, name)) for name in BUDGETS]
    if isinstance(body.thinking, dict):
        fields.append(("thinking.budget_tokens", body.thinking.get("budget_tokens")))
    fields.append(("reasoning.max_tokens", (body.reasoning or {}).get("max_tokens")))
    for name, value in fields:
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise RequestError(f"{name} must be an integer, not {shown(value)}.", param=name)
            return name, value
    return "", None


def template_variables(body: ChatIn | ApplyTemplateIn, default_thinking: bool | None = None) -> JsonObject:
    """What `chat_template_kwargs` says counts before `enable_thinking`, and that before the other fields; `default_thinking` where
    none says anything."""
    reasoning = body.reasoning or {}
    effort = _effort("reasoning_effort", body.reasoning_effort) or _effort("reasoning.effort", reasoning.get("effort"))
    no_budget = False if isinstance(body, ChatIn) and thinking_budget(body)[1] == 0 else None
    no_effort = False if effort == "none" else None
    wishes = (body.enable_thinking, no_effort, _enabled(reasoning), _thinking(body.thinking), no_budget, default_thinking)
    variables: JsonObject = {}
    for wish in wishes:
        if wish is not None:
            variables |= {"enable_thinking": wish, "thinking": wish}
            break
    if effort not in (None, "none"):
        variables["reasoning_effort"] = effort
    if body.preserve_thinking is not None:
        variables["preserve_thinking"] = body.preserve_thinking
    return variables | (body.chat_template_kwargs or {})


def _effort(param: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value in EFFORTS):
        return value
    raise RequestError(f"{param} must be one of {', '.join(EFFORTS)}, not {shown(value)}.", param=param)


def _enabled(reasoning: JsonObject) -> bool | None:
    """The switch of OpenRouter's `reasoning` object."""
    return _switch("reasoning.enabled", reasoning.get("enabled"))


def _thinking(value: bool | JsonObject | None) -> bool | None:
    """The switch of `thinking`: true, false, or an object with a type ("adaptive" leaves it to the template)."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind not in (None, "adaptive", "auto", *_SWITCHES):
        message = f"thinking.type must be enabled, disabled or adaptive, not {shown(kind)}."
        raise RequestError(message, param="thinking.type")
    return _SWITCHES.get(kind) if isinstance(kind, str) else None


def _switch(param: str, value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{param} must be true or false, not {shown(value)}.", param=param)
    return value
