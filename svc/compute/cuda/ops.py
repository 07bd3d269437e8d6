"""CudaOps: the operations on one GPU, as launches on its main stream. Only `to_numpy` and the functions that `mark` and `sample`
return wait for the device."""

import gc
import itertools
import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import PENDING, Sample, Sampled, Slab, StepBatch
from svc.compute.blocks import Blocks, read_numpy
from svc.compute.cuda import layers, output_head
from svc.compute.cuda.arena import Arena
from svc.compute.cuda.caches import CudaCaches
from svc.compute.cuda.copy_blocks import copy_blocks, zero_blocks
from svc.compute.cuda.delta_core import STATE_ORDER
from svc.compute.cuda.delta_settle import settle_rows
from svc.compute.cuda.device import Device, DeviceArray
from svc.compute.cuda.device_inputs import DeviceInputs, InputsUploader, StepLimits
from svc.compute.cuda.embed import embed
from svc.compute.cuda.graphs import DecodeGraphs, DecodeShape
from svc.compute.cuda.moe_ffn import MoeSizes, moe_buffers, moe_ffn
from svc.compute.cuda.packed_upload import PackedUpload
from svc.compute.cuda.pending import resolve_pending
from svc.compute.cuda.sampler import DeviceSampler
from svc.compute.cuda.scorer import DeviceScorer
from svc.compute.cuda.snapshot_cells import restore_rows, save_rows
from svc.compute.cuda.tier_moves import TierMoves
from svc.compute.cuda.weight_upload import WeightUploader
from svc.compute.cuda.weights import Codebooks, CudaWeight, upload_weight
from svc.compute.cuda.workspace import check_sizes, scratch_bytes, step_bytes
from svc.compute.ops import StepSizes
from svc.compute.sampling.chain import sample_rows
from svc.compute.step_inputs import StepInputs
from svc.errors import MemoryBudgetError, ModelFileError
from svc.gguf.gguf_file import GgufTensor
from svc.memory.plan import MemoryPlan
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from svc.model.layers.dense_ffn import DenseFfnWeights
from svc.model.layers.moe_ffn import MoeFfnWeights
from svc.model.model_config import ModelConfig

# Share of the free memory that we use: the driver needs some for kernels, and other programs on the GPU may too.
FREE_SHARE = 0.95
LIST_ENTRIES = 1024  # of a list for one launch; longer ones are split
LISTS_AT_ONCE = 16  # more than a usual step has, so that the next step does not wait for a buffer


class CudaOps:
    """`Ops` over a Device. Owner of the scratch memory and of the buffers for metadata; called from one thread at a time."""

    name = "cuda"
    copies_weights = True
    asynchronous = True
    state_order = STATE_ORDER

    def __init__(self, device: Device, *, graphs: bool = True, exact: bool = False) -> None:
        """`graphs`: decode steps of the same shape are recorded once and replayed; otherwise every operation is launched.

        `exact`: a token has the same bits however its sequence was batched, chunked, cached or resumed. The price: weights are read
        once for every eight tokens, attention to a long context keeps few multiprocessors busy, and states advance token by token.
        """
        self._device = device
        self._use_graphs = graphs
        self._exact = exact
        self._graphs = DecodeGraphs()
        self._limits: StepLimits | None = None
        self._thread = threading.get_ident()
        self._codebooks = Codebooks(device)
        self._weight_uploads = WeightUploader(device)
        self._arena = Arena(device)
        self._inputs = InputsUploader(device, exact=exact)
        self._step: tuple[StepInputs | None, DeviceInputs | None] = (None, None)
        self._lists: PackedUpload | None = None
        self._sampler: DeviceSampler | None = None
        self._scorer: DeviceScorer | None = None
        self._marks = itertools.cycle([device.event(), device.event()])  # for two steps in flight
        self._tier_moves: TierMoves | None = None  # with a host tier only

    def __repr__(self) -> str:
        return f"CudaOps({self.device.name}, sm_{self.device.arch})"

    @property
    def device(self) -> Device:
        """The device, made current on the calling thread: a model is loaded on one thread and run on another."""
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self._device.use()
        return self._device

    def bytes_for_caches(self, sizes: StepSizes, weights_bytes: int) -> int:
        check_sizes(sizes.config)
        memory = self.device.memory()
        steps_bytes = self.bytes_for_steps(sizes)
        left_bytes = int(FREE_SHARE * memory.free_bytes) - weights_bytes - steps_bytes
        if left_bytes <= 0:
            raise MemoryBudgetError(
                f"{self.device.name} has {memory.free_bytes >> 20} MiB free of {memory.total_bytes >> 20}, too little for"
                f" {weights_bytes >> 20} MiB of weights and {steps_bytes >> 20} MiB"
                f" for steps of up to {sizes.max_step_tokens} tokens:"
                " take a smaller file, fewer slots or smaller steps, or the cpu device"
            )
        return left_bytes

    def bytes_for_steps(self, sizes: StepSizes) -> int:
        """Everything on the device but weights and caches."""
        caches_bytes = self.device.memory().free_bytes  # at most
        return step_bytes(sizes, caches_bytes, exact=self._exact)

    def reserve(self, config: ModelConfig, plan: MemoryPlan, max_step_tokens: int, logit_rows: int) -> None:
        self._weight_uploads.close()  # all weights are loaded
        limits = self._limits = StepLimits.of(config, plan, max_step_tokens, exact=self._exact)
        self._graphs = DecodeGraphs()
        self._arena.reserve(scratch_bytes(config, limits, logit_rows))
        self._inputs.reserve(limits)
        self._lists = PackedUpload(self.device, 3 * LIST_ENTRIES, depth=LISTS_AT_ONCE)
        self._sampler = DeviceSampler(self.device, config.vocab_size, plan.num_rows)
        self._scorer = DeviceScorer(self.device)

    def close(self) -> None:
        """Waits for the device and frees its memory. The ops must not be used afterwards."""
        self.device.synchronize()
        self._weight_uploads.close()
        self._arena, self._inputs, self._lists = Arena(self.device), InputsUploader(self.device), None
        self._step, self._graphs, self._sampler, self._scorer = (None, None), DecodeGraphs(), None, None
        gc.collect()

    # -- arrays and weights -----------------------------------------------------------------------------------------------------
    def weight(self, tensor: GgufTensor, progress: Callable[[int], None] | None = None) -> CudaWeight:
        """Copies the blocks unchanged. MemoryBudgetError if the device is full, ModelFileError for row sizes without a kernel."""
        if tensor.shape[-1] % 4:
            raise ModelFileError(f"the tensor {tensor.name} has rows of {tensor.shape[-1]} values, no multiple of 4")
        try:
            return upload_weight(self.device, self._codebooks, self._weight_uploads, tensor, progress)
        except MemoryError as error:
            memory = self.device.memory()
            raise MemoryBudgetError(
                f"the weights do not fit on {self.device.name} ({memory.total_bytes >> 20} MiB): at {tensor.name} {error}"
            ) from None

    def vector(self, values: NDArray[np.float32]) -> DeviceArray:
        return self.device.from_host(np.ascontiguousarray(values, np.float32))

    def empty(self, shape: tuple[int, ...]) -> DeviceArray:
        return self.device.empty(shape, np.float32)

    def to_numpy(self, array: DeviceArray) -> NDArray[np.float32]:
        """Waits for everything queued so far."""
        return self.device.to_host(array)

    def mark(self) -> Callable[[], None]:
        """Records an event after everything queued."""
        event = next(self._marks)
        event.record()
        return event.synchronize

    def caches(self, plan: MemoryPlan) -> CudaCaches:
        """MemoryBudgetError if the device is full, or the machine cannot pin the host tier."""
        try:
            return CudaCaches(self.device, plan)
        except MemoryError as error:
            host = f", with {plan.host_bytes} bytes of pinned memory beside it" if plan.host_tier else ""
            raise MemoryBudgetError(
                f"the caches ({plan.total_bytes} bytes) do not fit on {self.device.name}{host}: {error}: give smaller budgets"
            ) from None

    # -- cache traffic ----------------------------------------------------------------------------------------------------------
    def move(self, caches: CudaCaches, batch: StepBatch) -> None:
        device = self.device  # makes it current on this thread
        if self._tier_moves is None:
            self._tier_moves = TierMoves(device)
        self._tier_moves.begin(caches, batch)

    def moves_over(self, *, all_of_them: bool) -> int:
        return self._tier_moves.over(all_of_them=all_of_them) if self._tier_moves else 0

    def read_blocks(self, caches: CudaCaches, slab: Slab, places: Sequence[int]) -> Blocks:
        source = getattr(caches, slab.value)
        if slab in (Slab.HOST_PAGES, Slab.HOST_SNAPSHOTS):
            return read_numpy(source, places)
        rows = [self.device.to_host(source.rows(place, place + 1)) for place in places]
        return np.concatenate(rows).view(np.uint8)

    def write_blocks(self, caches: CudaCaches, slab: Slab, places: Sequence[int], blocks: Blocks) -> None:
        target = getattr(caches, slab.value)
        for place, block in zip(places, blocks, strict=True):
            self.device.copy_in(target.rows(place, place + 1), block.view(target.dtype)[None])

    def copy_pages(self, caches: CudaCaches, pairs: NDArray[np.int32]) -> None:
        for part in _parts(pairs):
            copy_blocks(self.device, caches.kv, caches.kv, self._uploaded(part))

    def settle_rows(self, caches: CudaCaches, settles: NDArray[np.int32], *, grouped_heads: bool) -> None:
        for part in _parts(settles):
            slabs = caches.rows, caches.journal
            settle_rows(self.device, caches.plan.layout, *slabs, self._uploaded(part), grouped_heads=grouped_heads)

    def save_rows(self, caches: CudaCaches, pairs: NDArray[np.int32]) -> None:
        for part in _parts(pairs):
            save_rows(self.device, caches.plan.layout, caches.snapshots, caches.rows, self._uploaded(part))

    def restore_rows(self, caches: CudaCaches, pairs: NDArray[np.int32]) -> None:
        layout = caches.plan.layout
        for part in _parts(pairs):
            if layout.snapshot_type == "f32":
                copy_blocks(self.device, caches.rows, caches.snapshots, self._uploaded(part[:, ::-1]))
            else:
                restore_rows(self.device, layout, caches.snapshots, caches.rows, self._uploaded(part))

    def zero_rows(self, caches: CudaCaches, rows: NDArray[np.int32]) -> None:
        for part in _parts(rows):
            zero_blocks(self.device, caches.rows, self._uploaded(part))

    # -- forward ----------------------------------------------------------------------------------------------------------------
    def submit(self, forward: Callable[[DeviceArray, StepInputs], None], hidden: DeviceArray, inputs: StepInputs) -> None:
        """Runs decode steps as graphs, once `reserve` has fixed the place of all memory."""
        any_pending = bool((inputs.tokens == PENDING).any())
        shape = DecodeShape.of(inputs, self._limits, exact=self._exact) if self._limits and self._use_graphs else None
        if shape is None or self._limits is None:
            if any_pending:
                self._resolve_pending(self._on_device(inputs))
            forward(hidden[: inputs.num_tokens], inputs)
            return
        padded = shape.padded(inputs, self._limits)
        self._step = padded, self._inputs.upload(padded, shape.attention_plan)
        if any_pending:
            self._resolve_pending(self._on_device(padded))
        self._graphs.run(self.device, shape, lambda: forward(hidden[: shape.sequences], padded))

    def _resolve_pending(self, step: DeviceInputs) -> None:
        """Inserts the tokens that the previous step samples: known when the device gets to this step."""
        assert self._sampler is not None, "a pending token before reserve()"
        resolve_pending(self.device, step.tokens, step.delta.rows, step.delta.cu_seqlens, self._sampler.latest)

    def embed(self, hidden: DeviceArray, table: CudaWeight, inputs: StepInputs) -> None:
        embed(self.device, hidden, table, self._on_device(inputs).tokens)

    def delta_mixer(self, hidden: DeviceArray, layer: DeltaWeights, inputs: StepInputs, caches: CudaCaches) -> None:
        step, scratch = self._on_device(inputs).delta, self._arena.start()
        layers.delta_mixer(self.device, hidden, layer, step, caches, scratch, exact=self._exact)

    def attention_mixer(self, hidden: DeviceArray, layer: AttentionWeights, inputs: StepInputs, caches: CudaCaches) -> None:
        step, scratch = self._on_device(inputs).attention, self._arena.start()
        layers.attention_mixer(self.device, hidden, layer, step, caches, scratch, exact=self._exact)

    def dense_ffn(self, hidden: DeviceArray, layer: DenseFfnWeights, inputs: StepInputs) -> None:
        layers.dense_ffn(self.device, hidden, layer, self._arena.start(), exact=self._exact)

    def moe_ffn(self, hidden: DeviceArray, layer: MoeFfnWeights, inputs: StepInputs) -> None:
        shared = 0 if layer.shared_gate is None else layer.shared_gate.rows
        sizes = MoeSizes(hidden.shape[1], layer.num_experts, layer.num_used, layer.gate.rows, shared)
        buffers = moe_buffers(self._arena.start(), sizes, hidden.shape[0])
        moe_ffn(self.device, hidden, layer, buffers, rows=self._on_device(inputs).token_rows, exact=self._exact)

    def final_hidden(self, hidden: DeviceArray, norm: DeviceArray, epsilon: float, inputs: StepInputs, caches: CudaCaches) -> None:
        delta, layout = self._on_device(inputs).delta, caches.plan.layout
        journal = caches.states.journal_part(layout.num_delta_layers * layout.journal_layer_elements)
        offsets = layout.hidden_offset, layout.snapshot_hidden_offset
        slabs = output_head.HiddenSlabs(caches.rows, caches.snapshots, *offsets, journal)
        captures = delta.capture_tokens, delta.capture_snapshots
        kept = output_head.KeptTokens(delta.cu_seqlens, delta.rows, *captures, delta.modes, delta.positions)
        output_head.final_hidden(self.device, slabs, hidden, norm, epsilon, kept)

    def hidden_rows(
        self, out: DeviceArray, hidden: DeviceArray, norm: DeviceArray, epsilon: float, tokens: NDArray[np.int32]
    ) -> None:
        assert len(tokens) <= LIST_ENTRIES
        output_head.hidden_rows(self.device, out, hidden, norm, epsilon, self._uploaded(tokens))

    def live_hidden(self, out: DeviceArray, rows: NDArray[np.int32], caches: CudaCaches) -> None:
        assert len(rows) <= LIST_ENTRIES
        output_head.live_hidden(self.device, out, caches.rows, self._uploaded(rows), caches.plan.layout.hidden_offset)

    def logits(self, out: DeviceArray, output: CudaWeight, vectors: DeviceArray) -> None:
        blocks = layers.blocks_for(self._arena.start(), *vectors.shape)
        output_head.logits(self.device, out, output, vectors, blocks, exact=self._exact)

    def logprobs(self, logits: DeviceArray, rows: Sequence[int], targets: Sequence[int]) -> list[float]:
        return (self._scorer or DeviceScorer(self.device)).score(logits, rows, targets)

    def sample(self, logits: DeviceArray, rows: Sequence[int], samples: Sequence[Sample]) -> Callable[[], list[Sampled]]:
        """On the device; on the host the samples with steps that no kernel has, and all if the device's buffers are too small."""
        here = [index for index, sample in enumerate(samples) if sample.params.steps is not None]
        there = [index for index, sample in enumerate(samples) if sample.params.steps is None]
        drawn = None
        if self._sampler is not None and there and not _share_a_row(samples, here, there):
            drawn = self._sampler.sample(logits, [rows[index] for index in there], [samples[index] for index in there])
        if drawn is None:
            here, there = list(range(len(samples))), []
        elif not here:
            return drawn
        found = self._sample_here(logits, [rows[index] for index in here], [samples[index] for index in here])
        places = np.argsort([*there, *here]).tolist()

        def read() -> list[Sampled]:
            both = [*(drawn() if drawn is not None else ()), *found]
            return [both[place] for place in places]

        return read

    def _sample_here(self, logits: DeviceArray, rows: Sequence[int], samples: Sequence[Sample]) -> list[Sampled]:
        """On the host, from rows of logits that are read back."""
        values = {row: self.to_numpy(logits.rows(row, row + 1)) for row in dict.fromkeys(rows)}
        found = [sample_rows(values[row], [0], [sample])[0] for row, sample in zip(rows, samples, strict=True)]
        if self._sampler is not None:
            self._sampler.note(samples, found)
        return found

    # -- metadata ---------------------------------------------------------------------------------------------------------------
    def _on_device(self, inputs: StepInputs) -> DeviceInputs:
        """The arrays of a step, copied at its first operation."""
        known, step = self._step
        if known is not inputs or step is None:
            step = self._inputs.upload(inputs)
            self._step = inputs, step
        return step

    def _uploaded(self, values: NDArray[np.int32]) -> DeviceArray:
        """A short list, in a buffer that the next list may overwrite: the launch that reads it is queued by then."""
        values = np.ascontiguousarray(values, np.int32)
        return self.device.from_host(values) if self._lists is None else self._lists.upload({"list": values})["list"]


def _parts(entries: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    return [entries[start : start + LIST_ENTRIES] for start in range(0, len(entries), LIST_ENTRIES)]


def _share_a_row(samples: Sequence[Sample], some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether a live row is sampled by both; then only their order says which token goes on."""
    return not {samples[index].row for index in some}.isdisjoint(samples[index].row for index in others)
