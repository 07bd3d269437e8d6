"""`headrace serve [MODEL]`: loads a model and serves it until SIGTERM or Ctrl-C."""

import argparse
from typing import Any

from svc.cli.options import add_options, load


def add_command(commands: Any) -> None:
    """`commands` is argparse's sub-parser action, which has no public type."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a GGUF model over HTTP (OpenAI-compatible, streaming) until SIGTERM or Ctrl-C.",
        epilog="Every option can also stand in a TOML file (--config) or in the environment (--kv-bytes is HEADRACE_KV_BYTES); "
        "flags win over the environment, the environment over the file.",
        allow_abbrev=False,
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    config = load(namespace)
    from svc.app import run_server  # the server's libraries are slow to import: only now

    return run_server(config)
