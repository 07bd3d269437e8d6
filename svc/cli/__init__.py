"""The command line: `headrace serve`, `chat`, `inspect`, `perplexity`, `bench`.

Exit codes: 0 done, 1 `serve --check` failed, 2 a setting, file or argument cannot be used, 130 interrupted. 1 and 2 come with one
sentence on stderr; a traceback is a bug.
"""

import argparse
import os
import signal
import sys

from svc.cli.bench import add_command as add_bench
from svc.cli.chat import add_command as add_chat
from svc.cli.inspect import add_command as add_inspect
from svc.cli.perplexity import add_command as add_perplexity
from svc.cli.serve import add_command as add_serve
from svc.errors import HeadraceError

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT


class _Version(argparse.Action):
    """Looks the version up only when asked: importlib.metadata is slow to import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"headrace {version('headrace')}")
        except PackageNotFoundError:
            print("headrace (run from its source tree, not installed)")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="Streaming inference server for hybrid (Gated DeltaNet + attention) language models in GGUF files.",
        epilog="headrace COMMAND --help lists the options of a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_serve(commands)
    add_chat(commands)
    add_inspect(commands)
    add_perplexity(commands)
    add_bench(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs one command (default: the process's own arguments) and returns its exit code."""
    namespace = build_parser().parse_args(arguments)
    try:
        code: int = namespace.run(namespace)
        sys.stdout.flush()
        return code
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (`headrace inspect ... | head`) has left; the interpreter's last flush must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
