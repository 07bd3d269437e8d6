"""The bench of streamed tokens still runs: its server is built from parts whose constructors change."""

import argparse

import pytest

from tests.bench.client import MODEL
from tests.bench.streams.__main__ import LOAD, ROOT, Case, measured


@pytest.mark.parametrize("load", LOAD)
def test_it_measures(load: str) -> None:
    """A token costs some processor time, and takes longer than that where each step sleeps."""
    cost_us, tokens_per_s, gap_ms = measured(ROOT, Case(load, 2, 5.0), argparse.Namespace(model=str(MODEL), steps=8, server=None))
    assert 0 < cost_us < 1e6 / tokens_per_s
    assert tokens_per_s < 2 / 0.005
    assert gap_ms >= 0
