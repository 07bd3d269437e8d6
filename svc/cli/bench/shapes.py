"""Named model sizes, to be measured with random weights when there is no file (`headrace bench --random`).

Most are published models (text part only, without MTP layers). The small ones are made up: "1.8b-a0.4b" and "0.5b" suit a machine
with few cores, "tiny" suits tests.
"""

from svc.model.model_config import ModelConfig


def _hybrid(
    name: str,
    architecture: str,
    *,
    layers: int,
    hidden: int,
    vocabulary: int,
    heads: int,
    kv_heads: int,
    value_heads: int,
    key_heads: int = 16,
    head_dim: int = 256,
    state_dim: int = 128,
    dense: int = 0,
    experts: int = 0,
    used: int = 0,
    expert_size: int = 512,
) -> ModelConfig:
    """Attention every fourth layer, a quarter of each head rotary; a shared expert as large as the others."""
    return ModelConfig(
        name=name,
        architecture=architecture,
        num_layers=layers,
        num_mtp_layers=0,
        hidden_size=hidden,
        vocab_size=vocabulary,
        context_length=262_144,
        epsilon=1e-6,
        recurrent_layers=tuple((layer + 1) % 4 != 0 for layer in range(layers)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dims=head_dim // 4,
        rope_base=1e7,
        rope_scaling=None,
        feed_forward_size=dense,
        num_experts=experts,
        num_experts_used=used,
        expert_size=expert_size if experts else 0,
        shared_expert_size=expert_size if experts else 0,
        expert_weights_scale=1.0,
        conv_kernel=4,
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=state_dim,
        value_dim=state_dim,
    )


# fmt: off
SHAPES = {
    "80b-a3b": _hybrid("Qwen3-Next-80B-A3B", "qwen3next", layers=48, hidden=2048, vocabulary=151_936, heads=16, kv_heads=2,
                       value_heads=32, experts=512, used=10),
    "35b-a3b": _hybrid("Qwen3.5-35B-A3B", "qwen35moe", layers=40, hidden=2048, vocabulary=248_320, heads=16, kv_heads=2,
                       value_heads=32, experts=256, used=8),
    "27b": _hybrid("Qwen3.5-27B", "qwen35", layers=64, hidden=5120, vocabulary=248_320, heads=24, kv_heads=4, value_heads=48,
                   dense=17_408),
    "9b": _hybrid("Qwen3.5-9B", "qwen35", layers=32, hidden=4096, vocabulary=248_320, heads=16, kv_heads=4, value_heads=32,
                  dense=12_288),
    "1.8b-a0.4b": _hybrid("hybrid-1.8B-A0.4B", "qwen35moe", layers=24, hidden=1024, vocabulary=49_152, heads=8, kv_heads=2,
                          value_heads=16, key_heads=8, experts=80, used=8, expert_size=256),
    "0.5b": _hybrid("hybrid-0.5B", "qwen35", layers=24, hidden=1024, vocabulary=49_152, heads=8, kv_heads=2, value_heads=16,
                    dense=3584),
    "tiny": _hybrid("hybrid-tiny", "qwen35moe", layers=4, hidden=256, vocabulary=512, heads=4, kv_heads=1, value_heads=4,
                    key_heads=2, head_dim=64, state_dim=32, experts=8, used=2, expert_size=256),
}
# fmt: on
