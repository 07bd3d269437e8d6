"""Device memory that a model's steps need beside weights and caches."""

from svc.compute.cuda.arena import Tally
from svc.compute.cuda.device_inputs import StepLimits
from svc.compute.cuda.layers import AttentionBuffers, DeltaBuffers, DenseBuffers, blocks_for
from svc.compute.cuda.moe import MOST_EXPERTS, MOST_USED
from svc.compute.cuda.moe_ffn import MoeSizes, moe_buffers
from svc.compute.cuda.sampler import DeviceSampler
from svc.compute.cuda.scorer import DeviceScorer
from svc.compute.ops import StepSizes
from svc.errors import ModelFileError
from svc.memory.plan import MemoryPlan
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from svc.model.model_config import ModelConfig

FLOAT_BYTES = 4
MOST_HEAD = 256
NO_WEIGHTS = (None,) * 10  # for a layer of which only the sizes count


def check_sizes(config: ModelConfig) -> None:
    """ModelFileError naming a size that the kernels do not support."""
    sizes = {"head size": config.head_dim if config.num_attention_layers else 0, "DeltaNet head size": config.key_dim}
    for what, size in sizes.items():
        if size % 16 or size > MOST_HEAD:
            raise ModelFileError(f"a {what} of {size} is not supported on the cuda device: a multiple of 16 up to {MOST_HEAD} is")
    for what, count, most in (
        ("experts", config.num_experts, MOST_EXPERTS),
        ("experts a token", config.num_experts_used, MOST_USED),
    ):
        if count > most:
            raise ModelFileError(f"{count} {what} are not supported on the cuda device: {most} are")


def scratch_bytes(config: ModelConfig, limits: StepLimits, logit_rows: int) -> int:
    """Bytes of the arena: the largest need of any operation in the largest step. `logit_rows`: most rows of one `logits`."""
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


def step_bytes(sizes: StepSizes, caches_bytes: int, *, exact: bool = False) -> int:
    """Bytes of everything but weights and caches, for the most pages and snapshots that fit into `caches_bytes`: their numbers are
    not decided yet."""
    config, layout = sizes.config, sizes.layout
    pages_per_row = -(-config.full_context // layout.page_tokens)
    num_pages = caches_bytes // layout.page_bytes if layout.page_bytes else pages_per_row * sizes.num_rows
    plan = MemoryPlan(layout, num_pages, sizes.num_rows, caches_bytes // layout.snapshot_bytes)
    limits = StepLimits.of(config, plan, sizes.max_step_tokens, exact=exact)
    hidden, logits = (sizes.max_step_tokens + sizes.logit_rows) * config.hidden_size, sizes.logit_rows * config.vocab_size
    buffers = FLOAT_BYTES * (limits.words + hidden + logits) + DeviceSampler.device_bytes(config.vocab_size, sizes.num_rows)
    arriving = layout.snapshot_bytes if layout.lossy_snapshots else 0  # CudaCaches.arriving, if there will be a host tier
    return scratch_bytes(config, limits, sizes.logit_rows) + buffers + DeviceScorer.device_bytes() + arriving
