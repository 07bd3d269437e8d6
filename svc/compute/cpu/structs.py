"""The structures of csrc/runtime.h, field for field (a test compares them), and how to fill them."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.step_inputs import StepInputs

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Long = ctypes.c_int64
Float = ctypes.c_float


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", Pointer),
        *_fields(Long, "row_bytes expert_bytes"),
        *_fields(Int, "type rows cols experts"),
    ]


class Inputs(ctypes.Structure):
    _fields_ = [
        *_fields(Pointer, "tokens positions cu_seqlens rows modes block_table capture_tokens capture_snapshots cu_captures"),
        *_fields(Pointer, "rope_cos rope_sin"),
        *_fields(Int, "num_tokens num_sequences max_pages num_captures rope_pairs"),
    ]


class CacheSlabs(ctypes.Structure):
    _fields_ = [
        *_fields(Pointer, "kv rows snapshots journal"),
        *_fields(Long, "page_elements state_elements hidden_offset"),
        *_fields(Long, "snapshot_elements snapshot_layer_words snapshot_scales_offset snapshot_conv_offset snapshot_hidden_offset"),
        *_fields(Long, "conv_elements"),
        *_fields(Long, "journal_elements journal_layer_elements journal_tokens journal_key_elements conv_channels"),
        *_fields(Int, "kv_type kv_row_elements page_tokens snapshot_type num_delta_layers num_value_heads key_dim value_dim"),
    ]


OPERATIONS = ("embed", "delta_mixer", "attention_mixer", "dense_ffn", "moe_ffn", "final_hidden")  # as in csrc/forward.c


class Instruction(ctypes.Structure):
    """One operation of csrc/forward.c."""

    _fields_ = [*_fields(Pointer, "layer caches"), *_fields(Int, "operation size"), ("epsilon", Float)]


class DeltaLayer(ctypes.Structure):
    _fields_ = [
        *_fields(Int, "index num_key_heads num_value_heads key_dim value_dim conv_kernel grouped_heads"),
        ("epsilon", Float),
        *_fields(Pointer, "input_norm conv a dt_bias output_norm"),
        *_fields(Matrix, "qkv gate beta alpha output"),
    ]


class AttentionLayer(ctypes.Structure):
    _fields_ = [
        *_fields(Int, "index num_heads num_kv_heads head_dim rotary_dims gated interleaved"),
        ("epsilon", Float),
        *_fields(Pointer, "input_norm query_norm key_norm query_bias key_bias value_bias"),
        *_fields(Matrix, "query key value output"),
    ]


class DenseLayer(ctypes.Structure):
    _fields_ = [("epsilon", Float), ("input_norm", Pointer), *_fields(Matrix, "gate up down")]


class MoeLayer(ctypes.Structure):
    _fields_ = [
        *_fields(Int, "num_experts num_used has_shared"),
        *_fields(Float, "weights_scale epsilon"),
        ("input_norm", Pointer),
        *_fields(Matrix, "router gate up down shared_router shared_gate shared_up shared_down"),
    ]


def address(array: NDArray[Any]) -> int:
    """Address of a C-contiguous array. The caller keeps the array alive."""
    assert array.flags.c_contiguous, f"array of shape {array.shape} with strides {array.strides}"
    return int(array.ctypes.data)


def float_matrix(values: NDArray[np.float32]) -> Matrix:
    """A float32 array [rows, cols] as a Matrix. The caller keeps the array alive."""
    rows, cols = values.shape
    return Matrix(data=address(values), row_bytes=4 * cols, expert_bytes=0, type=0, rows=rows, cols=cols, experts=1)


def fill(structure: type[ctypes.Structure], source: Any, **others: Any) -> Any:
    """An instance of `structure`: each field from `others`, or else from the attribute of `source` of that name.

    Arrays become addresses (None: NULL), weights their Matrix. The caller keeps `source` and `others` alive.
    """
    values: dict[str, Any] = {}
    for name, *_ in structure._fields_:
        value = others[name] if name in others else getattr(source, name)
        if isinstance(value, np.ndarray):
            value = address(value)
        values[name] = getattr(value, "matrix", value)
    return structure(**values)


def step_inputs(inputs: StepInputs) -> Inputs:
    """Valid as long as `inputs` is alive."""
    arrays = (inputs.tokens, inputs.positions, inputs.cu_seqlens, inputs.rows, inputs.modes, inputs.block_table)
    assert all(array.dtype == np.int32 for array in arrays), [array.dtype for array in arrays]
    return fill(  # type: ignore[no-any-return]
        Inputs,
        inputs,
        max_pages=inputs.block_table.shape[1],
        num_captures=len(inputs.capture_tokens),
        rope_pairs=inputs.rope_cos.shape[1],
    )
