"""qwen3: dense, full attention in every layer, no output gate, rotary over the whole head. A control without recurrent state."""

from svc.model.arch.architecture import Architecture
from svc.model.arch.model import Ffn, Mixer
from svc.model.layers.attention import load_attention
from svc.model.layers.dense_ffn import load_dense_ffn
from svc.model.layers.loading import WeightLoader
from svc.model.model_config import ModelConfig, Traits


def load_layer(loader: WeightLoader, config: ModelConfig, layer: int) -> tuple[Mixer, Ffn]:
    return load_attention(loader, config, layer), load_dense_ffn(loader, config, layer, norm="ffn_norm")


ARCHITECTURE = Architecture(Traits(hybrid=False, experts=False, shared_expert=False, rotary_share=1.0), load_layer)
