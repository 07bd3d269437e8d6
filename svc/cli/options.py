"""Command-line flags, generated from the table in `svc.config`."""

import argparse
import sys
from collections.abc import Mapping, Sequence

import msgspec

from svc.config import BUNDLED_MODEL, BY_KEY, CONFIG_FILE_VARIABLE, OPTIONS, Config, Option, load_config

MEMORY_KEYS = (
    "ctx",
    "kv_type",
    "snapshot_type",
    "page_tokens",
    "kv_bytes",
    "snapshot_bytes",
    "host_kv_bytes",
    "host_snapshot_bytes",
    "max_slots",
    "draft_tokens",
)
METADATA_KEYS = (
    "override_kv",
    "rope_scaling",
    "rope_scale",
    "rope_freq_base",
    "yarn_orig_ctx",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_slow",
    "yarn_beta_fast",
)
METAVARS = {"size": "SIZE", "integer": "N", "number": "X", "text": "TEXT"}


def add_options(
    parser: argparse.ArgumentParser, keys: Sequence[str] | None = None, *, short: Mapping[str, str] | None = None
) -> None:
    """Adds MODEL, --config and a flag per option (all, or only `keys`). Values stay text until `load` converts them.

    `short`: further, short names of flags, by key."""
    parser.add_argument("model", nargs="?", metavar="MODEL", default=argparse.SUPPRESS, help=BY_KEY["model"].help.split(";")[0])
    parser.add_argument(
        "--config", metavar="FILE", help=f"TOML file of settings ({CONFIG_FILE_VARIABLE}); see ops/config/headrace.toml"
    )
    for option in OPTIONS:
        if option.key != "model" and (keys is None or option.key in keys):
            _add_flag(parser, option, (short or {}).get(option.key))


def load(namespace: argparse.Namespace) -> Config:
    """The merged configuration, with the bundled model if none is named. Prints warnings to stderr. ConfigError."""
    given = {key: value for key, value in vars(namespace).items() if key in BY_KEY}
    loaded = load_config(file=namespace.config, flags=given)
    for warning in loaded.warnings:
        print(f"headrace: warning: {warning}", file=sys.stderr)
    if loaded.config.model is None:
        return msgspec.structs.replace(loaded.config, model=str(BUNDLED_MODEL))
    return loaded.config


def _add_flag(parser: argparse.ArgumentParser, option: Option, short: str | None = None) -> None:
    """Adds a flag without a default: if it is not given, file and environment decide."""
    default = f" (default: {option.default_text})" if option.default_text else ""
    text = (option.help + default).replace("%", "%%")
    if option.kind == "switch":
        parser.add_argument(option.flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
        return
    if option.kind == "list":
        text += "; may be given several times"
        parser.add_argument(option.flag, metavar=option.metavar, action="append", default=argparse.SUPPRESS, help=text)
        return
    metavar = METAVARS.get(option.kind) or "{" + option.expected.removeprefix("one of ").replace(", ", ",") + "}"
    names = (option.flag,) if short is None else (short, option.flag)
    parser.add_argument(*names, metavar=metavar, default=argparse.SUPPRESS, help=text, dest=option.key)
