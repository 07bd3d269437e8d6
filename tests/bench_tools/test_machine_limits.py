"""The matrices that kernels are timed with are ordinary ones."""

import numpy as np
import pytest

from tests.bench.machine_limits import matrix


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_scales_are_ordinary(kind: str) -> None:
    """No infinities, no NaN and not all zero: these could take another time than a model's weights."""
    values = matrix(kind, 3).dequantize()
    assert np.isfinite(values).all()
    assert 0.01 < np.abs(values).max() < 10
