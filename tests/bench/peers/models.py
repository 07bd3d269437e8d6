"""The benchmark models: shapes that people run, random weights, the same bytes on every machine.

Speed does not depend on what a model says, so blocks are written at random. Scales are such that every row has zero mean and a norm
near one: activations stay of order one through all layers and logits are finite. What a mix stores in which type follows what
llama-quantize makes of such a model.
"""

import hashlib
import json
import lzma
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.gguf.quant import quant_type
from svc.gguf.writer import write_gguf

DATA = Path(__file__).parents[2] / "data"
REVISION = 1  # part of every file's name: a higher one when what is written changes
FILE_TYPES = {"Q4_K": 15, "Q8_0": 7}
CONTROL, UNUSED = 3, 5
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True)
class Shape:
    """A hybrid: attention with an output gate every fourth layer, DeltaNet in the others. Without experts it is dense."""

    name: str
    layers: int
    hidden: int
    vocabulary: int  # tokens: bytes, merges, control tokens
    heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    state: int  # size of a DeltaNet head
    feed_forward: int  # of a dense layer, of the shared expert and of each other one
    experts: int = 0
    used: int = 0
    tied: bool = False  # the head is the embedding

    @property
    def architecture(self) -> str:
        return "qwen35moe" if self.experts else "qwen35"

    def recurrent(self, layer: int) -> bool:
        return (layer + 1) % 4 != 0

    @property
    def channels(self) -> int:
        return (2 * self.key_heads + self.value_heads) * self.state


# The dense one is Qwen3.5-0.8B with fewer tokens. The one with experts has its mixers' proportions from Qwen3.5-35B-A3B. The
# small one is for questions that do not depend on size: which tokens are evaluated again.
SHAPES = {
    "moe": Shape(
        "moe-1.8b-a0.4b", layers=24, hidden=1024, vocabulary=49_152, heads=8, kv_heads=2, head_dim=256,
        key_heads=8, value_heads=16, state=128, feed_forward=256, experts=80, used=8,
    ),
    "dense": Shape(
        "dense-0.5b", layers=24, hidden=1024, vocabulary=49_152, heads=8, kv_heads=2, head_dim=256,
        key_heads=16, value_heads=16, state=128, feed_forward=3584, tied=True,
    ),
    "small": Shape(
        "small-55m", layers=8, hidden=512, vocabulary=49_152, heads=4, kv_heads=2, head_dim=128,
        key_heads=4, value_heads=4, state=128, feed_forward=1536, tied=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of a file before it has bytes."""

    name: str
    shape: tuple[int, ...]
    type: str
    mean: float = 0.0  # of F32 tensors
    deviation: float = 0.0


def tensors(shape: Shape, kind: str) -> Iterator[Tensor]:
    """In the file's order. `kind`: "Q4_K" (with Q6_K as in Q4_K_M) or "Q8_0"."""
    body = kind
    best = "Q6_K" if kind == "Q4_K" else kind
    table = (shape.vocabulary, shape.hidden)
    yield Tensor("token_embd.weight", table, best if shape.tied else body)
    for layer in range(shape.layers):
        finer = best if finer_layer(layer, shape.layers) else body
        parts = _delta(shape, body) if shape.recurrent(layer) else _attention(shape, body, finer)
        for part in (*parts, *_feed_forward(shape, body, finer)):
            yield replace(part, name=f"blk.{layer}.{part.name}")
    yield Tensor("output_norm.weight", (shape.hidden,), "F32", mean=1.0)
    if not shape.tied:
        yield Tensor("output.weight", table, best)


def finer_layer(layer: int, num_layers: int) -> bool:
    """Where Q4_K_M spends more on `attn_v` and `ffn_down`: the first and last eighth, and every third between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def _norm(name: str, size: int) -> Tensor:
    return Tensor(f"{name}.weight", (size,), "F32", mean=1.0)


def _delta(s: Shape, body: str) -> tuple[Tensor, ...]:
    values = s.value_heads * s.state
    return (
        _norm("attn_norm", s.hidden),
        Tensor("attn_qkv.weight", (s.channels, s.hidden), body),
        Tensor("attn_gate.weight", (values, s.hidden), body),
        Tensor("ssm_beta.weight", (s.value_heads, s.hidden), body),
        Tensor("ssm_alpha.weight", (s.value_heads, s.hidden), body),
        Tensor("ssm_conv1d.weight", (s.channels, 4), "F32", deviation=0.5),
        Tensor("ssm_dt.bias", (s.value_heads,), "F32", mean=-3.0, deviation=1.0),
        Tensor("ssm_a", (s.value_heads,), "F32", mean=-4.0, deviation=0.5),
        _norm("ssm_norm", s.state),
        Tensor("ssm_out.weight", (s.hidden, values), body),
    )


def _attention(s: Shape, body: str, finer: str) -> tuple[Tensor, ...]:
    queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    return (
        _norm("attn_norm", s.hidden),
        Tensor("attn_q.weight", (2 * queries, s.hidden), body),
        Tensor("attn_k.weight", (keys, s.hidden), body),
        Tensor("attn_v.weight", (keys, s.hidden), finer),
        _norm("attn_q_norm", s.head_dim),
        _norm("attn_k_norm", s.head_dim),
        Tensor("attn_output.weight", (s.hidden, queries), body),
    )


def _feed_forward(s: Shape, body: str, finer: str) -> Iterator[Tensor]:
    yield _norm("post_attention_norm", s.hidden)
    wide, narrow = (s.feed_forward, s.hidden), (s.hidden, s.feed_forward)
    if s.experts:
        yield Tensor("ffn_gate_inp.weight", (s.experts, s.hidden), "F32", deviation=s.hidden**-0.5)
        yield Tensor("ffn_gate_inp_shexp.weight", (s.hidden,), "F32", deviation=s.hidden**-0.5)
        for name, matrix, kind in (("gate", wide, body), ("up", wide, body), ("down", narrow, finer)):
            yield Tensor(f"ffn_{name}_exps.weight", (s.experts, *matrix), kind)
            yield Tensor(f"ffn_{name}_shexp.weight", matrix, kind)
    else:
        for name, matrix, kind in (("gate", wide, body), ("up", wide, body), ("down", narrow, finer)):
            yield Tensor(f"ffn_{name}.weight", matrix, kind)


@dataclass(frozen=True, slots=True)
class Work:
    """What one token takes: weights that are read for it alone, and multiplications and additions with them."""

    weight_bytes: int
    operations: int

    @classmethod
    def of(cls, shape: Shape, kind: str) -> "Work":
        """Matrices only; of the experts those that are used, of an embedding that is not the head nothing."""
        read = values = 0
        for tensor in tensors(shape, kind):
            *rows, columns = tensor.shape
            if not rows or (tensor.name == "token_embd.weight" and not shape.tied):
                continue
            if "_exps." in tensor.name:
                rows[0] = shape.used
            count = math.prod(rows)
            read += count * quant_type(tensor.type).row_bytes(columns)
            values += count * columns
        return cls(read, 2 * values)


# ---- bytes


def packed(tensor: Tensor) -> NDArray[Any]:
    """The values of an F32 tensor, or the packed rows of a quantized one; decided by the tensor's name, shape and type alone."""
    seed = int.from_bytes(hashlib.sha256(f"{REVISION} {tensor}".encode()).digest()[:8], "little")
    random = np.random.Generator(np.random.PCG64(seed))
    if tensor.type == "F32":
        return random.normal(tensor.mean, tensor.deviation, tensor.shape).astype(np.float32)
    quant = quant_type(tensor.type)
    *rows, columns = tensor.shape
    row_bytes = quant.row_bytes(columns)
    data = np.frombuffer(bytearray(random.bytes(int(np.prod(rows)) * row_bytes)), np.uint8)
    _SCALES[tensor.type](data.reshape(-1, quant.block_bytes), columns**-0.5)
    return data.reshape(*rows, row_bytes)


def _half(value: float) -> NDArray[np.uint8]:
    return np.array([value], "<f2").view(np.uint8)


# Of n quants that are equally frequent the standard deviation is n / sqrt(12). Their mean is 7.5 in Q4_K, whose minima take it
# away, and about nothing in the others. `deviation` is what the weights shall have.


def _q8_0(blocks: NDArray[np.uint8], deviation: float) -> None:
    blocks[:, :2] = _half(deviation * 12**0.5 / 256)


def _q6_k(blocks: NDArray[np.uint8], deviation: float) -> None:
    blocks[:, 192:208] = blocks[:, 192:208] & 31 | 32  # scales from 32 to 63
    blocks[:, 208:] = _half(deviation * 12**0.5 / 64 / 48)


def _q4_k(blocks: NDArray[np.uint8], deviation: float) -> None:
    """Each group's minimum is its scale, and dmin is 7.5 d: zero mean. The layout of the twelve bytes: `quant/q4_k.py`."""
    unit = deviation * 12**0.5 / 16 / 48
    blocks[:, 0:2], blocks[:, 2:4] = _half(unit), _half(7.5 * unit)
    low = blocks[:, 4:8]
    low[:] = low & 31 | 32 | 128  # scales 0..3 from 32 to 63; the upper bits of scales 4..7 make 32 of them
    blocks[:, 8:12] = low
    third = blocks[:, 12:16] & 15
    blocks[:, 12:16] = third | third << 4


_SCALES = {"Q8_0": _q8_0, "Q6_K": _q6_k, "Q4_K": _q4_k}


# ---- metadata


def tokenizer_metadata(vocabulary: int, source: str = "qwen2.json.xz") -> dict[str, Any]:
    """The first tokens of a published vocabulary: bytes, then the most frequent merges, then three control tokens."""
    published = json.loads(lzma.decompress((DATA / "vocab" / source).read_bytes()))
    num_merges = vocabulary - 256 - len(CONTROL_TOKENS)
    merges = published["merges"][:num_merges]
    tokens = [*published["byte_tokens"], *("".join(merge.split(" ")) for merge in merges), *CONTROL_TOKENS]
    missing = vocabulary - len(tokens)
    types = [1] * (256 + len(merges)) + [CONTROL] * len(CONTROL_TOKENS) + [UNUSED] * missing
    tokens += [f"[PAD{number}]" for number in range(missing)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def metadata(s: Shape, kind: str) -> dict[str, Any]:
    arch: dict[str, Any] = {
        "block_count": s.layers,
        "context_length": 32_768,
        "embedding_length": s.hidden,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "full_attention_interval": 4,
        "rope.freq_base": 1e7,
        "rope.dimension_count": s.head_dim // 4,
        "rope.dimension_sections": np.array(_sections(s.head_dim // 8), np.int32),
        "ssm.conv_kernel": 4,
        "ssm.state_size": s.state,
        "ssm.group_count": s.key_heads,
        "ssm.time_step_rank": s.value_heads,
        "ssm.inner_size": s.value_heads * s.state,
    }
    if s.experts:
        arch |= {
            "expert_count": s.experts,
            "expert_used_count": s.used,
            "expert_feed_forward_length": s.feed_forward,
            "expert_shared_feed_forward_length": s.feed_forward,
        }
    else:
        arch["feed_forward_length"] = s.feed_forward
    general = {
        "general.architecture": s.architecture,
        "general.type": "model",
        "general.name": f"{s.name} {kind} with random weights",
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": 2,
    }
    return general | {f"{s.architecture}.{key}": value for key, value in arch.items()}


def _sections(pairs: int) -> list[int]:
    """The pairs of rotated dimensions for time, height and width of a picture's tokens; equal for text."""
    third = -(-pairs // 3)
    return [third, third, pairs - 2 * third, 0]


# ---- files


def write_model(path: Path, shape: Shape, kind: str) -> None:
    """All tensors are in memory for a moment. The file appears whole or not at all."""
    made = {tensor.name: (packed(tensor), tensor.type) for tensor in tensors(shape, kind)}
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    write_gguf(partial, metadata(shape, kind) | tokenizer_metadata(shape.vocabulary), made)
    partial.replace(path)


def model_file(directory: Path, name: str, kind: str) -> Path:
    """The file of SHAPES[name] in that type in `directory`, written if it is not there."""
    shape = SHAPES[name]
    path = directory / f"{shape.name}-{kind.replace('Q4_K', 'Q4_K_M')}-r{REVISION}.gguf"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_model(path, shape, kind)
    return path
