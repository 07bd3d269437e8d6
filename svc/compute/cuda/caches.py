"""Pages, live rows and snapshots: three slabs in device memory, and the two of the host tier in pinned memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.cuda.delta_core import DeltaStates
from svc.compute.cuda.device import Device
from svc.memory.plan import MemoryPlan

KV_DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "q8_0": np.uint8, "q4_0": np.uint8}


class CudaCaches:
    """Owner of the memory of one MemoryPlan, uninitialised. Recurrent states are in the STATE_ORDER of delta_core.py."""

    def __init__(self, device: Device, plan: MemoryPlan) -> None:
        layout = plan.layout
        self.plan = plan
        self.kv = device.empty((plan.num_pages, layout.page_elements), KV_DTYPES[layout.kv_type])
        self.rows = device.empty((plan.num_rows, layout.state_elements), np.float32)
        self.snapshots = device.empty((plan.num_snapshots, layout.snapshot_elements), np.float32)
        self.journal = device.empty((plan.num_rows, plan.journal_tokens, layout.journal_elements), np.float32)
        # The snapshot that is on its way from the host to a live row, if that is no mere copy; and its pair (row 0, snapshot 0).
        arriving = layout.lossy_snapshots and plan.num_host_snapshots > 0
        self.arriving = device.empty((int(arriving), layout.snapshot_elements), np.float32)
        self.arriving_pair = device.zeros((int(arriving), 2), np.int32)
        self.host_kv: NDArray[Any] = device.pinned((plan.num_host_pages, layout.page_elements), self.kv.dtype)
        self.host_snapshots: NDArray[Any] = device.pinned((plan.num_host_snapshots, layout.snapshot_elements), np.float32)

    @property
    def states(self) -> DeltaStates:
        return DeltaStates(self.plan.layout, self.rows, self.snapshots, self.journal)
