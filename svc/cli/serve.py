"""`headrace serve [MODEL]`: loads a model and serves it until SIGTERM or Ctrl-C."""

import argparse
import sys
from typing import Any

from svc.cli.options import add_options, load
from svc.errors import HeadraceError

EXIT_CHECK_FAILED = 1


def add_command(commands: Any) -> None:
    """`commands` is argparse's sub-parser action, which has no public type."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a GGUF model over HTTP (OpenAI-compatible, streaming) until SIGTERM or Ctrl-C.",
        epilog="Every option can also be set in a TOML file (--config) or in the environment (--kv-bytes is HEADRACE_KV_BYTES); "
        "flags win over the environment, the environment over the file.",
        allow_abbrev=False,
    )
    add_options(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="check settings, key file, template, address, model file and memory budgets without starting; exit code 0 or 1",
    )
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    if namespace.check:
        return check(namespace)
    config = load(namespace)
    from svc.app import run_server  # the server's libraries are slow to import: only now

    return run_server(config)


def check(namespace: argparse.Namespace) -> int:
    """Prints one sentence: what would be served, or why nothing can be."""
    try:
        config = load(namespace)
        from svc.check import check_server
        from svc.log import configure_logging

        print(check_server(config, configure_logging("warning", "console")))
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_CHECK_FAILED
    return 0
