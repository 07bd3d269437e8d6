"""How much device memory a model's steps need beside its weights and caches."""

from svc.compute.cuda.arena import Tally
from svc.compute.cuda.layers import AttentionBuffers, DeltaBuffers, DenseBuffers, blocks_for
from svc.compute.cuda.moe_ffn import MoeSizes, moe_buffers
from svc.compute.cuda.step import StepLimits
from svc.compute.layers.attention import AttentionWeights
from svc.compute.layers.delta import DeltaWeights
from svc.compute.model_config import ModelConfig

NO_WEIGHTS = (None,) * 10  # of a layer of which only the sizes count


def scratch_bytes(config: ModelConfig, limits: StepLimits, logit_rows: int) -> int:
    """Bytes of the arena: what the hungriest operation needs in the largest step. `logit_rows`: most rows of one `logits`."""
    sizes, width = [], config.hidden_size
    if config.num_delta_layers:
        heads = (config.num_key_heads, config.num_value_heads, config.key_dim, config.value_dim)
        delta = DeltaWeights(0, *heads, config.conv_kernel, config.epsilon, False, *NO_WEIGHTS)
        sizes.append(tally := Tally())
        DeltaBuffers.take(tally, delta, width, limits.tokens, limits.chunks)
    if config.num_attention_layers:
        heads = (config.num_heads, config.num_kv_heads, config.head_dim, config.rotary_dims)
        attention = AttentionWeights(0, *heads, config.epsilon, True, *NO_WEIGHTS[:7])
        sizes.append(tally := Tally())
        AttentionBuffers.take(tally, attention, width, limits.tokens)
        tally.empty((limits.split_floats,), "float32")
    sizes.append(tally := Tally())
    if config.num_experts:
        moe = (config.hidden_size, config.num_experts, config.num_experts_used, config.expert_size, config.shared_expert_size)
        moe_buffers(tally, MoeSizes(*moe), limits.tokens)
    else:
        DenseBuffers.take(tally, width, config.feed_forward_size, limits.tokens)
    sizes.append(tally := Tally())
    blocks_for(tally, logit_rows, width)
    return max(tally.used_bytes for tally in sizes)
