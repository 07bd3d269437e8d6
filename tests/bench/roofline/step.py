"""One step as the launches it consists of, in their order (svc/compute/cuda/layers.py, moe_ffn.py and what they call)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from svc.compute.cuda.attention import MOST_DECODE_TOKENS
from svc.compute.cuda.delta_chunks import CHUNK, STEP_TOKENS
from svc.model.arch.model import Model
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from svc.model.layers.dense_ffn import DenseFfnWeights
from svc.model.layers.moe_ffn import MoeFfnWeights
from tests.bench.roofline import kernels
from tests.bench.roofline.kernels import Matrix, expected_distinct, matmul, quantize, rms_norm
from tests.bench.roofline.work import Machine, Work, total


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one sequence in the step. `context`: keys that the last of them sees, itself included."""

    tokens: int
    context: int

    @property
    def chunks(self) -> int:
        """Of the delta rule, cut at absolute positions; 0 where it goes token by token."""
        first = self.context - self.tokens
        return 0 if self.tokens <= STEP_TOKENS else -(-self.context // CHUNK) - first // CHUNK


def decode(batch: int, context: int) -> list[Piece]:
    return [Piece(1, context)] * batch


def prefill(tokens: int, start: int = 0) -> list[Piece]:
    return [Piece(tokens, start + tokens)]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a layer's part of the model; `kernel` names the source file and what it is for."""

    part: str
    kernel: str
    work: Work


def step(model: Model, pieces: Sequence[Piece], *, kv_element_bytes: int = 2) -> list[Launch]:
    """All launches of a step that samples a token for each piece. Uploads of metadata and captured snapshots are left out."""
    return list(_step(model, pieces, kv_element_bytes))


def by_kernel(launches: Sequence[Launch]) -> dict[tuple[str, str], Work]:
    """Launches of one kind added up over the layers, in the order of their first."""
    kinds = dict.fromkeys((launch.part, launch.kernel) for launch in launches)
    return {kind: total(launch.work for launch in launches if (launch.part, launch.kernel) == kind) for kind in kinds}


def whole(launches: Sequence[Launch]) -> Work:
    return total(launch.work for launch in launches)


def sequential_s(launches: Sequence[Launch], machine: Machine) -> float:
    """The least time of the launches one after the other: each is bound by what it has most of."""
    return sum(machine.launch_s(launch.work) for launch in launches)


def _step(model: Model, pieces: Sequence[Piece], kv_element_bytes: int) -> Iterator[Launch]:
    tokens, width, samples = sum(piece.tokens for piece in pieces), model.config.hidden_size, len(pieces)
    yield Launch("head", "embed", kernels.embed(model.embedding, tokens))
    for mixer, ffn in model.layers:
        if isinstance(mixer, DeltaWeights):
            yield from _delta_mixer(mixer, pieces, tokens, width)
        else:
            yield from _attention_mixer(mixer, pieces, tokens, width, kv_element_bytes)
        if isinstance(ffn, MoeFfnWeights):
            yield from _moe_ffn(ffn, tokens, width)
        else:
            yield from _dense_ffn(ffn, tokens, width)
    yield Launch("head", "output_head final_hidden", kernels.final_hidden(samples, width))
    yield Launch("head", "output_head live_hidden", kernels.live_hidden(samples, width))
    yield from _quantized("head", samples, width, model.output)
    yield _product("head", "logits", model.output, samples)
    yield Launch("head", "sample", kernels.sample(samples, model.config.vocab_size))


def _product(part: str, name: str, matrix: Matrix, num_x: int, *, adds: bool = False) -> Launch:
    return Launch(part, f"{_product_kernel(matrix, num_x)} {name}", matmul(matrix, num_x, adds=adds))


def _product_kernel(matrix: Matrix, num_out: int) -> str:
    return "gemv" if kernels.is_few(matrix, num_out) else "gemm_float" if matrix.type.is_float else "gemm"


def _quantized(part: str, rows: int, columns: int, *readers: Matrix) -> Iterator[Launch]:
    """Activations are quantized where one of the matrices that read them is."""
    if not all(matrix.type.is_float for matrix in readers):
        yield Launch(part, "quantize", quantize(rows, columns))


def _delta_mixer(layer: DeltaWeights, pieces: Sequence[Piece], tokens: int, width: int) -> Iterator[Launch]:
    part, sequences, values = "delta_mixer", len(pieces), layer.num_value_heads * layer.value_dim
    yield Launch(part, "rms_norm", rms_norm(tokens, width))
    yield from _quantized(part, tokens, width, layer.qkv, layer.gate, layer.beta, layer.alpha)
    for name in ("qkv", "gate", "beta", "alpha"):
        yield _product(part, name, getattr(layer, name), tokens)
    few, long = [piece for piece in pieces if not piece.chunks], [piece for piece in pieces if piece.chunks]
    if few:
        yield Launch(part, "delta_decode", kernels.delta_decode(layer, sum(piece.tokens for piece in few), len(few)))
    if long:
        long_tokens, chunks = sum(piece.tokens for piece in long), sum(piece.chunks for piece in long)
        yield Launch(part, "delta_conv", kernels.delta_conv(layer, long_tokens, len(long)))
        yield Launch(part, "delta_prefill chunk", kernels.delta_chunk(layer, long_tokens, chunks))
        yield Launch(part, "delta_prefill scan", kernels.delta_scan(layer, long_tokens, chunks, len(long)))
    yield Launch(part, "delta_finish", kernels.delta_finish(layer, tokens, sequences))
    yield from _quantized(part, tokens, values, layer.output)
    yield _product(part, "output", layer.output, tokens, adds=True)


def _attention_mixer(
    layer: AttentionWeights, pieces: Sequence[Piece], tokens: int, width: int, kv_element_bytes: int
) -> Iterator[Launch]:
    part = "attention_mixer"
    yield Launch(part, "rms_norm", rms_norm(tokens, width))
    yield from _quantized(part, tokens, width, layer.query, layer.key, layer.value)
    for name in ("query", "key", "value"):
        yield _product(part, name, getattr(layer, name), tokens)
    yield Launch(part, "qk_norm_rope_kv", kernels.qk_norm_rope_kv(layer, tokens, kv_element_bytes))
    few = [piece for piece in pieces if piece.tokens <= MOST_DECODE_TOKENS]
    long = [piece for piece in pieces if piece.tokens > MOST_DECODE_TOKENS]
    once = Work(launches=1)
    if few:
        splits = [kernels.attention_split(layer, piece.tokens, piece.context, kv_element_bytes) for piece in few]
        merges = [kernels.attention_merge(layer, piece.tokens, piece.context) for piece in few]
        yield Launch(part, "attention_decode split", total(splits) + once)
        yield Launch(part, "attention_decode merge", total(merges) + once)
    if long:
        works = [kernels.attention_prefill(layer, piece.tokens, piece.context, kv_element_bytes) for piece in long]
        yield Launch(part, "attention_prefill", total(works) + once)
    yield from _quantized(part, tokens, layer.num_heads * layer.head_dim, layer.output)
    yield _product(part, "output", layer.output, tokens, adds=True)


def _dense_ffn(layer: DenseFfnWeights, tokens: int, width: int) -> Iterator[Launch]:
    part = "dense_ffn"
    yield Launch(part, "rms_norm", rms_norm(tokens, width))
    yield from _quantized(part, tokens, width, layer.gate, layer.up)
    yield from _swiglu(part, "", (layer.gate, layer.up, layer.down), tokens, tokens, 1.0, adds=True)


def _moe_ffn(layer: MoeFfnWeights, tokens: int, width: int) -> Iterator[Launch]:
    part, pairs = "moe_ffn", tokens * layer.num_used
    shared: tuple[Matrix, ...] = ()
    if layer.shared_gate is not None:
        shared = (layer.shared_gate, layer.shared_up, layer.shared_down)  # type: ignore[assignment]
    yield Launch(part, "rms_norm", rms_norm(tokens, width))
    yield from _quantized(part, tokens, width, layer.router, layer.gate, layer.up, *shared[:2])
    yield _product(part, "router", layer.router, tokens)
    yield Launch(part, "router", kernels.route(tokens, layer.num_experts, layer.num_used))
    if not kernels.is_few(layer.gate, pairs):
        yield Launch(part, "moe_sort", kernels.sort_by_expert(pairs, layer.num_experts))
    distinct = expected_distinct(layer.num_experts, layer.num_used, tokens)
    yield from _swiglu(part, "experts'", (layer.gate, layer.up, layer.down), tokens, pairs, distinct)
    if shared:
        yield from _swiglu(part, "shared", (shared[0], shared[1], shared[2]), tokens, tokens, 1.0)
    yield Launch(part, "moe_combine", kernels.combine(tokens, width, layer.num_used, shared=bool(shared)))


def _swiglu(
    part: str, name: str, matrices: tuple[Matrix, Matrix, Matrix], num_x: int, num_out: int, distinct: float, *, adds: bool = False
) -> Iterator[Launch]:
    """`num_out` rows between and behind the matrices from `num_x` rows in front."""
    gate, up, down = matrices
    kernel = _product_kernel(gate, num_out)
    yield Launch(part, f"{kernel} {name} gate, up".replace("  ", " "), kernels.gate_up(gate, up, num_x, num_out, distinct=distinct))
    yield from _quantized(part, num_out, gate.rows, down)
    work = matmul(down, num_out, num_out, distinct=distinct, adds=adds)
    yield Launch(part, f"{_product_kernel(down, num_out)} {name} down".replace("  ", " "), work)
