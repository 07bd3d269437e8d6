"""Headrace in the place of llama-server: `python -m tests.peer_suite.shim FLAGS`, with llama-server's flags.

Flags for what Headrace does not have are ignored: the tests say what is missing. The model is always the same one: its weights are
random, so that its answers end where they must, and it has the tokens that /infill needs.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MODEL = Path(__file__).parents[1] / "data" / "gguf" / "tiny-qwen35-hd128-bf16.gguf"
# Flags without a value.
SWITCHES = frozenset(
    "--offline --cont-batching --embedding --reranking --metrics --kv-unified --swa-full --slots --no-slots --verbose "  # noqa: SIM905
    "--context-shift --no-ui --no-models-autoload --jinja --no-jinja --no-mmproj --no-cache-idle-slots --ui-mcp-proxy "
    "--backend_sampling".split()
)
RENAMED = {
    "--port": "--port",
    "--threads": "--threads",
    "--reasoning-format": "--reasoning-format",
    "--tags": "--model-tags",
    "--temp": "--default-temperature",
    "--seed": "--default-seed",
    "--n-predict": "--default-max-tokens",
}
THINKING = {"on": "on", "auto": "on", "off": "off"}  # its "auto" sets the variable too
DEFAULTS = ["--prefill-assistant", "--log-level", "warning"]
MIN_STEP_TOKENS = 16


def main(arguments: Sequence[str]) -> None:
    """Becomes the server."""
    command = [sys.executable, "-m", "svc.cli", "serve", *translated(_parsed(arguments))]
    os.execve(sys.executable, command, os.environ | {"HEADRACE_DRAIN_S": "0"})


def _parsed(arguments: Sequence[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    rest = iter(arguments)
    for flag in rest:
        flags[flag] = "" if flag in SWITCHES else next(rest)
    return flags


def translated(flags: dict[str, str]) -> list[str]:
    """Headrace's arguments. llama-server divides the context among its slots unless they share it."""
    slots = int(flags.get("--parallel", 4))
    context = int(flags.get("--ctx-size", 0)) // (1 if "--kv-unified" in flags else slots)
    out = [*DEFAULTS, "--ctx", str(context), "--max-slots", str(slots)]
    out += ["--host", flags.get("--host", "127.0.0.1"), "--cors-origins", flags.get("--cors-origins", "*")]
    for flag, name in RENAMED.items():
        if flags.get(flag, "-1") != "-1":  # its word for "no limit"
            out += [name, flags[flag]]
    if "--alias" in flags:
        name, *aliases = sorted(flags["--alias"].split(","))  # the first is the model's, as there
        out += ["--model-name", name, *(["--model-aliases", ",".join(aliases)] if aliases else [])]
    if "--reasoning" in flags:
        out += ["--thinking", THINKING[flags["--reasoning"]]]
    if "--no-slots" in flags:
        out.append("--no-slots-endpoint")
    if "--batch-size" in flags:
        out += ["--max-step-tokens", str(max(MIN_STEP_TOKENS, int(flags["--batch-size"])))]
    if "--api-key" in flags:
        out += ["--api-key-file", _file(flags["--api-key"] + "\n")]
    template = flags.get("--chat-template", "")
    if "--chat-template-file" in flags:
        out += ["--chat-template-file", flags["--chat-template-file"]]
    elif " " in template or "{" in template:  # not one of its built-in ones
        out += ["--chat-template-file", _file(template)]
    return [*out, str(MODEL)]


def _file(text: str) -> str:
    with tempfile.NamedTemporaryFile("w", prefix="peer-suite-", delete=False) as file:
        file.write(text)
    return file.name


if __name__ == "__main__":
    main(sys.argv[1:])
