"""llama: Llama 2 and 3, SmolLM2, Mistral 7B and others of that form. Dense, full attention in every layer, no head norms.

The file has the rows of q and k in an order for which a rotation pairs neighbours (2 j, 2 j + 1). Llama 3 stretches some of the
rotary angles by factors in `rope_freqs.weight`. Few files have biases of q, k and v.
"""

from svc.model.arch.architecture import Architecture
from svc.model.arch.model import Ffn, Mixer
from svc.model.layers.attention import has_biases, load_attention
from svc.model.layers.dense_ffn import load_dense_ffn
from svc.model.layers.loading import WeightLoader
from svc.model.model_config import ModelConfig, Traits


def load_layer(loader: WeightLoader, config: ModelConfig, layer: int) -> tuple[Mixer, Ffn]:
    biased = has_biases(loader, layer)
    mixer = load_attention(loader, config, layer, head_norms=False, biased=biased, interleaved=True)
    return mixer, load_dense_ffn(loader, config, layer, norm="ffn_norm")


TRAITS = Traits(hybrid=False, experts=False, shared_expert=False, rotary_share=1.0)
ARCHITECTURE = Architecture(TRAITS, load_layer, rope_factors=True)
