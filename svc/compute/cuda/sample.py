"""Tokens and log probabilities from logits on the device, as svc/compute/sampling/chain.py defines them.

`plan_samples` turns requests into arrays on the host; `sample_tokens` and `logprobs` launch kernels. The host provides the
randomness: one uniform number per sample, a pure function of the request, is among the arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import History, Sample
from svc.compute.cuda.device import Device, DeviceArray, Stream
from svc.compute.sampling.bad_words import completions
from svc.compute.sampling.masks import Words, bans_beside
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.randomness import uniform

Int32 = NDArray[np.int32]
Float64 = NDArray[np.float64]

THREADS = 256
PART_LOGITS = 4096  # logits of a row for one block of sample_best
NUM_NUMBERS = 7  # numbers of a sample, in the order of sample.cu
LISTED = 2048  # most best tokens of one row: candidates that include/select.cuh holds
REPEATED, BANNED = 1, 2
LOWEST_TEMPERATURE = 1.2e-38  # the smallest float32 that no device flushes to zero


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """n samples, m adjustments of single logits, k masks, and `num_adjusted` samples with any of these."""

    samples: Int32  # [n, 4]: row of the logits (negative: padding), row of the adjusted copies or -1, top_k, row of the masks or -1
    numbers: Float64  # [n, 7]: temperature, top_p, min_p, uniform, repetition, presence and frequency penalty
    adjustments: Int32  # [m, 4]: token, sample, times counted, flags
    bias: Float64  # [m]
    masks: Words  # [k, ceil(V / 32)]
    num_adjusted: int


def plan_samples(samples: Sequence[Sample], rows: Sequence[int], vocabulary: int) -> SamplePlan:
    """`rows[i]`: the row of logits that sample i draws from."""
    assert len(samples) == len(rows)
    integers, numbers = np.zeros((len(samples), 4), np.int32), np.zeros((len(samples), NUM_NUMBERS), np.float64)
    adjustments: list[Int32] = []
    bias: list[Float64] = []
    masks: list[Words] = []
    num_adjusted = 0
    for index, (wanted, row) in enumerate(zip(samples, rows, strict=True)):
        mask = wanted.mask() if wanted.mask else None
        bans = bans_beside((*wanted.banned, *completions(wanted.params.bad_words, wanted.history)), mask)
        changed, gains = _adjustments(index, wanted, bans)
        is_adjusted = mask is not None or len(changed) > 0
        integers[index] = row, num_adjusted if is_adjusted else -1, wanted.params.top_k, len(masks) if mask is not None else -1
        numbers[index] = _numbers(wanted)
        adjustments.append(changed)
        bias.append(gains)
        masks += [mask] if mask is not None else []
        num_adjusted += is_adjusted
    return SamplePlan(
        integers,
        numbers,
        np.concatenate([np.zeros((0, 4), np.int32), *adjustments]),
        np.concatenate([np.zeros(0), *bias]),
        np.stack(masks) if masks else np.zeros((0, num_mask_words(vocabulary)), np.uint32),
        num_adjusted,
    )


def _numbers(wanted: Sample) -> tuple[float, ...]:
    """In the order of sample.cu."""
    params = wanted.params
    temperature = max(params.temperature, LOWEST_TEMPERATURE) if params.temperature else 0.0
    drawn = uniform(params.seed, wanted.choice, wanted.position) if temperature else 0.0
    penalties = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
    return temperature, params.top_p, params.min_p, drawn, *penalties


def _adjustments(index: int, wanted: Sample, bans: tuple[int, ...]) -> tuple[Int32, Float64]:
    """Every token whose logit changes, once: entries [m, 4], and biases [m]."""
    params = wanted.params
    repeated, counted, times = _past(params, wanted.history)
    biased = np.array([token for token, _ in params.logit_bias], np.int32)
    banned = np.array(bans, np.int32)
    tokens = np.unique(np.concatenate([repeated, counted, biased, banned]))
    entries, gains = np.zeros((len(tokens), 4), np.int32), np.zeros(len(tokens))
    entries[:, 0], entries[:, 1] = tokens, index
    entries[np.searchsorted(tokens, counted), 2] = times
    entries[np.searchsorted(tokens, repeated), 3] |= REPEATED
    entries[np.searchsorted(tokens, banned), 3] |= BANNED
    gains[np.searchsorted(tokens, biased)] = [gain for _, gain in params.logit_bias]
    return entries, gains


def _past(params: SamplingParams, history: History | None) -> tuple[Int32, Int32, NDArray[np.intp]]:
    """(tokens for the repetition penalty, tokens that presence and frequency count, their counts), as in penalties.py."""
    none = np.zeros(0, np.int32)
    if history is None:
        return none, none, np.zeros(0, np.intp)
    window = history.tokens if params.repeat_last_n < 0 else history.tokens[max(0, len(history.tokens) - params.repeat_last_n) :]
    repeated = np.unique(window) if params.repetition_penalty != 1 else none
    if not (params.presence_penalty or params.frequency_penalty):
        return repeated, none, np.zeros(0, np.intp)
    counted, times = np.unique(window if params.penalize_prompt else history.tokens[history.num_prompt :], return_counts=True)
    return repeated, counted, times


def num_mask_words(vocabulary: int) -> int:
    return -(-vocabulary // 32)


def num_parts(vocabulary: int) -> int:
    """Columns of the `best` workspace of `sample_tokens`."""
    return -(-vocabulary // PART_LOGITS)


@dataclass(frozen=True, slots=True)
class SampleArrays:
    """A `SamplePlan` on the device, and the workspaces of the kernels: best [n, num_parts(V)] uint64, adjusted [a, V] float32.

    `adjusted` is None if no sample has adjustments or a mask; `adjustments`, `bias` and `masks` may then be None too.
    """

    samples: DeviceArray
    numbers: DeviceArray
    best: DeviceArray
    adjusted: DeviceArray | None = None
    adjustments: DeviceArray | None = None
    bias: DeviceArray | None = None
    masks: DeviceArray | None = None


def sample_tokens(
    device: Device, tokens: DeviceArray, logits: DeviceArray, draws: SampleArrays, stream: Stream | None = None
) -> None:
    """tokens[i] [n] int32 drawn from logits [m, V] float32 (unchanged); 0 for padding.

    NOT_FINITE where a logit is not finite, NO_TOKEN where no token is allowed.
    """
    count, vocabulary = draws.samples.shape[0], logits.shape[1]
    parts = num_parts(vocabulary)
    assert tokens.shape == (count,)
    assert draws.numbers.shape == (count, NUM_NUMBERS)
    assert draws.best.shape == (count, parts)
    if not count:
        return
    if draws.adjusted is not None:
        _adjust(device, logits, draws, draws.adjusted, stream)
    module, samples = device.module("sample"), draws.samples
    args = (draws.best, logits, draws.adjusted, samples, vocabulary)
    device.launch(module.kernel("sample_best"), (parts, count), (THREADS,), args, stream=stream)
    choose = (tokens, logits, draws.adjusted, samples, draws.numbers, draws.best, parts, vocabulary, _unit(vocabulary))
    device.launch(module.kernel("sample_choose"), (count,), (_threads(vocabulary),), choose, stream=stream)


def _adjust(device: Device, logits: DeviceArray, draws: SampleArrays, adjusted: DeviceArray, stream: Stream | None) -> None:
    """Copies the logits of samples with adjustments or a mask into `adjusted`, and applies these there."""
    count, vocabulary = draws.samples.shape[0], logits.shape[1]
    assert adjusted.shape[1] == vocabulary
    assert draws.masks is None or draws.masks.shape[1] == num_mask_words(vocabulary)
    module = device.module("sample")
    copied = (adjusted, logits, draws.masks, draws.samples, vocabulary)
    device.launch(module.kernel("sample_copy"), (num_parts(vocabulary), count), (THREADS,), copied, stream=stream)
    if draws.adjustments is not None and draws.adjustments.shape[0]:
        entries = draws.adjustments.shape[0]
        args = (adjusted, draws.samples, draws.numbers, draws.adjustments, draws.bias, entries, vocabulary)
        device.launch(module.kernel("sample_adjust"), (-(-entries // THREADS),), (THREADS,), args, stream=stream)


def logprobs(
    device: Device,
    values: DeviceArray,
    logits: DeviceArray,
    rows: DeviceArray,
    targets: DeviceArray,
    *,
    top_ids: DeviceArray | None = None,
    top_values: DeviceArray | None = None,
    top_counts: DeviceArray | None = None,
    stream: Stream | None = None,
) -> None:
    """values[i] [n] = log softmax(logits[rows[i]])[targets[i]], float32; rows and targets int32.

    NaN if a logit is not finite or the target is negative; 0 if the row is negative (padding). top_ids and top_values [n, m] get
    the top_counts[i] best, followed by -1 and 0.
    """
    count, vocabulary = rows.shape[0], logits.shape[1]
    assert targets.shape == values.shape == (count,)
    most_top = 0
    if top_ids is not None:
        assert top_values is not None
        assert top_counts is not None
        assert top_ids.shape == top_values.shape
        most_top = top_ids.shape[1]
        assert most_top <= LISTED
        assert top_counts.shape == (count,)
    if count:
        args = (values, top_ids, top_values, logits, rows, targets, top_counts, most_top, vocabulary, _unit(vocabulary))
        device.launch(device.module("logprob").kernel("logprob"), (count,), (_threads(vocabulary),), args, stream=stream)


def _threads(vocabulary: int) -> int:
    """No result depends on it: all sums are integers."""
    return 32 * max(1, min(32, vocabulary // 256))


def _unit(vocabulary: int) -> float:
    """The number 1 in fixed point: a row of weights of at most 1 sums to less than 2^63."""
    return float(2 ** (62 - vocabulary.bit_length()))
