"""qwen35: the dense models of Qwen3.5 and later (0.8B to 27B). Gated DeltaNet and gated attention, SwiGLU.

Value heads are tiled: value head h belongs to key head h % num_key_heads.
The three rotary position components of images are equal for text, which makes the rotation the plain one.
"""

from svc.model.arch.architecture import Architecture
from svc.model.arch.model import Ffn, Mixer
from svc.model.layers.attention import load_attention
from svc.model.layers.delta import DeltaProjections, load_delta
from svc.model.layers.dense_ffn import load_dense_ffn
from svc.model.layers.loading import WeightLoader
from svc.model.model_config import ModelConfig, Traits


def load_layer(loader: WeightLoader, config: ModelConfig, layer: int) -> tuple[Mixer, Ffn]:
    return load_mixer(loader, config, layer), load_dense_ffn(loader, config, layer, norm="post_attention_norm")


def load_mixer(loader: WeightLoader, config: ModelConfig, layer: int) -> Mixer:
    if not config.recurrent_layers[layer]:
        return load_attention(loader, config, layer, gated=True)
    block = f"blk.{layer}."
    width, heads = config.hidden_size, config.num_value_heads
    projections = DeltaProjections(
        qkv=loader.matrix(f"{block}attn_qkv.weight", config.conv_channels, width),
        gate=loader.matrix(f"{block}attn_gate.weight", heads * config.value_dim, width),
        beta=loader.matrix(f"{block}ssm_beta.weight", heads, width),
        alpha=loader.matrix(f"{block}ssm_alpha.weight", heads, width),
    )
    return load_delta(loader, config, layer, projections, grouped_heads=False)


ARCHITECTURE = Architecture(Traits(hybrid=True, experts=False, shared_expert=False, rotary_share=0.25), load_layer)
