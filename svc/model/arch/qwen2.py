"""qwen2: Qwen2 and Qwen2.5 (Coder among them). Dense, full attention in every layer; biases of q, k and v, no head norms."""

from svc.model.arch.architecture import Architecture
from svc.model.arch.model import Ffn, Mixer
from svc.model.layers.attention import load_attention
from svc.model.layers.dense_ffn import load_dense_ffn
from svc.model.layers.loading import WeightLoader
from svc.model.model_config import ModelConfig, Traits


def load_layer(loader: WeightLoader, config: ModelConfig, layer: int) -> tuple[Mixer, Ffn]:
    mixer = load_attention(loader, config, layer, head_norms=False, biased=True)
    return mixer, load_dense_ffn(loader, config, layer, norm="ffn_norm")


ARCHITECTURE = Architecture(Traits(hybrid=False, experts=False, shared_expert=False, rotary_share=1.0), load_layer)
