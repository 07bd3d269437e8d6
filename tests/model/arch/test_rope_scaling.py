"""YaRN and linear scaling: the angles against the paper's formulas in float64, and the keys of files that ask for them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.writer import write_gguf
from svc.model.arch import read_config
from svc.model.layers.rope import RopeScaling, RopeTable
from svc.model.model_config import ModelConfig
from tests.compute.rig import Rig, prompt
from tests.model.arch.test_layouts import parts
from tests.tolerances import LOGITS_REFERENCE_SELF_AMPLIFIED, ROPE

MODEL = "tiny-qwen35-hd128-bf16"
POSITIONS = np.array([0, 1, 77, 4095, 40_000, 131_071], np.int32)


def paper_angles(dims: int, base: float, scaling: RopeScaling) -> NDArray[np.float64]:
    """YaRN, section 3.2 of arXiv 2309.00071, pair by pair: [positions, dims / 2].

    The ramp is linear in the number of the pair, between the pairs (rounded outwards) that turn beta_fast and beta_slow times over
    the original context; in the paper it is linear in the turns, in all published models and implementations as here.
    """
    context, stretch = scaling.original_context, scaling.factor

    def boundary(turns: float) -> float:
        # A pair with wavelength 2 pi base^(2 d / dims) turns `turns` times over the context: solved for d.
        return math.log(context / (turns * 2 * math.pi), base) * dims / 2

    first, last = math.floor(boundary(scaling.beta_fast)), math.ceil(boundary(scaling.beta_slow))
    first, last = max(first, 0), min(last, dims - 1)
    frequencies = []
    for pair in range(dims // 2):
        theta = base ** (-2 * pair / dims)
        if pair <= first:
            gamma = 1.0
        elif pair >= last:
            gamma = 0.0
        else:
            gamma = 1 - (pair - first) / (last - first)
        frequencies.append((1 - gamma) * theta / stretch + gamma * theta)
    return np.outer(POSITIONS.astype(np.float64), frequencies)


@pytest.mark.parametrize(
    ("dims", "base", "scaling"),
    [
        (64, 1e7, RopeScaling("yarn", 4.0, 262144)),
        (128, 1e6, RopeScaling("yarn", 4.0, 32768)),
        (64, 1e7, RopeScaling("yarn", 8.0, 4096)),
        (32, 1e4, RopeScaling("yarn", 2.5, 1000)),
        (128, 1e4, RopeScaling("yarn", 40.0, 4096, beta_fast=16.0, beta_slow=2.0)),
        (2, 1e4, RopeScaling("yarn", 4.0, 4096)),
        (64, 1e6, RopeScaling("yarn", 1.0, 4096)),
    ],
)
def test_yarn_is_the_papers(dims: int, base: float, scaling: RopeScaling) -> None:
    """cos and sin of every pair; their magnitude is 0.1 ln(factor) + 1, the square root of the paper's 1 / t."""
    cos, sin = RopeTable.of(dims, base, scaling).rows(POSITIONS)
    angles = paper_angles(dims, base, scaling)
    magnitude = 0.1 * math.log(scaling.factor) + 1
    np.testing.assert_allclose(cos, magnitude * np.cos(angles), rtol=0, atol=ROPE * magnitude)
    np.testing.assert_allclose(sin, magnitude * np.sin(angles), rtol=0, atol=ROPE * magnitude)


def test_what_yarn_does_to_fast_and_slow_pairs() -> None:
    """Over 32 turns in the original context: as trained. Under one turn: divided by the factor. Between: between, in order."""
    factor, original = 4.0, 4096
    plain = RopeScaling("linear", 1.0, original, extrapolation=0.0).inverse_frequencies(64, 1e6)
    turns = original * plain / (2 * np.pi)
    ratio = RopeScaling("yarn", factor, original).inverse_frequencies(64, 1e6) / plain
    assert (ratio[turns > 32] == 1).all()
    assert (ratio[turns < 1] == 1 / factor).sum() >= (turns < 1).sum() - 1  # the boundary pair is rounded outwards
    assert (np.diff(ratio) <= 0).all()
    assert ((ratio > 1 / factor) & (ratio < 1)).any()


def test_linear_divides_every_angle() -> None:
    """Position p looks like p / factor did, to every pair, and nothing grows."""
    positions = 4 * np.arange(0, 300, dtype=np.int32)
    linear, plain = RopeTable.of(64, 1e7, RopeScaling("linear", 4.0, 4096, extrapolation=0.0)), RopeTable.of(64, 1e7)
    for scaled, unscaled in zip(linear.rows(positions), plain.rows(positions // 4), strict=True):
        np.testing.assert_allclose(scaled, unscaled, rtol=0, atol=ROPE)


def test_the_numbers_that_tune_yarn() -> None:
    """No extrapolation is linear scaling; half of it is the mean of both; an attention factor multiplies."""
    yarn = RopeScaling("yarn", 4.0, 4096).inverse_frequencies(64, 1e6)
    none = RopeScaling("yarn", 4.0, 4096, extrapolation=0.0)
    half = RopeScaling("yarn", 4.0, 4096, extrapolation=0.5, attention_factor=3.0)
    linear = RopeScaling("linear", 4.0, 4096, extrapolation=0.0).inverse_frequencies(64, 1e6)
    np.testing.assert_array_equal(none.inverse_frequencies(64, 1e6), linear)
    assert none.magnitude == 1.0
    np.testing.assert_allclose(half.inverse_frequencies(64, 1e6), (yarn + linear) / 2, rtol=1e-12)
    assert half.magnitude == pytest.approx(3 * (1 + 0.1 * math.log(4)))


# -- files ------------------------------------------------------------------------------------------------------------


def read(tmp_path: Path, keys: dict[str, Any]) -> ModelConfig:
    metadata, tensors = parts(MODEL)
    metadata |= {f"qwen35.rope.scaling.{key}": value for key, value in keys.items()}
    write_gguf(tmp_path / "m.gguf", metadata, tensors)
    return read_config(GgufFile.open(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("keys", "scaling", "full_context"),
    [
        ({}, None, 4096),
        ({"type": "none", "factor": 4.0}, None, 4096),
        ({"type": "yarn", "factor": 4.0, "original_context_length": 1024}, RopeScaling("yarn", 4.0, 1024), 4096),
        ({"type": "yarn", "factor": 4.0, "original_context_length": 4096}, RopeScaling("yarn", 4.0, 4096), 16384),
        ({"type": "yarn", "factor": 2.5}, RopeScaling("yarn", 2.5, 4096), 10240),
        (
            {
                "type": "yarn",
                "factor": 4.0,
                "attn_factor": 2.0,
                "yarn_attn_factor": 0.75,
                "yarn_ext_factor": 0.5,
                "yarn_beta_fast": 24.0,
                "yarn_beta_slow": 2,
            },
            RopeScaling("yarn", 4.0, 4096, extrapolation=0.5, attention_factor=1.5, beta_fast=24.0, beta_slow=2.0),
            16384,
        ),
        ({"type": "yarn", "factor": 4.0, "yarn_ext_factor": -1.0}, RopeScaling("yarn", 4.0, 4096), 16384),
        ({"type": "linear", "factor": 2.0}, RopeScaling("linear", 2.0, 4096, extrapolation=0.0), 8192),
        ({"factor": 2.0}, RopeScaling("linear", 2.0, 4096, extrapolation=0.0), 8192),
    ],
)
def test_keys_of_a_file(tmp_path: Path, keys: dict[str, Any], scaling: RopeScaling | None, full_context: int) -> None:
    """The model here was trained for 4096 tokens. Without an original context its trained one is meant."""
    config = read(tmp_path, keys)
    assert (config.rope_scaling, config.full_context, config.context_length) == (scaling, full_context, 4096)


@pytest.mark.parametrize(
    ("keys", "culprit"),
    [
        ({"type": "longrope", "factor": 2.0}, "type is 'longrope'; supported are 'none', 'linear' and 'yarn'"),
        ({"type": "yarn"}, "factor is missing"),
        ({"type": "yarn", "factor": 0.5}, "factor is 0.5"),
        ({"type": "yarn", "factor": float("nan")}, "factor is nan"),
        ({"type": "linear", "factor": 0.0}, "factor is 0.0"),
        ({"type": "linear", "factor": "two"}, "factor is a string, not a number"),
        ({"type": "yarn", "factor": 4.0, "original_context_length": 0}, "original_context_length is 0; it must be positive"),
        ({"type": "yarn", "factor": 4.0, "yarn_beta_fast": 0.0}, "yarn_beta_fast is 0.0"),
        ({"type": "yarn", "factor": 4.0, "yarn_beta_slow": float("inf")}, "yarn_beta_slow is inf"),
        ({"type": "yarn", "factor": 4.0, "yarn_attn_factor": -1.0}, "yarn_attn_factor is -1.0"),
        ({"type": "yarn", "factor": 4.0, "yarn_ext_factor": float("nan")}, "yarn_ext_factor is nan"),
    ],
)
def test_impossible_numbers_are_named(tmp_path: Path, keys: dict[str, Any], culprit: str) -> None:
    """One line with the file and the key."""
    with pytest.raises(ModelFileError) as caught:
        read(tmp_path, keys)
    assert str(caught.value) == f"{tmp_path / 'm.gguf'}: the metadata key qwen35.rope.scaling.{culprit}"


def test_the_model_computes_with_it(tmp_path: Path) -> None:
    """A factor of one is the model itself (a control); a factor of four gives other logits, and finite ones."""
    metadata, tensors = parts(MODEL)
    tokens = prompt("s2")
    logits = {}
    for factor in (None, 1.0, 4.0):
        if factor is not None:
            metadata |= {"qwen35.rope.scaling.type": "yarn", "qwen35.rope.scaling.factor": factor}
        write_gguf(tmp_path / "m.gguf", metadata, tensors)
        logits[factor] = Rig(tmp_path / "m.gguf").prefill(tokens)
    np.testing.assert_allclose(logits[1.0], logits[None], rtol=0, atol=LOGITS_REFERENCE_SELF_AMPLIFIED)
    assert np.isfinite(logits[4.0]).all()
    assert np.abs(logits[4.0] - logits[None])[1:].max() > 100 * LOGITS_REFERENCE_SELF_AMPLIFIED
