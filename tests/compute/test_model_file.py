"""A model file and the settings that change what it says: overrides, rope scaling, and the length of the context."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.compute.model_file import OpenedModel, open_configured
from svc.config import BY_KEY, Config
from svc.errors import ConfigError, ModelFileError
from svc.gguf.writer import write_gguf
from svc.model.layers.rope import RopeScaling
from tests.compute.rig import GGUF
from tests.model.arch.test_layouts import parts

HYBRID = "tiny-qwen35-hd128-bf16"  # trained to 4096 tokens, base 1e7, no rope scaling
IN_FILE = {"type": "yarn", "factor": 2.0, "original_context_length": 4096, "yarn_beta_fast": 20.0}


def opened(path: Path | None = None, **settings: Any) -> OpenedModel:
    return open_configured(Config(model=str(path or GGUF / f"{HYBRID}.gguf"), **settings))


@pytest.fixture
def yarn_file(tmp_path: Path) -> Path:
    """The model with YaRN by a factor of 2 in its own keys."""
    metadata, tensors = parts(HYBRID)
    metadata |= {f"qwen35.rope.scaling.{key}": value for key, value in IN_FILE.items()}
    write_gguf(tmp_path / "yarn.gguf", metadata, tensors)
    return tmp_path / "yarn.gguf"


# -- override_kv ------------------------------------------------------------------------------------------------------------------


def test_overrides_reach_the_numbers_and_the_texts() -> None:
    """Numbers of the network, the tokenizer's keys and the template all come from the changed metadata, without a word about it."""
    model = opened(
        override_kv=(
            "qwen35.context_length=int:8192",
            "qwen35.rope.freq_base=float:5e6",
            "general.name=str:renamed",
            "tokenizer.ggml.add_bos_token=bool:true",
            "tokenizer.chat_template=str:hello",
        )
    )
    assert (model.config.context_length, model.config.rope_base, model.config.name) == (8192, 5e6, "renamed")
    assert model.context_tokens == 8192
    assert model.file.metadata["tokenizer.ggml.add_bos_token"] is True
    assert model.file.metadata["tokenizer.chat_template"] == "hello"
    assert model.source.file is model.file
    assert model.remarks == ()


def test_a_key_the_file_does_not_have_is_told_about_once() -> None:
    """It may be a misspelt one, or one that older files lack: it counts, and is named."""
    model = opened(override_kv=("qwen35.nextn_predict_layers=int:1", "qwen35.context_lenght=int:1"))
    assert model.config.num_mtp_layers == 1
    assert [remark.event for remark in model.remarks] == ["new_metadata_key"] * 2
    assert "qwen35.context_lenght" in model.remarks[1].reason


def test_an_impossible_override_is_an_error_of_the_settings() -> None:
    """Bad texts, and values of another kind than the file's."""
    with pytest.raises(ConfigError, match=r"override_kv: .* unknown type 'i32'"):
        opened(override_kv=("qwen35.context_length=i32:1",))
    with pytest.raises(ConfigError, match=r"override_kv: qwen35\.context_length is an integer in .*, which a string"):
        opened(override_kv=("qwen35.context_length=str:long",))
    with pytest.raises(ModelFileError, match=r"qwen35\.context_length is 0"):
        opened(override_kv=("qwen35.context_length=int:0",))


def test_another_architecture_can_be_claimed() -> None:
    """The name is read after the overrides, and so are the keys that begin with it."""
    with pytest.raises(ModelFileError, match="'unheard'"):
        opened(override_kv=("general.architecture=str:unheard",))
    with pytest.raises(ModelFileError, match=r"qwen3\.block_count is missing"):
        opened(override_kv=("general.architecture=str:qwen3",))


# -- rope settings ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "scaling", "full_context"),
    [
        ({}, None, 4096),
        ({"rope_scaling": "none"}, None, 4096),
        ({"rope_scale": 2.0}, RopeScaling("linear", 2.0, 4096, extrapolation=0.0), 8192),
        ({"rope_scaling": "yarn", "rope_scale": 4.0}, RopeScaling("yarn", 4.0, 4096), 16384),
        ({"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_orig_ctx": 3072}, RopeScaling("yarn", 4.0, 3072), 12288),
        (
            {
                "rope_scaling": "yarn",
                "rope_scale": 4.0,
                "yarn_ext_factor": 0.0,
                "yarn_attn_factor": 0.5,
                "yarn_beta_slow": 2.0,
                "yarn_beta_fast": 16.0,
            },
            RopeScaling("yarn", 4.0, 4096, extrapolation=0.0, attention_factor=0.5, beta_fast=16.0, beta_slow=2.0),
            16384,
        ),
        (
            {"override_kv": ("qwen35.rope.scaling.factor=float:8",), "rope_scale": 2.0, "rope_scaling": "yarn"},
            RopeScaling("yarn", 2.0, 4096),
            8192,
        ),
    ],
)
def test_settings_over_a_file_without_scaling(settings: dict[str, Any], scaling: RopeScaling | None, full_context: int) -> None:
    """llama-server's flags; a scale alone is a linear one, and a rope setting wins over override_kv."""
    config = opened(**settings).config
    assert (config.rope_scaling, config.full_context) == (scaling, full_context)


@pytest.mark.parametrize(
    ("settings", "scaling", "full_context"),
    [
        ({}, RopeScaling("yarn", 2.0, 4096, beta_fast=20.0), 8192),
        ({"rope_scale": 4.0}, RopeScaling("yarn", 4.0, 4096, beta_fast=20.0), 16384),
        ({"yarn_beta_fast": 32.0, "yarn_orig_ctx": 8192}, RopeScaling("yarn", 2.0, 8192), 16384),
        ({"rope_scaling": "none"}, None, 4096),
        ({"rope_scaling": "linear"}, RopeScaling("linear", 2.0, 4096, extrapolation=0.0), 8192),
        ({"yarn_ext_factor": -0.5, "yarn_beta_slow": -1.0}, RopeScaling("yarn", 2.0, 4096, beta_fast=20.0), 8192),
    ],
)
def test_settings_over_a_file_with_scaling(
    yarn_file: Path, settings: dict[str, Any], scaling: RopeScaling | None, full_context: int
) -> None:
    """Each setting replaces one number of the file; the others stay, and a negative number means not set."""
    config = opened(yarn_file, **settings).config
    assert (config.rope_scaling, config.full_context) == (scaling, full_context)


def test_base() -> None:
    """The base is a setting of its own, without scaling."""
    config = opened(rope_freq_base=123456.0).config
    assert (config.rope_base, config.rope_scaling) == (123456.0, None)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rope_scaling": "yarn"}, "rope_scaling is yarn, but neither rope_scale nor the model file says by what factor"),
        ({"rope_scaling": "linear"}, "rope_scaling is linear, but neither rope_scale nor the model file says by what factor"),
        ({"rope_scaling": "yarn", "rope_scale": 0.5}, "rope_scale must be at least 1 with YaRN, not 0.5"),
        ({"rope_freq_base": 1.0}, "rope_freq_base must be above 1, not 1"),
        ({"rope_scaling": "yarn", "rope_scale": 2.0, "yarn_beta_fast": 0.0}, "yarn_beta_fast must be above 0, not 0"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], sentence: str) -> None:
    """The message names the setting, not its key."""
    with pytest.raises(ConfigError) as caught:
        opened(**settings)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("settings", "idle"),
    [
        ({"yarn_orig_ctx": 1024, "yarn_beta_slow": 2.0}, ["yarn_orig_ctx", "yarn_beta_slow"]),
        ({"rope_scaling": "none", "rope_scale": 2.0}, ["rope_scale"]),
        ({"rope_scale": 2.0, "yarn_ext_factor": 1.0}, ["yarn_ext_factor"]),
        ({"rope_scale": 2.0, "rope_scaling": "yarn", "yarn_attn_factor": 1.0}, []),
        ({"rope_freq_base": 1e6}, []),
    ],
)
def test_rope_settings_without_effect_are_named(settings: dict[str, Any], idle: list[str]) -> None:
    """A setting without effect is reported."""
    remarks = opened(**settings).remarks
    assert [remark.reason.split()[0] for remark in remarks] == idle
    assert all(remark.event == "option_without_effect" for remark in remarks)


def test_every_rope_setting_leaves_the_file_alone_by_default(yarn_file: Path) -> None:
    """The defaults given explicitly are the same as none given."""
    keys = [key for key in BY_KEY if key.startswith(("rope_", "yarn_"))]
    assert len(keys) == 8
    assert opened(yarn_file, **{key: BY_KEY[key].default for key in keys}).config == opened(yarn_file).config


# -- ctx --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ctx", [1, 512, 4096])
def test_a_context_within_the_trained_one_needs_no_word(ctx: int) -> None:
    """Below is fine; zero is what the model is made for."""
    assert (opened(ctx=ctx).context_tokens, opened(ctx=ctx).remarks) == (ctx, ())
    assert (opened().context_tokens, opened().remarks) == (4096, ())


def test_a_context_beyond_the_trained_one_is_allowed_with_one_sentence() -> None:
    """It names both numbers and the settings that would be meant for it."""
    model = opened(ctx=10_000)
    assert model.context_tokens == 10_000
    (remark,) = model.remarks
    assert remark.event == "beyond_training"
    factor = math.ceil(10_000 / 4096)
    for part in ("ctx is 10000", "4096", "rope_scaling = yarn", f"rope_scale = {factor}"):
        assert part in remark.reason
    assert opened(ctx=10_000, rope_scaling="yarn", rope_scale=factor).remarks == ()


def test_a_context_beyond_the_stretched_one(yarn_file: Path) -> None:
    """With YaRN zero means the stretched context, and only a longer one is beyond."""
    assert opened(yarn_file).context_tokens == 8192
    assert opened(yarn_file, ctx=8192).remarks == ()
    (remark,) = opened(yarn_file, ctx=8193).remarks
    assert "yarn, factor 2" in remark.reason
    assert "8192" in remark.reason


def test_a_model_without_attention_has_no_positions(tmp_path: Path) -> None:
    """Nothing was trained to a length there, so there is nothing to warn about."""
    metadata, tensors = parts(HYBRID)
    metadata |= {"qwen35.attention.recurrent_layers": np.array([True] * 3), "qwen35.block_count": 3}
    write_gguf(tmp_path / "m.gguf", metadata, {name: value for name, value in tensors.items() if not name.startswith("blk.3.")})
    assert opened(tmp_path / "m.gguf", ctx=100_000).remarks == ()


def test_a_split_model_is_named_without_its_part(tmp_path: Path) -> None:
    """Where the file has no name in it, the file name has: the model's part of it."""
    metadata, tensors = parts(HYBRID)
    del metadata["general.name"]
    write_gguf(tmp_path / "Tiny-Q4.gguf", metadata, tensors, split_tensors=30)
    model = opened(tmp_path / "Tiny-Q4-00002-of-00002.gguf", rope_scale=2.0)
    assert model.config.name == "Tiny-Q4"
    assert len(model.file.paths) == 2
    assert model.file.tensors.keys() == tensors.keys()
