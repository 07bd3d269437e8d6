"""The Kneser-Ney baseline: a proper distribution, and the properties it is named for."""

import numpy as np
import pytest

from tests.demo_model.scripts import load_script

ngram = load_script("ngram")
VOCABULARY = 9


@pytest.mark.parametrize("order", [2, 3, 5])
def test_probabilities_sum_to_one(order: int) -> None:
    """After contexts that were seen, that were not, and that were seen in part."""
    ids = np.random.default_rng(order).integers(0, VOCABULARY - 1, 400)  # one id never occurs
    model = ngram.KneserNey(ids, order, VOCABULARY)
    for context in (ids[: order - 1], np.full(order - 1, VOCABULARY - 1), np.array([VOCABULARY - 1, *ids[: order - 2]])):
        total = sum(np.exp(model.log_probs(np.append(context, last))[0]) for last in range(VOCABULARY))
        assert total == pytest.approx(1, abs=1e-12)


def test_a_word_of_one_context_is_unlikely_elsewhere() -> None:
    """ "Francisco" is frequent, but only after "San": in a new context a rarer word of many contexts is likelier."""
    san, francisco, common, new = 0, 1, 2, 8
    ids = [san, francisco] * 30
    for other in (3, 4, 5, 6, 7):
        ids += [other, common]
    model = ngram.KneserNey(np.array(ids), 2, VOCABULARY)
    after_new = [model.log_probs(np.array([new, word]))[0] for word in (francisco, common)]
    assert after_new[0] < after_new[1]
    assert np.exp(model.log_probs(np.array([san, francisco]))[0]) > 0.5


def test_one_order_by_hand() -> None:
    """Bigrams of 0 1 0 1 0 2, discounts and continuation counts worked out on paper.

    Bigrams: 01 twice, 10 twice, 02 once: n1 = 1, n2 = 2, n3 = n4 -> 1, so y = 1/5 and the discounts of counts 1 and 2 are
    1 - 2/5*2 = 1/5 and 2 - 3/5*1/2 = 17/10. Unigrams by contexts: 0, 1 and 2 once each: n1 = 3, n2 -> 1, y = 3/5,
    discount of 1: 1 - 6/5*1/3 = 3/5. p(1) = (1 - 3/5)/3 + (9/5)/3 * 1/9 = 1/5.
    p(1 | 0) = (2 - 17/10)/3 + (17/10 + 1/5)/3 * 1/5 = 0.1 + 0.38/3.
    """
    model = ngram.KneserNey(np.array([0, 1, 0, 1, 0, 2]), 2, VOCABULARY)
    assert np.exp(model.log_probs(np.array([0, 1]))[0]) == pytest.approx(0.1 + 0.38 / 3)
