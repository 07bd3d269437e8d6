"""Headrace beside llama.cpp and ik_llama.cpp: the same files, the same threads, in turns.

    python -m tests.bench.peers --cache DIR [--level LEVEL] [--llama-build DIR] [--ik-build DIR] [--models moe-Q4_K,...]

Builds the peers and writes the models on its first run (a quarter of an hour each, 4 GB); later runs find them in --cache. Markdown
goes to the standard output, everything that was measured to --json. Nothing else should run on the machine.
--level holds the contest of an older processor: our kernels and the peers of that level of the instruction set, nothing above it.
"""

import argparse
import json
import os
import time
from pathlib import Path

from svc.compute.cpu.library import available_levels, choose_level
from svc.compute.cpu.ops import num_cores
from tests.bench.peers.build import IK, LLAMA, bin_folder, build, libraries_without_amx
from tests.bench.peers.compare import KINDS, compare_rates, compare_serving, compare_starts
from tests.bench.peers.engines import Engine, Headrace, IkLlama, LlamaCpp
from tests.bench.peers.levels import build_mismatch
from tests.bench.peers.machine import load, this_machine, warning
from tests.bench.peers.models import SHAPES, Work, model_file
from tests.bench.peers.report import table
from tests.bench.peers.servers import HeadraceServer, LlamaServer, ServerKind

MODELS = tuple(f"{shape}-{kind}" for shape in ("moe", "dense") for kind in KINDS)
PARTS = ("rates", "serving", "start")


def main() -> None:
    arguments = parse()
    cache = arguments.cache.expanduser()
    level: str | None = arguments.level
    given = {LLAMA.name: arguments.llama_build, IK.name: arguments.ik_build}
    folders = {
        source.name: given_folder(given[source.name], level) if given[source.name] else build(source, cache, num_cores(), level)
        for source in (LLAMA, IK)
        if source.name in arguments.peers
    }
    models = {name: model_file(cache / "models", *name.split("-", 1)) for name in arguments.models.split(",")}
    machine = this_machine(arguments.threads, with_limits=not arguments.no_limits, level=level)
    if said := warning(machine.load_before):
        print(f"**{said}**\n")
    print(f"{machine.processor}, {arguments.threads} threads, {', '.join(machine.flags)}; load before {machine.load_before:.1f}\n")
    print(f"{level_line(level)}\n")
    print("\n".join(machine.limits), flush=True)
    engines: list[Engine] = [Headrace(level or "auto")]
    servers: list[ServerKind] = [HeadraceServer(flags=("--activations", "int8", "--cpu-level", level or "auto"))]
    if folder := folders.get(LLAMA.name):
        no_amx = arguments.llama_no_amx
        if no_amx is None and "amx_int8" in machine.flags and level in (None, "x86-64-v4-amx") and not arguments.llama_build:
            no_amx = libraries_without_amx(cache, num_cores(), level)
        engines.append(LlamaCpp(folder, no_amx))
        repacked = LlamaServer(LLAMA.name, folder, libraries=no_amx)
        servers += [repacked, LlamaServer(f"{LLAMA.name}, not repacked", folder, ("--no-repack",))]
    if folder := folders.get(IK.name):
        engines.append(IkLlama(folder))
        servers.append(LlamaServer(IK.name, folder))
    found = {}
    if "rates" in arguments.parts:
        for name, path in models.items():
            shape, kind = name.split("-", 1)
            work = Work.of(SHAPES[shape], kind)
            found[f"{name}, tokens a second"] = compare_rates(engines, path, work, arguments.threads, arguments.rounds)
    if "serving" in arguments.parts:
        name = next(iter(models))
        found |= compare_serving(servers, name, models[name], arguments.threads, arguments.rounds)
    if "start" in arguments.parts:
        found["start"] = compare_starts(servers, arguments.threads, arguments.rounds)
    after = load()
    for title, part in found.items():
        print(f"\n{table(title, part.rows, part.engines)}\n" + "".join(f"\n{note}" for note in part.notes), flush=True)
    print(f"\nload after {after:.1f}")
    if arguments.json:
        saved = {
            "time": time.strftime("%Y-%m-%d %H:%M"),
            "machine": machine.as_dict() | {"load_after": after},
            "threads": arguments.threads,
            "level": choose_level(level),
            "level_forced": level is not None,
            "parts": {title: part.as_dict() for title, part in found.items()},
        }
        arguments.json.write_text(json.dumps(saved, indent=1) + "\n")


def given_folder(folder: Path, level: str | None) -> Path:
    """The programs of a build that is there. ValueError if it was not made for `level`."""
    if level is not None and (reason := build_mismatch(folder, level, available_levels()[-1])):
        raise ValueError(reason)
    return bin_folder(folder)


def level_line(level: str | None) -> str:
    if level is None:
        return f"Level {choose_level(None)}, the best of this processor; the peers are built for this processor."
    return f"Level {level}, forced: our kernels and the peers use nothing above it. This processor has {available_levels()[-1]}."


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    parser.add_argument("--cache", type=Path, default=caches / "headrace-peers", help="default: %(default)s")
    parser.add_argument("--llama-build", type=Path, help="a build of llama.cpp that is there")
    parser.add_argument(
        "--llama-no-amx", type=Path, help="its libraries without AMX, where --llama-build has been compiled with it"
    )
    parser.add_argument("--ik-build", type=Path, help="a build of ik_llama.cpp that is there")
    parser.add_argument("--level", choices=available_levels(), help="of the instruction set, for all; default: the best for each")
    parser.add_argument("--peers", nargs="+", choices=(LLAMA.name, IK.name), default=(LLAMA.name, IK.name))
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s; the first one is served")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-limits", action="store_true", help="leave out what the machine could do at best")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    return parser.parse_args()


if __name__ == "__main__":
    main()
