"""Keys by which a file asks for computations that no architecture here does. Such a file is refused by the key's name: answers
would be wrong without a sign of it."""

from collections.abc import Mapping

from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.header import Value, shown

# Behind the architecture's name -> the values that ask for nothing.
NEUTRAL_VALUES: Mapping[str, tuple[float | bool, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_gating_func": (0, 1),  # softmax
    "expert_group_count": (0, 1),
    "expert_weights_norm": (True,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "rope.scale_linear": (0, 1),  # what old files call scaling.factor
}
SLIDING_WINDOW, CONTEXT = "attention.sliding_window", "context_length"


def refuse_unknown_computations(file: GgufFile, *, experts: bool) -> None:
    """ModelFileError naming the key. `experts`: the architecture has them."""
    prefix = f"{file.architecture}."
    neutral = NEUTRAL_VALUES if experts else {**NEUTRAL_VALUES, "expert_count": (0,)}
    for suffix, values in neutral.items():
        value = file.metadata.get(prefix + suffix)
        if value is not None and not _is_one_of(value, values):
            raise _refused(file, suffix, value)
    window, context = (file.metadata.get(prefix + suffix) for suffix in (SLIDING_WINDOW, CONTEXT))
    if isinstance(window, int) and isinstance(context, int) and 0 < window < context:  # at least as long: it never ends
        raise _refused(file, SLIDING_WINDOW, window)


def _is_one_of(value: Value, values: tuple[float | bool, ...]) -> bool:
    return isinstance(value, bool | int | float) and value in values


def _refused(file: GgufFile, suffix: str, value: Value) -> ModelFileError:
    return ModelFileError(
        f"{file.path}: the metadata key {file.architecture}.{suffix} is {shown(str(value))}, which is not supported here: "
        "answers would be wrong without it"
    )
