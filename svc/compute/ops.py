"""The index of operations: one coarse contract that the backends (numpy, C, CUDA) implement under the same names.

Letters: B sequences in the step, T tokens of all of them, C hidden size, V vocabulary, H query heads, H_kv KV heads, D head size,
H_v / H_k value / key heads of a DeltaNet layer, R live rows, N snapshots, P tokens per page.

Arrays are opaque to callers (`Array`): only the backend that made them looks inside. The caller allocates outputs, every operation
works in place, and nothing is read back in the middle of a step. Metadata is `StepInputs` (compute/step_inputs.py): int32 arrays
made once per step. `hidden` is the residual stream, float32 `[T, C]`; mixers and FFNs add to it: `hidden += f(norm(hidden))`.

docs/model_math.md has the mathematics. The docstrings of `reference/`, the oracle of the other backends, repeat it per operation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Sample, Sampled, Slab, StepBatch
from svc.compute.blocks import Blocks
from svc.compute.step_inputs import StepInputs
from svc.gguf.gguf_file import GgufTensor
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from svc.model.layers.dense_ffn import DenseFfnWeights
from svc.model.layers.moe_ffn import MoeFfnWeights
from svc.model.model_config import ModelConfig

Array = Any  # an array of the backend
Weight = Any  # a matrix [rows, columns] or a stack of them [experts, rows, columns], in its file type, prepared for the backend


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Everything that the memory of a step depends on: the model, the layout of its caches, and upper bounds."""

    config: ModelConfig
    layout: MemoryLayout
    num_rows: int  # live rows
    max_step_tokens: int
    logit_rows: int  # most rows of one `logits`


class Caches(Protocol):
    """The memory of one MemoryPlan. memory/layout.py has the inner order of each slab."""

    plan: MemoryPlan
    kv: Array  # [num_pages, page_elements], kv_type
    rows: Array  # [num_rows, state_elements] float32
    snapshots: Array  # [num_snapshots, snapshot_elements] float32, or other types in words of that size
    journal: Array  # [num_rows, journal_tokens, journal_elements] float32
    host_kv: Array  # [num_host_pages, page_elements], kv_type; in the machine's memory, like the next
    host_snapshots: Array  # [num_host_snapshots, snapshot_elements]


class Ops(Protocol):
    """The operations of one backend (reference, cpu, cuda)."""

    name: str
    copies_weights: bool  # `weight` reads the whole tensor; otherwise it may keep the mapped file
    # Whether operations may still run after they return. `submit` then resolves pending tokens (backend.py) on the device.
    asynchronous: bool

    def bytes_for_caches(self, sizes: StepSizes, weights_bytes: int) -> int | None:
        """Bytes of the device's own memory that weights and steps leave for caches; None if the device has no memory of its own.

        MemoryBudgetError if nothing is left."""

    def reserve(self, config: ModelConfig, plan: MemoryPlan, max_step_tokens: int, logit_rows: int) -> None:
        """Called once, before the first step: allocates the scratch memory of the largest step. `logit_rows`: most rows of one
        `logits`. A backend may also allocate as it goes, and must do so if this was not called (single operations)."""

    def close(self) -> None:
        """Ends the threads and frees the backend's own memory. Nothing of the backend may be used afterwards."""

    # -- arrays and weights -----------------------------------------------------------------------------------------------------
    def weight(self, tensor: GgufTensor, progress: Callable[[int], None] | None = None) -> Weight:
        """Prepares a quantized or float matrix (2-D) or stack of experts (3-D), in the file's type; may keep the mapped file.

        `progress(bytes of the tensor read so far)` is for backends that copy weights. An exception from it ends the load.
        """

    def vector(self, values: NDArray[np.float32]) -> Array:
        """A small float32 array of parameters (norm weights, biases, convolution taps) on the device."""

    def empty(self, shape: tuple[int, ...]) -> Array:
        """Uninitialised float32 memory."""

    def to_numpy(self, array: Array) -> NDArray[np.float32]: ...

    def caches(self, plan: MemoryPlan) -> Caches: ...

    def mark(self) -> Callable[[], None]:
        """Returns a function that waits for everything queued up to this call. Only the two latest marks may be waited for."""

    # -- cache traffic ----------------------------------------------------------------------------------------------------------
    def move(self, caches: Caches, batch: StepBatch) -> None:
        """Begins `batch.moves`, and orders the step's later writes after pending moves of the same places (compute/backend.py).

        Called before everything else of a step, if the plan has a host tier."""

    def moves_over(self, *, all_of_them: bool) -> int:
        """Number of finished moves, counted over all batches. `all_of_them`: waits for all that have begun."""

    def copy_pages(self, caches: Caches, pairs: NDArray[np.int32]) -> None:
        """pairs [n, 2]: (source, target) pages."""

    def settle_rows(self, caches: Caches, settles: NDArray[np.int32], *, grouped_heads: bool) -> None:
        """settles [n, 3]: (row, start, end), no row twice. Replays the journal's entries of positions [start, end) on the row: the
        same bits as the forward that wrote them. `grouped_heads`: as in DeltaWeights."""

    def save_rows(self, caches: Caches, pairs: NDArray[np.int32]) -> None:
        """pairs [n, 2]: (row, snapshot); row -> snapshot, rounded to the type of snapshots."""

    def restore_rows(self, caches: Caches, pairs: NDArray[np.int32]) -> None:
        """pairs [n, 2]: (row, snapshot); snapshot -> row."""

    def zero_rows(self, caches: Caches, rows: NDArray[np.int32]) -> None:
        """Sets rows to zero by assignment (a NaN in them must not survive)."""

    def read_blocks(self, caches: Caches, slab: Slab, places: Sequence[int]) -> Blocks:
        """Copies of whole pages or states as bytes, after everything queued so far. Waits for them."""

    def write_blocks(self, caches: Caches, slab: Slab, places: Sequence[int], blocks: Blocks) -> None:
        """Writes whole pages or states, before everything queued from now on. `blocks` may be changed on return."""

    # -- forward ----------------------------------------------------------------------------------------------------------------
    def submit(self, forward: Callable[[Array, StepInputs], None], hidden: Array, inputs: StepInputs) -> None:
        """Calls `forward(hidden[:T], inputs)`, or does the same by other means: a graph of an earlier call, padded inputs."""

    def embed(self, hidden: Array, table: Weight, inputs: StepInputs) -> None:
        """hidden[t] = table[tokens[t]], dequantized exactly."""

    def delta_mixer(self, hidden: Array, layer: DeltaWeights, inputs: StepInputs, caches: Caches) -> None:
        """Gated DeltaNet mixer: advances the recurrent and conv state of each sequence's live row through its tokens, writes the
        state after a captured token into its snapshot (as save_rows does), and adds the output to hidden. A sequence's mode may
        hold its row back and write its tokens into the journal (step_inputs.py)."""

    def attention_mixer(self, hidden: Array, layer: AttentionWeights, inputs: StepInputs, caches: Caches) -> None:
        """Full attention, gated or not: writes K and V of all tokens to pages, then attends reading only pages."""

    def dense_ffn(self, hidden: Array, layer: DenseFfnWeights, inputs: StepInputs) -> None:
        """SwiGLU."""

    def moe_ffn(self, hidden: Array, layer: MoeFfnWeights, inputs: StepInputs) -> None:
        """Routed experts, summed in router-rank order, plus the optional gated shared expert."""

    def final_hidden(self, hidden: Array, norm: Array, epsilon: float, inputs: StepInputs, caches: Caches) -> None:
        """norm(hidden) of the last token of each sequence into its live row, and of each captured token into its snapshot; or, by
        its mode, of each of its tokens into the journal."""

    def hidden_rows(self, out: Array, hidden: Array, norm: Array, epsilon: float, tokens: NDArray[np.int32]) -> None:
        """out[i] = norm(hidden[tokens[i]]), out [n, C], for any tokens of the step. After the forward."""

    def live_hidden(self, out: Array, rows: NDArray[np.int32], caches: Caches) -> None:
        """out[i] = the final hidden row in live row rows[i]; out [n, C]."""

    def logits(self, out: Array, output: Weight, vectors: Array) -> None:
        """out[i] = output . vectors[i]; vectors [n, C] are final hidden rows, out is [n, V] float32."""

    def logprobs(self, logits: Array, rows: Sequence[int], targets: Sequence[int]) -> list[float]:
        """log softmax(logits[rows[i]])[targets[i]], logits [n, V]; NaN if a logit of the row is not finite. Waits for the
        result."""

    def sample(self, logits: Array, rows: Sequence[int], samples: Sequence[Sample]) -> Callable[[], list[Sampled]]:
        """Draws samples[i] from logits[rows[i]] [n, V] as sampling/chain.py defines. Returns a function that waits for the tokens;
        call it once."""
