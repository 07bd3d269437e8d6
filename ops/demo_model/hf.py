"""The same weights as a transformers checkpoint: an engine written by others has to give the same logits (float32)."""

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from model import Config
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig


def hf_model(weights: dict[str, torch.Tensor], c: Config) -> Qwen3_5ForCausalLM:
    """The trunk (transformers does not run the MTP block). Value heads go from tiled to grouped order."""
    settings = Qwen3_5TextConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden,
        num_hidden_layers=c.layers,
        intermediate_size=c.feed_forward,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        linear_num_key_heads=c.key_heads,
        linear_num_value_heads=c.value_heads,
        linear_key_head_dim=c.state,
        linear_value_head_dim=c.state,
        linear_conv_kernel_dim=c.conv_kernel,
        rms_norm_eps=c.epsilon,
        full_attention_interval=c.attention_interval,
        rope_parameters={"rope_theta": c.rope_base, "partial_rotary_factor": c.rotary_dims / c.head_dim, "rope_type": "default"},
        max_position_embeddings=c.context_length,
        tie_word_embeddings=True,
    )
    model = Qwen3_5ForCausalLM(settings).float().eval()
    renamed = {"model.embed_tokens.weight": weights["embedding.weight"], "lm_head.weight": weights["embedding.weight"]}
    renamed["model.norm.weight"] = weights["norm.weight"]
    for i in range(c.layers):
        prefix = f"blocks.{i}."
        block = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        mixer = _delta(block, c) if c.recurrent(i) else _attention(block)
        renamed |= {f"model.layers.{i}.{name}": value for name, value in (_shared(block) | mixer).items()}
    model.load_state_dict(renamed, strict=True)
    return model


def _shared(block: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = {"input_layernorm": "mixer_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {f"mlp.{part}_proj": f"ffn.{part}" for part in ("gate", "up", "down")}
    return {f"{theirs}.weight": block[f"{ours}.weight"] for theirs, ours in names.items()}


def _attention(block: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "out", "q_norm": "q_norm", "k_norm": "k_norm"}
    return {f"self_attn.{theirs}.weight": block[f"mixer.{ours}.weight"] for theirs, ours in names.items()}


def _delta(block: dict[str, torch.Tensor], c: Config) -> dict[str, torch.Tensor]:
    ratio, keys = c.value_heads // c.key_heads, 2 * c.key_heads * c.state
    heads = np.array([j * c.key_heads + g for g in range(c.key_heads) for j in range(ratio)])  # where grouped head h stands tiled
    rows = (heads[:, None] * c.state + np.arange(c.state)).ravel()
    channels = np.concatenate([np.arange(keys), keys + rows])
    beta, alpha = block["mixer.beta_alpha.weight"].chunk(2)
    made = {
        "in_proj_qkv.weight": block["mixer.qkv.weight"][channels],
        "in_proj_z.weight": block["mixer.gate.weight"][rows],
        "in_proj_b.weight": beta[heads],
        "in_proj_a.weight": alpha[heads],
        "conv1d.weight": block["mixer.conv"][channels, None],
        "dt_bias": block["mixer.dt_bias"][heads],
        "A_log": block["mixer.A_log"][heads],
        "norm.weight": block["mixer.norm"],
        "out_proj.weight": block["mixer.out.weight"][:, rows],
    }
    return {f"linear_attn.{name}": value for name, value in made.items()}


def golden(weights: dict[str, torch.Tensor], c: Config, ids: np.ndarray, path: Path) -> None:
    """For the repository's tests: what transformers makes of the shipped Q8_0 weights, dequantized, in float32.

    ids [n]; logits of the last 8 tokens, and the log probability of every token but the first.
    """
    rounded = {}
    for name, value in weights.items():
        quantized = value.ndim == 2 and "beta_alpha" not in name and "conv" not in name
        rounded[name] = torch.from_numpy(_round_trip(value.numpy())) if quantized else value
    with torch.no_grad():
        logits = hf_model(rounded, c)(torch.from_numpy(ids[None])).logits[0]
    logprobs = logits[:-1].double().log_softmax(-1).gather(1, torch.from_numpy(ids[1:, None]))[:, 0]
    np.savez_compressed(path, ids=ids.astype(np.int32), logits=logits[-8:].numpy(), logprobs=logprobs.numpy())


def _round_trip(values: np.ndarray) -> np.ndarray:
    return quants.dequantize(quants.quantize(values, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
