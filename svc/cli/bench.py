"""`headrace bench MODEL`: tokens a second through the scheduler and the device, without HTTP, on made-up token ids.

Prompt processing and generation, both also behind a long past, and generation of several sequences at once.
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from svc.cli.loading import DEVICE_KEYS, load_bare
from svc.cli.options import METADATA_KEYS, add_options, load
from svc.cli.progress import ProgressLine
from svc.config import Config
from svc.errors import ConfigError

if TYPE_CHECKING:
    from svc.compute.opening import OpenedModel
    from svc.compute.runner import ModelRunner

SPARE_CELLS = 8  # snapshots beside one per seat: the pasts of the depth sweep and what prompts capture on the way


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    prompt: int = 0  # tokens evaluated; 0: generation is measured
    generate: int = 0  # tokens of each sequence
    batch: int = 1
    depth: int = 0  # tokens that stand before, evaluated beforehand

    @property
    def row_tokens(self) -> int:
        return self.depth + max(self.prompt, 1) + self.generate + 1


class Result(msgspec.Struct, frozen=True):
    """Tokens a second: of all sequences together where there are several."""

    test: str
    prompt_tokens: int
    generated_tokens: int
    num_sequences: int
    depth_tokens: int
    median: float
    smallest: float
    largest: float


class Report(msgspec.Struct, frozen=True):
    model: str
    architecture: str
    size_bytes: int
    device: str
    threads: int
    kv_type: str
    max_step_tokens: int
    num_rounds: int
    results: list[Result]
    left_out: list[str]  # tests that do not fit the model's context


def add_command(commands: Any) -> None:
    """`commands` is argparse's sub-parser action, which has no public type."""
    parser = commands.add_parser(
        "bench",
        help="measure tokens a second",
        description="Measure prompt processing and generation, both also behind a long past, and generation of several sequences "
        "at once: through the scheduler and the device, without HTTP, greedy, on made-up token ids. Prints the median and the "
        "extremes of all rounds; one more round, before them, is not counted.",
        allow_abbrev=False,
    )
    add_options(parser, (*DEVICE_KEYS, "ctx", *METADATA_KEYS))
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--generate", type=int, default=128, metavar="N", help="tokens generated (default: %(default)s)")
    parser.add_argument("--batches", default="1,2,4,8", metavar="N,N", help="sequences at once (default: %(default)s)")
    parser.add_argument("--depths", default="0,1024,4096", metavar="N,N", help="tokens that stand before (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="measurements of each (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    config = load(namespace)
    for name in ("prompt", "generate", "rounds"):
        if getattr(namespace, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, not {getattr(namespace, name)}")
    cases = list(
        wanted_cases(
            namespace.prompt,
            namespace.generate,
            numbers("--batches", namespace.batches, 1),
            numbers("--depths", namespace.depths, 0),
        )
    )
    report = measure(config, cases, namespace.rounds, quiet=namespace.json)
    print(msgspec.json.encode(report).decode() if namespace.json else render(report))
    return 0


def numbers(flag: str, text: str, least: int) -> list[int]:
    """ "1,2,4" as ascending numbers without repeats; ConfigError naming the flag."""
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < least:
        raise ConfigError(f"{flag} must be whole numbers of at least {least} with commas between, not {text!r}")
    return found


def wanted_cases(prompt: int, generate: int, batches: list[int], depths: list[int]) -> Iterator[Case]:
    """In the order of the table. Several at once are measured without a past, what has a past alone."""
    for depth in depths:
        behind = f" @ {depth}" if depth else ""
        yield Case(f"prompt {prompt}{behind}", prompt=prompt, depth=depth)
        yield Case(f"generate {generate}{behind}", generate=generate, depth=depth)
    for batch in batches:
        if batch > 1:
            yield Case(f"generate {generate} x {batch}", generate=generate, batch=batch)


def measure(config: Config, cases: list[Case], num_rounds: int, *, quiet: bool = False) -> Report:
    """Loads the model and measures what fits its context. ConfigError when nothing does."""
    from svc.app import model_name
    from svc.compute.opening import open_configured

    opened = open_configured(config)
    fitting = [case for case in cases if case.row_tokens <= opened.context_tokens]
    if not fitting:
        raise ConfigError(f"nothing to measure: every test is longer than the context of {opened.context_tokens} tokens")
    loop = _loop(config, opened, fitting, quiet=quiet)
    results = []
    with ProgressLine("bench", len(fitting) * num_rounds, quiet=quiet) as line:
        for number, case in enumerate(fitting):
            loop.measure(case)  # not counted: pages weights in and fills what grows on demand
            rates = []
            for done in range(num_rounds):
                line.update(number * num_rounds + done, case.name)
                rates.append(loop.measure(case))
            results.append(_result(case, rates))
    return Report(
        model=model_name(config),
        architecture=opened.config.architecture,
        size_bytes=opened.file.file_bytes,
        device=loop.runner.name,
        threads=config.threads or len(os.sched_getaffinity(0)),
        kv_type=config.kv_type,
        max_step_tokens=config.max_step_tokens,
        num_rounds=num_rounds,
        results=results,
        left_out=[case.name for case in cases if case not in fitting],
    )


def _result(case: Case, rates: list[float]) -> Result:
    return Result(case.name, case.prompt, case.generate, case.batch, case.depth, statistics.median(rates), min(rates), max(rates))


def _loop(config: Config, opened: "OpenedModel", cases: list[Case], *, quiet: bool) -> "Loop":
    num_rows = max(case.batch for case in cases)
    page = config.page_tokens
    # Twice: what an earlier round left in the cache is evicted only when somebody needs its pages.
    num_pages = max(2 * case.batch * (-(-case.row_tokens // page) + 1) for case in cases)
    num_cells = num_rows + SPARE_CELLS
    runner = load_bare(config, opened, num_rows=num_rows, num_pages=num_pages, num_cells=num_cells, quiet=quiet)
    return Loop(runner, opened.config.vocab_size, opened.context_tokens, config.max_step_ms / 1000)


class Loop:
    """A scheduler over a device, stepped by hand. Owner of both."""

    def __init__(
        self,
        runner: "ModelRunner",
        vocab_size: int,
        context_tokens: int,
        max_step_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        from svc.memory.sequence_cache import SequenceCache
        from svc.slots.budget import ChunkBudget
        from svc.slots.scheduler import Scheduler

        self.runner = runner
        self._clock = clock
        self._vocab_size = vocab_size
        self._random = random.Random(0)
        budget = ChunkBudget(runner.max_step_tokens, max_step_s)
        self._scheduler = Scheduler(SequenceCache(runner.plan), context_tokens=context_tokens, budget=budget)
        self._pasts: dict[int, tuple[int, ...]] = {}

    def measure(self, case: Case) -> float:
        """One round -> tokens a second. The past is in the cache; everything else is new text."""
        past = self._pasts.setdefault(case.depth, self._text(case.depth))
        if past:
            self._run([past], 0)  # evaluates only what the cache has lost
        if case.prompt:
            times = self._run([past + self._text(case.prompt)], 0)
            assert times.cached_tokens == case.depth, f"{times.cached_tokens} tokens of a past of {case.depth} were known"
            return case.prompt / (times.ended_s - times.began_s)
        times = self._run([past or self._text(1) for _ in range(case.batch)], case.generate + 1)
        return case.generate * case.batch / (times.ended_s - times.all_generate_s)

    def _text(self, length: int) -> tuple[int, ...]:
        return tuple(self._random.choices(range(self._vocab_size), k=length))

    def _run(self, prompts: list[tuple[int, ...]], max_tokens: int) -> "_Times":
        """Steps until all have ended and their states are saved. Prompts must not need more rows than there are."""
        from svc.slots.events import Finished, FinishReason, TokenEvent
        from svc.slots.request import Request, SamplingParams

        began = now = all_generate = ended = self._clock()
        cached = 0
        for number, prompt in enumerate(prompts):
            self._scheduler.submit(Request(str(number), prompt, max_tokens, SamplingParams(temperature=0.0)), began)
        silent = len(prompts)
        while (plan := self._scheduler.plan(now)) is not None:
            result = self.runner.run(plan.batch)
            now = self._clock()
            for sequence, event in self._scheduler.commit(plan, result, now):
                if isinstance(event, TokenEvent) and sequence.generated == 1:
                    silent -= 1
                    all_generate = all_generate if silent else now
                elif isinstance(event, Finished):
                    assert event.reason is FinishReason.LENGTH, event
                    ended, cached = now, event.usage.cached_tokens
        return _Times(began, all_generate, ended, cached)


@dataclass(frozen=True)
class _Times:
    """Of one run, in seconds on the loop's clock."""

    began_s: float
    all_generate_s: float  # when the last of the sequences had its first token
    ended_s: float
    cached_tokens: int  # of the prompt that ended last


def render(report: Report) -> str:
    """A Markdown table."""
    lines = [
        f"{report.model} ({report.architecture}, {report.size_bytes / 2**20:.0f} MiB) on {report.device}, "
        f"{report.threads} threads, "
        f"kv {report.kv_type}, {report.num_rounds} rounds; tokens a second",
        "",
        "| test | median | smallest | largest |",
        "|---|--:|--:|--:|",
        *(f"| {r.test} | {r.median:.2f} | {r.smallest:.2f} | {r.largest:.2f} |" for r in report.results),
    ]
    if report.left_out:
        lines += ["", f"Longer than the model's context: {', '.join(report.left_out)}."]
    return "\n".join(lines)
