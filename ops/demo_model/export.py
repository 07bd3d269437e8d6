"""The trained weights as GGUF files, by the project's own writer (docs/model_math.md): float32 and Q8_0."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import CONTROL, USER_DEFINED
from fetch import ORIGINS
from model import Config
from tokenizers import Tokenizer

from svc.gguf.writer import write_gguf

NAME = "headrace-demo"
NORMAL_TYPE, CONTROL_TYPE, USER_DEFINED_TYPE = 1, 3, 4
FILE_TYPES = {"F32": 0, "Q8_0": 7}
KEPT_F32 = ("norm", "ssm_a", "ssm_dt", "conv1d", "ssm_alpha", "ssm_beta")  # a few kilobytes that decide how states decay

Tensors = dict[str, np.ndarray]


def export(cache: Path, out: Path) -> None:
    """Q8_0 into `out` (what is shipped), float32 into the cache."""
    saved = torch.load(cache / "model.pt", weights_only=True)
    config = Config(**saved["config"])
    tensors = gguf_tensors({name: value.float().numpy() for name, value in saved["model"].items()}, config)
    metadata = model_metadata(config, saved) | tokenizer_metadata(Tokenizer.from_file(str(cache / "tokenizer.json")))
    out.mkdir(parents=True, exist_ok=True)
    for kind, path in (("F32", cache / f"{NAME}-F32.gguf"), ("Q8_0", out / f"{NAME}.gguf")):
        typed = {name: (x, "F32" if x.ndim < 2 or any(k in name for k in KEPT_F32) else kind) for name, x in tensors.items()}
        write_gguf(path, metadata | {"general.file_type": FILE_TYPES[kind]}, typed)
        print(path, f"{path.stat().st_size / 1e6:.2f} MB, {sum(x.size for x in tensors.values()):,} parameters")


def gguf_tensors(weights: Tensors, c: Config) -> Tensors:
    """Torch names -> file names. Value heads are tiled in both, so nothing is permuted."""
    made = {"token_embd.weight": weights["embedding.weight"], "output_norm.weight": 1 + weights["norm.weight"]}
    for i in range(c.layers):
        made |= _block(_under(weights, f"blocks.{i}."), f"blk.{i}.", c.recurrent(i))
    mtp = _under(weights, "mtp.")
    at = f"blk.{c.layers}."
    made |= _block(_under(mtp, "block."), at, recurrent=False)
    made[f"{at}nextn.eh_proj.weight"] = mtp["eh_proj.weight"]
    for ours, theirs in (("enorm", "enorm"), ("hnorm", "hnorm"), ("head_norm", "shared_head_norm")):
        made[f"{at}nextn.{theirs}.weight"] = 1 + mtp[f"{ours}.weight"]
    return made


def _under(weights: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _block(w: Tensors, at: str, recurrent: bool) -> Tensors:
    made = {
        "attn_norm.weight": 1 + w["mixer_norm.weight"],
        "post_attention_norm.weight": 1 + w["ffn_norm.weight"],
        "ffn_gate.weight": w["ffn.gate.weight"],
        "ffn_up.weight": w["ffn.up.weight"],
        "ffn_down.weight": w["ffn.down.weight"],
    }
    if recurrent:
        beta, alpha = np.split(w["mixer.beta_alpha.weight"], 2)
        made |= {
            "attn_qkv.weight": w["mixer.qkv.weight"],
            "attn_gate.weight": w["mixer.gate.weight"],
            "ssm_beta.weight": beta,
            "ssm_alpha.weight": alpha,
            "ssm_conv1d.weight": w["mixer.conv"],
            "ssm_dt.bias": w["mixer.dt_bias"],
            "ssm_a": -np.exp(w["mixer.A_log"]),
            "ssm_norm.weight": w["mixer.norm"],
            "ssm_out.weight": w["mixer.out.weight"],
        }
    else:
        made |= {
            "attn_q.weight": w["mixer.q.weight"],
            "attn_k.weight": w["mixer.k.weight"],
            "attn_v.weight": w["mixer.v.weight"],
            "attn_q_norm.weight": 1 + w["mixer.q_norm.weight"],
            "attn_k_norm.weight": 1 + w["mixer.k_norm.weight"],
            "attn_output.weight": w["mixer.out.weight"],
        }
    return {at + name: value for name, value in made.items()}


def model_metadata(c: Config, saved: dict[str, Any]) -> dict[str, Any]:
    sections = [c.rotary_dims // 6 + 1, c.rotary_dims // 6 + 1, 0, 0]
    sections[2] = c.rotary_dims // 2 - 2 * sections[0]
    arch = {
        "block_count": c.layers + 1,
        "nextn_predict_layers": 1,
        "context_length": c.context_length,
        "embedding_length": c.hidden,
        "feed_forward_length": c.feed_forward,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.epsilon,
        "attention.recurrent_layers": [c.recurrent(i) for i in range(c.layers)] + [False],
        "full_attention_interval": c.attention_interval,
        "rope.freq_base": c.rope_base,
        "rope.dimension_count": c.rotary_dims,
        "rope.dimension_sections": np.array(sections, np.int32),
        "ssm.conv_kernel": c.conv_kernel,
        "ssm.state_size": c.state,
        "ssm.group_count": c.key_heads,
        "ssm.time_step_rank": c.value_heads,
        "ssm.inner_size": c.value_heads * c.state,
    }
    general = {
        "general.architecture": "qwen35",
        "general.type": "model",
        "general.name": NAME,
        "general.description": "A very small language model for trying the server out: old novels and speeches, nothing newer",
        "general.license": "apache-2.0",
        "general.languages": ["en"],
        "general.datasets": [f"{origin['text']}: {origin['package']} ({origin['licence']})" for origin in ORIGINS.values()],
        "general.quantization_version": 2,
        "headrace.training_steps": saved["step"],
        "headrace.training_tokens": saved["tokens"],
    }
    return general | {f"qwen35.{key}": value for key, value in arch.items()}


def tokenizer_metadata(tokenizer: Tokenizer) -> dict[str, Any]:
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    assert [i for _, i in vocabulary] == list(range(len(vocabulary)))
    types = [
        CONTROL_TYPE if token in CONTROL else USER_DEFINED_TYPE if token in USER_DEFINED else NORMAL_TYPE for token, _ in vocabulary
    ]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": [token for token, _ in vocabulary],
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        "tokenizer.ggml.eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": (Path(__file__).parent / "template.jinja").read_text().rstrip("\n"),
    }
