"""The steps beyond the usual chain, against plain definitions (plain_steps.py), numbers worked out by hand, and their purpose."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.backend import History, Sampled
from svc.compute.sampling.chain import XTC_CHANCE, sample
from svc.compute.sampling.dry import MAX_REPEAT, SURE_TOKENS, dry_penalties
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.randomness import uniform
from svc.compute.sampling.steps import USUAL_ORDER, AdaptiveP, Breakers, Dry, Mirostat, SamplingSteps, Step
from tests.compute.sampling import plain_steps as plain

VOCABULARY = 151
SURE = 1e-9  # a draw nearer to a boundary than this may go either way
NO_BREAKERS = Breakers.none()


def some_logits(seed: int, spread: float = 3.0) -> NDArray[np.float32]:
    logits = np.random.default_rng(seed).normal(0, spread, VOCABULARY).astype(np.float32)
    logits[seed % 50] = logits[seed % 50 + 7]  # equals
    return logits


def some_history(seed: int, length: int = 60) -> History:
    """Of few different tokens: much of it repeats."""
    return History(np.random.default_rng(seed).integers(0, 4, length).astype(np.int32), 20)


def some_steps(rng: random.Random) -> SamplingSteps:
    """A few of all steps, in any order, some of them left out."""
    order = rng.sample(USUAL_ORDER, rng.randrange(1, len(USUAL_ORDER) + 1))
    return SamplingSteps(
        order=tuple(order),
        top_n_sigma=rng.choice([0.0, 0.7, 2.0]),
        typical_p=rng.choice([1.0, 0.3, 0.9]),
        xtc_probability=rng.choice([0.0, 0.5, 1.0]),
        xtc_threshold=rng.choice([0.01, 0.05, 0.2, 0.6]),
        dynatemp_range=rng.choice([0.0, 0.5, 2.0]),
        dynatemp_exponent=rng.choice([1.0, 0.5, 2.0]),
        min_keep=rng.choice([1, 1, 3, 12]),
        dry=rng.choice([None, Dry(rng.choice([0.8, 2.0]), 1.75, rng.randrange(0, 4), rng.choice([-1, 5, 40]), NO_BREAKERS)]),
    )


def some_params(rng: random.Random, steps: SamplingSteps) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 0.4, 1.0, 1.7]),
        top_k=rng.choice([0, 5, 40]),
        top_p=rng.choice([1.0, 0.5, 0.95]),
        min_p=rng.choice([0.0, 0.05, 0.3]),
        seed=rng.randrange(1000),
        num_logprobs=5,
        repetition_penalty=rng.choice([1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.4]),
        penalize_prompt=True,
        steps=replace(steps, post_sampling_probs=True),
    )


def by_definition(logits: NDArray[np.float32], params: SamplingParams, history: History | None, xtc_chance: float) -> plain.Left:
    """What the token is drawn from."""
    steps = params.steps
    assert steps is not None
    past = history.tokens.tolist() if history else []
    left = dict(enumerate(logits.astype(float).tolist()))
    taken = {
        Step.PENALTIES: lambda: plain.penalties(
            left, past, params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        ),
        Step.DRY: lambda: plain.dry(left, past, steps.dry) if steps.dry else left,
        Step.TEMPERATURE: lambda: plain.temperature(left, params.temperature, steps.dynatemp_range, steps.dynatemp_exponent),
        Step.TOP_N_SIGMA: lambda: plain.top_n_sigma(left, steps.top_n_sigma),
        Step.TOP_K: lambda: plain.top_k(left, params.top_k),
        Step.TYPICAL_P: lambda: plain.typical_p(left, steps.typical_p, steps.min_keep),
        Step.TOP_P: lambda: plain.top_p(left, params.top_p, steps.min_keep),
        Step.MIN_P: lambda: plain.min_p(left, params.min_p, steps.min_keep),
        Step.XTC: lambda: plain.xtc(left, steps.xtc_threshold, steps.min_keep) if xtc_chance < steps.xtc_probability else left,
    }
    for step in steps.order:
        left = taken[step]()
    return left


def test_all_steps_in_any_order() -> None:
    """Random steps in random orders: the tokens left, their probabilities and the token drawn are those of the plain definition."""
    rng, sure = random.Random(1), 0
    for seed in range(400):
        params = some_params(rng, some_steps(rng))
        history = some_history(seed) if params.needs_history else None
        logits, position = some_logits(seed, rng.choice([0.5, 3.0])), 60
        left = by_definition(logits, params, history, uniform(params.seed, 0, position, XTC_CHANCE))
        found = sample(logits, params, (), 0, position, history)
        shares = plain.softmax(left)
        ranked = sorted(shares.values(), reverse=True)[:5]
        assert [math.exp(logprob) for _, logprob in found.top] == pytest.approx(ranked, abs=1e-9), params
        assert all(math.exp(logprob) == pytest.approx(shares[token], abs=1e-9) for token, logprob in found.top), params
        token, distance = plain.drawn(left, uniform(params.seed, 0, position))
        if distance > SURE:
            sure += 1
            assert found.token == token, params
            assert math.exp(found.logprob) == pytest.approx(shares[token], abs=1e-9)
    assert sure > 390


def test_the_usual_order_is_the_usual_chain() -> None:
    """Steps that ask for nothing draw the same tokens as no steps at all."""
    rng = random.Random(2)
    for seed in range(200):
        params = replace(some_params(rng, SamplingSteps()), steps=None, penalize_prompt=False)
        history = some_history(seed) if params.needs_history else None
        logits = some_logits(seed)
        usual = sample(logits, params, (), 0, 60, history)
        assert sample(logits, replace(params, steps=SamplingSteps()), (), 0, 60, history) == usual


def test_log_probabilities_are_the_models_unless_asked_otherwise() -> None:
    """post_sampling_probs changes what is told, never the token."""
    logits = some_logits(3)
    params = SamplingParams(top_k=2, seed=5, num_logprobs=4)
    own, steps = sample(logits, params, (), 0, 9), SamplingSteps(order=(Step.TOP_K,))
    assert sample(logits, replace(params, steps=steps), (), 0, 9) == own
    told = sample(logits, replace(params, steps=replace(steps, post_sampling_probs=True)), (), 0, 9)
    assert (told.token, len(told.top)) == (own.token, 2)
    assert sum(math.exp(logprob) for _, logprob in told.top) == pytest.approx(1.0)


def test_bias_bans_and_masks_hold_for_steps_too() -> None:
    logits = np.zeros(40, np.float32)
    mask = np.array([0b111100, 0], np.uint32)  # tokens 2 to 5
    params = SamplingParams(logit_bias=((9, 50.0), (4, 9.0), (5, 5.0)), steps=SamplingSteps(order=(Step.TOP_K,)), top_k=1)
    assert sample(logits, params, (), 0, 1).token == 9
    assert sample(logits, params, (), 0, 1, mask=mask).token == 4
    assert sample(logits, params, (4,), 0, 1, mask=mask).token == 5
    assert sample(logits, params, tuple(range(40))[:-1], 0, 1, mask=mask).token == 4  # bans that leave nothing do not count


# -- DRY
def loses(tokens: Sequence[int], dry: Dry) -> dict[int, float]:
    found, losses = dry_penalties(np.array(tokens, np.int32), dry)
    assert len(set(found.tolist())) == len(found)
    return dict(zip(found.tolist(), losses.tolist(), strict=True))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 9, 1, 2], {3: 1.0}),  # "1 2" came before 3: as long as is allowed, so base^0
        ([7, 1, 2, 3, 9, 7, 1, 2], {3: 2.0}),  # one longer
        ([7, 1, 2, 3, 8, 1, 2, 4, 9, 7, 1, 2], {3: 2.0, 4: 1.0}),  # each by its own longest repeat
        ([1, 2, 3, 9, 2], {}),  # one token is no repeat
        ([5, 5, 5, 5], {5: 2.0}),  # three fives came before a five
        ([], {}),
        ([1, 1], {}),
    ],
)
def test_dry_by_hand(tokens: list[int], expected: dict[int, float]) -> None:
    """Base 2, multiplier 1, two tokens allowed."""
    assert loses(tokens, Dry(1.0, 2.0, 2, -1, NO_BREAKERS)) == expected


def test_breakers_by_hand() -> None:
    """No repeat reaches back across a breaker, one of two tokens too; and a token with one in it never loses."""
    text = [7, 1, 2, 3, 9, 7, 1, 2]
    dry = Dry(1.0, 2.0, 1, -1, NO_BREAKERS)
    assert loses(text, dry) == {3: 4.0}
    one = np.array([1], np.int32)
    assert loses(text, replace(dry, breakers=Breakers(one))) == {3: 1.0}
    assert loses(text, replace(dry, breakers=Breakers(np.array([3], np.int32)))) == {}
    seven = np.array([7], np.int32)
    longer = Breakers(np.zeros(0, np.int32), ((seven, (1,)), (one, (5,))))
    assert loses(text, replace(dry, breakers=longer)) == {3: 1.0}
    assert loses(text, replace(dry, breakers=Breakers(np.zeros(0, np.int32), ((one, (2,)),)))) == {}


def test_dry_on_random_texts() -> None:
    """With breakers of one and of two tokens, against the plain definition."""
    rng = random.Random(4)
    penalized = 0
    for _ in range(500):
        tokens = [rng.choice([0, 1, 1, 2, 3, 4]) for _ in range(rng.randrange(1, 50))]
        dry = Dry(0.5, 1.5, rng.randrange(0, 4), rng.choice([-1, 3, 20]), Breakers(np.array([4], np.int32)))
        pair = Breakers(np.zeros(0, np.int32), ((np.array([2, 3], np.int32), (2,)),))
        cases: list[tuple[Breakers, list[tuple[int, ...]]]] = [
            (NO_BREAKERS, []),
            (dry.breakers, [(4,)]),
            (pair, [(2, 2), (3, 2)]),
        ]
        for breakers, texts in cases:
            expected = plain.dry(dict.fromkeys(range(6), 0.0), tokens, dry, texts)
            found = dict.fromkeys(range(6), 0.0) | {t: -loss for t, loss in loses(tokens, replace(dry, breakers=breakers)).items()}
            assert found == pytest.approx(expected), (tokens, dry, breakers)
            penalized += any(found.values())
    assert penalized > 500


def test_long_repeats() -> None:
    """Beyond SURE_TOKENS too: the length of each is exact."""
    rng = random.Random(6)
    for length in (SURE_TOKENS - 1, SURE_TOKENS, SURE_TOKENS + 1, 40, 100):
        end = [rng.randrange(9) for _ in range(length)]
        tokens = [10, *end, 7, 8, 10, *end[3:], 6, 11, *end]
        dry = Dry(1.0, 1.1, 2, -1, NO_BREAKERS)
        left = dict.fromkeys(range(12), 0.0)
        assert left | {t: -loss for t, loss in loses(tokens, dry).items()} == pytest.approx(plain.dry(left, tokens, dry))
        assert loses(tokens, dry)[7] == pytest.approx(1.1 ** (length - 2))


def test_dry_has_bounds() -> None:
    """A text of one token gives a finite penalty, in a bounded number of passes; MAX_REPEAT tokens of it count."""
    ones = [1] * 5000
    assert loses(ones, Dry(1.0, 1.01, 2, -1, NO_BREAKERS)) == {1: pytest.approx(1.01 ** (MAX_REPEAT - 2))}
    ((_, loss),) = loses(ones, Dry(1.0, 2.0, 2, -1, NO_BREAKERS)).items()
    assert 1e38 < loss < 3.5e38


# -- mirostat and adaptive-p
def chain_of(params: SamplingParams, count: int, spread: float = 3.0) -> list[tuple[NDArray[np.float32], Sampled]]:
    """Tokens one after the other, each with what the one before has taught."""
    found: list[tuple[NDArray[np.float32], Sampled]] = []
    learned: tuple[float, ...] = ()
    for position in range(count):
        logits = some_logits(position, spread)
        drawn = sample(logits, params, (), 0, position, learned=learned)
        learned = drawn.learned
        found.append((logits, drawn))
    return found


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_mirostat_is_the_papers(version: int, temperature: float) -> None:
    """Each token and each correction of the bound; the filters do not count, the temperature does."""
    tau, eta, mu = 3.0, 0.2, 6.0
    steps = SamplingSteps(mirostat=Mirostat(version, tau, eta), typical_p=0.1)
    params = SamplingParams(temperature=temperature, top_k=1, top_p=0.1, seed=7, steps=steps)
    for position, (logits, found) in enumerate(chain_of(params, 60)):
        left = plain.temperature(dict(enumerate(logits.astype(float).tolist())), temperature)
        left = plain.mirostat(left, version, mu, VOCABULARY)
        token, distance = plain.drawn(left, uniform(7, 0, position))
        assert found.token == token or distance < SURE
        mu -= eta * (-math.log2(plain.softmax(left)[found.token]) - tau)
        assert found.learned == pytest.approx((mu,))


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_holds_the_surprise(version: int) -> None:
    """The mean surprise of the tokens drawn comes near tau, for a low one and for a higher one."""
    for tau in (1.0, 3.0):
        params = SamplingParams(
            seed=3, num_logprobs=0, steps=SamplingSteps(mirostat=Mirostat(version, tau, 0.1), post_sampling_probs=True)
        )
        surprises = [-found.logprob / math.log(2) for _, found in chain_of(params, 600, spread=2.0)]
        assert np.mean(surprises[100:]) == pytest.approx(tau, abs=0.25)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_with_one_candidate(version: int) -> None:
    """Its surprise is 0, so the bound rises by eta * tau; at temperature 0 that is always so."""
    steps = SamplingSteps(mirostat=Mirostat(version, 5.0, 0.1))
    found = sample(some_logits(1), SamplingParams(temperature=0, steps=steps), (), 0, 0)
    assert (found.token, found.learned) == (int(some_logits(1).argmax()), pytest.approx((10.5,)))


def test_adaptive_p_by_its_definition() -> None:
    """The target of each draw makes up for the probabilities of the tokens before."""
    target, decay = 0.3, 0.9
    weighted, weight = target / (1 - decay), 1 / (1 - decay)
    params = SamplingParams(top_k=20, seed=7, steps=SamplingSteps(adaptive=AdaptiveP(target, decay)))
    for position, (logits, found) in enumerate(chain_of(params, 60)):
        left = plain.top_k(dict(enumerate(logits.astype(float).tolist())), 20)
        moved = plain.adaptive(left, min(max(2 * target - weighted / weight, 0.0), 1.0))
        token, distance = plain.drawn(moved, uniform(7, 0, position))
        assert found.token == token or distance < SURE
        weighted, weight = plain.softmax(left)[found.token] + decay * weighted, 1 + decay * weight
        assert found.learned == pytest.approx((weighted, weight))


def test_adaptive_p_comes_near_its_target() -> None:
    """The mean probability of the tokens drawn is lower for a low target than for a high one, which mere sampling lies between."""

    def mean_probability(**fields: Any) -> float:
        params = SamplingParams(seed=1, num_logprobs=0, **fields)
        return float(np.mean([math.exp(found.logprob) for _, found in chain_of(params, 400)]))

    low, high = (mean_probability(top_k=30, steps=SamplingSteps(adaptive=AdaptiveP(t, 0.9))) for t in (0.05, 0.9))
    assert low < mean_probability(top_k=30) < high


def test_what_needs_the_past() -> None:
    """DRY needs the tokens, mirostat and adaptive-p what was learned; the others nothing."""
    assert not SamplingParams(steps=SamplingSteps(typical_p=0.5)).needs_history
    assert SamplingParams(steps=SamplingSteps(dry=Dry(1, 2, 2, -1, NO_BREAKERS))).needs_history
    assert SamplingParams(bad_words=((1, 2),)).needs_history
    assert not SamplingParams(steps=SamplingSteps(typical_p=0.5)).learns
    assert SamplingParams(steps=SamplingSteps(mirostat=Mirostat(2, 5, 0.1))).learns
    assert SamplingParams(steps=SamplingSteps(adaptive=AdaptiveP(0.5, 0.9))).learns


# -- bad words
def test_bad_words() -> None:
    """The last token of a sequence is out where the answer ends with the others; what the prompt ends with does not count."""
    logits = np.array([0, 1, 2, 3, 4], np.float32)
    params = SamplingParams(temperature=0, bad_words=((2, 4), (1, 2, 3)))

    def token(prompt: list[int], answer: list[int], chosen: SamplingParams = params) -> int:
        history = History(np.array(prompt + answer, np.int32), len(prompt))
        return sample(logits, chosen, (), 0, len(history.tokens), history).token

    assert token([0], []) == 4
    assert token([1, 2], []) == 4
    assert token([0], [2]) == 3
    assert token([0], [1, 2]) == 2
    assert token([1], [2]) == 3  # of the longer one, only a part is in the answer
    assert token([0], [2, 0]) == 4
    assert token([0], [1, 2], replace(params, steps=SamplingSteps())) == 2
