"""What a step costs at least: bytes moved and operations done by its CUDA kernels, and the time a machine needs for them at least.

    python -m tests.bench.roofline 80b-a3b
    python -m tests.bench.roofline model.gguf --batch 1 8 64 --context 4096 --prefill 2048 --kernels
    python -m tests.bench.roofline 35b-a3b --batch 8 --prefill --measured-ms 2.1
    python -m tests.bench.roofline --ceilings

Nothing is run: these are limits, no measurements. Routing is taken to be uniform, which is the most that experts can cost. A file
has its own types; a named shape takes --types. For a CPU give --bandwidth and the rates that tests/bench/machine_limits.py finds:
products are the same there, only the delta rule goes token by token in prefill too.
"""

import argparse
import dataclasses
from pathlib import Path

from svc.errors import HeadraceError
from svc.memory.layout import KV_TYPE_BYTES
from svc.model.arch.model import Model
from tests.bench.roofline.models import NAMED, file_model, named_model, recipe
from tests.bench.roofline.report import ceilings, describe, kernels_table, share, steps_table
from tests.bench.roofline.step import Piece, decode, prefill, step
from tests.bench.roofline.work import MACHINES, Machine


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="roofline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("model", nargs="?", help=f"a GGUF file, or one of {', '.join(NAMED)}")
    parser.add_argument("--ceilings", action="store_true", help="the table of docs/performance.md")
    parser.add_argument("--types", default="q4_k_m", help="of a named shape: q4_k_m, or a GGUF type for all matrices")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 64], help="sequences that decode a token")
    parser.add_argument("--context", type=int, default=4096, help="keys that each of them sees")
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048, 8192], help="tokens of a piece of a prompt")
    parser.add_argument("--start", type=int, default=0, help="tokens evaluated before that piece")
    parser.add_argument("--kv-type", choices=sorted(KV_TYPE_BYTES), default="f16")
    parser.add_argument("--machine", choices=sorted(MACHINES), default="h200")
    parser.add_argument("--bandwidth", type=float, help="GB/s, instead of the machine's")
    parser.add_argument("--int8", type=float, help="TOP/s of 8-bit products")
    parser.add_argument("--half", type=float, help="TFLOP/s of float16 products")
    parser.add_argument("--float", type=float, help="TFLOP/s of float32")
    parser.add_argument("--cache", type=float, help="MB that activations may stay in")
    parser.add_argument("--kernels", action="store_true", help="also a table of each step's kernels")
    parser.add_argument("--measured-ms", type=float, help="time of the one step asked for, to be shown as a share of its limits")
    return parser.parse_args()


def machine_of(arguments: argparse.Namespace) -> Machine:
    given = {
        "bandwidth": (arguments.bandwidth, 1e9),
        "int8_rate": (arguments.int8, 1e12),
        "half_rate": (arguments.half, 1e12),
        "float_rate": (arguments.float, 1e12),
        "cache_bytes": (arguments.cache, 1e6),
    }
    changed = {name: value * unit for name, (value, unit) in given.items() if value is not None}
    machine = MACHINES[arguments.machine]
    return dataclasses.replace(machine, source=f"{machine.source}, changed", **changed) if changed else machine


def model_of(arguments: argparse.Namespace) -> tuple[str, Model]:
    if arguments.model in NAMED:
        model = named_model(arguments.model, recipe(arguments.types if arguments.types == "q4_k_m" else arguments.types.upper()))
        return f"{model.config.name}, {arguments.types}", model
    return arguments.model, file_model(Path(arguments.model))


def steps_of(arguments: argparse.Namespace) -> list[tuple[str, list[Piece]]]:
    decodes = [(f"decode {batch} x 1 at {arguments.context}", decode(batch, arguments.context)) for batch in arguments.batch]
    behind = f" behind {arguments.start}" if arguments.start else ""
    return decodes + [(f"prefill {tokens}{behind}", prefill(tokens, arguments.start)) for tokens in arguments.prefill]


def main() -> None:
    arguments = parse()
    if arguments.ceilings:
        print("\n".join(ceilings()))
        return
    if arguments.model is None:
        raise SystemExit(f"roofline: give a GGUF file, or one of {', '.join(NAMED)}")
    steps, machine, element = steps_of(arguments), machine_of(arguments), KV_TYPE_BYTES[arguments.kv_type]
    if arguments.measured_ms is not None and len(steps) != 1:
        raise SystemExit("roofline: --measured-ms is the time of one step; leave one with --batch and --prefill")
    try:
        name, model = model_of(arguments)
    except (HeadraceError, OSError) as error:
        raise SystemExit(f"roofline: {error}") from None
    print(f"{name}; {describe(machine)}\n")
    print("\n".join(steps_table(model, steps, machine, element)))
    for title, pieces in steps:
        launches = step(model, pieces, kv_element_bytes=element)
        if arguments.kernels:
            print("\n".join(["", f"{title}:", "", *kernels_table(launches, machine)]))
        if arguments.measured_ms is not None:
            print(f"\n{share(launches, machine, arguments.measured_ms / 1e3)}")


if __name__ == "__main__":
    main()
