"""Loads a model and measures the cases one after the other."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from svc.cli.bench import report as reports
from svc.cli.bench.cases import Case
from svc.cli.bench.loop import Clock, Loop, slots
from svc.cli.bench.random_model import open_random
from svc.cli.bench.report import HostShare, Machine, Report, Result
from svc.cli.bench.table import Table
from svc.cli.loading import load_bare, open_device
from svc.cli.progress import ProgressLine, duration
from svc.compute.model_file import OpenedModel, open_configured
from svc.config import Config
from svc.errors import ConfigError

if TYPE_CHECKING:
    from svc.compute.ops import Ops

CALIBRATION_TOKENS = 16
FURTHER_SEQUENCE = 0.25  # time of a further sequence in a step, as a share of the first one's: good enough for a forecast
MOST_SHARE_TOKENS = 32  # generated in a round that measures Python's share


@runtime_checkable
class TimedOps(Protocol):
    """A backend that can measure the time inside its kernels."""

    def timed(self) -> AbstractContextManager[Clock]: ...


def bench(config: Config, cases: list[Case], num_rounds: int, random: str | None, table: Table | None) -> Report:
    """Measures the cases that fit the model's context. `random`: a shape instead of `config.model`. ConfigError if none fits."""
    load = reports.load_average()  # before this process adds to it
    ops = open_device(config)
    opened = open_configured(config) if random is None else open_random(random, config, has_own_memory=ops.name == "cuda")
    fitting = [case for case in cases if case.row_tokens <= opened.context_tokens]
    if not fitting:
        raise ConfigError(f"nothing to measure: every test is longer than the context of {opened.context_tokens} tokens")
    most = max(case.batch for case in fitting)
    if most > config.max_step_tokens:
        raise ConfigError(f"--batch {most} is more than a step of {config.max_step_tokens} tokens takes: see --max-step-tokens")
    loop = load_loop(config, opened, ops, fitting, on_disk=random is None)
    facts = Report(
        version=_version(),
        machine=machine_facts(config, ops, load),
        model=reports.model_facts(opened.file, opened.config),
        caches=reports.cache_facts(loop.runner.plan),
        max_step_tokens=config.max_step_tokens,
        num_rounds=num_rounds,
        results=[],
        host_shares=[],
        left_out=[case.name for case in cases if case not in fitting],
    )
    if table:
        table.begin(facts)
    results = list(measured(loop, fitting, num_rounds, table))
    shares = host_shares(loop, ops, fitting, num_rounds) if isinstance(ops, TimedOps) else []
    report = msgspec.structs.replace(facts, results=results, host_shares=shares)
    if table:
        table.end(report)
    loop.close()
    return report


def load_loop(config: Config, opened: OpenedModel, ops: "Ops", cases: list[Case], *, on_disk: bool) -> Loop:
    num_rows, num_pages, num_snapshots = slots(cases, config.page_tokens)
    runner = load_bare(config, opened, ops, num_rows=num_rows, num_pages=num_pages, num_snapshots=num_snapshots, on_disk=on_disk)
    return Loop(runner, opened.config.vocab_size, opened.context_tokens, config.max_step_ms / 1000)


def measured(loop: Loop, cases: list[Case], num_rounds: int, table: Table | None) -> Iterator[Result]:
    """Measures each case after an uncounted round, which fills whatever grows on demand. Prints a forecast to stderr."""
    expected_s = forecast(loop, cases)
    total_s = sum(expected_s) * (num_rounds + 1)
    print(f"bench: about {duration(total_s)} for {len(cases)} tests", file=sys.stderr, flush=True)
    done_s = 0.0
    with ProgressLine("bench", max(1, round(1000 * total_s))) as line:
        for case, round_s in zip(cases, expected_s, strict=True):
            rounds = []
            for _ in range(num_rounds + 1):
                line.update(round(1000 * done_s), case.name)
                rounds.append(loop.measure(case))
                done_s += round_s
            result = reports.result(case, rounds[1:])
            if table:
                line.wipe()
                table.add(result)
            yield result


def forecast(loop: Loop, cases: list[Case]) -> list[float]:
    """Seconds that a round of each case will take, from second rounds of two small cases (the first ones read the weights)."""
    prompt = Case(prompt=min([CALIBRATION_TOKENS, *(case.prompt for case in cases if case.prompt)]))
    generate = Case(generate=min([CALIBRATION_TOKENS, *(case.generate for case in cases if case.generate)]))
    token_s, step_s = (
        [loop.measure(small) for _ in range(2)][-1].seconds / max(small.prompt, small.generate) for small in (prompt, generate)
    )
    return [case.prompt * token_s + case.generate * step_s * (1 + FURTHER_SEQUENCE * (case.batch - 1)) for case in cases]


def host_shares(loop: Loop, ops: TimedOps, cases: list[Case], num_rounds: int) -> list[HostShare]:
    """Python's share of generating steps, for the smallest and the largest batch. In separate rounds, because timing costs time."""
    answers = [case for case in cases if case.generate]
    found = []
    for case in sorted({min(answers, key=_batch), max(answers, key=_batch)}, key=_batch) if answers else ():
        short = Case(generate=min(case.generate, MOST_SHARE_TOKENS), batch=case.batch)
        with ops.timed() as clock:
            loop.kernel_clock = clock
            found.append(reports.host_share(short, [loop.measure(short) for _ in range(num_rounds)]))
    return found


def _batch(case: Case) -> int:
    return case.batch


def machine_facts(config: Config, ops: "Ops", load: float) -> Machine:
    return Machine(
        processor=reports.processor_name(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=load,
        device=ops.name,
        device_name=str(getattr(getattr(ops, "device", None), "name", "")),
        level=str(getattr(ops, "level", "")),
        threads=int(getattr(ops, "num_threads", 0)),
        activations=config.activations if ops.name == "cpu" else "float",
    )


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "not installed"
