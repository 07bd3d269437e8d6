"""The request fields that known clients send, and what each route does with them: one table for all routes.

A field is done (it has an effect, or its value is checked), refused by name (it would change the answer, and nothing here does
that yet), or harmless (ignored, as are unknown fields). A value that asks for nothing is never refused; null asks for nothing.
To move a field from refused to done: change its row here, and give it to the Struct of the route (`schema.py`).
"""

import enum
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


class Route(enum.Flag):
    """The routes that take a prompt or a conversation."""

    CHAT = enum.auto()
    TEXT = enum.auto()
    NATIVE = enum.auto()
    TEMPLATE = enum.auto()
    RESPONSES = enum.auto()
    ANTHROPIC = enum.auto()


CHAT, TEXT, NATIVE, TEMPLATE = Route.CHAT, Route.TEXT, Route.NATIVE, Route.TEMPLATE
NOWHERE = Route(0)
RESPONSES, ANTHROPIC = Route.RESPONSES, Route.ANTHROPIC
MANY = CHAT | TEXT | NATIVE  # the routes that may give several answers
SINGLE = RESPONSES | ANTHROPIC
ANSWERS = MANY | SINGLE  # the routes that generate
PROMPTS = TEXT | NATIVE
MESSAGES = CHAT | TEMPLATE
TALKS = CHAT | SINGLE  # those that answer a conversation

PATHS = {
    CHAT: "/v1/chat/completions",
    TEXT: "/v1/completions",
    NATIVE: "/completion",
    TEMPLATE: "/apply-template",
    RESPONSES: "/v1/responses",
    ANTHROPIC: "/v1/messages",
}


@dataclass(frozen=True, slots=True)
class Neutral:
    """The values of a field that ask for nothing. `text` names them in the documentation."""

    text: str
    holds: Callable[[Any], bool]


def only(*values: object) -> Neutral:
    """These values; false is not 0, and true is not 1."""
    text = ", ".join(json.dumps(value) for value in values)
    return Neutral(
        text, lambda value: any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)
    )


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def at_most(bound: float) -> Neutral:
    return Neutral(f"at most {bound}", lambda value: _is_number(value) and value <= bound)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


NULL = Neutral("", lambda value: False)
OFF, ON = only(False), only(True)
TEXT_ONLY = Neutral('["text"]', lambda value: isinstance(value, list) and all(item == "text" for item in value))


@dataclass(frozen=True, slots=True)
class Known:
    """One row. A route that is in neither set ignores the field."""

    name: str
    done: Route = NOWHERE
    refused: Route = NOWHERE
    unless: Neutral = NULL  # what is accepted where it is refused, besides null


def _done(routes: Route, *names: str) -> Iterator[Known]:
    return (Known(name, done=routes) for name in names)


def _refused(routes: Route, unless: Neutral, *names: str) -> Iterator[Known]:
    return (Known(name, refused=routes, unless=unless) for name in names)


def _harmless(*names: str) -> Iterator[Known]:
    return map(Known, names)


def _budgets(*names: str) -> Iterator[Known]:
    """Of a conversation's reasoning; a bare prompt has none."""
    return (Known(name, done=CHAT, refused=PROMPTS | SINGLE, unless=only(-1)) for name in names)


# fmt: off
KNOWN_FIELDS: tuple[Known, ...] = (
    # -- what to answer
    *_done(ANSWERS, "model"),
    *_done(PROMPTS, "prompt"),
    *_done(MESSAGES | ANTHROPIC, "messages"),
    *_done(RESPONSES, "input", "instructions", "include", "text"),
    *_done(MESSAGES, "add_generation_prompt", "continue_final_message"),
    *_done(MESSAGES | SINGLE, "tools", "tool_choice"),
    *_refused(PROMPTS, only([]), "tools"),
    Known("chat_template_kwargs", done=MESSAGES | SINGLE, refused=PROMPTS, unless=only({})),
    # A template, and a system prompt, outside of where they belong.
    *_refused(MESSAGES | SINGLE, only(""), "chat_template"),
    Known("system", done=ANTHROPIC, refused=MESSAGES | RESPONSES, unless=only("")),
    *_refused(MESSAGES | SINGLE, only([]), "documents", "functions"),
    *_refused(TALKS, only("none", "auto"), "function_call"),
    Known("parallel_tool_calls", done=CHAT | RESPONSES, refused=ANTHROPIC, unless=ON),
    *_refused(RESPONSES, NULL, "previous_response_id", "conversation", "prompt"),  # nothing is stored that they could name
    *_refused(RESPONSES, OFF, "background"),
    *_refused(RESPONSES, only("disabled"), "truncation"),
    *_refused(ANTHROPIC, only([]), "mcp_servers"),
    *_refused(ANTHROPIC, NULL, "container"),
    *_harmless("context_management", "betas", "client_metadata", "max_tool_calls"),
    *_refused(TALKS, OFF, "add_special_tokens"),
    *_refused(PROMPTS, ON, "add_special_tokens", "add_bos_token"),
    *_refused(ANSWERS, only(-1), "truncate_prompt_tokens"),
    *_refused(PROMPTS, only(""), "prompt_embeds"),
    Known("suffix", done=TEXT, refused=TALKS | NATIVE, unless=only("")),
    Known("echo", done=TEXT, refused=TALKS | NATIVE, unless=OFF),
    *_refused(ANSWERS, only([]), "image_data", "images"),
    *_refused(ANSWERS, only({}), "extra_body"),  # the SDKs put its fields into the body; sent as it is, they are all lost

    # -- thinking
    Known("enable_thinking", done=MESSAGES | SINGLE, refused=PROMPTS),
    Known("thinking", done=MESSAGES | ANTHROPIC, refused=PROMPTS | RESPONSES),
    Known("reasoning", done=MESSAGES | RESPONSES, refused=PROMPTS | ANTHROPIC),
    Known("reasoning_effort", done=MESSAGES, refused=PROMPTS | SINGLE),
    Known("preserve_thinking", done=MESSAGES, refused=SINGLE),
    *_done(ANTHROPIC, "output_config", "output_format"),
    *_refused(ANSWERS, NULL, "think"),
    *_budgets("thinking_budget", "thinking_budget_tokens", "thinking_token_budget", "reasoning_budget", "reasoning_budget_tokens"),
    Known("reasoning_format", done=CHAT, refused=SINGLE, unless=only("auto")),
    *(Known(name, done=CHAT, refused=SINGLE, unless=ON) for name in ("include_reasoning", "separate_reasoning")),
    *_harmless("stream_reasoning", "reasoning_in_content", "thinking_forced_open", "reasoning_budget_message"),

    # -- length, ends and form of the answer
    *_done(ANSWERS, "max_tokens", "n_predict", "num_predict", "max_new_tokens"),
    *_done(ANSWERS, "min_tokens", "ignore_eos", "stop", "stop_token_ids"),
    Known("n", done=MANY, refused=SINGLE, unless=only(1)),
    Known("max_completion_tokens", done=CHAT, refused=SINGLE),
    Known("max_output_tokens", done=RESPONSES, refused=MANY | ANTHROPIC),
    Known("stop_sequences", done=ANTHROPIC, refused=MANY | RESPONSES, unless=only([])),
    *_done(NATIVE, "t_max_predict_ms"),
    *_refused(TALKS | TEXT, at_most(0), "t_max_predict_ms"),
    Known("best_of", done=TEXT, refused=TALKS | NATIVE, unless=only(1)),
    *_refused(ANSWERS, only(1), "n_cmpl"),
    *_refused(ANSWERS, OFF, "include_stop_str_in_output", "no_stop_trim"),
    *_refused(ANSWERS, ON, "skip_special_tokens"),
    *_refused(ANSWERS, only("", []), "stop_regex"),
    Known("n_indent", done=NATIVE, refused=TALKS | TEXT, unless=only(0)),
    *_refused(CHAT, only("medium"), "verbosity"),
    *_refused(TALKS, NULL, "audio", "web_search_options", "moderation"),
    *_refused(TALKS, TEXT_ONLY, "modalities"),
    *_refused(ANSWERS, NULL, "repetition_detection"),
    *_harmless("stopping_strings", "ban_eos_token", "min_length", "trim_stop"),  # SillyTavern sends them beside our names
    *_harmless("minimum_message_content_tokens", "spaces_between_special_tokens", "prediction", "grammar_retain_state"),

    # -- constrained answers
    *_done(ANSWERS, "response_format", "json_schema", "guided_json", "structured_outputs", "guided_choice", "format"),
    *_done(ANSWERS, "grammar", "grammar_string", "guided_grammar", "ebnf", "regex", "guided_regex"),
    *_refused(ANSWERS, NULL, "structural_tag"),
    *_harmless("guided_decoding_backend", "guided_whitespace_pattern", "grammar_lazy", "grammar_triggers", "preserved_tokens"),

    # -- sampling
    *_done(ANSWERS, "temperature", "top_k", "top_p", "min_p", "seed", "logit_bias"),
    *_done(ANSWERS, "presence_penalty", "frequency_penalty", "repetition_penalty", "repeat_penalty", "repeat_last_n", "samplers"),
    *_done(ANSWERS, "typical_p", "typ_p", "typical", "top_n_sigma", "nsigma", "xtc_probability", "xtc_threshold", "min_keep"),
    *_done(ANSWERS, "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_range", "dry_sequence_breakers"),
    *_done(ANSWERS, "mirostat", "mirostat_mode", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
    *_done(ANSWERS, "dynatemp_range", "dynatemp_exponent", "dynamic_temperature", "bad_words"),
    *_done(ANSWERS, "dynatemp_low", "dynatemp_high", "dynatemp_min", "dynatemp_max"),
    *_refused(ANSWERS, only(1), "tfs_z", "tfs"),
    *_refused(ANSWERS, only(0), "smoothing_factor", "top_a", "skew"),
    *_refused(ANSWERS, only(0), "epsilon_cutoff", "eta_cutoff", "penalty_alpha", "no_repeat_ngram_size"),
    *_refused(ANSWERS, only(1), "guidance_scale", "encoder_repetition_penalty", "length_penalty", "num_beams"),
    *_refused(ANSWERS, OFF, "use_beam_search", "early_stopping", "temperature_last"),
    *_refused(ANSWERS, ON, "do_sample"),
    *_refused(ANSWERS, only([]), "banned_strings", "allowed_token_ids", "logits_processors", "sampler_order"),
    *_refused(ANSWERS, only([], ""), "sampler_priority", "banned_tokens"),
    *_refused(TALKS | TEXT, only([], ""), "custom_token_bans"),  # /completion gets SillyTavern's in `logit_bias` too
    *_refused(ANSWERS, only("", []), "custom_logit_processor"),
    *_refused(ANSWERS, only({}), "custom_params", "vllm_xargs"),
    *_refused(ANSWERS, only([], ""), "lora", "lora_path"),
    # These count only together with one above, which is refused.
    *_harmless("dynatemp_mode", "smoothing_curve"),
    *_harmless("negative_prompt"),
    # SillyTavern sends them beside our names.
    *_harmless("sampler_seed", "rep_pen", "rep_pen_range", "rep_pen_slope", "repetition_penalty_range", "repetition_decay"),

    # -- what is told
    *_done(ANSWERS, "stream", "cache_report"),
    *_done(MANY, "stream_options"),
    Known("return_token_ids", done=MANY, refused=SINGLE, unless=OFF),
    Known("logprobs", done=CHAT | TEXT, refused=SINGLE, unless=OFF),
    Known("top_logprobs", done=CHAT | RESPONSES, refused=ANTHROPIC, unless=only(0)),
    *_done(MANY, "n_probs"),
    Known("post_sampling_probs", done=MANY, refused=SINGLE, unless=OFF),
    *_done(NATIVE, "return_tokens", "response_fields"),
    *_refused(ANSWERS, NULL, "prompt_logprobs"),
    *_refused(ANSWERS, only([]), "logprob_token_ids"),
    *_refused(ANSWERS, OFF, "return_tokens_as_token_ids", "return_prompt_text"),
    *_refused(ANSWERS, OFF, "return_hidden_states", "return_routed_experts"),
    *_done(MANY | RESPONSES, "timings_per_token", "return_progress"),
    Known("verbose", done=MANY),
    *_done(ANSWERS, "sse_ping_interval"),
    *_harmless("include_usage", "usage"),
    *_harmless("return_token_offsets", "return_assistant_tokens_mask", "routed_experts_prompt_start"),
    *_harmless("return_cached_tokens_details"),

    # -- cache and service
    *_refused(ANSWERS, only(0, -1), "n_keep"),  # of a context that is shifted when it is full: here it ends the answer
    *_done(ANSWERS, "cache_prompt", "cache_salt"),
    *_refused(ANSWERS, only(""), "extra_key"),  # it asks that a cached prefix be shared with nobody
    Known("id_slot", done=MANY),  # the number under which it can be saved; any slot computes it
    *_harmless("n_discard", "n_cache_reuse", "prompt_cache_key", "prompt_cache_retention"),
    *_harmless("prompt_cache_options", "user", "metadata", "store", "safety_identifier", "service_tier", "priority", "request_id"),
    *_harmless("rid", "session_id", "session_params", "chat_id", "custom_labels", "kv_transfer_params", "ec_transfer_params"),
    *_harmless("bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "backend_sampling"),
    *_done(MANY, "speculative.n_max", "speculative.n_min", "speculative.p_min", "speculative.type"),  # tokens are the same
    *_harmless("speculative_ngram", "max_tokens_second"),
    *_harmless("num_ctx", "truncation_length", "max_context_length", "truncation_side", "keep_alive", "num_keep", "num_batch"),
    *_harmless("num_gpu", "num_thread", "use_mmap", "use_mlock", "api_type", "api_server", "provider", "models", "route"),
    *_harmless("transforms", "plugins", "quantizations", "allow_fallbacks", "mm_processor_kwargs", "media_io_kwargs"),
    *_harmless("parse_tool_calls", "extra_headers", "num_retries"),
)
# fmt: on


def refused_on(route: Route) -> dict[str, Neutral]:
    """The fields that `route` refuses, each with the values that it accepts nevertheless."""
    return {known.name: known.unless for known in KNOWN_FIELDS if route in known.refused}


def done_on(route: Route) -> set[str]:
    """The fields that `route` does."""
    return {known.name for known in KNOWN_FIELDS if route in known.done}
