"""Other ways to store the same model. Each file is made from a fixture's own packed rows, so the logits must come out the same."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.gguf.gguf_file import GgufFile
from svc.gguf.quant import quant_type
from svc.gguf.writer import write_gguf
from tests.compute.rig import GGUF, Rig, prompt
from tests.tolerances import LOGITS_REFERENCE_SELF_AMPLIFIED

Tensors = dict[str, tuple[NDArray[Any], str]]
TOKENS = prompt("s2")


def parts(file: str) -> tuple[dict[str, Any], Tensors]:
    """Metadata and packed tensors of a fixture, to be changed and written again."""
    opened = GgufFile.open(GGUF / f"{file}.gguf")
    return dict(opened.metadata), {name: (tensor.data, tensor.type) for name, tensor in opened.tensors.items()}


@cache
def expected(file: str) -> NDArray[np.float32]:
    return Rig(GGUF / f"{file}.gguf").prefill(TOKENS)


def assert_same(file: str, path: Path, metadata: dict[str, Any], tensors: Tensors) -> Rig:
    write_gguf(path / "changed.gguf", metadata, tensors)
    rig = Rig(path / "changed.gguf")
    np.testing.assert_allclose(rig.prefill(TOKENS), expected(file), rtol=0, atol=LOGITS_REFERENCE_SELF_AMPLIFIED)
    assert rig.model.unused_tensors == ()
    return rig


def legacy_ssm_in(tensors: Tensors) -> None:
    """qwen3next's first files: rows of q, k, v, z together, key head by key head (4 of them, 32 wide, 2 value heads each)."""
    for layer in range(3):
        qkv, kind = tensors.pop(f"blk.{layer}.attn_qkv.weight")
        gate, gate_kind = tensors.pop(f"blk.{layer}.attn_gate.weight")
        if kind != gate_kind:  # one matrix has one type: float32 holds the values of both exactly
            qkv, gate = (quant_type(name).dequantize(data) for name, data in ((kind, qkv), (gate_kind, gate)))
            kind = "F32"
        query, key, value = qkv[:128], qkv[128:256], qkv[256:]
        rows = []
        for head in range(4):
            one, two = slice(32 * head, 32 * head + 32), slice(64 * head, 64 * head + 64)
            rows += [query[one], key[one], value[two], gate[two]]
        tensors[f"blk.{layer}.ssm_in.weight"] = (np.concatenate(rows), kind)


def fused_experts(tensors: Tensors) -> None:
    for layer in range(4):
        (gate, kind), (up, _) = (tensors.pop(f"blk.{layer}.ffn_{name}_exps.weight") for name in ("gate", "up"))
        tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = (np.concatenate([gate, up], axis=1), kind)


def flat_router(tensors: Tensors) -> None:
    for layer in range(4):
        router, kind = tensors[f"blk.{layer}.ffn_gate_inp_shexp.weight"]
        tensors[f"blk.{layer}.ffn_gate_inp_shexp.weight"] = (router.view(np.float32).reshape(-1), kind)


def square_router(tensors: Tensors) -> None:
    for layer in range(4):
        router, kind = tensors[f"blk.{layer}.ffn_gate_inp_shexp.weight"]
        tensors[f"blk.{layer}.ffn_gate_inp_shexp.weight"] = (router.view(np.float32).reshape(1, -1), kind)


def unsuffixed_time_step(tensors: Tensors) -> None:
    for layer in range(3):
        tensors[f"blk.{layer}.ssm_dt"] = tensors.pop(f"blk.{layer}.ssm_dt.bias")


def fused_attention(layers: list[int]) -> Callable[[Tensors], None]:
    """q (with gate) | k | v in one matrix, where they have one type."""

    def fuse(tensors: Tensors) -> None:
        for layer in layers:
            chunks = [tensors.pop(f"blk.{layer}.attn_{name}.weight") for name in "qkv"]
            assert len({kind for _, kind in chunks}) == 1
            tensors[f"blk.{layer}.attn_qkv.weight"] = (np.concatenate([data for data, _ in chunks]), chunks[0][1])

    return fuse


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("tiny-qwen3next-Q4_K_M", legacy_ssm_in),
        ("tiny-qwen3next-Q4_K_M", fused_experts),
        ("tiny-qwen3next-Q4_K_M", square_router),
        ("tiny-qwen3next-Q4_K_M", unsuffixed_time_step),
        ("tiny-qwen35moe-Q4_K_M", unsuffixed_time_step),
        ("tiny-qwen35moe-Q4_K_M", fused_experts),
        ("tiny-qwen35moe-Q4_K_M", flat_router),
        ("tiny-qwen35-hd128-bf16", fused_attention([3])),
        ("tiny-qwen3-Q8_0", fused_attention([0, 1, 2, 3])),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__qualname__.split(".")[0],
)
def test_layout(file: str, change: Callable[[Tensors], None], tmp_path: Path) -> None:
    """Legacy input projection, fused experts and attention, both shapes of the shared router, both names of the time step."""
    metadata, tensors = parts(file)
    change(tensors)
    assert_same(file, tmp_path, metadata, tensors)


def test_tied_output(tmp_path: Path) -> None:
    """Without output.weight the embedding is the output: the same logits as with a copy of it."""
    metadata, tensors = parts("tiny-qwen35-hd128-bf16")
    tensors["output.weight"] = tensors["token_embd.weight"]
    write_gguf(tmp_path / "copied.gguf", metadata, tensors)
    del tensors["output.weight"]
    write_gguf(tmp_path / "tied.gguf", metadata, tensors)
    tied = Rig(tmp_path / "tied.gguf")
    assert tied.model.output is tied.model.embedding
    np.testing.assert_array_equal(tied.prefill(TOKENS), Rig(tmp_path / "copied.gguf").prefill(TOKENS))


def test_mtp_layer_is_counted_apart(tmp_path: Path) -> None:
    """An MTP block after the trunk is not a layer of it, is not loaded and not warned about."""
    file = "tiny-qwen35-hd128-bf16"
    metadata, tensors = parts(file)
    metadata |= {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    metadata["qwen35.attention.recurrent_layers"] = [True, True, True, False, False]
    for name in [name for name in tensors if name.startswith("blk.3.")]:
        tensors[name.replace("blk.3.", "blk.4.")] = tensors[name]
    tensors["blk.4.nextn.eh_proj.weight"] = (np.ones((256, 512), np.float32), "BF16")
    rig = assert_same(file, tmp_path, metadata, tensors)
    assert (rig.config.num_layers, rig.config.num_mtp_layers) == (4, 1)


def test_interval_instead_of_array(tmp_path: Path) -> None:
    """Without `recurrent_layers` the interval decides; with both the array wins."""
    file = "tiny-qwen35-hd128-bf16"
    metadata, tensors = parts(file)
    del metadata["qwen35.attention.recurrent_layers"]
    assert_same(file, tmp_path, metadata, tensors)
    metadata, tensors = parts(file)
    metadata["qwen35.full_attention_interval"] = 2
    assert_same(file, tmp_path, metadata, tensors)


def test_unused_tensor_is_named(tmp_path: Path) -> None:
    """Tensors that are not taken and belong to no known part are listed for one warning; parts for images are not."""
    metadata, tensors = parts("tiny-qwen3-Q8_0")
    extra = (np.ones((4, 32), np.float32), "F32")
    tensors |= {"v.patch_embd.weight": extra, "mystery": extra}
    write_gguf(tmp_path / "extra.gguf", metadata, tensors)
    assert Rig(tmp_path / "extra.gguf").model.unused_tensors == ("mystery",)


def test_unsplit_weights_stay_in_the_map() -> None:
    """Loading copies no matrix: the packed rows are views of the mapped file."""
    rig = Rig(GGUF / "tiny-qwen3next-Q4_K_M.gguf")
    mapped = {name: tensor.data for name, tensor in GgufFile.open(GGUF / "tiny-qwen3next-Q4_K_M.gguf").tensors.items()}
    mixer, ffn = rig.model.layers[0]
    for weight in (rig.model.embedding, mixer.qkv, mixer.output, ffn.gate[2], ffn.shared_down):  # type: ignore[union-attr]
        assert not weight._data.flags.owndata
        assert not weight._data.flags.writeable
    assert mapped["token_embd.weight"].shape == rig.model.embedding._data.shape
