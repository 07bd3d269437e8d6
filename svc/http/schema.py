"""The JSON that clients send and get, as Structs. Unknown request fields are ignored: every agent sends some.

Here are names and types. `decoding.py` reads them, `options.py` and `fields.py` check values, `known_fields.py` has the fields that
are refused.
"""

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field

from svc.http.timings_schema import ProgressOut, TimingsOut

JsonObject = dict[str, Any]
Whole = int | float  # clients written in JavaScript or Lua send 2.0 and mean 2; `fields.whole` refuses 2.5


# -- requests -----------------------------------------------------------------------------------------------------------------


class StreamOptions(Struct):
    include_usage: bool | None = None


class AnswerIn(Struct, kw_only=True):
    """What all endpoints that generate have in common."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: Whole | None = None
    n_predict: Whole | None = None
    max_new_tokens: Whole | None = None
    num_predict: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    min_p: float | None = None
    seed: Whole | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Whole] | None = None
    ignore_eos: bool | None = None
    min_tokens: Whole | None = None
    logit_bias: Any = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Whole | None = None
    samplers: str | list[str] | None = None
    typical_p: float | None = None
    typ_p: float | None = None
    typical: float | None = None
    top_n_sigma: float | None = None
    nsigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Whole | None = None
    dry_penalty_last_n: Whole | None = None
    dry_range: Whole | None = None
    dry_sequence_breakers: str | list[str] | None = None
    mirostat: Whole | None = None
    mirostat_mode: Whole | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    dynamic_temperature: bool | None = None
    dynatemp_low: float | None = None
    dynatemp_high: float | None = None
    dynatemp_min: float | None = None
    dynatemp_max: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: float | None = None
    min_keep: Whole | None = None
    bad_words: list[str] | None = None
    response_format: JsonObject | None = None
    grammar: Any = None
    grammar_string: Any = None
    guided_grammar: Any = None
    ebnf: Any = None
    json_schema: Any = None
    guided_json: Any = None
    regex: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    format: Any = None
    structured_outputs: JsonObject | None = None
    cache_prompt: bool | None = None
    cache_report: bool | None = None
    cache_salt: str | None = None
    sse_ping_interval: float | None = None


class GenerationIn(AnswerIn, kw_only=True):
    """What those have that may give several answers."""

    stream_options: StreamOptions | None = None
    n: Whole | None = None
    n_probs: Whole | None = None
    post_sampling_probs: bool | None = None
    return_token_ids: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    verbose: bool | None = None
    id_slot: Whole | None = None
    speculative_n_max: Whole | None = field(name="speculative.n_max", default=None)
    speculative_n_min: Whole | None = field(name="speculative.n_min", default=None)
    speculative_p_min: float | None = field(name="speculative.p_min", default=None)
    speculative_type: str | None = field(name="speculative.type", default=None)


class ChatIn(GenerationIn, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[JsonObject]
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning_format: str | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    thinking_budget: Whole | None = None
    thinking_budget_tokens: Whole | None = None
    thinking_token_budget: Whole | None = None
    reasoning_budget: Whole | None = None
    reasoning_budget_tokens: Whole | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    enable_thinking: bool | None = None
    thinking: bool | JsonObject | None = None
    reasoning: JsonObject | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionIn(GenerationIn, kw_only=True):
    """POST /v1/completions. `prompt`: a string, a list of strings, a list of token ids, or a list of such lists."""

    prompt: str | list[str | int | list[int]]
    logprobs: Whole | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Whole | None = None


class NativeIn(GenerationIn, kw_only=True):
    """POST /completion, llama-server's own. `prompt`: text, token ids, both mixed in one list, or a list of such prompts."""

    prompt: str | JsonObject | list[Any]
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    t_max_predict_ms: float | None = None
    n_indent: Whole | None = None


class InfillIn(NativeIn, kw_only=True):
    """POST /infill, llama-server's: what is between a prefix and a suffix. `prompt` is the beginning of the line with the gap."""

    input_prefix: str
    input_suffix: str
    prompt: str = ""
    input_extra: list[Any] | None = None


class ApplyTemplateIn(Struct, kw_only=True):
    """POST /apply-template, as llama-server's: the fields of a chat request that shape its prompt."""

    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    chat_template_kwargs: JsonObject | None = None
    enable_thinking: bool | None = None
    thinking: bool | JsonObject | None = None
    reasoning: JsonObject | None = None
    reasoning_effort: str | None = None
    preserve_thinking: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class TokenizeIn(Struct):
    """POST /tokenize, as llama-server's."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class SlotFileIn(Struct, kw_only=True):
    """POST /slots/{id}?action=save and restore."""

    filename: str


class PinIn(Struct, kw_only=True):
    """POST /cache/pin: a prompt as text or token ids, or the beginning of conversations."""

    prompt: str | list[Any] | None = None
    messages: list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool = False
    name: str = ""


class DetokenizeIn(Struct):
    """POST /detokenize, as llama-server's."""

    tokens: list[int]


# -- answers ------------------------------------------------------------------------------------------------------------------


class PromptTokensDetails(Struct):
    cached_tokens: int


class CompletionTokensDetails(Struct):
    reasoning_tokens: int


class UsageOut(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class DifferenceOut(Struct, omit_defaults=True):
    """The first token at which known text goes on otherwise than the prompt, and the text around it."""

    position: int
    before: str | UnsetType = UNSET  # what both have
    prompt: str | UnsetType = UNSET
    cached: str | UnsetType | None = UNSET  # null: it may be somebody else's


class CacheReportOut(Struct):
    """Why prompt tokens were evaluated (asked for with `cache_report`)."""

    matched_tokens: int
    resumed_at: int
    evaluated_tokens: int
    reason: str
    tier: str | None  # "device", "host" or "disk"; null where nothing was reused
    difference: DifferenceOut | None  # null where known text ends, or nothing was looked up
    lossy: bool | UnsetType = UNSET  # true: it went on from a state that a compact snapshot had rounded


class HeadraceOut(Struct, omit_defaults=True):
    """What no other server says: the cache report of the first answer, and those of all when there are several."""

    cache: CacheReportOut
    caches: list[CacheReportOut] | UnsetType = UNSET
    masked: list[str] | UnsetType = UNSET  # header lines that were left out of the prompt, because they change with every request


class TopLogprobOut(Struct):
    token: str
    logprob: float
    bytes: list[int]


class LogprobOut(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobOut]


class FunctionOut(Struct):
    """A call's name and arguments; in a stream the name comes first, then the arguments bit by bit."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallOut(Struct):
    index: int | UnsetType = UNSET  # only in a stream
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionOut | UnsetType = UNSET


class MessageOut(Struct):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallOut] | UnsetType = UNSET


class ChatChoiceOut(Struct):
    index: int
    message: MessageOut
    finish_reason: str | None
    logprobs: Raw | None = None  # what logprobs.ChatLogprobs writes
    token_ids: list[int] | UnsetType = UNSET


class ChatOut(Struct, rename={"verbose": "__verbose"}):
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoiceOut]
    usage: UsageOut
    timings: TimingsOut
    object: str = "chat.completion"
    prompt_token_ids: list[int] | UnsetType = UNSET
    headrace: HeadraceOut | UnsetType = UNSET
    verbose: Raw | UnsetType = UNSET  # native_schema.NativeOut


class DeltaOut(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallOut] | UnsetType = UNSET


class ChatChunkChoiceOut(Struct):
    index: int
    delta: DeltaOut
    finish_reason: str | None = None
    logprobs: Raw | None = None  # what logprobs.ChatLogprobs writes
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkOut(Struct, rename={"verbose": "__verbose"}):
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoiceOut]
    object: str = "chat.completion.chunk"
    usage: UsageOut | UnsetType | None = UNSET
    timings: TimingsOut | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    headrace: HeadraceOut | UnsetType = UNSET
    prompt_progress: ProgressOut | UnsetType = UNSET
    verbose: Raw | UnsetType = UNSET  # native_schema.NativeOut


class CompletionChoiceOut(Struct):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: Raw | None = None  # what logprobs.CompletionLogprobs writes
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class CompletionOut(Struct, rename={"verbose": "__verbose"}):
    """A whole answer, and also a chunk of a streamed one: the completions dialect has one shape for both."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoiceOut]
    object: str = "text_completion"
    usage: UsageOut | UnsetType | None = UNSET
    timings: TimingsOut | UnsetType = UNSET
    headrace: HeadraceOut | UnsetType = UNSET
    prompt_progress: ProgressOut | UnsetType = UNSET
    verbose: Raw | UnsetType = UNSET  # native_schema.NativeOut


class CountOut(Struct):
    """How long the prompt of a request would be."""

    input_tokens: int


class ApplyTemplateOut(Struct):
    prompt: str


class ModelOut(Struct):
    id: str
    created: int
    max_model_len: int
    meta: JsonObject
    aliases: list[str] = []  # all names, as llama-server has it; none where there is one name only
    tags: list[str] = []
    object: str = "model"
    owned_by: str = "headrace"


class StatusOut(Struct):
    """Of a probe."""

    status: str


class IndexOut(Struct):
    name: str
    status: str


class ModelsOut(Struct):
    data: list[ModelOut]
    object: str = "list"


class TokenPieceOut(Struct):
    """`piece` is text, or a list of bytes where the token is no UTF-8 by itself."""

    id: int
    piece: str | list[int]


class TokenizeOut(Struct):
    """With `with_pieces`, the text of each token too."""

    tokens: list[int | TokenPieceOut]


class DetokenizeOut(Struct):
    content: str
