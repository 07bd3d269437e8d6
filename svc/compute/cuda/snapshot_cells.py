"""State rows to snapshots and back, in any type of snapshots (memory/layout.py)."""

from svc.compute.cuda.copy_blocks import copy_blocks
from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.memory.layout import MemoryLayout

THREADS = 256
WARPS = THREADS // 32
MAX_COLUMN_BLOCKS = 1024  # further blocks would only queue
COPY_BLOCKS = 16  # for convolution rows and the hidden row, a small part

SNAPSHOT_TYPES = ("f32", "bf16", "q8")  # by their numbers in cuda_src/include/snapshot.cuh


def snapshot_define(layout: MemoryLayout) -> dict[str, int]:
    """The -D name of kernels that write snapshots; none for copies of rows."""
    number = SNAPSHOT_TYPES.index(layout.snapshot_type)
    return {"SNAPSHOT": number} if number else {}


def save_rows(
    device: Device,
    layout: MemoryLayout,
    snapshots: DeviceArray,
    rows: DeviceArray,
    pairs: DeviceArray,
    stream: Stream | None = None,
) -> None:
    """snapshots[pairs[i][1]] = rows[pairs[i][0]], rounded. Slabs as in memory/layout.py; pairs [n, 2] int32."""
    if layout.snapshot_type == "f32":
        copy_blocks(device, snapshots, rows, pairs, stream)
    else:
        _launch(device, "pack_rows", layout, snapshots, rows, pairs, stream)


def restore_rows(
    device: Device,
    layout: MemoryLayout,
    snapshots: DeviceArray,
    rows: DeviceArray,
    pairs: DeviceArray,
    stream: Stream | None = None,
) -> None:
    """rows[pairs[i][0]] = snapshots[pairs[i][1]]; of a type that is not f32."""
    assert layout.snapshot_type != "f32", "copies are copy_blocks' work"
    _launch(device, "unpack_rows", layout, snapshots, rows, pairs, stream)


def _launch(
    device: Device,
    name: str,
    layout: MemoryLayout,
    snapshots: DeviceArray,
    rows: DeviceArray,
    pairs: DeviceArray,
    stream: Stream | None,
) -> None:
    assert rows.shape[1:] == (layout.state_elements,)
    assert snapshots.shape[1:] == (layout.snapshot_elements,)
    if not pairs.shape[0]:
        return
    columns = layout.num_value_heads * layout.value_dim
    column_blocks = max(1, min(MAX_COLUMN_BLOCKS, -(-layout.num_delta_layers * columns // WARPS)))
    args = (
        *(snapshots, rows, pairs, column_blocks, layout.num_delta_layers, columns, layout.key_dim),
        *(layout.conv_elements, layout.hidden_size, layout.snapshot_layer_words),
        *(layout.snapshot_recurrent_words, layout.snapshot_conv_offset(0)),
    )
    kernel = device.module("snapshot_cells", snapshot_define(layout)).kernel(name)
    device.launch(kernel, (column_blocks + COPY_BLOCKS, pairs.shape[0]), (THREADS,), args, stream=stream)
