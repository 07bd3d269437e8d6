"""The index of operations: one coarse contract that numpy, C and CUDA rooms implement under the same names.

Letters: B sequences in the step, T tokens of all of them, C hidden size, V vocabulary, H query heads, H_kv KV heads, D head size,
H_v / H_k value / key heads of a DeltaNet layer, R live rows, N snapshots, P tokens per page.

Arrays are opaque to callers (`Array`): only the room that made them looks inside. Outputs are preallocated by the caller, every op
works in place and nothing is read back in the middle of a step. Metadata is `StepInputs` (compute/step_inputs.py): int32 arrays
made once per step. `hidden` is the residual stream, float32 `[T, C]`; mixers and FFNs add to it: `hidden += f(norm(hidden))`.

ARCH_SPEC (the mathematics) in short, per op, is in the docstrings of `reference/`, which is the oracle of the other rooms.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Sample, Sampled, StepBatch
from svc.compute.step_inputs import StepInputs
from svc.gguf.gguf_file import GgufTensor
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from svc.model.layers.dense_ffn import DenseFfnWeights
from svc.model.layers.moe_ffn import MoeFfnWeights
from svc.model.model_config import ModelConfig

Array = Any  # an array of the room
Weight = Any  # a matrix [rows, columns] or a stack of them [experts, rows, columns], in its file type, prepared for the room


class Caches(Protocol):
    """The device memory of one MemoryPlan: see memory/layout.py for the inner order of each."""

    plan: MemoryPlan
    kv: Array  # [num_pages, page_elements], kv_type
    rows: Array  # [num_rows, state_elements] float32
    snapshots: Array  # [num_snapshots, state_elements] float32
    host_kv: Array  # [num_host_pages, page_elements], kv_type: in the machine's memory, like the next
    host_snapshots: Array  # [num_host_snapshots, state_elements] float32


class Ops(Protocol):
    """The operations of one room (reference, cpu, cuda)."""

    name: str
    copies_weights: bool  # `weight` reads all of a tensor; otherwise it may keep the map
    # Whether operations may go on after they return. Then pending tokens (backend.py) are resolved by `submit`, on the device.
    asynchronous: bool

    def bytes_for_caches(
        self, config: ModelConfig, layout: MemoryLayout, num_rows: int, max_step_tokens: int, logit_rows: int, weights_bytes: int
    ) -> int | None:
        """What a device with memory of its own has left for caches beside weights and steps; None for a room in the machine's.

        MemoryBudgetError when nothing is left."""

    def reserve(self, config: ModelConfig, plan: MemoryPlan, max_step_tokens: int, logit_rows: int) -> None:
        """Called once, before the first step: makes the scratch memory of the largest step there will be. `logit_rows`: most rows
        of one `logits`. A room may also allocate as it goes, and must do so when this was not called (single operations)."""

    def close(self) -> None:
        """Ends threads and gives back what the room holds itself; nothing of it may be used afterwards."""

    # -- arrays and weights -----------------------------------------------------------------------------------------------------
    def weight(self, tensor: GgufTensor, progress: Callable[[int], None] | None = None) -> Weight:
        """Prepares a quantized or float matrix (2-D) or stack of experts (3-D). Keeps the file's type; may keep the map itself.

        `progress(bytes of the tensor read so far)` is for rooms that copy weights; what it raises ends the load.
        """

    def vector(self, values: NDArray[np.float32]) -> Array:
        """A small float32 array of parameters (norm weights, biases, convolution taps) on the device."""

    def empty(self, shape: tuple[int, ...]) -> Array:
        """Uninitialised float32 memory."""

    def to_numpy(self, array: Array) -> NDArray[np.float32]: ...

    def caches(self, plan: MemoryPlan) -> Caches: ...

    def mark(self) -> Callable[[], None]:
        """-> what waits until everything asked for up to this call is done. At most the two latest marks are waited for."""

    # -- cache traffic ----------------------------------------------------------------------------------------------------------
    def move(self, caches: Caches, batch: StepBatch) -> None:
        """Before all else of a step, where the plan has a host tier: begins `batch.moves`, and sees to it that what the step
        writes from now on is not written under a move that is not over (compute/backend.py)."""

    def moves_over(self, *, all_of_them: bool) -> int:
        """How many moves of all batches are over by now; `all_of_them`: waits for all that have begun."""

    def copy_pages(self, caches: Caches, pairs: NDArray[np.int32]) -> None:
        """pairs [n, 2]: (source, target) pages."""

    def save_rows(self, caches: Caches, pairs: NDArray[np.int32]) -> None:
        """pairs [n, 2]: (row, snapshot); row -> snapshot."""

    def restore_rows(self, caches: Caches, pairs: NDArray[np.int32]) -> None:
        """pairs [n, 2]: (row, snapshot); snapshot -> row."""

    def zero_rows(self, caches: Caches, rows: NDArray[np.int32]) -> None:
        """Sets rows to zero by assignment (a NaN in them must not survive)."""

    # -- forward ----------------------------------------------------------------------------------------------------------------
    def submit(self, forward: Callable[[Array, StepInputs], None], hidden: Array, inputs: StepInputs) -> None:
        """Calls `forward(hidden[:T], inputs)`, or does the same in another way: a graph of an earlier call, padded inputs."""

    def embed(self, hidden: Array, table: Weight, inputs: StepInputs) -> None:
        """hidden[t] = table[tokens[t]], dequantized exactly."""

    def delta_mixer(self, hidden: Array, layer: DeltaWeights, inputs: StepInputs, caches: Caches) -> None:
        """Gated DeltaNet mixer (ARCH_SPEC 6): advances the recurrent and conv state of each sequence's live row through its tokens
        one by one, writing the state after a captured token into its snapshot, and adds the output to hidden."""

    def attention_mixer(self, hidden: Array, layer: AttentionWeights, inputs: StepInputs, caches: Caches) -> None:
        """Gated full attention (ARCH_SPEC 5): writes K and V of all tokens to pages first, then attends reading only pages."""

    def dense_ffn(self, hidden: Array, layer: DenseFfnWeights, inputs: StepInputs) -> None:
        """SwiGLU."""

    def moe_ffn(self, hidden: Array, layer: MoeFfnWeights, inputs: StepInputs) -> None:
        """Routed experts, summed in router-rank order, plus the optional gated shared expert (ARCH_SPEC 7)."""

    def final_hidden(self, hidden: Array, norm: Array, epsilon: float, inputs: StepInputs, caches: Caches) -> None:
        """norm(hidden) of the last token of each sequence into its live row, and of each captured token into its snapshot."""

    def hidden_rows(self, out: Array, hidden: Array, norm: Array, epsilon: float, tokens: NDArray[np.int32]) -> None:
        """out[i] = norm(hidden[tokens[i]]), out [n, C]: after the forward, for any tokens of the step."""

    def live_hidden(self, out: Array, rows: NDArray[np.int32], caches: Caches) -> None:
        """out[i] = the final hidden row that stands in live row rows[i]; out [n, C]."""

    def logits(self, out: Array, output: Weight, vectors: Array) -> None:
        """out[i] = output . vectors[i]; vectors [n, C] are final hidden rows, out is [n, V] float32."""

    def logprobs(self, logits: Array, rows: Sequence[int], targets: Sequence[int]) -> list[float]:
        """log softmax(logits[rows[i]])[targets[i]], logits [n, V]; NaN where a logit of the row is not finite. Waits for them."""

    def sample(self, logits: Array, rows: Sequence[int], samples: Sequence[Sample]) -> Callable[[], list[Sampled]]:
        """samples[i] drawn from logits[rows[i]] [n, V] as sampling/chain.py defines -> what waits for the tokens, to be called
        once."""
