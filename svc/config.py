"""The table of settings, and the only reader of the environment.

`Config` is the table: each field's type, default, range and help. TOML keys, `HEADRACE_*` variables and `--flags` are
derived from it, so a setting has one name everywhere (`kv_bytes`, `HEADRACE_KV_BYTES`, `--kv-bytes`).
Precedence: file < environment < flags.
"""

import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_args

import msgspec
from msgspec import Meta

from svc.errors import ConfigError
from svc.rope_settings import RopeSettings
from svc.sizes import format_size, parse_size

BUNDLED_MODEL = Path(__file__).parent / "models" / "headrace-demo.gguf"  # served when the command line names no model
VARIABLE_PREFIX = "HEADRACE_"
CONFIG_FILE_VARIABLE = "HEADRACE_CONFIG"
SIZE = {"size": True}  # marks a field that may be written "4GiB"
# Several KEY=TYPE:VALUE in one text: a comma belongs to the value unless KEY=TYPE: follows.
PAIRS = {"metavar": "KEY=TYPE:VALUE", "separator": r",(?=[^,=]+=(?:int|float|bool|str):)"}
NAMES = {"metavar": "NAME", "separator": r"\s*,\s*"}
ORIGINS = {"metavar": "ORIGIN", "separator": r"\s*,\s*"}

PositiveSize = Annotated[int, Meta(ge=1)]
AutoSize = PositiveSize | Literal["auto"]
AutoOrNone = Annotated[int, Meta(ge=0)] | Literal["auto"]  # 0: none
Kind = Literal["switch", "size", "integer", "number", "choice", "text", "list"]


class Config(RopeSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting of a server. Sizes are bytes, times seconds unless the name ends in `_ms`."""

    model: Annotated[
        str | None,
        Meta(
            description="GGUF file to serve; usually given as the MODEL argument; unset: the small bundled one",
            examples=["/srv/models/model.gguf"],
        ),
    ] = None
    model_name: Annotated[
        str | None,
        Meta(description="name clients see in /v1/models and in answers; unset: the file's own name", examples=["my-model"]),
    ] = None
    model_aliases: Annotated[
        tuple[str, ...],
        Meta(description="other names of the model that requests may say; /v1/models lists them", examples=["fast"], extra=NAMES),
    ] = ()
    model_tags: Annotated[
        tuple[str, ...],
        Meta(description="words that /v1/models says of the model, for clients that sort by them", examples=["code"], extra=NAMES),
    ] = ()
    strict_model_name: Annotated[bool, Meta(description="answer 404 to a request that names another model; false: serve it")] = (
        False
    )
    chat_template_file: Annotated[
        str | None,
        Meta(description="Jinja chat template to use instead of the one in the model file", examples=["/etc/headrace/chat.jinja"]),
    ] = None
    override_kv: Annotated[
        tuple[str, ...],
        Meta(
            description="metadata of the model file to replace, each KEY=TYPE:VALUE with a type of int, float, bool or str",
            examples=["qwen35.context_length=int:8192"],
            extra=PAIRS,
        ),
    ] = ()

    host: Annotated[str, Meta(description="address to listen on, or several with commas between; 0.0.0.0 for every interface")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(ge=0, le=65535, description="TCP port to listen on; 0 takes a free one")] = 8080
    api_key_file: Annotated[
        str | None,
        Meta(
            description="file of API keys, one a line; every request must carry one of them; unset: no key is needed",
            examples=["/etc/headrace/api-keys"],
        ),
    ] = None
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(
            description='origins whose pages may use the API from a browser; "*": every one, "localhost": any port of this machine',
            examples=["https://chat.example.org"],
            extra=ORIGINS,
        ),
    ] = ()
    slots_endpoint: Annotated[
        bool, Meta(description="answer GET /slots, which tells the ids and lengths of all requests; false: with a 501")
    ] = True
    slots_prompt_text: Annotated[bool, Meta(description="show the text of prompts and answers in /slots")] = False
    max_connections: Annotated[
        int,
        Meta(ge=1, le=2**20, description="clients connected at once; one more takes the place of one that is idle, or gets a 503"),
    ] = 1024
    max_body_bytes: Annotated[
        AutoSize,
        Meta(
            description="largest request body taken; auto: 2 MiB and 16 bytes per token of the context, at most 6 MiB", extra=SIZE
        ),
    ] = "auto"
    body_timeout_s: Annotated[
        float, Meta(gt=0, le=86400, description="seconds that a request body may take to arrive before it gets a 408")
    ] = 60.0
    keep_alive_s: Annotated[
        float, Meta(gt=0, le=3600, description="seconds of silence in a stream after which a keep-alive comment is sent")
    ] = 5.0
    drain_s: Annotated[
        float, Meta(ge=0, le=86400, description="seconds that running requests get to finish after SIGTERM or Ctrl-C")
    ] = 30.0

    device: Annotated[
        str,
        Meta(
            pattern=r"^(auto|cpu|reference|cuda(:\d{1,3})?)$",
            description="device that computes: cuda[:N] (NVIDIA GPU, N from 0), cpu (C kernels), reference (numpy, slow); "
            "auto: cuda if there are CuPy and a GPU, else cpu",
            extra={"choices": "auto, cpu, cuda, cuda:N, reference"},
        ),
    ] = "auto"
    threads: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="compute threads on the cpu device; 0: one per core that this process may use, without efficiency cores",
        ),
    ] = 0
    cpu_level: Annotated[
        str,
        Meta(
            description="instruction set of the cpu device's kernels, such as x86-64-v3, for measurements; "
            "auto: the best of this processor; every one gives the same answers",
        ),
    ] = "auto"
    activations: Annotated[
        Literal["float", "int8"],
        Meta(
            description="activations that meet quantized weights on the cpu device: int8 (rounded per token and block) "
            "or float (slower, a little more precise)"
        ),
    ] = "int8"
    exact: Annotated[
        bool,
        Meta(
            description="give an answer the same bits however it is batched, chunked, cached or resumed; "
            "always so on cpu, slower on cuda"
        ),
    ] = False
    ctx: Annotated[
        int,
        Meta(ge=0, le=2**24, description="longest sequence in tokens, prompt and answer together; 0: the model's own context"),
    ] = 0
    kv_type: Annotated[
        Literal["f16", "f32", "q8_0", "q4_0"],
        Meta(
            description="number format of keys and values in the KV pages; "
            "q8_0 and q4_0 round them to 8 or 4 bits and hold two or four times as many"
        ),
    ] = "f16"
    snapshot_type: Annotated[
        Literal["f32", "bf16", "q8"],
        Meta(
            description="number format of recurrent states in snapshots: f32 (exact), or bf16 or q8 (8 bits) to keep more of them"
        ),
    ] = "f32"
    page_tokens: Annotated[Literal[16, 32, 48, 64], Meta(description="tokens in one KV page")] = 32
    kv_bytes: Annotated[AutoSize, Meta(description="memory for KV pages; auto: a share of what is free", extra=SIZE)] = "auto"
    snapshot_bytes: Annotated[
        AutoSize, Meta(description="memory for snapshots of recurrent state; auto: a share of what is free", extra=SIZE)
    ] = "auto"
    host_kv_bytes: Annotated[
        AutoOrNone,
        Meta(
            description="host memory for KV pages evicted from the GPU; auto: a share of what is free, 0 on other devices",
            extra=SIZE,
        ),
    ] = "auto"
    host_snapshot_bytes: Annotated[
        AutoOrNone,
        Meta(
            description="host memory for snapshots evicted from the GPU; auto: a share of what is free, 0 on other devices",
            extra=SIZE,
        ),
    ] = "auto"
    capture_every_tokens: Annotated[
        int, Meta(ge=0, le=2**24, description="generated tokens between two snapshots inside an answer; 0: only at its end")
    ] = 512

    max_slots: Annotated[int, Meta(ge=1, le=1024, description="sequences computed at once")] = 8
    max_queue: Annotated[int, Meta(ge=0, le=2**20, description="requests that may wait for a slot before new ones get a 429")] = 256
    max_step_tokens: Annotated[int, Meta(ge=16, le=65536, description="most tokens evaluated in one step")] = 512
    max_step_ms: Annotated[float, Meta(gt=0, le=60000, description="longest step in milliseconds while other requests stream")] = (
        100.0
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="least severe messages logged")] = "info"
    log_format: Annotated[
        Literal["auto", "json", "console"], Meta(description="form of log lines; auto: console on a terminal, json otherwise")
    ] = "auto"


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table, as the file, the environment, the command line and the documentation see it."""

    key: str
    default: Any
    help: str
    type: Any  # msgspec annotation, ranges included
    kind: Kind
    expected: str  # completes "must be ..."
    example: str | None  # for options without a default
    metavar: str = ""  # of lists: what one item is called
    separator: str = ""  # of lists: the pattern between the items of one text

    @property
    def variable(self) -> str:
        return VARIABLE_PREFIX + self.key.upper()

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as a person writes it; empty when there is none."""
        if self.default is None:
            return ""
        if self.kind == "size":
            return format_size(self.default)
        if self.kind == "list":
            return ",".join(self.default)
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and its warnings, one sentence each."""

    config: Config
    warnings: tuple[str, ...]


class ModelFacts(Protocol):
    """The part of a model's configuration that `inapplicable` reads."""

    @property
    def num_delta_layers(self) -> int: ...


def load_config(
    *, file: str | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> LoadedConfig:
    """Merges file, environment and flags, later ones winning.

    `file` is a TOML file's path (default: the variable HEADRACE_CONFIG), `environ` defaults to the process's own, `flags` maps
    keys to text or to values of the right type. Raises ConfigError naming the source and the key.
    """
    variables = os.environ if environ is None else environ
    path = file if file is not None else variables.get(CONFIG_FILE_VARIABLE) or None
    values: dict[str, object] = {}
    if path is not None:
        values.update(_from_file(path))
    values.update(_from_environment(variables))
    for key, value in (flags or {}).items():
        option = BY_KEY[key]
        values[key] = _convert(option, value, "the MODEL argument" if key == "model" else option.flag, strict=False)
    config = Config(**values)  # type: ignore[arg-type]
    if config.exact and config.snapshot_type != "f32":
        raise ConfigError(
            f"exact cannot be kept with snapshot_type = {config.snapshot_type!r}: a state that is resumed has been rounded; "
            "leave snapshot_type at f32"
        )
    return LoadedConfig(config, tuple(_unknown_variables(variables)))


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """What systemd asks of a service through its environment (sd_notify(3), sd_watchdog_enabled(3)); None where it asks nothing."""

    notify_socket: str | None = None
    watchdog_s: float | None = None


def service_manager(environ: Mapping[str, str] | None = None) -> ServiceManager:
    """`environ` defaults to the process's own. A watchdog for another process (WATCHDOG_PID) is ignored."""
    variables = os.environ if environ is None else environ
    microseconds = variables.get("WATCHDOG_USEC", "")
    ours = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    watchdog_s = int(microseconds) / 1e6 if ours and microseconds.isdecimal() and int(microseconds) else None
    return ServiceManager(variables.get("NOTIFY_SOCKET") or None, watchdog_s)


def inapplicable(config: Config, model: ModelFacts, device: str) -> list[str]:
    """Options that were changed from their default but have no effect, one sentence each. `device` is the chosen one."""
    sentences = []
    if not model.num_delta_layers:
        if config.snapshot_bytes != "auto":
            sentences.append("snapshot_bytes holds only hidden rows: the model has no recurrent layers")
        if config.snapshot_type != "f32":
            sentences.append("snapshot_type does nothing: the model has no recurrent layers")
        if config.capture_every_tokens != BY_KEY["capture_every_tokens"].default:
            sentences.append("capture_every_tokens does nothing: the model has no recurrent layers and resumes anywhere")
    if device == "reference" and config.threads:
        sentences.append("threads does nothing on the reference device: numpy chooses its own")
    if device == "cuda" and config.threads:
        sentences.append("threads does nothing on the cuda device: the GPU computes")
    if device != "cpu" and config.cpu_level != "auto":
        sentences.append(f"cpu_level does nothing on the {device} device: it has no levels")
    if device != "cpu" and config.activations != BY_KEY["activations"].default:
        sentences.append(f"activations does nothing on the {device} device: only the cpu has the choice")
    if device == "reference" and config.exact:
        sentences.append("exact does nothing on the reference device: numpy rounds a row in one way alone, in another among others")
    return sentences


def _from_file(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} is not valid TOML: {error}") from None
    for key in table:
        if key not in BY_KEY:
            raise ConfigError(f"{path}: unknown key {key!r}{_did_you_mean(key, list(BY_KEY))}")
    return {key: _convert(BY_KEY[key], value, f"{path}: {key}", strict=True) for key, value in table.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """Values of variables that are set and not empty: unit and compose files leave empty ones behind."""
    return {
        option.key: _convert(option, environ[option.variable], option.variable, strict=False)
        for option in OPTIONS
        if environ.get(option.variable)
    }


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    known = {CONFIG_FILE_VARIABLE, *(option.variable for option in OPTIONS)}
    for name in sorted(environ):
        if name.startswith(VARIABLE_PREFIX) and name not in known:
            # Compared without their common prefix, which makes any two alike.
            meant = _did_you_mean(name, sorted(known), len(VARIABLE_PREFIX))
            yield f"the variable {name} is ignored: there is no such setting{meant}"


def _did_you_mean(word: str, known: list[str], num_common: int = 0) -> str:
    """A suggestion from `known`, or nothing. `num_common`: length of a prefix that all share, left out of the comparison."""
    close = difflib.get_close_matches(word[num_common:], [name[num_common:] for name in known], n=1)
    return f" (did you mean {word[:num_common]}{close[0]}?)" if close else ""


def _convert(option: Option, value: object, source: str, *, strict: bool) -> object:
    """The value as the option's type; ConfigError "SOURCE must be EXPECTED, not VALUE".

    `strict` is for typed sources (TOML), where `port = "8080"` is a mistake; texts of the environment and of flags are converted.
    """
    try:
        return _to_type(option, value, strict)
    except (ValueError, msgspec.ValidationError):
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
        raise ConfigError(f"{source} must be {option.expected}, not {shown}") from None


def _to_type(option: Option, value: object, strict: bool) -> object:
    if option.kind == "size" and isinstance(value, str) and value != "auto":
        value = parse_size(value)
    if option.kind == "switch" and isinstance(value, str) and not strict:
        value = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(value.lower(), value)
    if option.kind == "list" and not strict:
        texts = value if isinstance(value, list) else [str(value)]
        value = [item for text in texts if text for item in re.split(option.separator, text.strip())]
    if option.kind == "text" and value == "":
        raise ValueError("empty")
    converted = msgspec.convert(value, option.type, strict=strict)
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ValueError("not finite")
    return converted


def _options() -> Iterator[Option]:
    """The rows, derived from `Config`."""
    hints = msgspec.inspect.type_info(Config)
    assert isinstance(hints, msgspec.inspect.StructType)
    tables = Config.__mro__[: Config.__mro__.index(msgspec.Struct)]
    annotations = {name: kind for table in tables for name, kind in table.__annotations__.items()}
    for field in sorted(hints.fields, key=lambda field: list(annotations).index(field.name)):
        assert isinstance(field.type, msgspec.inspect.Metadata)
        schema = field.type.extra_json_schema or {}
        extra = field.type.extra or {}
        example = schema.get("examples", [None])[0]
        kind, expected = _describe(field.type.type, annotations[field.name], bool(extra.get("size")), example)
        if "choices" in extra:
            kind, expected = "choice", f"one of {extra['choices']}"
        texts = (extra.get("metavar", ""), extra.get("separator", ""))
        yield Option(field.name, field.default, schema["description"], annotations[field.name], kind, expected, example, *texts)


def _describe(kind: msgspec.inspect.Type, annotation: Any, is_size: bool, example: str | None) -> tuple[Kind, str]:
    """(Option.kind, Option.expected) of a field's type."""
    if isinstance(kind, msgspec.inspect.UnionType) and not is_size:  # of a type and None
        (kind,) = (each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType))
    match kind:
        case _ if is_size:
            auto = isinstance(kind, msgspec.inspect.UnionType)
            return "size", 'a size such as "4GiB", "512MiB" or a number of bytes' + (', or "auto"' if auto else "")
        case msgspec.inspect.BoolType():
            return "switch", "true or false"
        case msgspec.inspect.VarTupleType():
            return "list", f'a list of texts such as ["{example}"]'
        case msgspec.inspect.LiteralType():
            in_order = get_args(get_args(annotation)[0])  # the inspected type has its values sorted
            return "choice", "one of " + ", ".join(map(str, in_order))
        case msgspec.inspect.IntType(ge=low, le=high):
            return "integer", f"a whole number from {low} to {high}"
        case msgspec.inspect.FloatType(ge=low, gt=above, le=high):
            return (
                "number",
                f"a number from {low:g} to {high:g}" if low is not None else f"a number above {above:g}, at most {high:g}",
            )
        case _:
            return "text", "a text that is not empty"


OPTIONS = tuple(_options())
BY_KEY = {option.key: option for option in OPTIONS}
