"""A cache and its device, as most tests of the memory use them."""

from collections.abc import Iterator

import pytest

from svc.memory import prefix_tree
from svc.memory.sequence_cache import SequenceCache
from tests.memory.device_model import Device, small_plan


@pytest.fixture(scope="session", autouse=True)
def paths_are_short() -> Iterator[None]:
    """The pages of a path are kept at every second node, so that short texts meet them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_tree, "KEPT_EVERY", 2)
        yield


@pytest.fixture
def cache() -> Iterator[SequenceCache]:
    """Hybrid, 32 pages of 4 tokens, 4 state rows, 12 snapshots; checked after the test."""
    made = SequenceCache(small_plan(pages=32, rows=4, snapshots=12))
    yield made
    made.check()


@pytest.fixture
def device(cache: SequenceCache) -> Device:
    return Device(cache.plan)
