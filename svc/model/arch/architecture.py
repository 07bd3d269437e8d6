"""What an architecture's file has to say about itself, and the part of loading that is the same for all."""

from collections.abc import Callable
from dataclasses import dataclass

from svc.model.arch.model import Ffn, Mixer, Model
from svc.model.layers.loading import WeightLoader
from svc.model.layers.rope import RopeTable
from svc.model.model_config import OTHER_SENSES, ModelConfig, Traits

LoadLayer = Callable[[WeightLoader, ModelConfig, int], tuple[Mixer, Ffn]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """`load_layer(loader, config, layer)` gives one layer's mixer and feed-forward weights."""

    traits: Traits
    load_layer: LoadLayer


def assemble(loader: WeightLoader, config: ModelConfig, load_layer: LoadLayer) -> Model:
    """Embedding, the trunk's layers and the head. ModelFileError naming a missing or misshapen tensor."""
    table_shape = (config.vocab_size, config.hidden_size)
    embedding = loader.matrix("token_embd.weight", *table_shape)
    layers = tuple(load_layer(loader, config, layer) for layer in range(config.num_layers))
    output_norm = loader.vector("output_norm.weight", (config.hidden_size,))
    tied = not loader.source.has("output.weight")
    output = embedding if tied else loader.matrix("output.weight", *table_shape)
    loader.finish()
    return Model(
        config=config,
        embedding=embedding,
        layers=layers,
        output_norm=output_norm,
        output=output,
        rope=RopeTable.of(config.rotary_dims, config.rope_base, config.rope_scaling),
        unused_tensors=unexpected_tensors(loader, config),
    )


def unexpected_tensors(loader: WeightLoader, config: ModelConfig) -> tuple[str, ...]:
    """Tensors that nobody took, without the MTP layers (behind the trunk) and what only images or sound need."""
    mtp_layers = range(config.num_layers, config.num_layers + config.num_mtp_layers)
    ignored = (*OTHER_SENSES, *(f"blk.{layer}." for layer in mtp_layers))
    return tuple(name for name in loader.source.unused() if not name.startswith(ignored))
