"""CpuOps: calls into the C library (csrc/), one for a whole forward. The library has its own threads and does not hold the GIL."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import addressof, byref
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Sample, Sampled, Slab, StepBatch
from svc.compute.blocks import Blocks, read_numpy, write_numpy
from svc.compute.cpu import structs
from svc.compute.cpu.caches import CpuCaches
from svc.compute.cpu.library import KernelLibrary
from svc.compute.ops import StepSizes
from svc.compute.sampling.chain import logprob, sample_rows
from svc.compute.step_inputs import StepInputs
from svc.compute.tier_moves import move_at_once
from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufTensor
from svc.memory.plan import MemoryPlan
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from svc.model.layers.dense_ffn import DenseFfnWeights
from svc.model.layers.moe_ffn import MoeFfnWeights
from svc.model.model_config import ModelConfig
from svc.processors import choose_threads

Activations = Literal["float", "int8"]
Float32 = NDArray[np.float32]
NO_MATRIX = structs.Matrix()
LEAST_SHARED_WORK = 1 << 17  # multiply-adds, about 10 microseconds: waking a thread for less does not pay
MOST_PARTIAL_BYTES = 64 << 20  # hundreds of segments of a decode step, still several of a long prefill chunk


class CpuWeight:
    """A matrix or a stack of them, in place in the mapped file."""

    def __init__(self, tensor: GgufTensor) -> None:
        data = tensor.data
        assert data.strides[-1] == 1, f"{tensor.name} has strides {data.strides}"
        self.name = tensor.name
        self._data = data  # keeps the mapped file alive
        self.matrix = structs.Matrix(
            data=data.ctypes.data,
            row_bytes=data.strides[-2],
            expert_bytes=data.strides[0] if data.ndim == 3 else 0,
            type=tensor.quant.ggml_id,
            rows=data.shape[-2],
            cols=tensor.shape[-1],
            experts=data.shape[0] if data.ndim == 3 else 1,
        )

    def __repr__(self) -> str:
        return f"CpuWeight({self.name}, {self.matrix.rows} x {self.matrix.cols})"


class CpuOps:
    """`Ops` in C. Owner of the thread pool; called from one thread at a time."""

    name = "cpu"
    copies_weights = False
    asynchronous = False

    def __init__(
        self,
        num_threads: int = 0,
        *,
        activations: Activations = "float",
        level: str | None = None,
        poison: bool = False,
        least_shared_work: int = LEAST_SHARED_WORK,
        most_partial_bytes: int = MOST_PARTIAL_BYTES,
    ) -> None:
        """`num_threads`: 0: as svc/processors.py chooses. `level`: one of library.LEVELS instead of the best.

        `activations`: "int8" rounds the activations that meet weights of the common block types (csrc/int_matmul.c) to 8 bits per
        token and block, and multiplies in integers. That is faster, gives the same bits always too, and is a little less precise.

        For tests: `poison` fills fresh memory with NaN, `least_shared_work=0` divides even the smallest jobs among the threads.
        `most_partial_bytes` bounds the scratch of attention over long contexts; no result depends on it.
        BackendUnavailableError, in one sentence, if the kernels were not built.
        """
        self._kernels = KernelLibrary(
            level, num_threads or num_cores(), least_shared_work, most_partial_bytes, activations == "int8"
        )
        self._poison = poison
        self._moves_over = 0
        self._layers: dict[int, tuple[Any, ...]] = {}  # id -> (layer, structure, other objects to keep alive)
        self._recording: list[structs.Instruction] | None = None
        self._program: tuple[object, Any] = (None, None)  # a forward and its operations

    def __repr__(self) -> str:
        return f"CpuOps({self.level}, {self.num_threads} threads)"

    @property
    def level(self) -> str:
        return self._kernels.level

    @property
    def num_threads(self) -> int:
        return self._kernels.num_threads

    def bytes_for_caches(self, sizes: StepSizes, weights_bytes: int) -> None:
        """The caches are in the machine's memory."""

    def reserve(self, config: ModelConfig, plan: MemoryPlan, max_step_tokens: int, logit_rows: int) -> None:
        """The C side allocates as it goes."""

    def logprobs(self, logits: Float32, rows: Sequence[int], targets: Sequence[int]) -> list[float]:
        return [logprob(logits[row], target) for row, target in zip(rows, targets, strict=True)]

    def sample(self, logits: Float32, rows: Sequence[int], samples: Sequence[Sample]) -> Callable[[], list[Sampled]]:
        drawn = sample_rows(logits, rows, samples)
        return lambda: drawn

    def submit(self, forward: Callable[[Float32, StepInputs], None], hidden: Float32, inputs: StepInputs) -> None:
        """Runs all operations in one call. A forward has the same operations at every step, so they are recorded once."""
        if self._program[0] != forward:
            self._recording = []
            try:
                forward(hidden[: inputs.num_tokens], inputs)
                self._program = forward, (structs.Instruction * len(self._recording))(*self._recording)
            finally:
                self._recording = None
        self._run(self._program[1], hidden, inputs)

    def _run(self, program: Any, hidden: Float32, inputs: StepInputs) -> None:
        step = structs.step_inputs(inputs)
        self._kernels.call("hr_forward", program, len(program), structs.address(hidden), byref(step))

    def mark(self) -> Callable[[], None]:
        """Operations are synchronous: there is nothing to wait for."""
        return lambda: None

    def close(self) -> None:
        """Ends the threads. The ops must not be used afterwards."""
        self._program = None, None
        self._kernels.close()

    @contextmanager
    def timed(self) -> Iterator[Callable[[], float]]:
        """Yields a clock of the seconds spent in the C library inside the block; the rest of a step is Python's share."""
        with self._kernels.timed() as library:
            yield lambda: library.seconds

    # -- arrays and weights -----------------------------------------------------------------------------------------------------
    def weight(self, tensor: GgufTensor, progress: Callable[[int], None] | None = None) -> CpuWeight:
        """ModelFileError for a type without a kernel."""
        if not self._kernels.library.hr_supports(tensor.quant.ggml_id):
            raise ModelFileError(f"the tensor {tensor.name} has the type {tensor.type}, which the cpu device cannot compute with")
        self._kernels.need_codebook(tensor.type)
        return CpuWeight(tensor)

    def vector(self, values: Float32) -> Float32:
        return np.ascontiguousarray(values, np.float32)

    def empty(self, shape: tuple[int, ...]) -> Float32:
        return np.full(shape, np.nan, np.float32) if self._poison else np.empty(shape, np.float32)

    def to_numpy(self, array: Float32) -> Float32:
        return array

    def caches(self, plan: MemoryPlan) -> CpuCaches:
        return CpuCaches(plan, self._poison)

    # -- cache traffic ----------------------------------------------------------------------------------------------------------
    def move(self, caches: CpuCaches, batch: StepBatch) -> None:
        move_at_once(caches, batch.moves, self._restore_from_host)
        self._moves_over = batch.moves_before + len(batch.moves)

    def moves_over(self, *, all_of_them: bool) -> int:
        return self._moves_over

    def read_blocks(self, caches: CpuCaches, slab: Slab, places: Sequence[int]) -> Blocks:
        return read_numpy(getattr(caches, slab.value), places)

    def write_blocks(self, caches: CpuCaches, slab: Slab, places: Sequence[int], blocks: Blocks) -> None:
        write_numpy(getattr(caches, slab.value), places, blocks)

    def copy_pages(self, caches: CpuCaches, pairs: NDArray[np.int32]) -> None:
        self._copy(caches.kv, caches.kv, pairs, from_side=0)

    def settle_rows(self, caches: CpuCaches, settles: NDArray[np.int32], *, grouped_heads: bool) -> None:
        settles = np.ascontiguousarray(settles, np.int32)
        self._kernels.call("hr_settle_rows", byref(caches.slabs), structs.address(settles), len(settles), int(grouped_heads))

    def save_rows(self, caches: CpuCaches, pairs: NDArray[np.int32]) -> None:
        if caches.plan.layout.snapshot_type == "f32":
            self._copy(caches.snapshots, caches.rows, pairs, from_side=0)
        else:
            self._pack("hr_save_rows", caches, pairs)

    def restore_rows(self, caches: CpuCaches, pairs: NDArray[np.int32]) -> None:
        self._restore(caches, caches.snapshots, pairs)

    def _restore_from_host(self, caches: CpuCaches, pairs: NDArray[np.int32]) -> None:
        self._restore(caches, caches.host_snapshots, pairs)

    def _restore(self, caches: CpuCaches, snapshots: Float32, pairs: NDArray[np.int32]) -> None:
        if caches.plan.layout.snapshot_type == "f32":
            self._copy(caches.rows, snapshots, pairs, from_side=1)
        else:
            self._pack("hr_restore_rows", caches, pairs, structs.address(snapshots))

    def _pack(self, function: str, caches: CpuCaches, pairs: NDArray[np.int32], *slabs: int) -> None:
        pairs = np.ascontiguousarray(pairs, np.int32)
        self._kernels.call(function, byref(caches.slabs), *slabs, structs.address(pairs), len(pairs))

    def zero_rows(self, caches: CpuCaches, rows: NDArray[np.int32]) -> None:
        caches.rows[rows] = 0.0

    def _copy(self, to: NDArray[Any], source: NDArray[Any], pairs: NDArray[np.int32], from_side: int) -> None:
        pairs = np.ascontiguousarray(pairs, np.int32)
        addresses = structs.address(to), structs.address(source), structs.address(pairs)
        self._kernels.call("hr_copy_blocks", *addresses, len(pairs), from_side, to.strides[0])

    # -- forward ----------------------------------------------------------------------------------------------------------------
    def embed(self, hidden: Float32, table: CpuWeight, inputs: StepInputs) -> None:
        self._ask("embed", addressof(table.matrix), hidden, inputs)

    def delta_mixer(self, hidden: Float32, layer: DeltaWeights, inputs: StepInputs, caches: CpuCaches) -> None:
        self._ask("delta_mixer", self._prepared(layer, _delta_layer), hidden, inputs, caches=addressof(caches.slabs))

    def attention_mixer(self, hidden: Float32, layer: AttentionWeights, inputs: StepInputs, caches: CpuCaches) -> None:
        assert inputs.rope_cos.shape[1] * 2 == layer.rotary_dims, f"{inputs.rope_cos.shape} for {layer.rotary_dims} dimensions"
        self._ask("attention_mixer", self._prepared(layer, _attention_layer), hidden, inputs, caches=addressof(caches.slabs))

    def dense_ffn(self, hidden: Float32, layer: DenseFfnWeights, inputs: StepInputs) -> None:
        self._ask("dense_ffn", self._prepared(layer, _dense_layer), hidden, inputs)

    def moe_ffn(self, hidden: Float32, layer: MoeFfnWeights, inputs: StepInputs) -> None:
        self._ask("moe_ffn", self._prepared(layer, _moe_layer), hidden, inputs)

    def final_hidden(self, hidden: Float32, norm: Float32, epsilon: float, inputs: StepInputs, caches: CpuCaches) -> None:
        fields = {"caches": addressof(caches.slabs), "epsilon": epsilon, "size": hidden.shape[1]}
        self._ask("final_hidden", structs.address(norm), hidden, inputs, **fields)

    def _ask(self, operation: str, layer: int, hidden: Float32, inputs: StepInputs, **fields: Any) -> None:
        """One operation of a forward: recorded while `submit` records, otherwise run at once."""
        instruction = structs.Instruction(layer=layer, operation=structs.OPERATIONS.index(operation), **fields)
        if self._recording is not None:
            self._recording.append(instruction)
        else:
            self._run((structs.Instruction * 1)(instruction), hidden, inputs)

    def hidden_rows(self, out: Float32, hidden: Float32, norm: Float32, epsilon: float, tokens: NDArray[np.int32]) -> None:
        tokens = np.ascontiguousarray(tokens, np.int32)
        arrays = structs.address(out), structs.address(hidden), structs.address(norm)
        self._kernels.call("hr_hidden_rows", *arrays, epsilon, hidden.shape[1], structs.address(tokens), len(tokens))

    def live_hidden(self, out: Float32, rows: NDArray[np.int32], caches: CpuCaches) -> None:
        out[:] = caches.rows[rows, caches.plan.layout.hidden_offset :]

    def logits(self, out: Float32, output: CpuWeight, vectors: Float32) -> None:
        self._kernels.call("hr_matmul", structs.address(out), byref(output.matrix), None, structs.address(vectors), len(vectors))

    # -- structures for the C side -------------------------------------------------------------------------------------------------
    def _prepared(self, layer: Any, prepare: Callable[[Any], tuple[Any, ...]]) -> int:
        """Address of a layer's structure, made on first use. The entry keeps the layer alive, so that no other object gets its
        id."""
        entry = self._layers.get(id(layer))
        if entry is None:
            entry = self._layers[id(layer)] = (layer, *prepare(layer))
        return addressof(entry[1])


def num_cores() -> int:
    """Threads that this process has cores for."""
    return choose_threads().num_threads


def _delta_layer(layer: DeltaWeights) -> tuple[Any, ...]:
    conv = np.ascontiguousarray(layer.conv.T)  # channels in lanes
    return structs.fill(structs.DeltaLayer, layer, conv=conv), conv


def _attention_layer(layer: AttentionWeights) -> tuple[Any, ...]:
    return (structs.fill(structs.AttentionLayer, layer),)


def _dense_layer(layer: DenseFfnWeights) -> tuple[Any, ...]:
    return (structs.fill(structs.DenseLayer, layer),)


def _moe_layer(layer: MoeFfnWeights) -> tuple[Any, ...]:
    if layer.shared_router is None:
        absent = dict.fromkeys(("shared_router", "shared_gate", "shared_up", "shared_down"), NO_MATRIX)
        return (structs.fill(structs.MoeLayer, layer, has_shared=0, **absent),)
    router = np.ascontiguousarray(layer.shared_router).reshape(1, -1)
    return structs.fill(structs.MoeLayer, layer, has_shared=1, shared_router=structs.float_matrix(router)), router
