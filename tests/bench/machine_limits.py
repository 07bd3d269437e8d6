"""What this machine can do: memory read and copied per second, 8-bit products per second, and how near the package's kernels come.

    python -m tests.bench.machine_limits

The rates are for `python -m tests.bench.roofline --bandwidth ... --int8 ...`. The best of several rounds is the limit; the median
beside it shows how much the machine is shared. A buffer must be larger than the last cache: --mib.
"""

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from svc.compute.cpu.library import available_levels
from svc.compute.cpu.ops import CpuOps, num_cores
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.quant import quant_type
from tests.bench.client import machine

COLUMNS = 2048
CACHED_ROWS = 512  # of a matrix that stays in a core's own cache: a megabyte in Q8_0
SMALL_HALF = (0x14, 0x00)  # 0.001 in float16, low byte last


def times(run: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of each round; the first, which touches memory for the first time, is not among them."""
    run()
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return found


def row(name: str, amount: float, unit: str, found: list[float]) -> str:
    return f"| {name} | {amount / min(found):,.1f} | {amount / statistics.median(found):,.1f} | {unit} |"


def memory_rows(mib: int, threads: int, rounds: int) -> list[str]:
    """numpy lets go of the interpreter in both, so each thread has its part of the buffer."""
    source = np.ones(mib << 18, np.int32)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:

        def read() -> None:
            list(pool.map(lambda part: part[0].max(), parts))

        def copy() -> None:
            list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))

        return [
            row(f"memory read, {mib} MiB", source.nbytes / 1e9, "GB/s", times(read, rounds)),
            row(f"memory copied (read and written), {mib} MiB", 2 * source.nbytes / 1e9, "GB/s", times(copy, rounds)),
        ]


def integer_row(ops: CpuOps, rounds: int) -> str:
    """The instructions that products are made of, all threads together, with nothing to load."""
    done = ctypes.c_int64()
    found = times(lambda: ops._kernels.call("hr_integer_peak", 1 << 22, ctypes.byref(done)), rounds)
    return row("8-bit products in registers", 2 * done.value / 1e9, "GOP/s", found)


def matrix(kind: str, rows: int) -> GgufTensor:
    """Random blocks [rows, COLUMNS] with ordinary scales: infinities and tiny numbers could take another time."""
    quant, random = quant_type(kind), np.random.default_rng(0)
    data: NDArray[np.uint8] = random.integers(0, 256, (rows, quant.row_bytes(COLUMNS)), np.uint8)
    blocks = data.reshape(-1, quant.block_bytes)
    for place in {"Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}[kind]:  # float16 scales of a block
        blocks[:, place + 1], blocks[:, place] = SMALL_HALF
    return GgufTensor(kind, (rows, COLUMNS), kind, data)


def product_rows(ops: CpuOps, kind: str, mib: int, rounds: int) -> list[str]:
    """Many activations with a small matrix: operations. One row of them with a large one: bytes of weights."""
    small, vectors = matrix(kind, CACHED_ROWS), np.random.default_rng(1).normal(0, 1, (64, COLUMNS)).astype(np.float32)
    weight, out = ops.weight(small), np.empty((len(vectors), CACHED_ROWS), np.float32)
    computed = row(
        f"{kind} kernel, {len(vectors)} rows, matrix in the cache",
        2 * out.size * COLUMNS / 1e9,
        "GOP/s",
        times(lambda: ops.logits(out, weight, vectors), rounds),
    )
    large = matrix(kind, (mib << 20) // quant_type(kind).row_bytes(COLUMNS))
    big, line = ops.weight(large), np.empty((1, large.shape[0]), np.float32)
    moved = row(
        f"{kind} kernel, 1 row, {mib} MiB of weights",
        large.nbytes / 1e9,
        "GB/s",
        times(lambda: ops.logits(line, big, vectors[:1]), rounds),
    )
    return [computed, moved]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="size of the buffers that must not fit into a cache")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="0: every core this process may use")
    parser.add_argument("--level", choices=available_levels(), help="instead of the best")
    parser.add_argument("--types", nargs="+", choices=("Q8_0", "Q4_K", "Q6_K"), default=["Q8_0", "Q4_K", "Q6_K"])
    arguments = parser.parse_args()
    threads = arguments.threads or num_cores()
    ops = CpuOps(threads, activations="int8", level=arguments.level)
    print(f"{ops}; {machine()}\n\n| limit | best | median | |\n|---|--:|--:|---|")
    print("\n".join(memory_rows(arguments.mib, threads, arguments.rounds)), flush=True)
    print(integer_row(ops, arguments.rounds), flush=True)
    for kind in arguments.types:
        print("\n".join(product_rows(ops, kind, arguments.mib, arguments.rounds)), flush=True)
    ops.close()
    print(f"\nload at the end: {machine()}")


if __name__ == "__main__":
    main()
