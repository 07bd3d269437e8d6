"""The reference against transformers: logits of every file in tests/data, greedy answers, and the values inside each layer."""

import importlib
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.backend import StepBatch
from svc.compute.model_file import open_model
from svc.compute.reference import ReferenceOps
from svc.compute.reference.math import l2_norm, rms_norm
from svc.compute.reference.moe_ffn import route
from svc.compute.step_inputs import build_step_inputs
from svc.gguf.gguf_file import GgufFile
from svc.gguf.tensors import WeightSource
from svc.model.layers.loading import WeightLoader
from svc.model.layers.moe_ffn import load_moe_ffn
from svc.model.model_config import ModelConfig
from tests.compute.rig import GGUF, GOLDEN, Rig, golden, prompt
from tests.tolerances import LAYER_GOLDEN, LOGITS_GOLDEN

# file -> (golden archive, token ids)
MODELS = {
    "tiny-qwen35-hd128-bf16": ("tiny-qwen35-hd128.hf", "qwen35"),
    "tiny-qwen35moe-Q4_K_M": ("tiny-qwen35moe.hfdequant-Q4_K_M", "qwen35"),
    "tiny-qwen3next-Q4_K_M": ("tiny-qwen3next.hfdequant-Q4_K_M", "qwen2"),
    "tiny-qwen3-Q8_0": ("tiny-qwen3.hfdequant-Q8_0", "qwen2"),
}
cached_golden = cache(golden)
# The package has a function of the module's name in it, so an import statement would find that.
delta_module = importlib.import_module("svc.compute.reference.delta_mixer")


@cache
def rig(file: str) -> Rig:
    return Rig(GGUF / f"{file}.gguf")


@pytest.mark.parametrize("name", ["s0", "s1", "s2", "s3"])
@pytest.mark.parametrize("file", MODELS)
def test_logits(file: str, name: str) -> None:
    """Every logit of the kept rows of each prompt, prefilled in one chunk."""
    archive, family = MODELS[file]
    expected = cached_golden(archive)[f"{name}.logits"]
    logits = rig(file).prefill(prompt(name, family))
    np.testing.assert_allclose(logits[-len(expected) :], expected, rtol=0, atol=LOGITS_GOLDEN)


@pytest.mark.parametrize("name", ["s0", "s1", "s2", "s3"])
def test_greedy_answer(name: str) -> None:
    """64 of 64 tokens, decoded one by one on top of a prefill."""
    expected = cached_golden("tiny-qwen35-hd128.hf")[f"{name}.greedy"]
    assert rig("tiny-qwen35-hd128-bf16").greedy(prompt(name), len(expected)) == expected.tolist()


@pytest.mark.parametrize("name", ["s1", "s2"])
def test_residual_stream(name: str) -> None:
    """What the embedding, each mixer, each feed-forward layer and the final norm give."""
    expected = cached_golden("tiny-qwen35-hd128.hf")
    model = rig("tiny-qwen35-hd128-bf16")
    model.prefill(prompt(name))
    (first, before), *trace = model.ops.trace
    assert first == "embed"
    close(before, expected[f"{name}.embed"])
    for layer in range(model.config.num_layers):
        for kind, part in (("mixer", "mixer_out"), ("ffn", "mlp_out")):
            op, after = trace.pop(0)
            assert op == kind
            close(after - before, expected[f"{name}.layer{layer}.{part}"])
            before = after
        close(before, expected[f"{name}.layer{layer}.out"])
    close(model.ops.final, expected[f"{name}.final_norm.out"])


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_delta_state(layer: int) -> None:
    """The state that a prefill leaves in its live row: recurrent part as S[k][v], and the last three raw convolution rows."""
    expected = cached_golden("tiny-qwen35-hd128.hf")
    model = rig("tiny-qwen35-hd128-bf16")
    model.prefill(prompt("s1"), row=1)
    caches, order = model.caches, head_order(model.config)
    close(caches.recurrent(layer)[1][order], expected[f"s1.layer{layer}.final_state"])
    conv = caches.conv(layer)[1].T  # [channels, 3]
    close(conv[channel_order(model.config)], expected[f"s1.layer{layer}.conv_state"][:, 1:])


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_delta_parts(layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a DeltaNet layer: q, k, v after the convolution, decay, beta, and the output before the gated norm."""
    expected = {key[10:]: value for key, value in cached_golden("tiny-qwen35-hd128.hf").items() if f"s1.layer{layer}." in key}
    calls: list[Any] = []
    recur = delta_module._recur

    def spy(*args: Any) -> Any:
        calls.append((args, recur(*args)))
        return calls[-1][1]

    monkeypatch.setattr(delta_module, "_recur", spy)
    model = rig("tiny-qwen35-hd128-bf16")
    model.prefill(prompt("s1"))
    (query, key, value, beta, decay, *_), core = calls[layer]
    order, num_key_heads = head_order(model.config), model.config.num_key_heads
    epsilon, scale = model.config.epsilon, model.config.key_dim**-0.5
    for actual, part, factor in ((query, "q_conv", scale), (key, "k_conv", 1.0)):
        close(actual[:, :num_key_heads], l2_norm(expected[part], epsilon) * factor)
    close(value[:, order], expected["v_conv"])
    close(beta[:, order], expected["beta"])
    close(np.log(decay[:, order]), expected["g"])
    close(core[:, order], expected["core_out"])


@pytest.mark.parametrize("name", ["s1", "s2"])
def test_pages_hold_keys_and_values(name: str) -> None:
    """K (after norm and rotary) and V in the pages of the block table, position by position."""
    expected = cached_golden("tiny-qwen35-hd128.hf")
    model = rig("tiny-qwen35-hd128-bf16")
    tokens = prompt(name)
    model.prefill(tokens, row=2)
    for block, key in ((model.caches.keys(0), "k_cache"), (model.caches.values(0), "v_cache")):
        pages = block[model.pages(2)]  # [pages, H_kv, P, D]
        rows = pages.swapaxes(0, 1).reshape(pages.shape[1], -1, pages.shape[3])[:, : len(tokens)]
        close(rows, expected[f"{name}.layer3.{key}"])


@pytest.mark.parametrize("name", ["s1", "s2"])
def test_experts(name: str) -> None:
    """Router choice and weights, and the summed experts, of a bf16 layer fed with transformers' own input."""
    expected = {key[3:]: value for key, value in cached_golden("tiny-qwen35moe.hf-layer0").items() if key.startswith(name)}
    file = GgufFile.open(GOLDEN / "tiny-qwen35moe-bf16.layer0-ffn.gguf")
    config, _ = open_model(GGUF / "tiny-qwen35moe-Q4_K_M.gguf")  # the same sizes
    ops = ReferenceOps()
    layer = load_moe_ffn(WeightLoader(WeightSource(file), ops), config, 0, norm="post_attention_norm")

    hidden = expected["embed"] + expected["layer0.mixer_out"]
    experts, weights = route(rms_norm(hidden, layer.input_norm, layer.epsilon), layer)
    np.testing.assert_array_equal(experts, expected["layer0.router_idx"])
    close(weights, expected["layer0.router_weights"])
    before = hidden.copy()
    model = rig("tiny-qwen35moe-Q4_K_M")
    ops.moe_ffn(hidden, layer, build_step_inputs(StepBatch(chunks=[model.chunk(0, 0, prompt(name))]), None))
    close(hidden - before, expected["layer0.mlp_out"])
    close(hidden, expected["layer0.out"])


def close(actual: NDArray[Any], expected: NDArray[Any]) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=LAYER_GOLDEN)


def head_order(config: ModelConfig) -> NDArray[np.intp]:
    """The place of Hugging Face's value head h in a qwen35* file: heads are tiled there, grouped at Hugging Face."""
    repeat = config.num_value_heads // config.num_key_heads
    heads = np.arange(config.num_value_heads)
    return (heads % repeat) * config.num_key_heads + heads // repeat


def channel_order(config: ModelConfig) -> NDArray[np.intp]:
    """The same for the channels q | k | v of the convolution, of which only v is reordered."""
    keys = 2 * config.num_key_heads * config.key_dim
    value = keys + head_order(config)[:, None] * config.value_dim + np.arange(config.value_dim)
    return np.concatenate([np.arange(keys), value.ravel()])
