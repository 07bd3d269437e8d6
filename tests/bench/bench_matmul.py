"""Products of one matrix with some tokens: G multiply-adds per second, with activations in floats and in 8 bits.

    python -m tests.bench.bench_matmul [--types Q4_K,Q8_0] [--size 2048] [--tokens 1,8,64,512] [--threads 1,2] [--levels x86-64-v3]

Medians over calls of both kinds in turn; the load of the machine is printed, since figures of a busy one say little.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator

import numpy as np

from svc.compute.cpu import CpuOps
from svc.compute.cpu.library import available_levels
from svc.compute.cpu.ops import Activations
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.quant import quant_type

KINDS: tuple[Activations, ...] = ("float", "int8")


def random_weights(name: str, size: int) -> GgufTensor:
    random, quant = np.random.default_rng(1), quant_type(name)
    data = random.integers(0, 60, (size, quant.row_bytes(size)), np.uint8)  # halves below 60 * 256 are small
    if name in ("F32", "BF16"):  # those bytes would be subnormal floats, which processors are slow with
        numbers = random.normal(0, 1, (size, size)).astype(np.float32).view(np.uint16)
        data = np.ascontiguousarray(numbers if name == "F32" else numbers[:, 1::2]).view(np.uint8)
    return GgufTensor("random", (size, size), name, data)


def measure(tensor: GgufTensor, tokens: int, threads: int, level: str, least_s: float) -> dict[str, float]:
    """Median G multiply-adds per second of each kind."""
    backends = [CpuOps(threads, activations=kind, level=level) for kind in KINDS]
    size = tensor.shape[0]
    x, out = np.random.default_rng(2).normal(0, 1, (tokens, size)).astype(np.float32), np.empty((tokens, size), np.float32)
    weights = [ops.weight(tensor) for ops in backends]
    times: list[list[float]] = [[] for _ in backends]
    end = time.perf_counter() + least_s
    while time.perf_counter() < end or len(times[0]) < 5:
        for ops, weight, taken in zip(backends, weights, times, strict=True):
            start = time.perf_counter()
            ops.logits(out, weight, x)
            taken.append(time.perf_counter() - start)
    for ops in backends:
        ops.close()
    return {kind: size * size * tokens / statistics.median(taken) / 1e9 for kind, taken in zip(KINDS, times, strict=True)}


def rows(arguments: argparse.Namespace) -> Iterator[str]:
    for name in arguments.types.split(","):
        tensor = random_weights(name, arguments.size)
        for level in arguments.levels.split(","):
            for threads in map(int, arguments.threads.split(",")):
                for tokens in map(int, arguments.tokens.split(",")):
                    rates = measure(tensor, tokens, threads, level, arguments.seconds)
                    yield f"| {name} | {level} | {threads} | {tokens} | {rates['float']:.1f} | {rates['int8']:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default="Q4_K,Q6_K,Q8_0")
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--tokens", default="1,8,64,512")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--levels", default=available_levels()[-1])
    parser.add_argument("--seconds", type=float, default=0.5, help="least time per line")
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| type | level | threads | tokens | float G/s | int8 G/s |\n|---|---|---|---|---|---|")
    for line in rows(arguments):
        print(line, flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
