"""The flags of `headrace bench`, and its run from loading to the last file written."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from svc.cli.bench.cases import Case, numbers, one_number, wanted_cases
from svc.cli.bench.plot import check_plot, draw
from svc.cli.bench.render import markdown
from svc.cli.bench.report import Report
from svc.cli.bench.table import Table
from svc.cli.loading import DEVICE_KEYS
from svc.cli.options import METADATA_KEYS, add_options, load
from svc.errors import ConfigError

MOST_SEQUENCES = 1024  # as for `max_slots`
MOST_ROUNDS = 10_000
STDOUT = "-"


@dataclass(frozen=True)
class BenchFlags:
    """The parsed flags. Files: None for none, STDOUT for the standard output."""

    cases: list[Case]
    num_rounds: int
    random: str | None  # a shape, or None for the model file
    json: str | None
    markdown: str | None
    plot: Path | None

    @property
    def table(self) -> bool:
        """Whether the table is printed."""
        return STDOUT not in (self.json, self.markdown)


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
    add_options(parser, (*DEVICE_KEYS, "ctx", *METADATA_KEYS), short={"threads": "-t"})

    def add(*flags: str, metavar: str, default: str | None = None, text: str) -> None:
        parser.add_argument(*flags, metavar=metavar, default=default, help=text + (" (default: %(default)s)" if default else ""))

    add("-p", "--prompt", metavar="N,N", default="512", text="lengths of prompts in tokens; 0 leaves these tests out")
    add("-n", "--generate", metavar="N,N", default="64", text="numbers of tokens to generate; 0 leaves these tests out")
    add(
        "-b",
        "--batch",
        metavar="N,N",
        default="1,2,4,8,16",
        text="numbers of sequences that generate at once, behind the smallest depth",
    )
    add(
        "-d",
        "--depth",
        metavar="N,N",
        default="0,512,2048",
        text="tokens before the prompt or the answer of a single sequence",
    )
    add("-r", "--repeat", metavar="N", default="5", text="counted rounds of each test")
    add("--random", metavar="SHAPE[:TYPE]", text="measure made-up weights instead of a file; --random list names shapes and types")
    add("--json", metavar="FILE", text="write the report as JSON; - is the standard output, instead of the table")
    add("--markdown", metavar="FILE", text="write the report as Markdown; - is the standard output, instead of the table")
    add("--plot", metavar="FILE", text="draw the results: .svg, .png or .pdf; needs matplotlib")
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    # These import numpy and the backends, which `headrace --help` does without.
    from svc.cli.bench.measure import bench
    from svc.cli.bench.random_model import list_shapes

    if namespace.random == "list":
        print(list_shapes())
        return 0
    config, wanted = load(namespace), read_flags(namespace)
    if wanted.random is not None and "model" in namespace:
        raise ConfigError("give either a MODEL or --random, not both")
    table = Table([case.name for case in wanted.cases]) if wanted.table else None
    write(bench(config, wanted.cases, wanted.num_rounds, wanted.random, table), wanted)
    return 0


def write(report: Report, wanted: BenchFlags) -> None:
    """Writes the report's files. ConfigError for a file that cannot be written after all."""
    try:
        if wanted.json is not None:
            _put(msgspec.json.format(msgspec.json.encode(report)).decode(), wanted.json)
        if wanted.markdown is not None:
            _put(markdown(report), wanted.markdown)
        if wanted.plot is not None:
            draw(report, wanted.plot)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename}: {error.strerror or error}") from None


def _put(text: str, name: str) -> None:
    if name == STDOUT:
        print(text)
    else:
        Path(name).write_text(text + "\n")


def read_flags(namespace: argparse.Namespace) -> BenchFlags:
    """Parses the flags. ConfigError for cases that cannot be measured and files that cannot be written."""
    cases = list(
        wanted_cases(
            numbers("--prompt", namespace.prompt),
            numbers("--generate", namespace.generate),
            numbers("--batch", namespace.batch, least=1, most=MOST_SEQUENCES),
            numbers("--depth", namespace.depth),
        )
    )
    if not cases:
        raise ConfigError("nothing to measure: --prompt and --generate are both 0")
    num_rounds = one_number("--repeat", namespace.repeat, least=1, most=MOST_ROUNDS)
    if namespace.json == namespace.markdown == STDOUT:
        raise ConfigError("--json and --markdown cannot both go to the standard output: give one of them a file")
    plot = Path(namespace.plot) if namespace.plot is not None else None
    if plot is not None:
        check_plot(plot)
    for flag in ("json", "markdown", "plot"):
        check_target(f"--{flag}", getattr(namespace, flag))
    return BenchFlags(cases, num_rounds, namespace.random, namespace.json, namespace.markdown, plot)


def check_target(flag: str, name: str | None) -> None:
    """ConfigError if the file could not be written after minutes of measuring."""
    if name is None or name == STDOUT:
        return
    path, folder = Path(name), Path(name).absolute().parent
    if not name or path.is_dir():
        raise ConfigError(f"{flag} must name a file, not {name!r}")
    if not folder.is_dir():
        raise ConfigError(f"{flag}: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{flag}: {path} cannot be written")
