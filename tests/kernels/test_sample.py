"""Tokens from logits, through every backend: the same ones as the plain definition of what is asked for."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.backend import NO_TOKEN, NOT_FINITE, Sample
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.randomness import uniform
from svc.compute.sampling.steps import Mirostat, SamplingSteps, Step
from tests.compute.sampling import plain_steps as plain
from tests.compute.sampling.test_steps import by_definition
from tests.kernels.backends import KernelBackend

VOCABULARY = 77  # the last word of a mask is not full


def some_logits(rows: int) -> NDArray[np.float32]:
    return np.random.default_rng(2).normal(0, 2, (rows, VOCABULARY)).astype(np.float32)


def sampled(backend: KernelBackend, logits: NDArray[np.float32], samples: list[Sample]) -> list[int]:
    ops = backend.make()
    there = ops.empty(logits.shape)
    backend.write(there, logits)
    return [found.token for found in ops.sample(there, [sample.row for sample in samples], samples)()]


def words_of(tokens: list[int], num_words: int = 3) -> NDArray[np.uint32]:
    """A mask with the bits of these tokens."""
    words = np.zeros(num_words, np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words


GREEDY = SamplingParams(temperature=0)
PARAMS = [
    GREEDY,
    SamplingParams(seed=1),
    SamplingParams(seed=2, top_k=3),
    SamplingParams(seed=3, top_p=0.5),
    SamplingParams(seed=4, min_p=0.2),
    SamplingParams(temperature=0, logit_bias=((40, 100.0), (3, 50.0))),
    SamplingParams(temperature=0, logit_bias=((40, 100.0), (64, -100.0))),
]


@pytest.mark.parametrize("allowed", [[5], [0, 31, 32, 63, 64, 76], list(range(76)), list(range(VOCABULARY))], ids=len)
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_only_tokens_of_the_mask_come(backend: KernelBackend, params: SamplingParams, allowed: list[int]) -> None:
    """As if the others were banned one by one, whatever filter or bias there is."""
    logits = some_logits(2)
    others = tuple(sorted(set(range(VOCABULARY)) - set(allowed)))
    masked = [Sample(row, 9 + n, n, params, mask=lambda: words_of(allowed)) for row in (0, 1, 1) for n in range(3)]
    banned = [Sample(row, 9 + n, n, params, banned=others) for row in (0, 1, 1) for n in range(3)]
    tokens = sampled(backend, logits, masked)
    assert tokens == sampled(backend, logits, banned)
    assert set(tokens) <= set(allowed)


def test_a_mask_concerns_its_own_sample(backend: KernelBackend) -> None:
    """Neighbours in the batch, of the same row too, are drawn as without it; logits stay as they are."""
    logits = some_logits(2)
    plain = [Sample(0, 3, 0, GREEDY), Sample(1, 3, 0, GREEDY), Sample(0, 3, 0, GREEDY)]
    best = sampled(backend, logits, plain)
    masked = [plain[0], Sample(1, 3, 0, GREEDY, mask=lambda: words_of([7])), Sample(0, 3, 0, GREEDY, mask=lambda: words_of([8]))]
    assert sampled(backend, logits, masked) == [best[0], 7, 8]
    assert sampled(backend, logits, masked[::-1]) == [8, 7, best[0]]


def test_bans_do_not_leave_a_grammar_without_a_token(backend: KernelBackend) -> None:
    """Bans count among allowed tokens as long as one is left; a grammar that only the end can follow ends the answer."""
    logits = some_logits(1)
    samples = [
        Sample(0, 3, 0, GREEDY, banned=(5, 40), mask=lambda: words_of([5, 40, 76])),
        Sample(0, 3, 0, GREEDY, banned=(5, 40), mask=lambda: words_of([40])),
    ]
    assert sampled(backend, logits, samples) == [76, 40]


def test_an_empty_mask_gives_no_token(backend: KernelBackend) -> None:
    """Said apart from logits that are not finite, which say so with a mask too; neighbours are not hurt."""
    logits = some_logits(1)
    samples = [Sample(0, 3, 0, params, mask=lambda: words_of([])) for params in PARAMS] + [Sample(0, 3, 0, GREEDY)]
    assert sampled(backend, logits, samples) == [NO_TOKEN] * len(PARAMS) + [int(logits.argmax())]
    logits[0, 70] = np.nan
    assert sampled(backend, logits, samples) == [NOT_FINITE] * len(samples)


STEPS = [
    SamplingSteps(order=(Step.TOP_P, Step.TEMPERATURE)),
    SamplingSteps(typical_p=0.6),
    SamplingSteps(top_n_sigma=1.0),
    SamplingSteps(xtc_probability=1.0, xtc_threshold=0.03),
    SamplingSteps(dynatemp_range=0.6, dynatemp_exponent=2.0),
    SamplingSteps(min_keep=20),
]


@pytest.mark.parametrize("steps", STEPS, ids=["order", "typical_p", "top_n_sigma", "xtc", "dynatemp", "min_keep"])
def test_steps_by_their_definition(backend: KernelBackend, steps: SamplingSteps) -> None:
    """The tokens that the plain definition draws."""
    logits = some_logits(2)
    params = SamplingParams(temperature=1.3, top_p=0.7, seed=9, steps=steps)
    samples = [Sample(row, 9 + n, n, params) for row in (0, 1, 1) for n in range(4)]
    expected = []
    for wanted in samples:
        left = by_definition(logits[wanted.row], params, None, xtc_chance=0.0)
        token, distance = plain.drawn(left, uniform(9, wanted.choice, wanted.position))
        assert distance > 1e-9
        expected.append(token)
    assert sampled(backend, logits, samples) == expected


def test_what_mirostat_learns(backend: KernelBackend) -> None:
    """Each sample draws with what it is given, and gives what the next one needs."""
    logits, mu, tau, eta = some_logits(1), 3.0, 2.0, 0.5
    params = SamplingParams(seed=4, steps=SamplingSteps(mirostat=Mirostat(2, tau, eta)))
    ops = backend.make()
    there = ops.empty(logits.shape)
    backend.write(there, logits)
    (found,) = ops.sample(there, [0], [Sample(0, 9, 0, params, learned=(mu,))])()
    left = plain.mirostat(dict(enumerate(logits[0].astype(float).tolist())), 2, mu, VOCABULARY)
    assert found.token == plain.drawn(left, uniform(4, 0, 9))[0]
    surprise = -math.log2(plain.softmax(left)[found.token])
    assert found.learned == pytest.approx((mu - eta * (surprise - tau),))
