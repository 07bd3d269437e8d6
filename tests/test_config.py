"""svc.config: one table for file, environment and flags; every mistake is one sentence that names its source and key."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.config import BY_KEY, OPTIONS, Config, inapplicable, load_config
from svc.errors import ConfigError
from svc.sizes import format_size, parse_size

ROOT = Path(__file__).parent.parent
EXAMPLE_FILE = ROOT / "ops" / "config" / "headrace.toml"
KEY_LINE = re.compile(r"# (\w+) = (.+)")


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "headrace.toml"
    path.write_text(text)
    return str(path)


def load(*, file: str | None = None, environ: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> Config:
    return load_config(file=file, environ=environ or {}, flags=flags).config


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    """Each layer shows where the layers above it are silent."""
    file = write(tmp_path, 'port = 1111\nmax_slots = 2\nhost = "from-file"\n')
    config = load(file=file, environ={"HEADRACE_PORT": "2222", "HEADRACE_MAX_SLOTS": "3"}, flags={"port": "3333"})
    assert (config.port, config.max_slots, config.host, config.ctx) == (3333, 3, "from-file", 0)


def test_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    """HEADRACE_CONFIG is the file where no flag names another."""
    first = write(tmp_path, "port = 1")
    other = tmp_path / "other.toml"
    other.write_text("port = 2")
    assert load(environ={"HEADRACE_CONFIG": first}).port == 1
    assert load(file=str(other), environ={"HEADRACE_CONFIG": first}).port == 2


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * 1024**3),
        ("512MiB", 512 * 1024**2),
        ("1.5 GiB", 3 * 512 * 1024**2),
        ("64kib", 65536),
        ("2TB", 2_000_000_000_000),
        ("10MB", 10_000_000),
        ("1048576", 1048576),
        ("7B", 7),
    ],
)
def test_size_forms(text: str, size: int) -> None:
    """Binary and decimal units, fractions, plain bytes."""
    assert parse_size(text) == size


@given(st.integers(min_value=0, max_value=2**60))
def test_size_round_trip(size: int) -> None:
    """What is printed can be typed in again, exactly."""
    assert parse_size(format_size(size)) == size


def test_sizes_from_every_source(tmp_path: Path) -> None:
    """A size may be a number or text in TOML, and is text elsewhere."""
    assert load(file=write(tmp_path, 'kv_bytes = "2MiB"\nsnapshot_bytes = 3000')).kv_bytes == 2 * 1024**2
    assert load(file=write(tmp_path, "snapshot_bytes = 3000")).snapshot_bytes == 3000
    assert load(environ={"HEADRACE_KV_BYTES": "1GiB"}, flags={"snapshot_bytes": "auto"}).kv_bytes == 1024**3


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a=int:1", ("a=int:1",)),
        ("a=int:1,b.c=str:x", ("a=int:1", "b.c=str:x")),
        ("a=str:one, two,three=3,b=bool:true", ("a=str:one, two,three=3", "b=bool:true")),
        ("", ()),
    ],
)
def test_lists_in_text(tmp_path: Path, text: str, items: tuple[str, ...]) -> None:
    """Several values in one variable or flag stand between commas, which values may have too; in TOML each is a text of its own."""
    assert load(environ={"HEADRACE_OVERRIDE_KV": text}).override_kv == items
    assert load(flags={"override_kv": [text, "z=int:2"]}).override_kv == (*items, "z=int:2")
    assert load(file=write(tmp_path, f"override_kv = {list(items)}")).override_kv == items


@pytest.mark.parametrize("word", ["true", "1", "yes", "on", "TRUE", "On"])
def test_switch_words(word: str) -> None:
    """The usual words for yes switch a variable on; their opposites are refused as nothing else than off."""
    assert load(environ={"HEADRACE_STRICT_MODEL_NAME": word}).strict_model_name is True
    assert load(environ={"HEADRACE_STRICT_MODEL_NAME": "off"}).strict_model_name is False


def test_empty_variable_counts_as_not_set() -> None:
    """Unit and compose files leave empty variables behind."""
    assert load(environ={"HEADRACE_PORT": "", "HEADRACE_MODEL": "", "HEADRACE_CONFIG": ""}) == Config()


@pytest.mark.parametrize(
    ("text", "culprit", "reason"),
    [
        ("port = 70000", "port", "from 0 to 65535"),
        ('port = "8080"', "port", "whole number"),
        ("port = true", "port", "not true"),
        ("port = 80.5", "port", "whole number"),
        ('kv_bytes = "4 parsecs"', "kv_bytes", "4GiB"),
        ("kv_bytes = 0", "kv_bytes", "size"),
        ('max_body_bytes = "much"', "max_body_bytes", "size"),
        ('kv_type = "f8"', "kv_type", "one of f16, f32, q8_0, q4_0"),
        ("page_tokens = 20", "page_tokens", "one of 16, 32, 48, 64"),
        ("strict_model_name = 1", "strict_model_name", "true or false"),
        ('strict_model_name = "yes"', "strict_model_name", "true or false"),
        ("drain_s = -1", "drain_s", "from 0"),
        ("keep_alive_s = 0", "keep_alive_s", "above 0"),
        ("drain_s = inf", "drain_s", "from 0"),
        ("drain_s = nan", "drain_s", "from 0"),
        ("model = 7", "model", "text"),
        ('host = ""', "host", "empty"),
        ("[server]\nport = 1", "server", "unknown key"),
        ('override_kv = "a=int:1"', "override_kv", "a list of texts"),
        ("override_kv = [1]", "override_kv", "a list of texts"),
        ("prot = 1", "prot", "did you mean port?"),
        ("port = ", "headrace.toml", "TOML"),
    ],
)
def test_mistake_in_file_names_file_and_key(tmp_path: Path, text: str, culprit: str, reason: str) -> None:
    """One line that says which file, which key, and what would do."""
    with pytest.raises(ConfigError) as caught:
        load(file=write(tmp_path, text))
    sentence = str(caught.value)
    assert "headrace.toml" in sentence
    assert culprit in sentence
    assert reason in sentence
    assert "\n" not in sentence
    assert "$" not in sentence


@pytest.mark.parametrize("make", ["missing", "directory", "binary"])
def test_unreadable_file(tmp_path: Path, make: str) -> None:
    """A file that is absent, no file at all or no text is named."""
    path = tmp_path / "x.toml"
    if make == "directory":
        path.mkdir()
    elif make == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load(file=str(path))


def test_mistakes_elsewhere_name_variable_and_flag() -> None:
    """The culprit is named as it was typed."""
    with pytest.raises(ConfigError, match=r"HEADRACE_PORT must be .* not 'eighty'"):
        load(environ={"HEADRACE_PORT": "eighty"})
    with pytest.raises(ConfigError, match=r"--kv-bytes must be .* not 'lots'"):
        load(flags={"kv_bytes": "lots"})
    with pytest.raises(ConfigError, match=r"--max-step-ms must be .* not 'nan'"):
        load(flags={"max_step_ms": "nan"})


def test_unknown_variable_is_named_once() -> None:
    """A misspelt variable is told about, not silently without effect; other programs' variables are none of our business."""
    loaded = load_config(environ={"HEADRACE_PROT": "1", "HEADRACE_PORT": "2", "PORT": "3", "HEADRACE_CONFIG": ""})
    assert len(loaded.warnings) == 1
    assert "HEADRACE_PROT" in loaded.warnings[0]
    assert loaded.config.port == 2


@pytest.mark.parametrize(("name", "meant"), [("PROT", "(did you mean HEADRACE_PORT?)"), ("BOGUS", "no such setting")])
def test_only_like_variables_are_suggested(name: str, meant: str) -> None:
    """The prefix that all share makes none of them alike."""
    (warning,) = load_config(environ={f"HEADRACE_{name}": "1"}).warnings
    assert warning.endswith(meant)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_default_is_a_value_its_own_option_takes(option: object) -> None:
    """A default that could not be typed in would be a lie in the help."""
    assert isinstance(option, type(OPTIONS[0]))
    if option.default is not None:
        assert getattr(load(environ={option.variable: option.default_text}), option.key) == option.default
        assert getattr(load(flags={option.key: option.default_text}), option.key) == option.default


def test_example_file_has_every_key_with_default_and_help(tmp_path: Path) -> None:
    """ops/config/headrace.toml is the table: same keys, same order, same help, and its values are the defaults."""
    lines = EXAMPLE_FILE.read_text().splitlines()
    entries = [(lines[i - 1], match) for i, line in enumerate(lines) if (match := KEY_LINE.fullmatch(line))]
    assert [match[1] for _, match in entries] == [option.key for option in OPTIONS]
    assert [above.removeprefix("# ") for above, _ in entries] == [option.help for option in OPTIONS]
    with_default = "\n".join(match[0].removeprefix("# ") for _, match in entries if BY_KEY[match[1]].default is not None)
    assert load(file=write(tmp_path, with_default)) == Config()
    everything = "\n".join(match[0].removeprefix("# ") for _, match in entries)
    assert set(tomllib.loads(everything)) == set(BY_KEY)
    load(file=write(tmp_path, everything))
    assert load(file=str(EXAMPLE_FILE)) == Config()


def test_operations_page_lists_every_option() -> None:
    """docs/operations.md has a row per key with its default and help."""
    text = (ROOT / "docs" / "operations.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    for option in OPTIONS:
        assert f"| `{option.key}` | {option.default_text or 'none'} | {option.help} |" in rows


def test_exact_refuses_rounded_snapshots() -> None:
    """In one sentence that names both settings."""
    assert load(flags={"exact": "on", "snapshot_type": "f32"}).exact
    with pytest.raises(ConfigError) as caught:
        load(flags={"exact": "on", "snapshot_type": "q8"})
    assert "exact" in str(caught.value)
    assert "snapshot_type" in str(caught.value)


def test_inapplicable_options_are_named() -> None:
    """Only options that were changed and do nothing for this model on this device."""
    attention_only, hybrid = SimpleNamespace(num_delta_layers=0), SimpleNamespace(num_delta_layers=3)
    config = load(
        flags={
            "snapshot_bytes": "1GiB",
            "capture_every_tokens": "64",
            "threads": "2",
            "cpu_level": "base",
            "activations": "float",
            "exact": "on",
        }
    )
    rounded = load(flags={"snapshot_type": "bf16"})
    assert inapplicable(rounded, hybrid, "cpu") == []
    assert [sentence.split()[0] for sentence in inapplicable(rounded, attention_only, "cpu")] == ["snapshot_type"]
    assert inapplicable(config, hybrid, "cpu") == []
    assert [sentence.split()[0] for sentence in inapplicable(config, attention_only, "reference")] == [
        "snapshot_bytes",
        "capture_every_tokens",
        "threads",
        "cpu_level",
        "activations",
        "exact",
    ]
    assert [sentence.split()[0] for sentence in inapplicable(config, hybrid, "cuda")] == ["threads", "cpu_level", "activations"]
    assert inapplicable(Config(), attention_only, "reference") == []
