"""qwen35moe: the expert models of Qwen3.5 and later (35B-A3B to 397B-A17B). Mixers as qwen35, experts with a shared one."""

from svc.model.arch.architecture import Architecture
from svc.model.arch.model import Ffn, Mixer
from svc.model.arch.qwen35 import load_mixer
from svc.model.layers.loading import WeightLoader
from svc.model.layers.moe_ffn import load_moe_ffn
from svc.model.model_config import ModelConfig, Traits


def load_layer(loader: WeightLoader, config: ModelConfig, layer: int) -> tuple[Mixer, Ffn]:
    return load_mixer(loader, config, layer), load_moe_ffn(loader, config, layer, norm="post_attention_norm")


ARCHITECTURE = Architecture(Traits(hybrid=True, experts=True, shared_expert=True, rotary_share=0.25), load_layer)
