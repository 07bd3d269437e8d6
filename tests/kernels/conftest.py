"""`room`: every test that takes it runs once per room of operations that this machine has."""

import pytest

from tests.kernels.rooms import ROOMS, Room


@pytest.fixture(params=ROOMS, ids=str)
def room(request: pytest.FixtureRequest) -> Room:
    found: Room = request.param
    return found
