"""Numbers read from files, and what follows from them."""

from pathlib import Path

import numpy as np
import pytest

from svc.compute.model_file import open_model
from svc.gguf.gguf_file import GgufFile
from svc.gguf.writer import write_gguf
from svc.model.arch import ARCHITECTURES, read_config
from svc.model.layers.rope import RopeTable
from tests.compute.rig import GGUF
from tests.model.arch.test_layouts import parts


def test_numbers_of_a_hybrid_file() -> None:
    """As the fixture's own table has them: 2/4 DeltaNet heads of 128, 2/1 attention heads of 256 with 64 rotary."""
    config, _ = open_model(GGUF / "tiny-qwen35-hd128-bf16.gguf")
    assert (config.architecture, config.name) == ("qwen35", "Tiny Qwen35 Hd128")
    assert (config.num_layers, config.num_mtp_layers) == (4, 0)
    assert config.recurrent_layers == (True, True, True, False)
    assert (config.hidden_size, config.vocab_size, config.context_length) == (256, 2048, 4096)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.rotary_dims) == (2, 1, 256, 64)
    assert (config.num_key_heads, config.num_value_heads, config.key_dim, config.value_dim) == (2, 4, 128, 128)
    assert (config.conv_kernel, config.conv_channels, config.feed_forward_size) == (4, 1024, 512)
    assert config.rope_base == 1e7
    assert config.epsilon == pytest.approx(1e-6)
    assert [config.mixer_index(layer) for layer in range(4)] == [0, 1, 2, 0]


def test_numbers_of_the_others() -> None:
    """Experts and shared expert, and a control that says nothing about its rotary part: there it is the whole head."""
    config, _ = open_model(GGUF / "tiny-qwen3next-Q4_K_M.gguf")
    assert (config.num_experts, config.num_experts_used, config.expert_size, config.shared_expert_size) == (6, 3, 256, 256)
    assert config.feed_forward_size == 0
    control, _ = open_model(GGUF / "tiny-qwen3-Q8_0.gguf")
    assert control.recurrent_layers == (False,) * 4
    assert (control.head_dim, control.rotary_dims) == (64, 64)


def test_rotary_part_where_the_file_is_silent(tmp_path: Path) -> None:
    """A quarter of the head for the gated architectures."""
    metadata, tensors = parts("tiny-qwen35-hd128-bf16")
    del metadata["qwen35.rope.dimension_count"]
    write_gguf(tmp_path / "m.gguf", metadata, tensors)
    assert read_config(GgufFile.open(tmp_path / "m.gguf")).rotary_dims == 64


def test_arrays_per_layer(tmp_path: Path) -> None:
    """Head counts may be arrays, with zeros where a layer has no attention."""
    metadata, tensors = parts("tiny-qwen35-hd128-bf16")
    metadata |= {"qwen35.attention.head_count": [0, 0, 0, 2], "qwen35.attention.head_count_kv": [0, 0, 0, 1]}
    write_gguf(tmp_path / "m.gguf", metadata, tensors)
    config = read_config(GgufFile.open(tmp_path / "m.gguf"))
    assert (config.num_heads, config.num_kv_heads) == (2, 1)


def test_snapshot_bytes_follow_the_rule() -> None:
    """DeltaNet layers * (D * D * H_v + 3 * (2 H_k + H_v) * D) * 4 bytes, and the hidden row."""
    config, _ = open_model(GGUF / "tiny-qwen35-hd128-bf16.gguf")
    layout = config.memory_layout(page_tokens=32, kv_type="f16")
    assert layout.state_bytes == 3 * (128 * 128 * 4 + 3 * (2 * 2 + 4) * 128) * 4 + 256 * 4
    assert layout.kv_bytes_per_token == 1 * 2 * 1 * 256 * 2
    control, _ = open_model(GGUF / "tiny-qwen3-Q8_0.gguf")
    assert control.memory_layout(16, "f32").state_elements == control.hidden_size


def test_table_of_architectures() -> None:
    hybrid, attention_only = ["qwen3next", "qwen35", "qwen35moe"], ["llama", "qwen2", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe"]
    assert list(ARCHITECTURES) == [*hybrid, *attention_only]


def test_rotary_angles() -> None:
    """angle = position * base^(-2 j / R), at positions far apart and asked for in any order."""
    table = RopeTable.of(64, 1e7)
    positions = np.array([5, 0, 3000, 1], np.int32)
    cos, sin = table.rows(positions)
    angles = positions[:, None] * 1e7 ** (-2 * np.arange(32) / 64)
    np.testing.assert_allclose(cos, np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1e-6)


def test_even_tokens_by_hand() -> None:
    """Multiplications of a token, one of its layers at a time, over those that attention adds for each position before it."""
    config, _ = open_model(GGUF / "tiny-qwen35-hd128-bf16.gguf")
    hidden, feed_forward = config.hidden_size, 3 * config.hidden_size * config.feed_forward_size
    assert (hidden, config.num_heads, config.num_kv_heads, config.head_dim) == (256, 2, 1, 256)
    attention = hidden * (3 * 512 + 2 * 256)  # queries, their gate and the output; keys and values
    delta = hidden * (1024 + 2 * 512 + 2 * 4) + 4 * 4 * 128 * 128  # q, k, v; gate and output; alpha and beta; the state
    assert config.even_tokens == pytest.approx((4 * feed_forward + attention + 3 * delta) / (2 * 512))
    assert config.memory_layout(16, "f16").even_tokens == config.even_tokens
    control, _ = open_model(GGUF / "tiny-qwen3-Q8_0.gguf")
    assert 0 < control.even_tokens < 100_000
