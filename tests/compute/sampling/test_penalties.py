"""Bias and penalties against numbers worked out by hand; they change what is drawn, never the log probabilities."""

import math

import numpy as np
import pytest

from svc.compute.backend import History
from svc.compute.sampling.chain import sample
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.penalties import add_bias, penalize

PROMPT, ANSWER = [0, 0, 1], [2, 3, 2, 2]
HISTORY = History(np.array(PROMPT + ANSWER, np.int32), len(PROMPT))
ROW = [2.0, -2.0, 1.0, -1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # 0 (twice) and 2 (thrice) are above zero: halved once. 1 and 3 are below: doubled. 4 and 5 never came.
        ({"repetition_penalty": 2.0}, [1.0, -4.0, 0.5, -2.0, 0.5, 0.0]),
        ({"repetition_penalty": 0.5}, [4.0, -1.0, 2.0, -0.5, 0.5, 0.0]),
        # The last three tokens are 3, 2, 2; a window longer than all is all; none is none.
        ({"repetition_penalty": 2.0, "repeat_last_n": 3}, [2.0, -2.0, 0.5, -2.0, 0.5, 0.0]),
        ({"repetition_penalty": 2.0, "repeat_last_n": 99}, [1.0, -4.0, 0.5, -2.0, 0.5, 0.0]),
        ({"repetition_penalty": 2.0, "repeat_last_n": 0}, ROW),
        # Of the answer, 2 came thrice and 3 once; the prompt does not count.
        ({"presence_penalty": 1.5}, [2.0, -2.0, -0.5, -2.5, 0.5, 0.0]),
        ({"frequency_penalty": 0.25}, [2.0, -2.0, 0.25, -1.25, 0.5, 0.0]),
        ({"presence_penalty": -1.0, "frequency_penalty": 0.5}, [2.0, -2.0, 0.5, -0.5, 0.5, 0.0]),
        # Repetition comes first: (1 / 2) - 0.5 - 3 * 0.25 for token 2, (-1 * 2) - 0.5 - 0.25 for token 3.
        (
            {"repetition_penalty": 2.0, "presence_penalty": 0.5, "frequency_penalty": 0.25},
            [1.0, -4.0, -0.75, -2.75, 0.5, 0.0],
        ),
        # llama.cpp's way: the window counts, prompt or answer. The last five are 1, 2, 3, 2, 2; zero tokens count nothing.
        ({"frequency_penalty": 1.0, "penalize_prompt": True}, [0.0, -3.0, -2.0, -2.0, 0.5, 0.0]),
        ({"frequency_penalty": 1.0, "penalize_prompt": True, "repeat_last_n": 5}, [2.0, -3.0, -2.0, -2.0, 0.5, 0.0]),
        ({"presence_penalty": 1.0, "penalize_prompt": True, "repeat_last_n": 0}, ROW),
        # OpenAI's count of the answer does not depend on the window of repetition.
        ({"presence_penalty": 1.0, "repeat_last_n": 1}, [2.0, -2.0, 0.0, -2.0, 0.5, 0.0]),
    ],
)
def test_penalties_by_hand(fields: dict[str, float], expected: list[float]) -> None:
    logits = np.array(ROW)
    penalize(logits, SamplingParams(**fields), HISTORY)  # type: ignore[arg-type]
    assert logits.tolist() == expected


def test_the_first_token_of_an_answer() -> None:
    """Nothing was generated: presence and frequency have nothing to count, repetition has the prompt."""
    logits = np.array(ROW)
    params = SamplingParams(presence_penalty=1, frequency_penalty=1, repetition_penalty=2)
    penalize(logits, params, History(np.array(PROMPT, np.int32), len(PROMPT)))
    assert logits.tolist() == [1.0, -4.0, 1.0, -1.0, 0.5, 0.0]


def test_bias_by_hand() -> None:
    logits = np.array(ROW)
    add_bias(logits, SamplingParams(logit_bias=((0, -100.0), (5, 1.25))))
    assert logits.tolist() == [-98.0, -2.0, 1.0, -1.0, 0.5, 1.25]


def test_bias_comes_before_penalties_and_bans_after() -> None:
    """5 is lifted above 0 and then halved by repetition, to 2.5: less than 4's 3. A ban wins over any bias."""
    params = SamplingParams(temperature=0, logit_bias=((5, 5.0), (4, 2.5)), repetition_penalty=2.0)
    row, history = np.array(ROW, np.float32), History(np.array([5], np.int32), 1)
    assert sample(row, params, (), 0, 1, history).token == 4
    assert sample(row, SamplingParams(temperature=0, logit_bias=((5, 5.0), (4, 2.5))), (), 0, 1).token == 5
    assert sample(row, SamplingParams(temperature=0, logit_bias=((5, 100.0),)), (5,), 0, 1).token == 0


def test_filters_see_what_is_left() -> None:
    """top-k takes the best after penalties: 2 and 0 were the best, 2 was said."""
    params = SamplingParams(top_k=2, presence_penalty=2.0)
    history = History(np.array([1, 2], np.int32), 1)
    row = np.array([2.0, -2.0, 2.1, -1.0, 0.5, 0.0], np.float32)
    assert {sample(row, params, (), 0, position, history).token for position in range(2, 200)} == {0, 4}


def test_logprobs_stay_the_models_own() -> None:
    params = SamplingParams(temperature=0, logit_bias=((5, 50.0),), repetition_penalty=3.0, frequency_penalty=1.0, num_logprobs=1)
    result = sample(np.array(ROW, np.float32), params, (), 0, len(HISTORY.tokens), HISTORY)
    total = math.log(sum(math.exp(value) for value in ROW))
    assert result.token == 5
    assert result.logprob == pytest.approx(0.0 - total, abs=1e-12)
    ((best, logprob),) = result.top
    assert (best, logprob) == (0, pytest.approx(2.0 - total, abs=1e-12))


def test_nothing_given_is_changed() -> None:
    row, tokens = np.array(ROW, np.float32), HISTORY.tokens.copy()
    row.flags.writeable = tokens.flags.writeable = False
    params = SamplingParams(logit_bias=((1, 1.0),), repetition_penalty=1.1, presence_penalty=1, frequency_penalty=1)
    sample(row, params, (2,), 0, len(tokens), History(tokens, 3))
    assert row.tolist() == np.array(ROW, np.float32).tolist()


def test_which_params_need_the_past() -> None:
    assert not SamplingParams(logit_bias=((1, 1.0),), repeat_last_n=5, penalize_prompt=True).needs_history
    for field, value in (("repetition_penalty", 1.1), ("presence_penalty", -0.1), ("frequency_penalty", 0.1)):
        assert SamplingParams(**{field: value}).needs_history  # type: ignore[arg-type]
