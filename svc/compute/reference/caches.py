"""Pages, live rows and snapshots as three numpy slabs, and the views into them that the mixers use.

A recurrent state is stored as in the formulas, S[k][v] per value head. Fresh memory is NaN, which reveals reads before writes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.reference.kv_pages import fresh_pages
from svc.compute.reference.math import Float32, key_heads
from svc.compute.reference.snapshot_cells import pack, unpack
from svc.memory.plan import MemoryPlan

STATE_ORDER = "kv"  # inner order of a head's recurrent state: key dimension, then value dimension


class ReferenceCaches:
    """Owner of the arrays of one MemoryPlan."""

    def __init__(self, plan: MemoryPlan) -> None:
        layout = plan.layout
        self.plan = plan
        self.kv = fresh_pages(plan.num_pages, layout.page_elements, layout.kv_type)
        self.rows: Float32 = np.full((plan.num_rows, layout.state_elements), np.nan, np.float32)
        self.snapshots: Float32 = np.full((plan.num_snapshots, layout.snapshot_elements), np.nan, np.float32)
        journal = plan.num_rows, plan.journal_tokens, layout.journal_elements
        self.journal: Float32 = np.full(journal, np.nan, np.float32)
        self.host_kv = fresh_pages(plan.num_host_pages, layout.page_elements, layout.kv_type)
        self.host_snapshots: Float32 = np.full((plan.num_host_snapshots, layout.snapshot_elements), np.nan, np.float32)

    def keys(self, layer: int) -> NDArray[Any]:
        """View [num_pages, H_kv, P, elements of a row] of an attention layer's keys, in the pages' type."""
        return self._kv_block(self.plan.layout.key_offset(layer))

    def values(self, layer: int) -> NDArray[Any]:
        layout = self.plan.layout
        return self._kv_block(layout.key_offset(layer) + layout.kv_block_elements)

    def recurrent(self, layer: int) -> Float32:
        """View [num_rows, H_v, D_k, D_v] of a DeltaNet layer's live states."""
        layout = self.plan.layout
        start = layout.recurrent_offset(layer)
        states = self.rows[:, start : start + layout.recurrent_elements]
        return states.reshape(-1, layout.num_value_heads, layout.key_dim, layout.value_dim, copy=False)

    def conv(self, layer: int) -> Float32:
        """View [num_rows, conv_rows, channels] of the live rows, raw rows before the convolution, oldest first."""
        return self._conv(self.rows, self.plan.layout.conv_offset(layer))

    @property
    def hidden(self) -> Float32:
        """View [num_rows, C] of the final hidden rows of the live rows."""
        return self.rows[:, self.plan.layout.hidden_offset :]

    def entry(self, row: int, position: int) -> Float32:
        """View [journal_elements] of the journal's entry of a token."""
        entry: Float32 = self.journal[row, position % self.plan.journal_tokens]
        return entry

    def entry_parts(self, row: int, position: int, layer: int) -> tuple[Float32, Float32, Float32, Float32]:
        """Views of a DeltaNet layer's parts of an entry: keys [H_k, D_k], delta [H_v, D_v], raw row [channels], decays [H_v]."""
        layout = self.plan.layout
        keys, values = layout.journal_key_elements, layout.num_value_heads * layout.value_dim
        start = layer * layout.journal_layer_elements
        part = self.entry(row, position)[start : start + layout.journal_layer_elements]
        key, delta, raw, decay = np.split(part, np.cumsum([keys, values, layout.conv_channels]))
        return key.reshape(-1, layout.key_dim), delta.reshape(-1, layout.value_dim), raw, decay[: layout.num_value_heads]

    def keep_recurrent(self, snapshot_id: int, layer: int, state: Float32) -> None:
        """A layer's state [H_v, D_k, D_v] into a snapshot, in the snapshots' type."""
        layout = self.plan.layout
        start, end = layout.snapshot_recurrent_offset(layer), layout.snapshot_conv_offset(layer)
        self.snapshots[snapshot_id, start:end] = pack(state, layout.snapshot_type, end - start)

    def snapshot_conv(self, snapshots: Float32, layer: int) -> Float32:
        """View [n, conv_rows, channels] of `snapshots` or `host_snapshots`."""
        return self._conv(snapshots, self.plan.layout.snapshot_conv_offset(layer))

    def snapshot_hidden(self, snapshots: Float32) -> Float32:
        """View [n, C] of the final hidden rows of `snapshots` or `host_snapshots`."""
        return snapshots[:, self.plan.layout.snapshot_hidden_offset :]

    def restore(self, row: int, snapshots: Float32, snapshot_id: int) -> None:
        """A row from a snapshot of `snapshots` or `host_snapshots`."""
        layout = self.plan.layout
        shape = (layout.num_value_heads, layout.key_dim, layout.value_dim)
        for layer in range(layout.num_delta_layers):
            words = snapshots[snapshot_id, layout.snapshot_recurrent_offset(layer) : layout.snapshot_conv_offset(layer)]
            self.recurrent(layer)[row] = unpack(words, shape, layout.snapshot_type)
            self.conv(layer)[row] = self.snapshot_conv(snapshots, layer)[snapshot_id]
        self.hidden[row] = self.snapshot_hidden(snapshots)[snapshot_id]

    def _conv(self, slab: Float32, start: int) -> Float32:
        layout = self.plan.layout
        return slab[:, start : start + layout.conv_elements].reshape(-1, layout.conv_rows, layout.conv_channels, copy=False)

    def _kv_block(self, start: int) -> NDArray[Any]:
        layout = self.plan.layout
        block = self.kv[:, start : start + layout.kv_block_elements]
        return block.reshape(-1, layout.num_kv_heads, layout.page_tokens, layout.kv_row_elements, copy=False)


def copy_pages(caches: ReferenceCaches, pairs: NDArray[np.int32]) -> None:
    """In order: a page may be a target first and a source later."""
    for source, target in pairs:
        caches.kv[target] = caches.kv[source]


def settle_rows(caches: ReferenceCaches, settles: NDArray[np.int32], *, grouped_heads: bool) -> None:
    for row, start, end in settles.tolist():
        for layer in range(caches.plan.layout.num_delta_layers):
            state, conv = caches.recurrent(layer)[row], caches.conv(layer)[row]
            raws = [conv]
            for position in range(start, end):
                key, delta, raw, decay = caches.entry_parts(row, position, layer)
                key = key[key_heads(len(delta), len(key), grouped=grouped_heads)]
                state *= decay[:, None, None]
                state += key[:, :, None] * delta[:, None, :]
                raws.append(raw[None])
            conv[:] = np.concatenate(raws)[-len(conv) :]
        caches.hidden[row] = caches.entry(row, end - 1)[-caches.plan.layout.hidden_size :]


def save_rows(caches: ReferenceCaches, pairs: NDArray[np.int32]) -> None:
    for row, snapshot_id in pairs:
        for layer in range(caches.plan.layout.num_delta_layers):
            caches.keep_recurrent(snapshot_id, layer, caches.recurrent(layer)[row])
            caches.snapshot_conv(caches.snapshots, layer)[snapshot_id] = caches.conv(layer)[row]
        caches.snapshot_hidden(caches.snapshots)[snapshot_id] = caches.hidden[row]


def restore_rows(caches: ReferenceCaches, pairs: NDArray[np.int32]) -> None:
    for row, snapshot_id in pairs:
        caches.restore(row, caches.snapshots, snapshot_id)


def restore_from_host(caches: ReferenceCaches, pairs: NDArray[np.int32]) -> None:
    for row, snapshot_id in pairs:
        caches.restore(row, caches.host_snapshots, snapshot_id)


def zero_rows(caches: ReferenceCaches, rows: NDArray[np.int32]) -> None:
    """By assignment, because NaN times zero is NaN."""
    caches.rows[rows] = 0.0
