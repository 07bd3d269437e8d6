"""Sampling on the device, buffers and read-back included, against the host's."""

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.backend import History, Sample
from svc.compute.cuda.sampler import MOST_SAMPLES, MOST_TOP, DeviceSampler
from svc.compute.sampling.chain import sample_rows
from svc.compute.sampling.params import SamplingParams
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.tolerances import KERNEL

pytestmark = pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
VOCABULARY = 601
HISTORY = History(np.array([3, 5, 5, 9, 3], np.int32), 2)
PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, num_logprobs=0),
    SamplingParams(temperature=0.8, seed=4, num_logprobs=5),
    SamplingParams(temperature=1.2, seed=5, top_k=40, top_p=0.9),
    SamplingParams(temperature=0.7, seed=6, min_p=0.1, num_logprobs=MOST_TOP),
    SamplingParams(temperature=0, logit_bias=((7, 50.0),), num_logprobs=2),
    SamplingParams(temperature=1.0, seed=7, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2),
    SamplingParams(temperature=0, bad_words=((9, 3, *range(2)), *((3, token) for token in range(0, VOCABULARY, 2)))),
]


def some_logits(rows: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).normal(0, 3, (rows, VOCABULARY)).astype(np.float32)


def some_samples(count: int) -> tuple[list[int], list[Sample]]:
    """Several draws from one row, in any order."""
    params = [PARAMS[i % len(PARAMS)] for i in range(count)]
    samples = [
        Sample(0, 5, i, each, banned=(2, 4) if i % 3 == 0 else (), history=HISTORY if each.needs_history else None)
        for i, each in enumerate(params)
    ]
    return [(7 * i + 1) % 4 for i in range(count)], samples


@pytest.mark.parametrize("count", [1, len(PARAMS), MOST_SAMPLES + 3])
def test_as_on_the_host(count: int) -> None:
    """Every kind of sample: the same tokens, log probabilities and best tokens. On a device that does nothing until waited for."""
    device = EmulatedDevice(lazy=True)
    sampler, logits = DeviceSampler(device, VOCABULARY, 4), some_logits(4)
    rows, samples = some_samples(count)
    found = sampler.sample(device.from_host(logits), rows, samples)
    assert found is not None
    for one, expected in zip(found(), sample_rows(logits, rows, samples), strict=True):
        assert (one.token, [token for token, _ in one.top]) == (expected.token, [token for token, _ in expected.top])
        values = [expected.logprob, *(value for _, value in expected.top)]
        np.testing.assert_allclose([one.logprob, *(value for _, value in one.top)], values, rtol=KERNEL, atol=KERNEL)


def test_not_finite() -> None:
    """A row with a NaN gives token -1 and nothing else; its neighbours do not notice."""
    device, logits = EmulatedDevice(), some_logits(3)
    logits[1, 17] = np.nan
    samples = [Sample(0, 1, 0, SamplingParams(temperature=0, num_logprobs=3))] * 3
    read = DeviceSampler(device, VOCABULARY, 4).sample(device.from_host(logits), [0, 1, 2], samples)
    assert read is not None
    found = read()
    assert [one.token for one in found] == [int(logits[0].argmax()), -1, int(logits[2].argmax())]
    assert found[1].top == ()


def test_more_than_there_are_buffers_for() -> None:
    """Said, not cut short: the caller then looks at the logits itself."""
    device = EmulatedDevice()
    wanted = Sample(0, 1, 0, SamplingParams(temperature=0, num_logprobs=MOST_TOP + 1))
    assert DeviceSampler(device, VOCABULARY, 1).sample(device.from_host(some_logits(1)), [0], [wanted]) is None


def test_device_bytes() -> None:
    """The memory plan counts what the buffers take, and hardly more."""
    device = EmulatedDevice()
    before = device.memory().free_bytes
    sampler = DeviceSampler(device, 5000, 1000)
    taken = before - device.memory().free_bytes
    assert taken <= DeviceSampler.device_bytes(5000, 1000) <= 1.1 * taken
    del sampler
