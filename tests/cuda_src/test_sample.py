"""Tokens and log probabilities on the device against the sampling chain, which defines them."""

import numpy as np
import pytest

from svc.compute.backend import History, Sample
from svc.compute.cuda.device import Device
from svc.compute.cuda.sample import SampleArrays, logprobs, num_parts, plan_samples, sample_tokens
from svc.compute.sampling import chain
from svc.compute.sampling.params import SamplingParams
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice
from tests.tolerances import KERNEL


@pytest.fixture
def plain() -> Device:
    """One order is enough for sums of integers; `device` has them all."""
    if not have_compiler():
        pytest.skip("the CUDA emulator needs g++")
    return EmulatedDevice()


def some_logits(seed: int, rows: int, vocabulary: int, spread: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, (rows, vocabulary)).astype(np.float32)


def on_device(device: Device, logits: np.ndarray, wanted: list[Sample]) -> list[int]:
    rows = [sample.row for sample in wanted]
    plan, vocabulary = plan_samples(wanted, rows, logits.shape[1]), logits.shape[1]
    tokens, source = device.empty((len(wanted),), np.int32), device.from_host(logits)
    arrays = SampleArrays(
        samples=device.from_host(plan.samples),
        numbers=device.from_host(plan.numbers),
        best=device.empty((len(wanted), num_parts(vocabulary)), np.uint64),
        adjusted=device.empty((plan.num_adjusted, vocabulary), np.float32) if plan.num_adjusted else None,
        adjustments=device.from_host(plan.adjustments),
        bias=device.from_host(plan.bias),
        masks=device.from_host(plan.masks),
    )
    sample_tokens(device, tokens, source, arrays)
    np.testing.assert_array_equal(device.to_host(source), logits)  # bit for bit: log probabilities come later
    return device.to_host(tokens).tolist()


def by_chain(logits: np.ndarray, wanted: list[Sample]) -> list[int]:
    return [sampled.token for sampled in chain.sample_rows(logits, [s.row for s in wanted], wanted)]


def check(device: Device, logits: np.ndarray, wanted: list[Sample]) -> None:
    assert on_device(device, logits, wanted) == by_chain(logits, wanted)


def draws(params: SamplingParams, rows: int, each: int, banned: tuple[int, ...] = ()) -> list[Sample]:
    return [Sample(row, 40 + i, i % 3, params, banned) for row in range(rows) for i in range(each)]


FILTERS = [
    SamplingParams(temperature=0.0),
    SamplingParams(seed=1),
    SamplingParams(temperature=0.7, seed=2, top_k=1),
    SamplingParams(temperature=0.7, seed=3, top_k=20, top_p=0.8),
    SamplingParams(temperature=1.3, seed=4, top_p=0.95),
    SamplingParams(temperature=0.9, seed=5, min_p=0.05),
    SamplingParams(temperature=2.0, seed=6, top_k=40, top_p=0.9, min_p=0.1),
    SamplingParams(temperature=1e-3, seed=7),
    SamplingParams(temperature=1e-45, seed=8, top_p=0.5),
    SamplingParams(temperature=1.0, seed=9, top_p=0.0),
    SamplingParams(temperature=1.0, seed=10, top_k=4999, top_p=0.999, min_p=1.0),
]


@pytest.mark.parametrize("vocabulary", [7, 257, 5000])
@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_filters(plain: Device, params: SamplingParams, vocabulary: int) -> None:
    """Each filter alone and together, many draws of each: the chain's token."""
    check(plain, some_logits(vocabulary, 2, vocabulary), draws(params, 2, 4))


def test_all_orders(device: Device) -> None:
    """A batch of different requests, one row drawn from several times, some with adjustments."""
    logits = some_logits(11, 3, 700)
    history = History(np.array([5, 9, 9, 600, 5, 11], np.int32), 3)
    wanted = [
        Sample(0, 6, 0, SamplingParams(temperature=0.0)),
        Sample(2, 6, 1, FILTERS[3]),
        Sample(2, 6, 2, FILTERS[4], banned=(int(logits[2].argmax()),)),
        Sample(1, 6, 0, SamplingParams(seed=3, repetition_penalty=1.3, frequency_penalty=0.5), history=history),
        Sample(0, 6, 1, SamplingParams(seed=12, logit_bias=((699, 8.0), (3, -100.0)))),
    ]
    check(device, logits, wanted)


@pytest.mark.parametrize("params", FILTERS, ids=str)
@pytest.mark.parametrize("vocabulary", [33, 2048, 2049])
def test_all_equal(plain: Device, params: SamplingParams, vocabulary: int) -> None:
    """The lowest ids win; more equals than the list of candidates holds."""
    check(plain, np.full((1, vocabulary), 1.5, np.float32), draws(params, 1, 3))


@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_ties(plain: Device, params: SamplingParams) -> None:
    """Few different values, both zeros among them, so that every cut falls among equals."""
    logits = np.random.default_rng(5).choice(np.array([-2, -0.0, 0.0, 1, 4], np.float32), (2, 900))
    check(plain, logits, draws(params, 2, 4))


@pytest.mark.parametrize("scale", [1e-4, 1e37])
def test_extreme_ranges(plain: Device, scale: float) -> None:
    """A flat row, whose candidates do not fit a list, and one whose differences are beyond any exponential."""
    logits = some_logits(4, 1, 3000) * np.float32(scale)
    check(plain, logits, draws(FILTERS[3], 1, 2) + draws(FILTERS[4], 1, 2) + draws(FILTERS[6], 1, 2))


def test_first_and_last_draw(plain: Device) -> None:
    """u = 0 gives the first token kept, u next to 1 the last, however the sum of all is rounded."""
    logits = some_logits(1, 16, 7, spread=0.3)
    rows = [*range(16)] * 2
    plan = plan_samples(draws(SamplingParams(), 32, 1), rows, 7)
    plan.samples[::3, 2] = 4  # top_k
    plan.numbers[:16, 3], plan.numbers[16:, 3] = 0.0, np.nextafter(1.0, 0.0)
    tokens, best = plain.empty((32,), np.int32), plain.empty((32, 1), np.uint64)
    arrays = SampleArrays(plain.from_host(plan.samples), plain.from_host(plan.numbers), best)
    sample_tokens(plain, tokens, plain.from_host(logits), arrays)
    kept = [np.sort(np.argsort(-logits[row])[: top_k or 7]) for row, top_k in zip(rows, plan.samples[:, 2], strict=True)]
    assert plain.to_host(tokens).tolist() == [k[0] for k in kept[:16]] + [k[-1] for k in kept[16:]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite(plain: Device, bad: float) -> None:
    """-1 for a bad logit anywhere, with any bans; other rows are not affected."""
    logits = some_logits(2, 3, 5000)
    logits[1, 4999] = bad
    wanted = [Sample(row, 3, 0, params, banned) for row in range(3) for params in FILTERS[:4] for banned in ((), (4999,))]
    expected = by_chain(logits, wanted)
    assert on_device(plain, logits, wanted) == expected
    assert expected[8:16] == [-1] * 8


PENALTIES = [
    SamplingParams(temperature=0.0, repetition_penalty=2.0),
    SamplingParams(seed=1, repetition_penalty=0.5, repeat_last_n=4),
    SamplingParams(seed=2, presence_penalty=1.5, frequency_penalty=-0.25),
    SamplingParams(seed=3, frequency_penalty=2.0, penalize_prompt=True, repeat_last_n=7),
    SamplingParams(temperature=0.0, presence_penalty=2.0, logit_bias=((0, 9.5), (6, -1.25), (3, 100.0))),
    SamplingParams(seed=4, top_k=3, repetition_penalty=1.1, presence_penalty=-2.0, logit_bias=((2, 1e30), (5, -1e30))),
    SamplingParams(temperature=0.0, repetition_penalty=1e-30, repeat_last_n=0),
    SamplingParams(temperature=0.0, repetition_penalty=1e-30),
]


@pytest.mark.parametrize("vocabulary", [7, 257])
@pytest.mark.parametrize("params", PENALTIES, ids=str)
def test_adjustments(plain: Device, params: SamplingParams, vocabulary: int) -> None:
    """Bias, penalties and bans in the chain's order, on tokens that have several of them."""
    logits = some_logits(vocabulary, 2, vocabulary)
    random = np.random.default_rng(8)
    wanted = []
    for row in (0, 1, 1):
        past = random.integers(0, 7, 12).astype(np.int32)
        history = History(past, 5) if params.needs_history else None
        wanted += [Sample(row, 12, choice, params, banned, history) for choice in range(2) for banned in ((), (3, 6), (1, 1))]
    check(plain, logits, wanted)


def test_adjusted_beyond_float32(plain: Device) -> None:
    """Logits that no longer fit a float32 are the largest there are, not infinite: two equal ones share the chance."""
    logits = np.abs(some_logits(6, 1, 257))
    logits[0, [77, 200]] = 2.0
    params = SamplingParams(seed=1, repetition_penalty=1e-40)
    wanted = [Sample(0, 2, choice, params, history=History(np.array([77, 200], np.int32), 1)) for choice in range(6)]
    got = on_device(plain, logits, wanted)
    assert got == by_chain(logits, wanted)
    assert set(got) == {77, 200}


def test_only_one_token_left(plain: Device) -> None:
    """All but one banned, with every filter: fewer tokens than top_k."""
    logits = some_logits(3, 1, 257)
    banned = tuple(token for token in range(257) if token != 100)
    wanted = [s for params in FILTERS for s in draws(params, 1, 1, banned)]
    assert on_device(plain, logits, wanted) == [100] * len(wanted)


def test_padding(plain: Device) -> None:
    """A negative row of logits is not looked at, and its token is 0."""
    logits = some_logits(3, 1, 257)
    wanted = draws(FILTERS[3], 1, 1)
    plan = plan_samples([wanted[0], wanted[0]._replace(banned=(1,)), wanted[0]], [-1, -1, 0], 257)
    tokens = plain.empty((3,), np.int32)
    arrays = SampleArrays(plain.from_host(plan.samples), plain.from_host(plan.numbers), plain.empty((3, 1), np.uint64))
    sample_tokens(plain, tokens, plain.from_host(logits), arrays)
    assert plain.to_host(tokens).tolist() == [0, 0, *by_chain(logits, wanted)]


def many_logprobs(
    device: Device, logits: np.ndarray, rows: list[int], targets: list[int], counts: list[int] | None = None, most: int = 1
) -> list[np.ndarray]:
    values = device.empty((len(rows),), np.float32)
    ids, tops = device.empty((len(rows), most), np.int32), device.empty((len(rows), most), np.float32)
    arrays = [device.from_host(np.array(list_, np.int32)) for list_ in (rows, targets, counts or [])]
    if counts is None:
        logprobs(device, values, device.from_host(logits), *arrays[:2])
        return [device.to_host(values)]
    logprobs(device, values, device.from_host(logits), *arrays[:2], top_ids=ids, top_values=tops, top_counts=arrays[2])
    return [device.to_host(array) for array in (values, ids, tops)]


@pytest.mark.parametrize("vocabulary", [1, 7, 257, 2048, 5000])
def test_logprob(plain: Device, vocabulary: int) -> None:
    """Of the likeliest token, the unlikeliest and one between."""
    logits = some_logits(vocabulary, 2, vocabulary)
    targets = [int(logits[1].argmax()), int(logits[1].argmin()), vocabulary // 2, 0]
    (values,) = many_logprobs(plain, logits, [1, 1, 1, 0], targets)
    expected = [chain.logprob(logits[row], target) for row, target in zip([1, 1, 1, 0], targets, strict=True)]
    np.testing.assert_allclose(values, expected, rtol=KERNEL, atol=KERNEL)


def test_logprob_without_answer(plain: Device) -> None:
    """NaN for a row that is not finite and for a token that could not be sampled; 0 for padding. None has best ones."""
    logits = some_logits(1, 3, 257)
    logits[1, 256] = np.inf
    values, ids, tops = many_logprobs(plain, logits, [1, 0, -1], [0, -1, 5], [2, 0, 2], 2)
    np.testing.assert_array_equal(values, [np.nan, np.nan, 0])
    assert (ids == -1).all()
    assert (tops == 0).all()


@pytest.mark.parametrize("kind", ["normal", "ties", "flat", "wide"])
def test_top_logprobs(device: Device, kind: str) -> None:
    """The best ones in their order, as many as each asks for, also where candidates do not fit the list."""
    logits = some_logits(9, 2, 2500)
    if kind == "ties":
        logits = np.round(logits / 4).astype(np.float32)
    elif kind == "flat":
        logits = np.where(np.arange(2500) % 100 == 3, 2.0, np.full((2, 2500), 2.0 - 1e-6)).astype(np.float32)
    elif kind == "wide":
        logits *= np.float32(100)
    rows, counts, targets = [1, 0, 0], [20, 3, 0], [4, 5, 6]
    values, ids, tops = many_logprobs(device, logits, rows, targets, counts, 20)
    for i, (row, count, target) in enumerate(zip(rows, counts, targets, strict=True)):
        expected = chain.with_logprobs(target, logits[row], count)
        assert ids[i].tolist() == [token for token, _ in expected.top] + [-1] * (20 - count)
        np.testing.assert_allclose(tops[i, :count], [value for _, value in expected.top], rtol=KERNEL, atol=KERNEL)
        np.testing.assert_allclose(values[i], expected.logprob, rtol=KERNEL, atol=KERNEL)
        assert (tops[i, count:] == 0).all()
