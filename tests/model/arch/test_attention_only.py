"""llama and qwen2 on every backend: tiny random models against float64, other layouts of their files, files that are refused."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from svc.compute.cpu import CpuOps
from svc.compute.cpu.library import available_levels
from svc.compute.cuda.device import Device
from svc.compute.model_file import open_model
from svc.compute.reference import ReferenceOps
from svc.errors import ModelFileError
from svc.gguf.writer import write_gguf
from svc.model.arch import load_model
from tests.compute.cpu.test_models import SNAPSHOTS, CpuModel
from tests.compute.cuda.test_models import FloatOps
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.model.arch.attention_only import MODELS, VOCABULARY, TinyModel
from tests.tolerances import LOGITS_GOLDEN

TOKENS = np.random.default_rng(5).integers(0, VOCABULARY, 70).astype(np.int32)
ONES = (np.ones((3, 32), np.float32), "F32")


def emulated() -> FloatOps:
    return FloatOps(cast(Device, EmulatedDevice()))


BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": ReferenceOps,
    **{f"cpu-{level}": partial(CpuOps, 2, level=level, poison=True) for level in available_levels()},
    **({"cuda-emulated": emulated} if have_compiler() else {}),
}


@cache
def expected(name: str) -> Any:
    return MODELS[name].logits(TOKENS)[-SNAPSHOTS:]


def last_logits(path: Path, make_ops: Callable[[], Any] = ReferenceOps) -> Any:
    return CpuModel(path, make_ops()).last_logits(TOKENS, SNAPSHOTS)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_float64(name: str, backend: str) -> None:
    """Grouped heads, biases, tied and untied heads, rotary factors, and the order of rows that files of llama have."""
    logits = last_logits(MODELS[name].written, BACKENDS[backend])
    np.testing.assert_allclose(logits, expected(name), rtol=0, atol=LOGITS_GOLDEN)


@pytest.mark.parametrize("name", ["llama-biased", "qwen2"])
def test_fused_projections(tmp_path: Path, name: str) -> None:
    """q, k and v in one matrix, with their biases in one vector or in three."""
    model = MODELS[name]
    for fused_kinds in (("weight", "bias"), ("weight",)):
        tensors = model.tensors
        for layer in range(model.layers):
            for kind in fused_kinds:
                parts = [tensors.pop(f"blk.{layer}.attn_{name}.{kind}") for name in "qkv"]
                tensors[f"blk.{layer}.attn_qkv.{kind}"] = (np.concatenate([values for values, _ in parts]), parts[0][1])
        write_gguf(tmp_path / "fused.gguf", model.metadata, tensors)
        np.testing.assert_array_equal(last_logits(tmp_path / "fused.gguf"), last_logits(model.written))


def test_rotary_factors_of_one_change_nothing(tmp_path: Path) -> None:
    """The control of the factors above: those change the logits, ones do not."""
    model = MODELS["llama"]
    plain = last_logits(model.written)
    for factor, same in ((1.0, True), (4.0, False)):
        tensors = model.tensors | {"rope_freqs.weight": (np.full(16, factor, np.float32), "F32")}
        write_gguf(tmp_path / "factors.gguf", model.metadata, tensors)
        assert np.array_equal(last_logits(tmp_path / "factors.gguf"), plain) == same


def load(model: TinyModel, folder: Path, keys: dict[str, Any], tensors: dict[str, Any], without: str = "") -> None:
    whole = {name: tensor for name, tensor in (model.tensors | tensors).items() if name != without}
    write_gguf(folder / "m.gguf", model.metadata | {f"{model.architecture}.{key}": value for key, value in keys.items()}, whole)
    config, source = open_model(folder / "m.gguf")
    load_model(source, config, ReferenceOps())


@pytest.mark.parametrize(
    ("name", "tensor", "value"),
    [
        ("llama", "blk.1.attn_output.bias", ONES),
        ("llama", "blk.0.ffn_down.bias", ONES),
        ("llama", "blk.0.attn_q_norm.weight", ONES),
        ("llama", "output.bias", ONES),
        ("llama", "blk.0.attn_q.bias", ONES),  # and none of k
        ("llama", "blk.2.ffn_gate_inp.weight", ONES),
        ("llama", "rope_factors_long.weight", ONES),
        ("llama", "rope_freqs.weight", ONES),
        ("llama", "rope_freqs.weight", (np.full(16, np.nan, np.float32), "F32")),
        ("llama", "rope_freqs.weight", (np.zeros(16, np.float32), "F32")),
        ("qwen2", "rope_freqs.weight", (np.ones(16, np.float32), "F32")),
        ("qwen2", "output.bias", ONES),
        ("qwen2", "blk.0.attn_k_norm.weight", ONES),
        ("qwen2", "blk.1.attn_qkv.bias", ONES),
    ],
)
def test_tensors_that_are_not_computed_with(tmp_path: Path, name: str, tensor: str, value: Any) -> None:
    """A tensor that would change the answers and is not read, or is of no use as it is: an error with its name, in one line."""
    with pytest.raises(ModelFileError) as caught:
        load(MODELS[name], tmp_path, {}, {tensor: value})
    assert tensor in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "m.gguf"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tensor", ["blk.1.attn_v.bias", "blk.0.attn_q.weight"])
def test_missing_tensors(tmp_path: Path, tensor: str) -> None:
    """Of qwen2 the biases too."""
    with pytest.raises(ModelFileError, match=tensor.replace(".", r"\.") + " is missing"):
        load(MODELS["qwen2"], tmp_path, {}, {}, without=tensor)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.scale", 0.01),
        ("attention.clamp_kqv", 8.0),
        ("attention.causal", False),
        ("attention.sliding_window", 512),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("embedding_scale", 12.0),
        ("residual_scale", 0.5),
        ("logit_scale", 0.0625),
        ("expert_count", 8),
        ("rope.scale_linear", 4.0),
        ("rope.scaling.type", "longrope"),
        ("logit_scale", "much"),
    ],
)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_keys_that_are_not_computed_with(tmp_path: Path, name: str, key: str, value: Any) -> None:
    """A key that would change the answers and is not read is an error with its name."""
    with pytest.raises(ModelFileError, match=rf"m\.gguf: the metadata key {name}\.{key} is "):
        load(MODELS[name], tmp_path, {key: value}, {})


def test_values_that_ask_for_nothing(tmp_path: Path) -> None:
    """The same keys as converters write them into files that want none of it."""
    keys = {
        "attention.causal": True,
        "attention.sliding_window": 2048,  # as long as the context
        "attention.scale": 0.0,
        "logit_scale": 1.0,
        "expert_count": 0,
        "rope.scale_linear": 1.0,
        "vocab_size": VOCABULARY,
    }
    load(MODELS["llama"], tmp_path, keys, {})
