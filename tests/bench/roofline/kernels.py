"""Bytes and operations of each CUDA kernel, as its source in cuda_src/ moves and does them; see work.py for what counts.

Products are multiplications and additions: two operations for each pair of numbers.
"""

import math
from dataclasses import dataclass

from svc.compute.cuda.attention import ROWS, SPLIT_TOKENS
from svc.compute.cuda.delta_chunks import CHUNK
from svc.compute.cuda.delta_core import CHUNK_FLOATS
from svc.compute.cuda.matmul import MOST_GEMV_ROWS, gemm_tokens
from svc.compute.cuda.moe import FEW_PAIRS, sort_workspace
from svc.compute.cuda.quantize import BLOCK_BYTES, GROUP
from svc.compute.cuda.weights import FLOAT_TYPES, CudaWeight
from svc.gguf.quant import quant_type
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from tests.bench.roofline.work import Work

FLOAT = 4  # bytes
INT = 4
TRIANGLE = 16  # delta_prefill.cu leaves out 16 x 16 blocks above the diagonal, no smaller ones


@dataclass(frozen=True, slots=True)
class WeightType:
    """How a matrix is stored. `bytes_each` may be an average over the types of a mixed file."""

    name: str
    bytes_each: float  # per weight
    is_float: bool  # multiplied with float activations; else with quantized ones

    @classmethod
    def of(cls, name: str) -> "WeightType":
        """A GGUF type; ModelFileError for one that is not supported."""
        quant = quant_type(name)
        return cls(name, quant.block_bytes / quant.block_size, name in FLOAT_TYPES)


@dataclass(frozen=True, slots=True)
class Matrix:
    """[rows, columns], or a stack of `num_experts` of them."""

    type: WeightType
    rows: int
    columns: int
    num_experts: int | None = None

    @property
    def nbytes(self) -> float:
        """Of one matrix of the stack."""
        return self.rows * self.columns * self.type.bytes_each


def expected_distinct(num_experts: int, num_used: int, num_tokens: int) -> float:
    """Different experts that tokens use together when each draws its own uniformly: the most there can be on average."""
    return num_experts * (1 - (1 - num_used / num_experts) ** num_tokens)


# ---- products


def is_few(matrix: Matrix, num_out: int) -> bool:
    """Whether gemv.cu does it rather than gemm.cu (matmul.py)."""
    return num_out <= (MOST_GEMV_ROWS if matrix.num_experts is None else max(MOST_GEMV_ROWS, matrix.num_experts // 2))


def matmul(matrix: Matrix, num_x: int, num_out: int | None = None, *, distinct: float = 1.0, adds: bool = False) -> Work:
    """gemv, gemm or gemm_float: `num_x` rows of activations to `num_out` rows (of experts: one for each pair of token and rank).
    `distinct` matrices of a stack are used. `adds`: the output is added to a residual, which is read."""
    num_out = num_x if num_out is None else num_out
    operations = 2.0 * matrix.rows * matrix.columns * num_out
    return Work(
        weight_bytes=distinct * matrix.nbytes,
        activation_bytes=_operand_bytes(matrix, num_x) + FLOAT * matrix.rows * num_out * (2 if adds else 1),
        repeated_bytes=_repeated(matrix, num_out, distinct),
        int8_ops=0.0 if matrix.type.is_float else operations,
        float_ops=operations if matrix.type.is_float else 0.0,
        launches=1,
    )


def gate_up(gate: Matrix, up: Matrix, num_x: int, num_out: int | None = None, *, distinct: float = 1.0) -> Work:
    """SiLU(gate x) * up x in one launch, or in two where the types differ: the first result is read again then."""
    num_out = num_x if num_out is None else num_out
    both = matmul(gate, num_x, num_out, distinct=distinct) + matmul(up, num_x, num_out, distinct=distinct)
    if gate.type != up.type or (gate.type.is_float and not is_few(gate, num_out)):
        return both + Work(activation_bytes=FLOAT * gate.rows * num_out)
    saved = _operand_bytes(gate, num_x) + FLOAT * gate.rows * num_out
    return both + Work(activation_bytes=-saved, launches=-1)


def quantize(num_rows: int, columns: int) -> Work:
    return Work(activation_bytes=num_rows * columns * (FLOAT + BLOCK_BYTES / GROUP), launches=1)


def _operand_bytes(matrix: Matrix, num_x: int) -> float:
    return num_x * matrix.columns * (FLOAT if matrix.type.is_float else BLOCK_BYTES / GROUP)


def _repeated(matrix: Matrix, num_out: int, distinct: float) -> float:
    """Weights asked for again by each further tile of tokens. An expert's pairs are taken to be alike in number."""
    if is_few(matrix, num_out):
        return 0.0 if matrix.num_experts is None else max(0.0, num_out - distinct) * matrix.nbytes
    tiles = math.ceil(num_out / max(1.0, distinct) / gemm_tokens(num_out, _cuda_weight(matrix)))
    return distinct * matrix.nbytes * (tiles - 1)


def _cuda_weight(matrix: Matrix) -> CudaWeight:
    """For the launcher's own tuning functions, which look at sizes only."""
    return CudaWeight("", matrix.type.name, matrix.rows, matrix.columns, matrix.num_experts, None, None)  # type: ignore[arg-type]


# ---- around the layers


def embed(table: Matrix, num_tokens: int) -> Work:
    row = table.columns * table.type.bytes_each
    return Work(weight_bytes=num_tokens * row, activation_bytes=num_tokens * table.columns * FLOAT, launches=1)


def rms_norm(num_rows: int, columns: int) -> Work:
    """A row is read twice, the second time from the cache."""
    return Work(weight_bytes=FLOAT * columns, activation_bytes=2 * FLOAT * num_rows * columns, launches=1)


def final_hidden(num_sequences: int, columns: int) -> Work:
    """output_head.cu: the last token of each sequence into its live row."""
    row = FLOAT * num_sequences * columns
    return Work(weight_bytes=FLOAT * columns, activation_bytes=row, state_bytes=row, launches=1)


def live_hidden(num_rows: int, columns: int) -> Work:
    row = FLOAT * num_rows * columns
    return Work(activation_bytes=row, state_bytes=row, launches=1)


def sample(num_rows: int, vocabulary: int) -> Work:
    """sample.cu: sample_best reads every logit once. What sample_choose reads again depends on the parameters; greedy: nothing."""
    return Work(activation_bytes=FLOAT * num_rows * vocabulary, launches=2)


def copy(num_bytes: int) -> Work:
    """copy_blocks.cu: a block read and written (a snapshot saved or restored, a page copied)."""
    return Work(state_bytes=2 * num_bytes, launches=1)


# ---- Gated DeltaNet


def _state(layer: DeltaWeights) -> int:
    """Elements of a sequence's recurrent state."""
    return layer.num_value_heads * layer.key_dim * layer.value_dim


def _values(layer: DeltaWeights) -> int:
    return layer.num_value_heads * layer.value_dim


def _conv_rows(layer: DeltaWeights) -> int:
    return (layer.conv_kernel - 1) * layer.channels


def _gates_in(layer: DeltaWeights, num_tokens: int) -> Work:
    """Taps, a and dt_bias of the layer; raw rows, beta and alpha of the tokens."""
    return Work(
        weight_bytes=FLOAT * (layer.conv_kernel * layer.channels + 2 * layer.num_value_heads),
        activation_bytes=FLOAT * num_tokens * (layer.channels + 2 * layer.num_value_heads),
        float_ops=2.0 * layer.conv_kernel * layer.channels * num_tokens,
    )


def delta_decode(layer: DeltaWeights, num_tokens: int, num_sequences: int) -> Work:
    """States are read and written once whatever the number of tokens. Per element and token: S k, S q (4) and the update (3)."""
    return _gates_in(layer, num_tokens) + Work(
        state_bytes=FLOAT * num_sequences * (2 * _state(layer) + _conv_rows(layer)),
        activation_bytes=FLOAT * num_tokens * _values(layer),
        float_ops=7.0 * _state(layer) * num_tokens,
        launches=1,
    )


def delta_conv(layer: DeltaWeights, num_tokens: int, num_sequences: int) -> Work:
    """Of chunked sequences: q, k, v after convolution and norms, and the gates, written for delta_chunk and delta_scan."""
    written = FLOAT * num_tokens * (layer.channels + 2 * layer.num_value_heads)
    rows = FLOAT * num_sequences * _conv_rows(layer)
    return _gates_in(layer, num_tokens) + Work(state_bytes=rows, activation_bytes=written, launches=1)


def delta_chunk(layer: DeltaWeights, num_tokens: int, num_chunks: int) -> Work:
    """T, P T and decays of every chunk and value head; short chunks cost what full ones do.

    Per chunk and head: k k^T and q k^T on and below the diagonal, the inverse (substitution in 16 x 16 blocks, then pairs of them),
    and P times it.
    """
    blocks = CHUNK // TRIANGLE
    below = blocks * (blocks + 1) // 2 * TRIANGLE * TRIANGLE  # entries in blocks on and below the diagonal
    products = 2 * 2 * below * layer.key_dim
    inverse = CHUNK * TRIANGLE * (TRIANGLE - 1)
    size = TRIANGLE
    while size < CHUNK:
        inverse += 2 * 2 * (CHUNK // 2 * size) * size
        size *= 2
    seen = 2 * sum((blocks - s) * (s + 1) for s in range(blocks)) * TRIANGLE**3
    keys = 2 * layer.num_key_heads * layer.key_dim
    work = num_chunks * layer.num_value_heads
    return Work(
        activation_bytes=FLOAT * (num_tokens * (keys + 2 * layer.num_value_heads) + work * CHUNK_FLOATS),
        float_ops=float(work * (products + inverse + seen)),
        launches=1,
    )


def delta_scan(layer: DeltaWeights, num_tokens: int, num_chunks: int, num_sequences: int) -> Work:
    """The state through the chunks.

    Per chunk and head: k^T S and q^T S for all 64 rows, T X and P T X on and below the diagonal; per token the update of the state.
    Blocks of 32 value columns read q, k and the chunks' matrices each: again, from the cache.
    """
    blocks = CHUNK // TRIANGLE
    below = blocks * (blocks + 1) // 2 * TRIANGLE * TRIANGLE
    head = layer.key_dim * layer.value_dim
    heads = layer.num_value_heads
    chunks = num_chunks * heads * (4 * CHUNK * head + 4 * below * layer.value_dim + head)
    matrices = num_chunks * heads * CHUNK_FLOATS
    column_blocks = -(-layer.value_dim // 32)
    keys = num_tokens * 2 * layer.num_key_heads * layer.key_dim
    readers = column_blocks * heads // layer.num_key_heads
    return Work(
        state_bytes=FLOAT * num_sequences * 2 * _state(layer),
        activation_bytes=FLOAT * (keys + matrices + 2 * num_tokens * _values(layer)),
        repeated_bytes=FLOAT * ((readers - 1) * keys + (column_blocks - 1) * matrices),
        float_ops=float(chunks + 2 * num_tokens * heads * head),
        launches=1,
    )


def delta_finish(layer: DeltaWeights, num_tokens: int, num_sequences: int) -> Work:
    """The gated norm, and the convolution rows that stay: those of a sequence's last tokens, old ones where it has too few."""
    return Work(
        weight_bytes=FLOAT * layer.value_dim,
        state_bytes=FLOAT * num_sequences * _conv_rows(layer),
        activation_bytes=FLOAT * (3 * num_tokens * _values(layer) + num_sequences * _conv_rows(layer)),
        launches=1,
    )


# ---- attention


def qk_norm_rope_kv(layer: AttentionWeights, num_tokens: int, kv_element_bytes: int) -> Work:
    heads = (layer.num_heads + layer.num_kv_heads) * layer.head_dim
    kv = 2 * layer.num_kv_heads * layer.head_dim * num_tokens
    return Work(
        weight_bytes=2 * FLOAT * layer.head_dim,
        kv_bytes=kv * kv_element_bytes,
        activation_bytes=FLOAT * (2 * num_tokens * layer.num_heads * layer.head_dim + kv + num_tokens * layer.rotary_dims),
        float_ops=3.0 * heads * num_tokens,
        launches=1,
    )


def _keys_bytes(layer: AttentionWeights, num_keys: int, kv_element_bytes: int) -> int:
    return 2 * num_keys * layer.num_kv_heads * layer.head_dim * kv_element_bytes


def attention_split(layer: AttentionWeights, num_tokens: int, context: int, kv_element_bytes: int) -> Work:
    """One sequence of `num_tokens` tokens whose last sees `context` keys. Tiles of 16 query rows read keys and values once each.
    One launch serves all sequences, so it is counted by the caller, here and in the two below."""
    rows = layer.num_heads * layer.head_dim
    keys = _keys_bytes(layer, context, kv_element_bytes)
    tiles = -(-num_tokens * (layer.num_heads // layer.num_kv_heads) // ROWS)
    return Work(
        kv_bytes=keys,
        activation_bytes=FLOAT * num_tokens * rows + split_bytes(layer, num_tokens, context),
        repeated_bytes=(tiles - 1) * keys,
        half_ops=4.0 * rows * seen_keys(num_tokens, context),
    )


def attention_merge(layer: AttentionWeights, num_tokens: int, context: int) -> Work:
    """Of one sequence: its splits, the gate, and the result."""
    rows = FLOAT * num_tokens * layer.num_heads * layer.head_dim
    return Work(activation_bytes=split_bytes(layer, num_tokens, context) + rows * (2 if layer.gated else 1))


def split_bytes(layer: AttentionWeights, num_tokens: int, context: int) -> int:
    """Partial results: for each split of a row D sums, a maximum and a sum of weights."""
    return FLOAT * num_tokens * layer.num_heads * -(-context // SPLIT_TOKENS) * (layer.head_dim + 2)


def attention_prefill(layer: AttentionWeights, num_tokens: int, context: int, kv_element_bytes: int) -> Work:
    """One sequence of many tokens; the pages are counted once, what further tiles of rows read of them again is the cache's."""
    rows = layer.num_heads * layer.head_dim
    return Work(
        kv_bytes=_keys_bytes(layer, context, kv_element_bytes),
        activation_bytes=FLOAT * num_tokens * rows * (3 if layer.gated else 2),
        half_ops=4.0 * rows * seen_keys(num_tokens, context),
    )


def seen_keys(num_tokens: int, context: int) -> int:
    """Keys that the tokens see together: the last `context`, each before it one less."""
    return num_tokens * context - num_tokens * (num_tokens - 1) // 2


# ---- experts


def route(num_tokens: int, num_experts: int, num_used: int) -> Work:
    return Work(activation_bytes=num_tokens * (FLOAT * num_experts + (INT + FLOAT) * num_used), launches=1)


def sort_by_expert(num_pairs: int, num_experts: int) -> Work:
    """Many pairs are counted first, so read twice, in three launches."""
    many = num_pairs > FEW_PAIRS
    read = num_pairs * (2 if many else 1)
    chunks = 2 * sort_workspace(num_pairs, num_experts)
    return Work(activation_bytes=INT * (read + num_pairs + num_experts + 1 + chunks), launches=3 if many else 1)


def combine(num_tokens: int, columns: int, num_used: int, *, shared: bool) -> Work:
    """The ranks' rows and the shared expert's, its gate's dot product with x, and the residual read and written."""
    rows = num_used + 2 + (2 if shared else 0)
    return Work(
        weight_bytes=FLOAT * columns if shared else 0,
        activation_bytes=num_tokens * (FLOAT * columns * rows + (INT + FLOAT) * num_used),
        float_ops=2.0 * num_tokens * columns * (num_used + (2 if shared else 0)),
        launches=1,
    )
