"""Copies and clears whole blocks of a slab: KV pages, live rows, snapshots."""

from svc.compute.cuda.device import Device, DeviceArray, Stream

THREADS = 256
MAX_GRID = 4096  # further blocks would only queue


def copy_blocks(device: Device, target: DeviceArray, source: DeviceArray, pairs: DeviceArray, stream: Stream | None = None) -> None:
    """target[pairs[i][1]] = source[pairs[i][0]], in order. Slabs [n, elements] of one row size; pairs [n, 2] int32.

    `source` and `target` may be one slab: a block may be a target first and a source later. Rows are a multiple of 4 bytes.
    """
    row_bytes = _row_bytes(target)
    assert row_bytes == _row_bytes(source)
    if pairs.shape[0]:
        width, words, grid = _geometry(row_bytes)
        kernel = device.module("copy_blocks").kernel(f"copy_blocks_{width}")
        device.launch(kernel, (grid,), (THREADS,), (_words(target), _words(source), pairs, pairs.shape[0], words), stream=stream)


def zero_blocks(device: Device, target: DeviceArray, blocks: DeviceArray, stream: Stream | None = None) -> None:
    """target[blocks[i]] = 0, even if it was NaN. target [n, elements], rows a multiple of 4 bytes; blocks [n] int32."""
    if blocks.shape[0]:
        width, words, grid = _geometry(_row_bytes(target))
        kernel = device.module("copy_blocks").kernel(f"zero_blocks_{width}")
        device.launch(kernel, (grid,), (THREADS,), (_words(target), blocks, blocks.shape[0], words), stream=stream)


def _row_bytes(slab: DeviceArray) -> int:
    return slab.nbytes // max(1, slab.shape[0])


def _geometry(row_bytes: int) -> tuple[int, int, int]:
    """(bytes of a word, words of a row, blocks of the grid)."""
    assert row_bytes % 4 == 0
    width = 4 if row_bytes % 16 else 16
    words = row_bytes // width
    return width, words, max(1, min(MAX_GRID, -(-words // THREADS)))


def _words(slab: DeviceArray) -> DeviceArray:
    return slab.view((slab.nbytes // 4,), "uint32")
