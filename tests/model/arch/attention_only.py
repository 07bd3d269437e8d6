"""Tiny random models of the architectures without recurrent layers, llama and qwen2, and their logits in float64.

The mathematics is that of the published models: a rotation turns dimension j with j + D / 2. Files of llama hold the rows of q and
k in another order (`for_neighbours`), as the converter of such files writes them, so that their readers turn neighbours.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from svc.gguf.writer import write_gguf
from tests.kernels import oracle

Float64 = NDArray[np.float64]
Tensors = dict[str, tuple[NDArray[Any], str]]
VOCABULARY = 2048
EPSILON = 1e-5
FOLDER = TemporaryDirectory(prefix="headrace-models-")


@dataclass(frozen=True)
class TinyModel:
    """`types`: of matrices and of the embedding. Head size is 32, the feed-forward size 160."""

    name: str
    architecture: str
    heads: int
    kv_heads: int
    hidden: int
    types: tuple[str, str]
    base: float | None = None  # of the rotation; None: the file does not say, which means 10,000
    biased: bool = False
    tied: bool = False
    factors: tuple[float, ...] = ()  # of the rotation's frequencies, one a pair
    layers: int = 3
    head_dim: int = 32
    inner: int = 160

    @property
    def metadata(self) -> dict[str, Any]:
        keys = {
            "block_count": self.layers,
            "context_length": 2048,
            "embedding_length": self.hidden,
            "feed_forward_length": self.inner,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.layer_norm_rms_epsilon": EPSILON,
            "attention.key_length": self.head_dim,
            **({"rope.freq_base": self.base} if self.base else {}),
        }
        return {"general.architecture": self.architecture} | {f"{self.architecture}.{key}": value for key, value in keys.items()}

    @cached_property
    def published(self) -> dict[str, NDArray[np.float32]]:
        """Float32 weights by their names in a file, not quantized yet. Deep layers of random weights amplify rounding: matrices are
        scaled so that every product keeps the size of its activations."""
        random = np.random.default_rng(len(self.name))
        rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim

        def matrix(rows: int, columns: int) -> NDArray[np.float32]:
            return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

        def norm(size: int) -> NDArray[np.float32]:
            return random.normal(1, 0.2, size).astype(np.float32)

        weights = {"token_embd.weight": random.normal(0, 1, (VOCABULARY, self.hidden)).astype(np.float32)}
        for layer in range(self.layers):
            block = f"blk.{layer}."
            weights |= {
                f"{block}attn_norm.weight": norm(self.hidden),
                f"{block}attn_q.weight": matrix(rows, self.hidden) * 2,  # so that attention looks at few keys
                f"{block}attn_k.weight": matrix(kv_rows, self.hidden),
                f"{block}attn_v.weight": matrix(kv_rows, self.hidden),
                f"{block}attn_output.weight": matrix(self.hidden, rows),
                f"{block}ffn_norm.weight": norm(self.hidden),
                f"{block}ffn_gate.weight": matrix(self.inner, self.hidden),
                f"{block}ffn_up.weight": matrix(self.inner, self.hidden),
                f"{block}ffn_down.weight": matrix(self.hidden, self.inner),
            }
            for name, size in (("q", rows), ("k", kv_rows), ("v", kv_rows)) if self.biased else ():
                weights[f"{block}attn_{name}.bias"] = random.normal(0, 1, size).astype(np.float32)
        weights["output_norm.weight"] = norm(self.hidden)
        if not self.tied:
            weights["output.weight"] = matrix(VOCABULARY, self.hidden)
        return weights

    @property
    def tensors(self) -> Tensors:
        """As a file holds them."""
        tensors: Tensors = {name: (self._stored(name, values), self._type(name)) for name, values in self.published.items()}
        if self.factors:
            tensors["rope_freqs.weight"] = (np.array(self.factors, np.float32), "F32")
        return tensors

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.name}.gguf"
        write_gguf(path, self.metadata, self.tensors)
        return path

    @cached_property
    def written(self) -> Path:
        """A file of it that goes with this process."""
        return self.write(Path(FOLDER.name))

    def logits(self, tokens: NDArray[np.int32]) -> Float64:
        """[n, V] of a text from its start, with the exact values of the quantized weights."""
        w = {name: dequantized(values, self._type(name)) for name, values in self.published.items()}
        hidden = w["token_embd.weight"][tokens]
        for layer in range(self.layers):
            part = {name.removeprefix(f"blk.{layer}."): values for name, values in w.items()}
            hidden = hidden + self._attention(oracle.norm(hidden, part["attn_norm.weight"], EPSILON), part)
            x = oracle.norm(hidden, part["ffn_norm.weight"], EPSILON)
            hidden = hidden + oracle.swiglu(x, *(part[f"ffn_{name}.weight"] for name in ("gate", "up", "down")))
        return oracle.norm(hidden, w["output_norm.weight"], EPSILON) @ w.get("output.weight", w["token_embd.weight"]).T

    def _attention(self, x: Float64, part: dict[str, Float64]) -> Float64:
        def project(name: str, heads: int) -> Float64:
            y = x @ part[f"attn_{name}.weight"].T + part.get(f"attn_{name}.bias", 0)
            return y.reshape(len(x), heads, self.head_dim)

        query, key, value = project("q", self.heads), project("k", self.kv_heads), project("v", self.kv_heads)
        query, key = self._turned(query), self._turned(key)
        out = np.zeros_like(query)
        for t in range(len(x)):
            for head in range(self.heads):
                kv = head * self.kv_heads // self.heads
                out[t, head] = oracle.attend(query[t, head], key[: t + 1, kv], value[: t + 1, kv])
        return out.reshape(len(x), -1) @ part["attn_output.weight"].T

    def _turned(self, x: Float64) -> Float64:
        half = self.head_dim // 2
        frequencies = (self.base or 1e4) ** (-np.arange(half) / half) / np.array(self.factors or 1.0)
        angles = np.arange(len(x))[:, None, None] * frequencies
        first, second = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def _stored(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
            return for_neighbours(values, self.head_dim)
        return values

    def _type(self, name: str) -> str:
        if "norm" in name or name.endswith("bias"):
            return "F32"
        return self.types[name.startswith(("token_embd", "output."))]


def for_neighbours(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Rows of heads, reordered so that a rotation of neighbours does what one of halves did before: 0, D/2, 1, D/2 + 1, ..."""
    order = np.arange(head_dim).reshape(2, -1).T.ravel()
    return np.ascontiguousarray(rows.reshape(-1, head_dim, *rows.shape[1:])[:, order].reshape(rows.shape))


def dequantized(values: NDArray[np.float32], kind: str) -> Float64:
    """Rows are quantized one by one: their order makes no difference."""
    if kind == "F32":
        return values.astype(np.float64)
    number = GGMLQuantizationType[kind]
    return np.asarray(quants.dequantize(quants.quantize(values, number), number), np.float64)


LLAMA_3_FACTORS = tuple(np.linspace(1, 8, 16).tolist())
MODELS = {
    model.name: model
    for model in (
        TinyModel("llama", "llama", 3, 1, 96, ("Q4_1", "Q8_0"), tied=True),
        TinyModel("llama-3", "llama", 4, 2, 128, ("Q8_0", "F16"), base=5e5, factors=LLAMA_3_FACTORS),
        TinyModel("llama-biased", "llama", 2, 2, 64, ("BF16", "BF16"), base=1e5, biased=True),
        TinyModel("qwen2", "qwen2", 4, 2, 128, ("Q5_0", "Q8_0"), base=1e6, biased=True),
        TinyModel("qwen2-tied", "qwen2", 6, 3, 64, ("Q8_0", "Q8_0"), base=1e6, biased=True, tied=True),
    )
}
