"""The description of an architecture, and the part of loading that is the same for all."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from svc.gguf.header import shown
from svc.model.arch.model import Ffn, Mixer, Model
from svc.model.layers.loading import WeightLoader
from svc.model.layers.rope import RopeTable
from svc.model.model_config import OTHER_SENSES, ModelConfig, Traits

ROPE_FACTORS = "rope_freqs.weight"
# Beginnings of tensor names: layers, rotation, embedding and head.
COMPUTED_PARTS = ("blk.", "rope_", "token_embd", "token_types", "position_embd", "output")
LoadLayer = Callable[[WeightLoader, ModelConfig, int], tuple[Mixer, Ffn]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """`load_layer(loader, config, layer)` gives one layer's mixer and feed-forward weights."""

    traits: Traits
    load_layer: LoadLayer
    rope_factors: bool = False  # rotary frequencies are divided by `rope_freqs.weight`, if the file has it


def assemble(loader: WeightLoader, config: ModelConfig, architecture: Architecture) -> Model:
    """Embedding, the trunk's layers and the head. ModelFileError naming a missing, misshapen or unknown tensor."""
    table_shape = (config.vocab_size, config.hidden_size)
    embedding = loader.matrix("token_embd.weight", *table_shape)
    layers = tuple(architecture.load_layer(loader, config, layer) for layer in range(config.num_layers))
    output_norm = loader.vector("output_norm.weight", (config.hidden_size,))
    tied = not loader.source.has("output.weight")
    output = embedding if tied else loader.matrix("output.weight", *table_shape)
    factors = rope_factors(loader, config) if architecture.rope_factors else None
    loader.finish()
    return Model(
        config=config,
        embedding=embedding,
        layers=layers,
        output_norm=output_norm,
        output=output,
        rope=RopeTable.of(config.rotary_dims, config.rope_base, config.rope_scaling, factors),
        unused_tensors=unexpected_tensors(loader, config),
    )


def rope_factors(loader: WeightLoader, config: ModelConfig) -> NDArray[np.float32] | None:
    """[rotary / 2], the divisor of each pair's frequency; None if the file has none."""
    if not loader.source.has(ROPE_FACTORS):
        return None
    factors = loader.numbers(ROPE_FACTORS, (config.rotary_dims // 2,))
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise loader.refuse(ROPE_FACTORS, "has factors that are no positive numbers")
    return factors


def unexpected_tensors(loader: WeightLoader, config: ModelConfig) -> tuple[str, ...]:
    """Tensors that were not taken, apart from the MTP layers (after the trunk) and the parts for images and sound.

    ModelFileError naming one of a part that we compute: ignoring it would change the answers.
    """
    mtp_layers = range(config.num_layers, config.num_layers + config.num_mtp_layers)
    ignored = (*OTHER_SENSES, *(f"blk.{layer}." for layer in mtp_layers))
    unused = tuple(name for name in loader.source.unused() if not name.startswith(ignored))
    for name in unused:
        if name.startswith(COMPUTED_PARTS):
            raise loader.refuse(
                shown(name), f"is not computed with in the architecture {config.architecture!r}: answers would be wrong"
            )
    return unused
