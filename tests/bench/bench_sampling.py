"""What choosing a token costs per row of logits, by the sampling parameters, for a vocabulary as large as Qwen3.5's.

Rows: "spikes" is what models give (a few tokens far above a bell), "broad" one where a third of the weight is in the bell, "flat"
one without any preference.
"""

import argparse
import statistics
import time

import numpy as np

from svc.compute.backend import History
from svc.compute.sampling.chain import sample
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.steps import Breakers, Dry, Mirostat, SamplingSteps, Step
from tests.bench.client import machine

LLAMA = tuple(Step(name) for name in ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"])
PARAMS = {
    "temperature 0": SamplingParams(temperature=0),
    "temperature 0, 5 logprobs": SamplingParams(temperature=0, num_logprobs=5),
    "temperature 1": SamplingParams(),
    "temperature 0.7": SamplingParams(0.7),
    "temperature 0.7, top_p 0.95": SamplingParams(0.7, top_p=0.95),
    "temperature 1, min_p 0.05": SamplingParams(min_p=0.05),
    "temperature 0.6, top_k 20, top_p 0.95": SamplingParams(0.6, top_k=20, top_p=0.95),
    "the same in llama-server's order": SamplingParams(0.6, top_k=20, top_p=0.95, steps=SamplingSteps(order=LLAMA)),
    "XTC behind min_p 0.05": SamplingParams(min_p=0.05, steps=SamplingSteps(xtc_probability=1.0)),
    "typical_p 0.9": SamplingParams(steps=SamplingSteps(typical_p=0.9)),
    "mirostat 2": SamplingParams(steps=SamplingSteps(mirostat=Mirostat(2, 5.0, 0.1))),
    "DRY, min_p 0.05": SamplingParams(min_p=0.05, steps=SamplingSteps(dry=Dry(0.8, 1.75, 2, -1, Breakers.none()))),
}
PAST = History(np.random.default_rng(1).integers(0, 5000, 30_000).astype(np.int32), 100)


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
                sample(row, params, (), 0, position, PAST if params.needs_history else None)
                times_s.append(time.perf_counter() - began)
            snapshots.append(f"{1000 * statistics.median(times_s):.2f}")
        print(f"| {name} | {' | '.join(snapshots)} |")


if __name__ == "__main__":
    main()
