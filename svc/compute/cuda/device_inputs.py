"""StepInputs on the device, uploaded in one copy per step, and the host numbers that shape the launches."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.attention import MOST_DECODE_TOKENS, SPLIT_TOKENS, AttentionInputs, AttentionPlan, plan_attention
from svc.compute.cuda.delta_chunks import ALL_STEPS, STEP_TOKENS, most_chunks, plan_chunks
from svc.compute.cuda.delta_core import DeltaInputs
from svc.compute.cuda.device import Device, DeviceArray
from svc.compute.cuda.packed_upload import PackedUpload, aligned_words
from svc.compute.step_inputs import StepInputs
from svc.memory.plan import MemoryPlan
from svc.model.model_config import ModelConfig

USUAL_CAPTURES = 16
DECODE_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # sequences of a recorded step, padding included (graphs.py)
MOST_SPLIT_FLOATS = 1 << 28  # of partial results of attention: one gigabyte


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Upper bounds for every step: tokens, sequences, and the sizes that follow from the model and its memory."""

    tokens: int
    sequences: int
    captures: int
    chunks: int  # of the chunked delta rule in one round; a step with more captures than usual takes several rounds
    all_chunks: int
    table_width: int
    page_tokens: int
    rotary_dims: int
    split_floats: int  # partial results of attention; a step that needs more is computed without splits
    query_rows: int  # floats of one token's split: heads * (head_dim + 2)

    @classmethod
    def of(cls, config: ModelConfig, plan: MemoryPlan, max_step_tokens: int, *, exact: bool = False) -> "StepLimits":
        """`exact`: as in InputsUploader."""
        padded = next((bucket for bucket in DECODE_BUCKETS if bucket >= plan.num_rows), plan.num_rows)
        sequences, captures = min(padded, max_step_tokens), plan.num_snapshots
        chunked = config.num_delta_layers > 0 and not exact
        context = min(plan.kv_tokens, max(config.full_context, plan.layout.page_tokens))
        query_rows = config.num_heads * (config.head_dim + 2) if config.num_attention_layers else 0
        return cls(
            tokens=max_step_tokens,
            sequences=sequences,
            captures=captures,
            chunks=most_chunks(max_step_tokens, sequences, USUAL_CAPTURES) if chunked else 0,
            all_chunks=most_chunks(max_step_tokens, sequences, captures) if chunked else 0,
            table_width=plan.num_pages,
            page_tokens=plan.layout.page_tokens,
            rotary_dims=config.rotary_dims,
            split_floats=0 if exact else min(MOST_SPLIT_FLOATS, sequences * query_rows * -(-context // SPLIT_TOKENS)),
            query_rows=query_rows,
        )

    @property
    def words(self) -> int:
        """Words of four bytes for all arrays of a step."""
        num_rounds = -(-self.all_chunks // max(1, self.chunks))
        sizes = [
            *(self.tokens, self.tokens, self.sequences + 1, self.sequences, self.sequences, self.sequences * self.table_width),
            *(self.captures, self.captures, self.sequences + 1),
            *(*(4 * self.chunks,) * num_rounds, *(self.sequences + 1,) * num_rounds),
            *(self.tokens * self.rotary_dims // 2,) * 2,
        ]
        return sum(aligned_words(size) for size in sizes)


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    tokens: DeviceArray  # [T] int32
    token_rows: DeviceArray | None  # [T] int32, negative for padding; None without padding
    attention: AttentionInputs
    delta: DeltaInputs


class InputsUploader:
    """Owner of the buffers for a step's metadata. Before `reserve` each step gets arrays of its own.

    `exact`: every token goes through the same kernels in any step: no splits of attention, no chunks of the delta rule.
    """

    def __init__(self, device: Device, *, exact: bool = False) -> None:
        self._device = device
        self._exact = exact
        self._limits: StepLimits | None = None
        self._packed: PackedUpload | None = None

    def reserve(self, limits: StepLimits) -> None:
        self._limits = limits
        self._packed = PackedUpload(self._device, limits.words)

    def upload(self, inputs: StepInputs, decode_plan: AttentionPlan | None = None) -> DeviceInputs:
        """Queues one copy; the arrays are valid until the next step's. `decode_plan`: plan of a decode-only step, possibly
        padded."""
        plan = plan_chunks(inputs, ALL_STEPS if self._exact else STEP_TOKENS)
        rounds = plan.rounds(plan.num_chunks if self._limits is None else min(plan.num_chunks, self._limits.chunks))
        arrays = {
            **{name: getattr(inputs, name) for name in ("tokens", "positions", "cu_seqlens", "rows", "modes", "block_table")},
            **{name: getattr(inputs, name) for name in ("capture_tokens", "capture_snapshots", "cu_captures")},
            **{f"chunks {number}": chunks for number, (chunks, _) in enumerate(rounds)},
            **{f"cu_chunks {number}": cu_chunks for number, (_, cu_chunks) in enumerate(rounds)},
            "rope_cos": inputs.rope_cos,
            "rope_sin": inputs.rope_sin,
        }
        there = self._uploaded(arrays)
        attention = AttentionInputs(
            **{name: there[name] for name in ("positions", "cu_seqlens", "rows", "block_table", "rope_cos", "rope_sin")},
            plan=decode_plan or self._attention_plan(inputs),
        )
        delta = DeltaInputs(
            num_tokens=inputs.num_tokens,
            num_sequences=inputs.num_sequences,
            num_chunks=max((len(chunks) for chunks, _ in rounds), default=0),
            step_tokens=plan.step_tokens,
            any_steps=plan.any_steps,
            **{name: there[name] for name in ("cu_seqlens", "rows", "capture_tokens", "capture_snapshots", "cu_captures")},
            rounds=tuple((there[f"chunks {number}"], there[f"cu_chunks {number}"]) for number in range(len(rounds))),
            modes=there["modes"] if inputs.modes.any() else None,
            positions=there["positions"] if inputs.modes.any() else None,
        )
        return DeviceInputs(there["tokens"], there["rows"] if decode_plan else None, attention, delta)

    def _uploaded(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, DeviceArray]:
        if self._packed is None:
            return {name: self._device.from_host(np.ascontiguousarray(values)) for name, values in arrays.items()}
        return self._packed.upload(arrays)

    def _attention_plan(self, inputs: StepInputs) -> AttentionPlan:
        """Short chunks are decoded in splits if their partial results fit."""
        for most_tokens in () if self._exact else (MOST_DECODE_TOKENS, 1):
            plan = plan_attention(inputs.cu_seqlens, inputs.positions, most_decode_tokens=most_tokens)
            if self._limits is None or self._split_floats(inputs, plan) <= self._limits.split_floats:
                return plan
        return plan_attention(inputs.cu_seqlens, inputs.positions, most_decode_tokens=0)

    def _split_floats(self, inputs: StepInputs, plan: AttentionPlan) -> int:
        assert self._limits is not None
        return math.prod((inputs.num_sequences, plan.decode_tokens, plan.max_splits, self._limits.query_rows))
