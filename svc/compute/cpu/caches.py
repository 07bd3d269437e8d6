"""Pages, live rows and snapshots as three slabs that the C kernels work on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.cpu import structs
from svc.errors import ModelFileError
from svc.memory.plan import MemoryPlan

KV_DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "q8_0": np.uint8, "q4_0": np.uint8}
KV_TYPES = ("f32", "f16", "q8_0", "q4_0")  # as in csrc/runtime.h
STATE_ORDER = "kv"  # inner order of a head's recurrent state: key dimension, then value dimension
LANES = 16
SNAPSHOT_TYPES = ("f32", "bf16", "q8")  # as in csrc/runtime.h


class CpuCaches:
    """Owner of the arrays of one MemoryPlan. The system provides their memory when it is first written."""

    def __init__(self, plan: MemoryPlan, poison: bool = False) -> None:
        """`poison`: fill fresh memory with NaN, which reveals reads before writes. ModelFileError for sizes without a kernel."""
        layout = plan.layout
        for name in ("head_dim", "key_dim", "value_dim"):
            if getattr(layout, name) % LANES:
                size = getattr(layout, name)
                raise ModelFileError(f"the model's {name} is {size}, but the cpu device needs a multiple of {LANES}")
        assert layout.page_tokens % LANES == 0, f"page_tokens={layout.page_tokens}: tiles of {LANES} keys must not cross pages"
        self.plan = plan
        self.kv: NDArray[Any] = np.empty((plan.num_pages, layout.page_elements), KV_DTYPES[layout.kv_type])
        self.rows = np.empty((plan.num_rows, layout.state_elements), np.float32)
        self.snapshots = np.empty((plan.num_snapshots, layout.snapshot_elements), np.float32)
        self.journal = np.empty((plan.num_rows, plan.journal_tokens, layout.journal_elements), np.float32)
        self.host_kv: NDArray[Any] = np.empty((plan.num_host_pages, layout.page_elements), KV_DTYPES[layout.kv_type])
        self.host_snapshots = np.empty((plan.num_host_snapshots, layout.snapshot_elements), np.float32)
        if poison:
            for slab in (self.kv, self.rows, self.snapshots, self.journal, self.host_kv, self.host_snapshots):
                slab.view(np.uint8).fill(0xFF)  # NaN in every type
        self.slabs = structs.fill(
            structs.CacheSlabs,
            self,
            page_elements=layout.page_elements,
            state_elements=layout.state_elements,
            hidden_offset=layout.hidden_offset,
            snapshot_elements=layout.snapshot_elements,
            snapshot_layer_words=layout.snapshot_layer_words,
            snapshot_scales_offset=layout.snapshot_recurrent_words,
            snapshot_conv_offset=layout.snapshot_conv_offset(0),
            snapshot_hidden_offset=layout.snapshot_hidden_offset,
            snapshot_type=SNAPSHOT_TYPES.index(layout.snapshot_type),
            **{name: getattr(layout, name) for name in ("conv_elements", "num_delta_layers", "num_value_heads")},
            **{name: getattr(layout, name) for name in ("key_dim", "value_dim")},
            **{name: getattr(layout, name) for name in ("journal_elements", "journal_layer_elements", "journal_key_elements")},
            journal_tokens=plan.journal_tokens,
            conv_channels=layout.conv_channels,
            kv_type=KV_TYPES.index(layout.kv_type),
            kv_row_elements=layout.kv_row_elements,
            page_tokens=layout.page_tokens,
        )
