"""What choosing a token costs per row of logits, by the sampling parameters, for a vocabulary as large as Qwen3.5's.

Rows: "spikes" is what models give (a few tokens far above a bell), "broad" one where a third of the weight is in the bell, "flat"
one without any preference.
"""

import argparse
import statistics
import time

import numpy as np

from svc.compute.sampling.chain import sample
from svc.compute.sampling.params import SamplingParams
from tests.bench.client import machine

PARAMS = {
    "temperature 0": SamplingParams(temperature=0),
    "temperature 0, 5 logprobs": SamplingParams(temperature=0, num_logprobs=5),
    "temperature 1": SamplingParams(),
    "temperature 0.7": SamplingParams(0.7),
    "temperature 0.7, top_p 0.95": SamplingParams(0.7, top_p=0.95),
    "temperature 1, min_p 0.05": SamplingParams(min_p=0.05),
    "temperature 0.6, top_k 20, top_p 0.95": SamplingParams(0.6, top_k=20, top_p=0.95),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=248_320)
    parser.add_argument("--repeat", type=int, default=50)
    arguments = parser.parse_args()
    random, size = np.random.default_rng(0), arguments.vocabulary
    bell = random.normal(0, 2.5, size)
    places = random.integers(0, size, 5)
    spikes, broad = bell.copy(), bell.copy()
    spikes[places], broad[places] = [24, 22, 21, 20.5, 19], [16, 15, 14.5, 14, 13]
    rows = {"spikes": spikes, "broad": broad, "flat": random.normal(0, 0.1, size)}
    print(f"{size} logits; {machine()}\n\n| median ms per row | {' | '.join(rows)} |\n|---{'|--:' * len(rows)}|")
    for name, params in PARAMS.items():
        snapshots = []
        for row in (row.astype(np.float32) for row in rows.values()):
            times_s = []
            for position in range(arguments.repeat):
                began = time.perf_counter()
                sample(row, params, (), 0, position)
                times_s.append(time.perf_counter() - began)
            snapshots.append(f"{1000 * statistics.median(times_s):.2f}")
        print(f"| {name} | {' | '.join(snapshots)} |")


if __name__ == "__main__":
    main()
