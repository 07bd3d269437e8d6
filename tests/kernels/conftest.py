"""`room`: every test that takes it runs once per room of operations that this machine has.

In a slow room a test with many variants runs every seventh of them, which leaves out no shape and hardly a batch, and the others in
`make test-slow`.
"""

from collections import defaultdict

import pytest

from tests.kernels.rooms import ROOMS, Room

MANY_VARIANTS = 20
STRIDE = 7  # prime to the numbers of shapes, batches and types


@pytest.fixture(params=ROOMS, ids=str)
def room(request: pytest.FixtureRequest) -> Room:
    found: Room = request.param
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    variants: dict[tuple[object, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        room = getattr(item, "callspec", None) and item.callspec.params.get("room")  # type: ignore[attr-defined]
        if isinstance(room, Room) and room.slow:
            variants[item.function, room.name].append(item)  # type: ignore[attr-defined]
    for same in variants.values():
        if len(same) > MANY_VARIANTS:
            for index, item in enumerate(same):
                if index % STRIDE:
                    item.add_marker(pytest.mark.slow)
