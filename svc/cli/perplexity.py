"""`headrace perplexity MODEL FILE`: a model's perplexity on a text, by llama-perplexity's method."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from svc.cli.loading import DEVICE_KEYS, load_bare, open_device
from svc.cli.options import METADATA_KEYS, add_options, load
from svc.cli.progress import ProgressLine
from svc.config import Config
from svc.errors import ConfigError, ModelFileError

DEFAULT_CHUNK_TOKENS = 512
DEFAULT_SEQUENCES = 4
SMALLEST_CHUNK_TOKENS = 8


class PerplexityReport(msgspec.Struct, frozen=True):
    perplexity: float
    error: float | None  # one standard error; None if only one token was scored
    mean_nll: float
    num_tokens: int  # of the text
    num_scored: int
    num_chunks: int
    chunk_tokens: int
    num_sequences: int
    model: str
    device: str
    seconds: float
    tokens_per_s: float


def add_command(commands: Any) -> None:
    """`commands` is argparse's sub-parser action, which has no public type."""
    parser = commands.add_parser(
        "perplexity",
        help="measure how well a model predicts a text",
        description="Perplexity of a text by llama-perplexity's method: the text is cut into chunks that start from nothing, and "
        "the second half of each is scored. On the cpu device, and with --exact on cuda, the figure depends neither on --sequences "
        "nor on --max-step-tokens.",
        allow_abbrev=False,
    )
    add_options(parser, DEVICE_KEYS + METADATA_KEYS)
    parser.add_argument("file", metavar="FILE", help="UTF-8 text; - reads standard input")
    parser.add_argument(
        "--chunk",
        "--ctx-size",
        type=int,
        default=DEFAULT_CHUNK_TOKENS,
        metavar="N",
        help="tokens in a chunk (default: %(default)s)",
    )
    parser.add_argument(
        "--sequences", type=int, default=DEFAULT_SEQUENCES, metavar="N", help="chunks computed at once (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    config = load(namespace)
    _check(namespace)
    report = measure(config, read_text(namespace.file), namespace.chunk, namespace.sequences, quiet=namespace.json)
    if namespace.json:
        print(msgspec.json.encode(report).decode())
        return 0
    print(
        f"{report.num_scored} of {report.num_tokens} tokens scored in {report.num_chunks} chunks of {report.chunk_tokens}, "
        f"{report.num_sequences} at once on {report.device}: {report.seconds:.1f} s, {report.tokens_per_s:.1f} tokens/s"
    )
    # In llama-perplexity's words, for scripts that look for them.
    print(f"Final estimate: PPL = {report.perplexity:.4f} +/- {report.error or np.inf:.5f}")
    return 0


def _check(namespace: argparse.Namespace) -> None:
    if namespace.chunk < SMALLEST_CHUNK_TOKENS:
        raise ConfigError(f"--chunk must be at least {SMALLEST_CHUNK_TOKENS}, not {namespace.chunk}")
    if namespace.sequences < 1:
        raise ConfigError(f"--sequences must be at least 1, not {namespace.sequences}")


def read_text(name: str) -> str:
    """The file's text without a newline at its end, as llama-perplexity reads it. ConfigError unless it is readable UTF-8."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8").removesuffix("\n")
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8: byte {error.start} cannot be decoded") from None


def measure(config: Config, text: str, chunk_tokens: int, num_sequences: int, *, quiet: bool = False) -> PerplexityReport:
    """Loads the model and scores the text. ConfigError if the text is shorter than one chunk."""
    from svc.compute.model_file import open_configured
    from svc.compute.perplexity import cut, estimate, score_chunks
    from svc.model_loading import model_name, read_tokenizer

    config = msgspec.structs.replace(config, ctx=chunk_tokens)
    opened = open_configured(config)
    tokenizer = read_tokenizer(opened)
    bos_id = tokenizer.bos_id if tokenizer.add_bos else None
    tokens = ([] if bos_id is None else [bos_id]) + tokenizer.encode(text, parse_special=False)
    chunks = cut(np.array(tokens, np.int32), chunk_tokens, bos_id)
    if len(chunks) == 0:
        raise ConfigError(f"the text has {len(tokens)} tokens, fewer than one chunk of {chunk_tokens}: give more text or --chunk")
    num_rows = min(num_sequences, len(chunks))
    num_pages = num_rows * -(-chunk_tokens // config.page_tokens)
    runner = load_bare(config, opened, open_device(config), num_rows=num_rows, num_pages=num_pages, quiet=quiet)

    began = time.perf_counter()
    with ProgressLine("perplexity", chunks.size - len(chunks), quiet=quiet) as line:
        nll = score_chunks(runner, chunks, lambda done, known: line.update(done, _so_far(known))).ravel()
    seconds = time.perf_counter() - began
    if not np.isfinite(nll).all():
        raise ModelFileError(f"{config.model}: the model's output is not finite (NaN or infinity)")
    result = estimate(nll)
    return PerplexityReport(
        perplexity=result.value,
        error=result.error if np.isfinite(result.error) else None,
        mean_nll=result.mean_nll,
        num_tokens=len(tokens),
        num_scored=result.num_scored,
        num_chunks=len(chunks),
        chunk_tokens=chunk_tokens,
        num_sequences=num_rows,
        model=model_name(config),
        device=runner.name,
        seconds=seconds,
        tokens_per_s=(chunks.size - len(chunks)) / seconds,
    )


def _so_far(nll: Any) -> str:
    known = nll[~np.isnan(nll)]
    return f"PPL {np.exp(known.mean()):.4f}" if len(known) else ""
