"""Tokens drawn on the device: what comes back are ids and log probabilities, not rows of logits."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Sample, Sampled
from svc.compute.cuda.device import Device, DeviceArray
from svc.compute.cuda.sample import logprobs, num_parts, plan_samples, sample_tokens
from svc.compute.cuda.staging import Staging, aligned_words

MOST_SAMPLES = 64  # of one launch; more are taken in parts
MOST_TOP = 20  # best tokens reported beside each, as the API allows
MOST_ADJUSTMENTS = 1 << 17  # penalties, bias and bans of one launch, all samples together
WORDS_PER_ADJUSTMENT, WORDS_PER_SAMPLE = 6, 20
WORDS_PER_RESULT = 2 + 2 * MOST_TOP


class DeviceSampler:
    """Owner of the buffers around the sampling kernels, for one vocabulary."""

    def __init__(self, device: Device, vocabulary: int) -> None:
        self._device = device
        sizes = (4 * MOST_SAMPLES, 14 * MOST_SAMPLES, MOST_SAMPLES, MOST_SAMPLES, 4 * MOST_ADJUSTMENTS, 2 * MOST_ADJUSTMENTS)
        self._staging = Staging(device, sum(aligned_words(size) for size in sizes))
        self._best = device.empty((MOST_SAMPLES * num_parts(vocabulary),), np.uint64)
        self._adjusted = device.empty((MOST_SAMPLES * vocabulary,), np.float32)
        self._results = device.empty((MOST_SAMPLES * WORDS_PER_RESULT,), np.int32)
        self._pinned: NDArray[np.int32] = device.pinned(self._results.shape, np.int32)
        self._there = device.event()

    @staticmethod
    def device_bytes(vocabulary: int) -> int:
        words = MOST_SAMPLES * (WORDS_PER_SAMPLE + WORDS_PER_RESULT + vocabulary) + WORDS_PER_ADJUSTMENT * MOST_ADJUSTMENTS
        return 4 * words + 8 * MOST_SAMPLES * num_parts(vocabulary) + (1 << 16)

    def sample(self, logits: DeviceArray, rows: Sequence[int], samples: Sequence[Sample]) -> list[Sampled] | None:
        """samples[i] from logits[rows[i]] [n, V]; waits for them. None where they ask for more than there are buffers for."""
        found: list[Sampled] = []
        for start in range(0, len(samples), MOST_SAMPLES):
            part = slice(start, start + MOST_SAMPLES)
            drawn = self._part(logits, rows[part], samples[part])
            if drawn is None:
                return None
            found += drawn
        return found

    def _part(self, logits: DeviceArray, rows: Sequence[int], samples: Sequence[Sample]) -> list[Sampled] | None:
        plan, counts = plan_samples(samples, rows), [sample.params.num_logprobs or 0 for sample in samples]
        if len(plan.adjustments) > MOST_ADJUSTMENTS or max(counts) > MOST_TOP:
            return None
        there = self._staging.copied({
            "samples": plan.samples,
            "numbers": plan.numbers,
            "rows": np.array(rows, np.int32),
            "counts": np.array(counts, np.int32),
            "adjustments": plan.adjustments,
            "bias": plan.bias,
        })  # fmt: skip
        count, vocabulary = len(samples), logits.shape[1]
        tokens, values, ids, tops = self._result_arrays(count)
        sample_tokens(
            self._device, tokens, logits, there["samples"], there["numbers"], self._best.view((count, num_parts(vocabulary))),
            adjustments=there["adjustments"], bias=there["bias"],
            adjusted=self._adjusted.view((plan.num_adjusted, vocabulary)) if plan.num_adjusted else None,
        )  # fmt: skip
        if any(sample.params.num_logprobs is not None for sample in samples):
            best = {"top_ids": ids, "top_values": tops, "top_counts": there["counts"]}
            logprobs(self._device, values, logits, there["rows"], tokens, **best)
        return self._read_back(samples)

    def _result_arrays(self, count: int) -> tuple[DeviceArray, DeviceArray, DeviceArray, DeviceArray]:
        """Tokens [n] int32, their log probabilities [n] float32, the best ids and theirs [n, MOST_TOP]: one after the other."""
        results, top = self._results, count * MOST_TOP
        return (
            results.view((count,)),
            results.view((count,), np.float32, offset_bytes=4 * count),
            results.view((count, MOST_TOP), offset_bytes=8 * count),
            results.view((count, MOST_TOP), np.float32, offset_bytes=8 * count + 4 * top),
        )

    def _read_back(self, samples: Sequence[Sample]) -> list[Sampled]:
        count = len(samples)
        words = self._pinned[: count * WORDS_PER_RESULT]
        self._device.to_host_async(words, self._results.rows(0, len(words)))
        self._there.record()
        self._there.synchronize()
        tokens, values, ids, tops = np.split(words, np.cumsum([count, count, count * MOST_TOP]))
        best = ids.reshape(count, MOST_TOP), tops.view(np.float32).reshape(count, MOST_TOP)
        return [
            _sampled(int(tokens[i]), float(values.view(np.float32)[i]), best[0][i], best[1][i], sample)
            for i, sample in enumerate(samples)
        ]


def _sampled(token: int, value: float, ids: NDArray[np.int32], tops: NDArray[np.float32], sample: Sample) -> Sampled:
    wanted = sample.params.num_logprobs
    if token < 0 or wanted is None:
        return Sampled(token)
    return Sampled(token, value, tuple((int(i), float(top)) for i, top in zip(ids[:wanted], tops[:wanted], strict=True) if i >= 0))
