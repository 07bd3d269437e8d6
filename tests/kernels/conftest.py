"""`backend`: a test that takes it runs once on every backend that this machine has.

On a slow backend the quick set takes every seventh variant of a test with many: it leaves out no shape and hardly a batch.
`make test-slow` runs the others.
"""

from collections import defaultdict

import pytest

from tests.kernels.backends import BACKENDS, KernelBackend

MANY_VARIANTS = 20
STRIDE = 7  # prime to the numbers of shapes, batches and types


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> KernelBackend:
    found: KernelBackend = request.param
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    variants: dict[tuple[object, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        backend = getattr(item, "callspec", None) and item.callspec.params.get("backend")  # type: ignore[attr-defined]
        if isinstance(backend, KernelBackend) and backend.slow:
            variants[item.function, backend.name].append(item)  # type: ignore[attr-defined]
    for same in variants.values():
        if len(same) > MANY_VARIANTS:
            for index, item in enumerate(same):
                if index % STRIDE:
                    item.add_marker(pytest.mark.slow)
