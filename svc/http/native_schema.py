"""The answers of llama-server's own endpoints, under its names, without its fields for features that do not exist here; and those
of the operator's, which are ours."""

from msgspec import UNSET, Raw, Struct, UnsetType

from svc.http.schema import CacheReportOut, HeadraceOut
from svc.http.timings_schema import ProgressOut, TimingsOut


class NativeTopOut(Struct):
    id: int
    token: str
    bytes: list[int]
    logprob: float


class NativeProbabilityOut(Struct):
    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[NativeTopOut]


class BiasOut(Struct):
    """`bias` is null for a token that is never sampled: JSON has no infinity."""

    token: int
    bias: float | None


class NativeTopShareOut(Struct):
    id: int
    token: str
    bytes: list[int]
    prob: float


class NativeShareOut(Struct):
    """In place of `NativeProbabilityOut` where `post_sampling_probs` was asked for."""

    id: int
    token: str
    bytes: list[int]
    prob: float
    top_probs: list[NativeTopShareOut]


class SettingsOut(Struct):
    """`generation_settings` of an answer, `params` of /props."""

    n_predict: int
    max_tokens: int
    min_tokens: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_n_sigma: float
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: list[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    min_keep: int
    post_sampling_probs: bool
    logit_bias: list[BiasOut]
    stop: list[str]
    ignore_eos: bool
    stream: bool
    n_probs: int
    samplers: list[str]
    n_ctx: int
    model: str


class NativeChunkOut(Struct):
    """One event of a stream before the last."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: Raw | UnsetType = UNSET  # list[NativeProbabilityOut]
    timings: TimingsOut | UnsetType = UNSET
    prompt_progress: ProgressOut | UnsetType = UNSET


class NativeOut(Struct):
    """A whole answer, and the last event of a stream."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: SettingsOut
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    timings: TimingsOut
    completion_probabilities: Raw | UnsetType = UNSET  # list[NativeProbabilityOut]
    headrace: HeadraceOut | UnsetType = UNSET


class DefaultSettingsOut(Struct):
    n_ctx: int
    params: SettingsOut


class ModalitiesOut(Struct):
    vision: bool = False
    audio: bool = False


class PropsOut(Struct):
    default_generation_settings: DefaultSettingsOut
    total_slots: int
    model_alias: str
    model_path: str
    modalities: ModalitiesOut
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool = False
    chat_template_tool_use: str | UnsetType = UNSET


class NextTokenOut(Struct):
    """`n_remain` is -1 where nothing is generated."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class SlotOut(Struct):
    """One slot. What llama-server has no name for comes behind: state, request, and the counts of the prompt."""

    id: int
    n_ctx: int
    is_processing: bool
    speculative: bool
    next_token: list[NextTokenOut]  # one: llama-server once had several answers in a slot
    state: str  # "idle", "prefill" or "decode"
    request_id: str | None = None
    n_prompt_tokens: int = 0
    n_prompt_tokens_cached: int = 0
    n_past: int = 0
    cache: CacheReportOut | UnsetType = UNSET  # text in it only with that of the prompt
    prompt: str | UnsetType = UNSET
    generated: str | UnsetType = UNSET


class SlotTimingsOut(Struct):
    save_ms: float | UnsetType = UNSET
    restore_ms: float | UnsetType = UNSET


class SlotActionOut(Struct):
    """What an action on a slot did: tokens saved, restored or erased, and bytes written or read."""

    id_slot: int
    filename: str | UnsetType = UNSET
    n_saved: int | UnsetType = UNSET
    n_written: int | UnsetType = UNSET
    n_restored: int | UnsetType = UNSET
    n_read: int | UnsetType = UNSET
    n_erased: int | UnsetType = UNSET
    timings: SlotTimingsOut | UnsetType = UNSET


class SavedSlotOut(Struct):
    """A file that a slot was saved to."""

    filename: str
    size: int  # bytes
    modified: int  # Unix seconds
    n_tokens: int
    problem: str | None  # why it cannot be restored


class PinOut(Struct):
    """A prefix that is kept from eviction."""

    id: int
    name: str
    n_tokens: int
    size: int  # bytes, also of pages that other pins share
    created: int  # Unix seconds


class PinsOut(Struct):
    """All of them; bytes that several share count once in `used_bytes`."""

    pins: list[PinOut]
    used_bytes: int
    budget_bytes: int
    given_up: int  # since start, because requests needed the memory


class FlushedOut(Struct):
    """What has been forgotten."""

    n_snapshots: int
    n_pages: int
    n_pins: int
    disk_bytes: int
