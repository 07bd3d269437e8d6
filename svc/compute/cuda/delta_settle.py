"""Takes live rows forward by replaying their journals."""

from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.memory.layout import MemoryLayout

THREADS = 256


def settle_rows(
    device: Device,
    layout: MemoryLayout,
    rows: DeviceArray,
    journal: DeviceArray,
    settles: DeviceArray,
    *,
    grouped_heads: bool,
    stream: Stream | None = None,
) -> None:
    """Slabs as in memory/layout.py; settles [n, 3] int32: (row, start, end), no row twice."""
    if not settles.shape[0]:
        return
    states = layout.num_value_heads * layout.value_dim * layout.key_dim // 4 + layout.conv_channels
    defines = {"KEY_DIM": layout.key_dim, "VALUE_DIM": layout.value_dim, "GROUPED": int(grouped_heads)} if layout.hybrid else {}
    key_heads = layout.journal_key_elements // layout.key_dim if layout.hybrid else 0
    grid = (-(-max(states, layout.hidden_size) // THREADS), layout.num_delta_layers + 1, settles.shape[0])
    sizes = layout.state_elements, layout.journal_elements, layout.journal_layer_elements, journal.shape[1]
    args = (rows, journal, settles, *sizes, layout.num_delta_layers, key_heads, layout.num_value_heads, layout.conv_rows)
    kernel = device.module("delta_settle", defines).kernel("delta_settle")
    device.launch(kernel, grid, (THREADS,), (*args, layout.hidden_size), stream=stream)
