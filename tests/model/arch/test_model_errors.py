"""Model files that cannot be served: one sentence each, naming the file and the key or tensor at fault."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.compute.model_file import open_model
from svc.compute.reference import ReferenceOps
from svc.errors import ModelFileError
from svc.gguf.writer import write_gguf
from svc.model.arch import Model, load_model
from tests.model.arch.test_layouts import Tensors, parts

Change = Callable[[dict[str, Any], Tensors], None]
ONES = (np.ones((3, 32), np.float32), "F32")


def put(key: str, value: Any) -> Change:
    return lambda metadata, tensors: metadata.update({key: value})


def drop(name: str) -> Change:
    def change(metadata: dict[str, Any], tensors: Tensors) -> None:
        (metadata if name in metadata else tensors).pop(name)

    return change


def tensor(name: str, value: Any = ONES) -> Change:
    return lambda metadata, tensors: tensors.update({name: value})


def only_mtp(metadata: dict[str, Any], tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith("blk.")]:
        del tensors[name]
    tensors["blk.4.nextn.eh_proj.weight"] = ONES
    metadata |= {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}


HYBRID, NEXT, CONTROL = "tiny-qwen35-hd128-bf16", "tiny-qwen3next-Q4_K_M", "tiny-qwen3-Q8_0"
CASES: list[tuple[str, Change, list[str]]] = [
    (
        HYBRID,
        put("general.architecture", "qwen4exp"),
        ["'qwen4exp'", "qwen3next, qwen35, qwen35moe, llama, qwen2, qwen3, qwen3moe"],
    ),
    (HYBRID, put("general.architecture", "mamba"), ["'mamba'", "supported"]),
    # -- tensors
    (HYBRID, drop("token_embd.weight"), ["token_embd.weight"]),
    (HYBRID, drop("output_norm.weight"), ["output_norm.weight"]),
    (HYBRID, drop("blk.1.ssm_a"), ["blk.1.ssm_a"]),
    (HYBRID, drop("blk.1.ssm_dt.bias"), ["blk.1.ssm_dt.bias"]),
    (HYBRID, drop("blk.3.attn_k.weight"), ["blk.3.attn_k.weight"]),
    (HYBRID, drop("blk.2.ffn_up.weight"), ["blk.2.ffn_up.weight"]),
    (NEXT, drop("blk.0.ssm_ba.weight"), ["blk.0.ssm_ba.weight"]),
    (NEXT, drop("blk.0.attn_gate.weight"), ["blk.0.attn_gate.weight"]),
    (NEXT, drop("blk.3.ffn_gate_inp_shexp.weight"), ["blk.3.ffn_gate_inp_shexp.weight"]),
    (NEXT, drop("blk.2.ffn_down_exps.weight"), ["blk.2.ffn_down_exps.weight"]),
    (HYBRID, tensor("blk.0.ssm_out.weight"), ["blk.0.ssm_out.weight", "[3, 32]", "[256, 512]"]),
    (HYBRID, tensor("blk.0.ssm_conv1d.weight"), ["blk.0.ssm_conv1d.weight", "[1024, 4]"]),
    (NEXT, tensor("blk.1.ffn_up_exps.weight"), ["blk.1.ffn_up_exps.weight", "[6, 256, 256]"]),
    (NEXT, tensor("blk.1.ssm_in.weight"), ["blk.1.ssm_in.weight", "[768, 256]"]),
    (HYBRID, tensor("blk.3.attn_qkv.weight"), ["blk.3.attn_qkv.weight", "[1536, 256]"]),
    (HYBRID, tensor("output.weight"), ["output.weight", "[2048, 256]"]),
    (HYBRID, tensor("token_embd.weight"), ["token_embd.weight", "qwen35.embedding_length"]),
    (HYBRID, tensor("blk.1.attn_qkv.scale"), ["blk.1.attn_qkv.scale", "not supported"]),
    (HYBRID, tensor("blk.1.ffn_gate_inp.weight"), ["blk.1.ffn_gate_inp.weight", "router"]),
    (HYBRID, tensor("blk.1.attn_q.bias"), ["blk.1.attn_q.bias", "not computed with"]),
    (CONTROL, tensor("rope_freqs.weight"), ["rope_freqs.weight", "not computed with"]),
    (HYBRID, only_mtp, ["MTP"]),
    # -- keys
    (HYBRID, drop("qwen35.block_count"), ["qwen35.block_count", "missing"]),
    (HYBRID, put("qwen35.block_count", 2_000_000_000), ["qwen35.block_count", "2000000000"]),
    (HYBRID, put("qwen35.block_count", 0), ["qwen35.block_count", "positive"]),
    (HYBRID, put("qwen35.block_count", "four"), ["qwen35.block_count", "integer"]),
    (HYBRID, put("qwen35.nextn_predict_layers", 4), ["qwen35.nextn_predict_layers"]),
    (HYBRID, put("qwen35.nextn_predict_layers", -1), ["qwen35.nextn_predict_layers"]),
    (HYBRID, put("qwen35.attention.recurrent_layers", [True, False]), ["recurrent_layers", "2"]),
    (HYBRID, put("qwen35.attention.head_count", 3), ["blk.3.attn_q.weight"]),
    (HYBRID, put("qwen35.attention.head_count_kv", 4), ["qwen35.attention.head_count"]),
    (HYBRID, put("qwen35.attention.value_length", 128), ["qwen35.attention.value_length"]),
    (HYBRID, put("qwen35.rope.dimension_count", 300), ["qwen35.rope.dimension_count"]),
    (HYBRID, put("qwen35.rope.freq_base", 0.0), ["qwen35.rope.freq_base"]),
    (HYBRID, put("qwen35.rope.scaling.type", "longrope"), ["qwen35.rope.scaling.type", "'longrope'"]),
    (HYBRID, put("qwen35.ssm.time_step_rank", 3), ["qwen35.ssm.time_step_rank"]),
    (HYBRID, put("qwen35.ssm.inner_size", 500), ["qwen35.ssm.inner_size"]),
    (HYBRID, put("qwen35.ssm.conv_kernel", 1), ["qwen35.ssm.conv_kernel"]),
    (HYBRID, put("qwen35.attention.layer_norm_rms_epsilon", float("nan")), ["layer_norm_rms_epsilon"]),
    (HYBRID, drop("qwen35.feed_forward_length"), ["qwen35.feed_forward_length"]),
    (HYBRID, put("qwen35.feed_forward_length", [512, 512, 512, 256]), ["qwen35.feed_forward_length", "differs"]),
    (HYBRID, put("tokenizer.ggml.tokens", ["a"] * 3000), ["tokenizer.ggml.tokens", "3000", "2048"]),
    (NEXT, put("qwen3next.expert_count", 0), ["qwen3next.expert_count"]),
    (NEXT, drop("qwen3next.expert_count"), ["qwen3next.expert_count"]),
    (NEXT, put("qwen3next.expert_used_count", 7), ["qwen3next.expert_used_count"]),
    (NEXT, put("qwen3next.expert_weights_scale", float("inf")), ["qwen3next.expert_weights_scale"]),
    (NEXT, put("qwen3next.expert_gating_func", 2), ["qwen3next.expert_gating_func", "is 2"]),
    (NEXT, put("qwen3next.expert_weights_norm", False), ["qwen3next.expert_weights_norm", "is False"]),
    (HYBRID, put("qwen35.expert_count", 4), ["qwen35.expert_count", "is 4"]),
    (CONTROL, drop("qwen3.context_length"), ["qwen3.context_length"]),
]


def load(path: Path) -> Model:
    config, source = open_model(path)
    return load_model(source, config, ReferenceOps())


@pytest.mark.parametrize(("file", "change", "culprits"), CASES, ids=[f"{i}-{case[2][0]}" for i, case in enumerate(CASES)])
def test_refused(file: str, change: Change, culprits: list[str], tmp_path: Path) -> None:
    """ModelFileError, before or while loading; the message is one line with the path and the fault."""
    metadata, tensors = parts(file)
    change(metadata, tensors)
    write_gguf(tmp_path / "bad.gguf", metadata, tensors)
    with pytest.raises(ModelFileError) as caught:
        load(tmp_path / "bad.gguf")
    message = str(caught.value)
    assert "\n" not in message
    for part in [str(tmp_path / "bad.gguf"), *culprits]:
        assert part in message


def test_unchanged_files_are_served(tmp_path: Path) -> None:
    """The control of the table above: a file written again without a change loads."""
    for file in (HYBRID, NEXT, CONTROL):
        write_gguf(tmp_path / "same.gguf", *parts(file))
        assert load(tmp_path / "same.gguf").unused_tensors == ()
