"""What a conversation asks for, checked and rendered: the same for every dialect that carries conversations."""

from dataclasses import dataclass, replace
from typing import Any

from svc.errors import RequestError
from svc.http.answer_rules import AnswerRules
from svc.http.chat_form import ends_with_an_answer
from svc.http.fields import blaming, integer, naming, shown
from svc.http.grammar_fields import AnswerGrammar, answer_grammar
from svc.http.options import GenerationOptions, chat_options
from svc.http.schema import ApplyTemplateIn, ChatIn, JsonObject
from svc.http.service import MaskHeaders, Service
from svc.http.template_variables import template_variables, thinking_budget
from svc.http.text.answer_format import AnswerFormat
from svc.http.text.chat_template import ChatTemplate, PromptTokens
from svc.http.text.generic_tools import FORM, in_plain_text
from svc.http.text.grammar.compiler import CompiledGrammar, GrammarCompiler
from svc.http.text.grammar.spec import Notation
from svc.http.text.grammar.tool_grammar import compile_calls
from svc.http.text.prompt_limit import PromptLimit
from svc.http.text.reasoning import REASONING_FORMATS, ReasoningFormat, ReasoningTags
from svc.http.text.tokenizer import Tokenizer
from svc.http.text.tool_calls.offered_tools import OfferedTools
from svc.http.text.volatile_lines import masked
from svc.http.tool_options import ToolOptions, tool_options

UNBOUNDED_TAIL_TOKENS = 256  # of a prompt whose messages cannot be told apart: what is looked at for open reasoning

EVERYWHERE: tuple[MaskHeaders, ...] = ("all",)
ON_MESSAGES: tuple[MaskHeaders, ...] = ("all", "messages")


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A conversation ready to be answered, but for the grammar, which takes longer (`compiled`)."""

    options: GenerationOptions
    prompt: PromptTokens
    rules: AnswerRules
    show_reasoning: bool
    tools: ToolOptions
    grammar: AnswerGrammar | None
    masked: list[str]  # header lines that were left out of the system text, by their names

    @property
    def needs_grammar(self) -> bool:
        return self.grammar is not None or self.tools.required or self.tools.has_strict or self.tools.some_only


def plan_chat(body: ChatIn, service: Service, masked_where: tuple[MaskHeaders, ...] = EVERYWHERE) -> ChatPlan:
    """RequestError names the field at fault. `masked_where`: the operator's settings with which header lines are left out of the
    system text here."""
    service.check_model(body.model)
    options = chat_options(body, service.vocabulary, service.answers.sampling)
    tools = offered_tools(body, service)
    grammar = answer_grammar(body)
    _check_combination(body, tools, grammar)
    form = service.answer_format
    prompt, masked_lines = _prompt(body, service, tools, masked_where)
    parted = reasoning_format(body, service) is not ReasoningFormat.IN_CONTENT
    tags, inside = _reasoning(prompt, form.reasoning, service.tokenizer)
    rules = AnswerRules(
        format=AnswerFormat(form.reasoning if parted else None, (form.calls or FORM) if tools.offered else None),
        tools=OfferedTools(tools.callable_offers),
        max_calls=1 if tools.offered and not tools.parallel else None,
        tags=tags,
        inside=inside,
        thinking_budget=_budget(body, service),
    )
    shown_reasoning = body.include_reasoning is not False and not (body.reasoning or {}).get("exclude")
    return ChatPlan(options, prompt, rules, shown_reasoning, tools, grammar, masked_lines)


def _mask(body: ChatIn) -> list[str]:
    """Leaves header lines out of the first message if that is the system's; their names."""
    first = body.messages[0] if body.messages else {}
    content = first.get("content")
    if first.get("role") not in ("system", "developer"):
        return []
    if isinstance(content, str):
        content, names = masked(content)
    elif isinstance(content, list) and content and isinstance(content[0], dict) and isinstance(content[0].get("text"), str):
        text, names = masked(content[0]["text"])
        content = [content[0] | {"text": text}, *content[1:]]
    else:
        return []
    body.messages = [first | {"content": content}, *body.messages[1:]]
    return names


def count_prompt(body: ChatIn, service: Service, masked_where: tuple[MaskHeaders, ...] = EVERYWHERE) -> int:
    """Tokens of the conversation's prompt. `masked_where` as in `plan_chat`."""
    service.check_model(body.model)
    prompt, _ = _prompt(body, service, offered_tools(body, service), masked_where)
    return len(prompt.ids)


def _prompt(
    body: ChatIn, service: Service, tools: ToolOptions, masked_where: tuple[MaskHeaders, ...]
) -> tuple[PromptTokens, list[str]]:
    """The prompt, and the names of the header lines that it lacks."""
    names = _mask(body) if service.mask_headers in masked_where else []
    limit = PromptLimit(service.engine.context_tokens, "messages")
    template = chat_template(service)
    limit.check(len(body.messages))
    with blaming("messages"):
        messages, how = conversation(body, service, tools)
        return template.encode_chat(messages, limit=limit, **how), names


def compiled(plan: ChatPlan, compiler: GrammarCompiler) -> AnswerRules:
    """The rules with their grammar. Takes milliseconds; RequestError for one that cannot be enforced."""
    with naming(plan.grammar.param if plan.grammar else "tools"):
        return replace(plan.rules, grammar=_compiled(plan, compiler))


def _compiled(plan: ChatPlan, compiler: GrammarCompiler) -> CompiledGrammar | None:
    tools, answer = plan.tools, plan.grammar
    form = plan.rules.format.calls
    if form is None:
        return compiler.compile(answer.spec) if answer else None
    if not (form.open_tag or tools.required or answer):
        return None  # nothing announces a strict tool's call, so free text and calls cannot be told apart
    return compile_calls(
        compiler,
        form,
        tools.callable,
        parallel=tools.parallel,
        required=tools.required or answer is not None,
        otherwise=answer.spec if answer and not tools.required else None,
    )


def _check_combination(body: ChatIn, tools: ToolOptions, grammar: AnswerGrammar | None) -> None:
    if grammar and tools.offered and not tools.required and grammar.spec.notation not in (Notation.JSON_SCHEMA, Notation.REGEX):
        raise RequestError(f"{grammar.param} cannot be combined with tools.", param=grammar.param)


# -- prompt ---------------------------------------------------------------------------------------------------------------------
def chat_template(service: Service) -> ChatTemplate:
    if service.template is None:
        raise RequestError("This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template")
    return service.template


def offered_tools(body: ChatIn | ApplyTemplateIn, service: Service) -> ToolOptions:
    parallel = body.parallel_tool_calls if isinstance(body, ChatIn) else None
    return tool_options(body.tools, body.tool_choice, parallel, canonical=service.answers.canonical_tools)


def conversation(body: ChatIn | ApplyTemplateIn, service: Service, tools: ToolOptions) -> tuple[list[JsonObject], dict[str, Any]]:
    """(the messages for the template, how to apply it); a template that refuses them is the client's error."""
    how = _rendering(body, service, tools)
    if not tools.offered or service.answer_format.calls is not None:
        return body.messages, how
    return in_plain_text(body.messages, tools.offered), how | {"tools": None}


def _rendering(body: ChatIn | ApplyTemplateIn, service: Service, tools: ToolOptions) -> dict[str, Any]:
    continued = body.continue_final_message
    if continued is None:
        implied = service.prefill_assistant and body.add_generation_prompt is None
        continued = implied and ends_with_an_answer(body.messages)
    return {
        "tools": list(tools.offered) or None,
        "add_generation_prompt": not continued if body.add_generation_prompt is None else body.add_generation_prompt,
        "continue_final_message": continued,
        "kwargs": template_variables(body, service.answers.enable_thinking),
    }


# -- reasoning ------------------------------------------------------------------------------------------------------------------
def _reasoning(prompt: PromptTokens, tags: ReasoningTags | None, tokenizer: Tokenizer) -> tuple[ReasoningTags | None, bool]:
    """(the tags that the answer may reason in, whether it begins inside them). A prompt that has closed them leaves none."""
    if tags is None:
        return None, False
    last = prompt.boundaries[-1].position if prompt.boundaries else -UNBOUNDED_TAIL_TOKENS
    tail = tokenizer.decode_known(prompt.ids[last:])
    if tags.left_open_by(tail):
        return tags, True
    return (None if tags.close in tail else tags), False


def reasoning_format(body: ChatIn, service: Service) -> ReasoningFormat:
    if body.separate_reasoning is False:
        return ReasoningFormat.IN_CONTENT
    name = body.reasoning_format
    if name is None:
        return service.answers.reasoning_format
    if name not in REASONING_FORMATS:
        message = f"reasoning_format must be one of {', '.join(REASONING_FORMATS)}, not {shown(name)}."
        raise RequestError(message, param="reasoning_format")
    return REASONING_FORMATS[name]


def _budget(body: ChatIn, service: Service) -> int | None:
    """Tokens that the answer may reason; None: no limit."""
    name, value = thinking_budget(body)
    if value is None:
        return service.answers.thinking_budget
    budget = integer(name, value, -1, -1, 2**31 - 1)
    return None if budget < 0 else budget
