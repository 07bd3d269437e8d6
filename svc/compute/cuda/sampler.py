"""Sampling on the device: ids and log probabilities come back, not rows of logits."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Sample, Sampled
from svc.compute.cuda.device import Device, DeviceArray, Event
from svc.compute.cuda.packed_upload import PackedUpload, aligned_words
from svc.compute.cuda.pending import note_pending
from svc.compute.cuda.sample import SampleArrays, logprobs, num_mask_words, num_parts, plan_samples, sample_tokens

MOST_SAMPLES = 64  # of one launch; more are split
MOST_TOP = 20  # best tokens reported beside a sampled one, the limit of the API
MOST_ADJUSTMENTS = 1 << 17  # penalties, bias and bans of one launch, all samples together
MOST_STOPS = 1 << 12  # ids that end an answer, all samples of one launch together
WORDS_PER_ADJUSTMENT, WORDS_PER_SAMPLE = 6, 22
WORDS_PER_RESULT = 2 + 2 * MOST_TOP


class DeviceSampler:
    """Owner of the buffers of the sampling kernels, for one vocabulary, and of the latest token of each live row."""

    def __init__(self, device: Device, vocabulary: int, num_rows: int) -> None:
        self._device = device
        sizes = [
            *(4 * MOST_SAMPLES, 14 * MOST_SAMPLES, MOST_SAMPLES, MOST_SAMPLES, 4 * MOST_ADJUSTMENTS, 2 * MOST_ADJUSTMENTS),
            *(MOST_SAMPLES, MOST_SAMPLES + 1, MOST_STOPS, MOST_SAMPLES * num_mask_words(vocabulary)),
        ]
        self._packed = PackedUpload(device, sum(aligned_words(size) for size in sizes))
        self.latest = device.empty((num_rows,), np.int32)  # the token sampled last for a row, -1 if it ends the answer
        self._best = device.empty((MOST_SAMPLES * num_parts(vocabulary),), np.uint64)
        self._adjusted = device.empty((MOST_SAMPLES * vocabulary,), np.float32)
        self._results = device.empty((MOST_SAMPLES * WORDS_PER_RESULT,), np.int32)
        # Free pinned buffers for results: enough for two steps in flight.
        self._free: list[tuple[NDArray[np.int32], Event]] = [self._pinned() for _ in range(2 * -(-num_rows // MOST_SAMPLES))]

    @staticmethod
    def device_bytes(vocabulary: int, num_rows: int) -> int:
        per_sample = WORDS_PER_SAMPLE + WORDS_PER_RESULT + vocabulary + num_mask_words(vocabulary)
        words = MOST_SAMPLES * per_sample + WORDS_PER_ADJUSTMENT * MOST_ADJUSTMENTS
        return 4 * (words + MOST_STOPS + num_rows) + 8 * MOST_SAMPLES * num_parts(vocabulary) + (1 << 16)

    def sample(self, logits: DeviceArray, rows: Sequence[int], samples: Sequence[Sample]) -> Callable[[], list[Sampled]] | None:
        """Draws samples[i] from logits[rows[i]] [n, V]. Returns a function that waits for the tokens, to be called once; None if
        the buffers are too small."""
        parts: list[Callable[[], list[Sampled]]] = []
        for start in range(0, len(samples), MOST_SAMPLES):
            part = slice(start, start + MOST_SAMPLES)
            drawn = self._part(logits, rows[part], samples[part])
            if drawn is None:
                return None
            parts.append(drawn)
        return lambda: [sampled for read in parts for sampled in read()]

    def note(self, samples: Sequence[Sample], sampled: Sequence[Sampled]) -> None:
        """Stores tokens that were drawn on the host, for the next step to go on with."""
        for wanted, found in zip(samples, sampled, strict=True):
            token = -1 if found.token in wanted.stops else found.token
            self._device.copy_in(self.latest.rows(wanted.row, wanted.row + 1), np.array([token], np.int32))

    def _part(self, logits: DeviceArray, rows: Sequence[int], samples: Sequence[Sample]) -> Callable[[], list[Sampled]] | None:
        plan, counts = plan_samples(samples, rows, logits.shape[1]), [sample.params.num_logprobs or 0 for sample in samples]
        stops = [np.array(sorted(sample.stops), np.int32) for sample in samples]
        if len(plan.adjustments) > MOST_ADJUSTMENTS or max(counts) > MOST_TOP or sum(map(len, stops)) > MOST_STOPS:
            return None
        last_of = {sample.row: index for index, sample in enumerate(samples)}  # only one of several draws from a row goes on
        there = self._packed.upload({
            "samples": plan.samples,
            "numbers": plan.numbers,
            "rows": np.array(rows, np.int32),
            "counts": np.array(counts, np.int32),
            "adjustments": plan.adjustments,
            "bias": plan.bias,
            "masks": plan.masks,
            "live rows": np.array([s.row if last_of[s.row] == index else -1 for index, s in enumerate(samples)], np.int32),
            "cu_stops": np.cumsum([0, *map(len, stops)]).astype(np.int32),
            "stops": np.concatenate(stops),
        })  # fmt: skip
        count, vocabulary = len(samples), logits.shape[1]
        tokens, values, ids, tops = self._result_arrays(count)
        draws = SampleArrays(
            samples=there["samples"],
            numbers=there["numbers"],
            best=self._best.view((count, num_parts(vocabulary))),
            adjustments=there["adjustments"],
            bias=there["bias"],
            masks=there["masks"],
            adjusted=self._adjusted.view((plan.num_adjusted, vocabulary)) if plan.num_adjusted else None,
        )
        sample_tokens(self._device, tokens, logits, draws)
        note_pending(self._device, self.latest, tokens, there["live rows"], there["stops"], there["cu_stops"])
        if any(sample.params.num_logprobs is not None for sample in samples):
            best = {"top_ids": ids, "top_values": tops, "top_counts": there["counts"]}
            logprobs(self._device, values, logits, there["rows"], tokens, **best)
        return self._read_back(samples)

    def _result_arrays(self, count: int) -> tuple[DeviceArray, DeviceArray, DeviceArray, DeviceArray]:
        """Tokens [n] int32, their log probabilities [n] float32, the best ids and their log probabilities [n, MOST_TOP], packed."""
        results, top = self._results, count * MOST_TOP
        return (
            results.view((count,)),
            results.view((count,), np.float32, offset_bytes=4 * count),
            results.view((count, MOST_TOP), offset_bytes=8 * count),
            results.view((count, MOST_TOP), np.float32, offset_bytes=8 * count + 4 * top),
        )

    def _read_back(self, samples: Sequence[Sample]) -> Callable[[], list[Sampled]]:
        """Queues the copy to pinned memory, which is free again once it has been read."""
        pinned, there = self._free.pop() if self._free else self._pinned()
        words = pinned[: len(samples) * WORDS_PER_RESULT]
        self._device.to_host_async(words, self._results.rows(0, len(words)))
        there.record()

        def read() -> list[Sampled]:
            there.synchronize()
            found = _unpacked(words, samples)
            self._free.append((pinned, there))
            return found

        return read

    def _pinned(self) -> tuple[NDArray[np.int32], Event]:
        return self._device.pinned(self._results.shape, np.int32), self._device.event()


def _unpacked(words: NDArray[np.int32], samples: Sequence[Sample]) -> list[Sampled]:
    count = len(samples)
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
