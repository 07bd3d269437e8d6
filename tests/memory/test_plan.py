"""From sizes and budgets to counts."""

from dataclasses import replace

import pytest

from svc.errors import MemoryBudgetError
from svc.memory.layout import MemoryLayout
from svc.memory.plan import plan_memory

# Qwen3-Next-80B-A3B: 12 attention layers of 2 heads x 256, 36 DeltaNet layers of 32 heads x 128 x 128, conv over 8192 channels.
NEXT = MemoryLayout(
    hidden_size=2048,
    num_attention_layers=12,
    num_kv_heads=2,
    head_dim=256,
    num_delta_layers=36,
    num_value_heads=32,
    key_dim=128,
    value_dim=128,
    conv_channels=8192,
    conv_rows=3,
    page_tokens=32,
)


def test_sizes_of_a_published_model() -> None:
    """24 KiB of keys and values per token in f16; a state of 36 x (32 x 128 x 128 + 3 x 8192) + 2048 floats."""
    assert NEXT.kv_bytes_per_token == 12 * 2 * 2 * 256 * 2
    assert replace(NEXT, kv_type="f32").kv_bytes_per_token == 2 * NEXT.kv_bytes_per_token
    assert replace(NEXT, kv_type="q8_0").kv_bytes_per_token == 12 * 2 * 2 * 8 * 34  # GGUF's blocks of 32
    assert replace(NEXT, kv_type="q4_0").kv_bytes_per_token == 12 * 2 * 2 * 8 * 18
    assert NEXT.state_bytes == 4 * (36 * (32 * 128 * 128 + 3 * 8192) + 2048)
    assert NEXT.hybrid
    assert not replace(NEXT, num_delta_layers=0).hybrid


def test_compact_snapshots_of_a_published_model() -> None:
    """Only recurrent states are rounded: two bytes or one a number, and with one a float for each of the 32 x 128 value columns."""
    kept = 4 * (36 * 3 * 8192 + 2048)
    assert NEXT.snapshot_bytes == NEXT.state_bytes
    bf16, q8 = replace(NEXT, snapshot_type="bf16"), replace(NEXT, snapshot_type="q8")
    assert bf16.snapshot_bytes == kept + 36 * 32 * 128 * 128 * 2
    assert q8.snapshot_bytes == kept + 36 * (32 * 128 * 128 + 32 * 128 * 4)
    assert bf16.state_bytes == q8.state_bytes == NEXT.state_bytes
    assert not NEXT.lossy_snapshots
    assert bf16.lossy_snapshots
    assert not replace(bf16, num_delta_layers=0).lossy_snapshots
    plan = plan_memory(q8, kv_bytes=10**9, snapshot_bytes=10**9, num_rows=4, context_tokens=8192)
    assert plan.num_snapshots == 10**9 // q8.snapshot_bytes
    assert plan.total_bytes == plan.kv_bytes + plan.snapshot_bytes + 4 * NEXT.state_bytes


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8"])
def test_parts_tile_a_snapshot(kind: str) -> None:
    """Layer by layer: recurrence, scales, conv rows; then the hidden row. All parts begin at whole 16 bytes."""
    layout, end = replace(NEXT, snapshot_type=kind), 0
    for layer in range(36):
        assert layout.snapshot_recurrent_offset(layer) == end
        end += layout.snapshot_recurrent_words + (32 * 128 if kind == "q8" else 0)
        assert layout.snapshot_conv_offset(layer) == end
        assert end % 4 == 0
        end += 3 * 8192
    assert layout.snapshot_hidden_offset == end
    assert layout.snapshot_elements == end + 2048


def test_parts_tile_a_page_and_a_state() -> None:
    """Layer by layer: K and V of each attention layer fill the page, recurrence and conv rows and the hidden row the state."""
    block = NEXT.kv_block_elements
    starts = [start for layer in range(12) for start in (NEXT.key_offset(layer), NEXT.key_offset(layer) + block)]
    assert starts == list(range(0, NEXT.page_elements, block))
    end = 0
    for layer in range(36):
        assert NEXT.recurrent_offset(layer) == end
        assert NEXT.conv_offset(layer) == end + 32 * 128 * 128
        end = NEXT.conv_offset(layer) + 3 * 8192
    assert NEXT.hidden_offset == end
    assert NEXT.state_elements == end + 2048


def test_budgets_are_kept() -> None:
    """Whole pages and snapshots within the budgets; one more of either would not fit."""
    plan = plan_memory(NEXT, kv_bytes=10**9, snapshot_bytes=10**9, num_rows=4, context_tokens=8192)
    assert plan.kv_bytes <= 10**9 < plan.kv_bytes + NEXT.page_bytes
    assert plan.snapshot_bytes <= 10**9 < plan.snapshot_bytes + NEXT.state_bytes
    assert plan.total_bytes == plan.kv_bytes + plan.snapshot_bytes + 4 * NEXT.state_bytes
    assert plan.kv_tokens == plan.num_pages * 32


@pytest.mark.parametrize(
    ("kv_bytes", "snapshot_bytes", "num_rows", "named"),
    [
        (8 * NEXT.page_bytes - 1, 10**9, 4, "set it to at least 6MiB"),
        (10**9, 4 * NEXT.state_bytes - 1, 4, f"set it to at least {4 * NEXT.state_bytes // 2**10}KiB"),
        (10**9, 10**9, 0, "max_slots is 0"),
    ],
)
def test_budgets_that_cannot_work(kv_bytes: int, snapshot_bytes: int, num_rows: int, named: str) -> None:
    """Refused by name, with the smallest budget that would do - and that one does."""
    with pytest.raises(MemoryBudgetError, match=named):
        plan_memory(NEXT, kv_bytes=kv_bytes, snapshot_bytes=snapshot_bytes, num_rows=num_rows, context_tokens=8192)
    if num_rows:
        plan_memory(NEXT, kv_bytes=kv_bytes + 1, snapshot_bytes=snapshot_bytes + 1, num_rows=num_rows, context_tokens=8192)
