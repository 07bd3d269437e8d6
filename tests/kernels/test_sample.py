"""Tokens from logits, through every backend: the same ones as the plain definition of what is asked for."""

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.backend import NO_TOKEN, NOT_FINITE, Sample
from svc.compute.sampling.params import SamplingParams
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
