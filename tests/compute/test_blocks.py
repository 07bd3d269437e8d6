"""Whether the numbers in a page or snapshot are finite, whatever their format."""

import numpy as np
import pytest

from svc.compute.blocks import finite_page, finite_state, read_numpy
from svc.compute.reference import ReferenceOps
from svc.compute.reference.kv_pages import pack_rows
from svc.compute.step_inputs import pairs
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan


@pytest.mark.parametrize("snapshot_type", ["f32", "bf16", "q8"])
def test_snapshots(snapshot_type: str) -> None:
    """One number that is not finite is found wherever it is; random states, full of any bytes, are finite."""
    layout = MemoryLayout(12, 0, 1, 16, 2, 3, 16, 16, 80, 3, 16, "f32", snapshot_type)
    ops = ReferenceOps()
    caches = ops.caches(MemoryPlan(layout, 1, 1, 1))
    random = np.random.default_rng(0)

    def saved(place: int | None = None, number: float = np.nan) -> bool:
        caches.rows[:] = random.normal(0, 1, caches.rows.shape)
        if place is not None:
            caches.rows[0, place] = number
        ops.save_rows(caches, pairs([(0, 0)]))
        return finite_state(read_numpy(caches.snapshots, [0])[0], layout)

    assert all(saved() for _ in range(20))
    for place in random.integers(0, layout.state_elements, 40).tolist():
        assert not saved(place)
        assert not saved(place, np.inf)
    assert not saved(layout.conv_offset(0))
    assert not saved(layout.state_elements - 1, -np.inf)


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_quantized_pages(kv_type: str) -> None:
    layout = MemoryLayout(12, 1, 2, 32, 0, 0, 0, 0, 0, 0, 16, kv_type)
    rows = np.random.default_rng(0).normal(0, 1, (layout.page_elements // layout.kv_row_elements, 32)).astype(np.float32)
    assert finite_page(pack_rows(rows, kv_type).ravel(), layout)
    for row, number in ((0, np.nan), (5, np.inf), (len(rows) - 1, -np.inf)):
        damaged = rows.copy()
        damaged[row, 17] = number
        assert not finite_page(pack_rows(damaged, kv_type).ravel(), layout)


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_pages(kv_type: str) -> None:
    layout = MemoryLayout(12, 1, 2, 16, 0, 0, 0, 0, 0, 0, 16, kv_type)
    values = np.random.default_rng(0).normal(0, 1, (1, layout.page_elements)).astype("f2" if kv_type == "f16" else "f4")
    assert finite_page(read_numpy(values, [0])[0], layout)
    values[0, 77] = np.nan
    assert not finite_page(read_numpy(values, [0])[0], layout)
