"""The comparison with other engines: its models are ordinary and always the same, and what programs print is read right."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from svc.compute.cpu.library import LEVELS, available_levels
from svc.gguf.gguf_file import GgufFile, GgufTensor
from svc.http.text.tokenizer import Tokenizer
from tests.bench.peers import __main__ as contest
from tests.bench.peers import build, engines, levels, machine, models, report, servers
from tests.bench.peers.engines import Headrace, IkLlama, LlamaCpp, Task, Variant
from tests.compute.rig import Rig

# Rows of K-quants are whole blocks of 256, so these are the least sizes; two groups of four layers.
TINY = {
    name: replace(
        shape, layers=8, hidden=256, vocabulary=600, heads=4, kv_heads=2, head_dim=64, key_heads=2, value_heads=4, state=64,
        feed_forward=256, experts=shape.experts and 6, used=shape.used and 2,
    )
    for name, shape in models.SHAPES.items()
}  # fmt: skip


# ---- models


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("name", list(TINY))
def test_a_written_model_can_be_run(tmp_path: Path, name: str, kind: str) -> None:
    """Our reader takes every tensor, logits are finite and of order one: nothing grows through the layers."""
    path = tmp_path / "model.gguf"
    models.write_model(path, TINY[name], kind)
    rig = Rig(path)
    logits = rig.prefill(np.arange(40, dtype=np.int32) * 7)
    assert np.isfinite(logits).all()
    assert 0.3 < logits.std() < 3
    assert rig.model.unused_tensors == ()
    assert list(tmp_path.iterdir()) == [path]  # no partial file stays


def test_a_model_is_the_same_on_every_machine(tmp_path: Path) -> None:
    """Two files of one shape have the same bytes, and no two of its matrices do."""
    for name in ("one", "two"):
        models.write_model(tmp_path / name, TINY["dense"], "Q4_K")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    starts = [tensor.data.tobytes()[:1000] for tensor in GgufFile.open(tmp_path / "one").tensors.values() if len(tensor.shape) > 1]
    assert len(set(starts)) == len(starts)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
def test_weights_are_ordinary(kind: str) -> None:
    """Hardly a mean, a deviation of about one over the root of the columns: a product keeps the size of what goes in."""
    tensor = models.Tensor("blk.0.any.weight", (64, 1024), kind)
    values = GgufTensor(tensor.name, tensor.shape, kind, models.packed(tensor)).dequantize()
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.04 / 32
    assert values.std() == pytest.approx(1 / 32, rel=0.1)


def test_the_mix_is_that_of_q4_k_m() -> None:
    """The head, and attn_v and ffn_down of the layers that llama-quantize's rule picks: of 24 the first three, the last three and
    every third of the others."""
    types = {tensor.name: tensor.type for tensor in models.tensors(models.SHAPES["dense"], "Q4_K")}
    finer = [layer for layer in range(24) if types[f"blk.{layer}.ffn_down.weight"] == "Q6_K"]
    assert finer == [0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23]
    assert {name for name, kind in types.items() if kind == "Q6_K" and "attn" in name} == {
        "blk.11.attn_v.weight",
        "blk.23.attn_v.weight",
    }
    assert types["token_embd.weight"] == "Q6_K"  # it is the head too
    assert {tensor.type for tensor in models.tensors(models.SHAPES["moe"], "Q8_0")} == {"Q8_0", "F32"}


@pytest.mark.parametrize(("name", "all_billions", "used_billions"), [("moe", 1.8, 0.4), ("dense", 0.5, 0.5), ("small", 0.1, 0.1)])
def test_sizes_are_as_named(name: str, all_billions: float, used_billions: float) -> None:
    """Parameters of the file, and those that a token meets: its own experts, of the embedding a row unless it is the head."""
    shape = models.SHAPES[name]
    used = total = 0.0
    for tensor in models.tensors(shape, "Q8_0"):
        size = float(np.prod(tensor.shape)) / 1e9
        total += size
        if "_exps" in tensor.name:
            size *= shape.used / shape.experts
        used += 0 if tensor.name.startswith("token_embd") and not shape.tied else size
    assert (round(total, 1), round(used, 1)) == (all_billions, used_billions)


def test_the_work_of_a_token() -> None:
    """Counted by hand for one layer of attention and three of DeltaNet: a byte and a sixteenth per weight, float32 routers."""
    shape = models.Shape(
        "any", layers=4, hidden=256, vocabulary=1000, heads=2, kv_heads=1, head_dim=128, key_heads=1, value_heads=2, state=128,
        feed_forward=256, experts=8, used=2,
    )  # fmt: skip
    attention = 256 * (512 + 128 + 128) + 256 * 256
    delta = 256 * (512 + 256 + 2 + 2) + 256 * 256
    experts = 3 * 3 * 256 * 256  # two and the shared one
    quantized = attention + 3 * delta + 4 * experts + 256 * 1000
    floats = 4 * 8 * 256 + 3 * 4 * 512  # routers, convolutions
    work = models.Work.of(shape, "Q8_0")
    assert work.operations == 2 * (quantized + floats)
    assert work.weight_bytes == quantized * 34 // 32 + 4 * floats


def test_the_vocabulary_is_a_real_one() -> None:
    """Text comes back, merges are used, and the control tokens of the template are single tokens."""
    metadata = models.tokenizer_metadata(4096)
    assert len(metadata["tokenizer.ggml.tokens"]) == len(metadata["tokenizer.ggml.token_type"]) == 4096
    tokenizer = Tokenizer.from_metadata(metadata)
    text = "The licence says: no warranty.\n"
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text) / 2
    assert len(tokenizer.encode("<|im_start|>", parse_special=True)) == 1


# ---- what programs print

BENCH = (
    '[\n  {\n    "n_prompt": 512,\n    "n_gen": 0,\n    "avg_ns": 1,\n    "avg_ts": 123.5,\n    "samples_ts": [ 123.5 ]\n  }\n]\n'
)
TABLE = """main: n_kv_max = 1024, n_batch = 2048

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|     1 |     64 |    8 |    520 |    0.167 |    47.85 |    4.588 |   111.60 |    4.755 |   109.36 |

llama_print_timings: |   total |
"""
BATCHED = '\n{"n_kv_max": 1024, "pp": 1, "tg": 64, "pl": 8, "speed_pp": 47.9, "t_tg": 4.5, "speed_tg": 111.5, "speed": 109.3}\n'
BATCH = Task("some", generate=64, sequences=8)


def test_rates_of_the_peers() -> None:
    """A single test's rate, from JSON behind other lines, JSON lines, and a table between other lines."""
    llama, fork = LlamaCpp(Path()), IkLlama(Path())
    assert llama.rate(Task("p", prompt=512), f"[info] loading\n{BENCH}") == 123.5
    assert fork.rate(Task("p", prompt=512), BENCH) == 123.5
    assert llama.rate(BATCH, BATCHED) == 111.5
    assert fork.rate(BATCH, TABLE) == 111.60


def test_our_own_rate() -> None:
    """The result of the test that was asked for, not of another one."""
    results = [{"prompt_tokens": 0, "generated_tokens": 64, "num_sequences": count, "median": 10.0 * count} for count in (1, 8)]
    assert Headrace().rate(BATCH, json.dumps({"results": results})) == 80.0
    with pytest.raises(ValueError, match="no result of 'p'"):
        Headrace().rate(Task("p", prompt=512), json.dumps({"results": results}))


@pytest.mark.parametrize("engine", [LlamaCpp(Path()), IkLlama(Path()), Headrace()])
@pytest.mark.parametrize("output", ["", "error: no such model\n"])
def test_a_run_without_a_result_is_no_rate(engine: engines.Engine, output: str) -> None:
    for task in engines.TASKS:
        with pytest.raises(ValueError, match=r"no JSON in the output|0 results instead of one"):
            engine.rate(task, output)


def test_every_engine_gets_the_same_task() -> None:
    """Sizes, threads and model are in each command; a variant changes it."""
    for engine in (LlamaCpp(Path("bin")), IkLlama(Path("bin")), Headrace()):
        for task in engines.TASKS:
            command = engine.command(task, Path("m.gguf"), 3, engine.variants[0])
            for size in (task.prompt or task.generate, 3, "m.gguf"):
                assert str(size) in command
    for engine in (LlamaCpp(Path("bin")), IkLlama(Path("bin"))):
        commands = [engine.command(BATCH, Path("m.gguf"), 3, variant) for variant in engine.variants]
        assert commands[0] != commands[1]


def test_the_context_of_a_batch_holds_it() -> None:
    """Each sequence has a token to begin with and those that it generates."""
    command = LlamaCpp(Path()).command(BATCH, Path("m.gguf"), 2, Variant("any"))
    assert int(command[command.index("-c") + 1]) >= 8 * 65


# ---- servers


def test_events_of_a_stream() -> None:
    """The role that some servers send ahead is no token; text and the end of an answer are."""

    def event(delta: dict[str, str], reason: str | None = None) -> bytes:
        return b"data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": reason}]}).encode() + b"\n"

    found = [
        servers.parse_event(line) for line in (b"\n", b": ping\n", b"data: [DONE]\n", event({"role": "assistant", "content": ""}))
    ]
    assert found[:3] == [None, None, None]
    assert found[3] is not None
    assert not servers.says_something(found[3])
    for line in (event({"content": "a"}), event({"reasoning_content": "a"}), event({}, "length")):
        parsed = servers.parse_event(line)
        assert parsed is not None
        assert servers.says_something(parsed)
    assert not servers.says_something({"choices": [], "usage": {"prompt_tokens": 3}})


def test_memory_of_a_process() -> None:
    """From the kernel's text; shared memory is not a file's."""
    status = "Name:\tx\nVmRSS:\t   3000 kB\nRssAnon:\t   1000 kB\nRssFile:\t   1900 kB\nRssShmem:\t 100 kB\n"
    assert servers.resident(status) == {"all": 3000 * 1024, "anonymous": 1100 * 1024, "file": 1900 * 1024}


def test_prompts_differ_from_their_beginning() -> None:
    """So that no server knows the start of a new one; the next turn begins with the whole of the last."""
    text = "".join(map(str, range(5000)))
    one, two = (servers.conversation(text, number, 1000)[0]["content"] for number in (1, 2))
    assert one[:12] != two[:12]
    assert one[20:] != two[20:]
    assert 1000 <= len(one) < 1040
    first = servers.conversation(text, 1, 1000)
    assert servers.next_turn(first)[:1] == first


def test_turns_begin_with_another_one_each_time() -> None:
    assert [servers.rotated("abc", number) for number in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


# ---- report


def test_ratios_are_to_the_better_peer() -> None:
    """By medians; above one is better for us, whether more or less is better."""
    faster = report.Comparison("rate", {"headrace": [30, 10, 20], "a": [5, 5, 50], "b": [10, 9, 11]})
    assert (faster.best_peer, faster.ratio) == ("b", 2.0)
    sooner = report.Comparison("time", {"headrace": [2.0], "a": [3.0], "b": [8.0]}, lower_is_better=True)
    assert (sooner.best_peer, sooner.ratio) == ("a", 1.5)


def test_a_missing_figure_is_a_dash() -> None:
    rows = [
        report.Comparison("only ours", {"headrace": [1.0], "a": []}),
        report.Comparison("both", {"headrace": [1234.0, 1300.0, 1200.0], "a": [12.34]}, bar=1.1),
    ]
    assert rows[0].ratio is None
    assert report.table("test", rows, ["headrace", "a"]).splitlines() == [
        "| test | headrace | a | ratio | bar |",
        "|---|--:|--:|--:|--:|",
        "| only ours | 1.00 | - | - |  |",
        "| both | 1,234 (1,200-1,300) | 12.3 | 100.00 | 1.1 |",
    ]


# ---- machine and builds


def test_the_processor() -> None:
    """Name and the flags that kernels choose by, of the first processor, in a fixed order."""
    text = (
        "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx512f avx2 nopl\n\nprocessor\t: 1\nmodel name\t: Other\n"
    )
    assert machine.parse_cpuinfo(text) == ("Some CPU @ 2 GHz", ("avx2", "avx512f"))
    assert machine.parse_cpuinfo("") == ("unknown", ())


def test_a_busy_machine_is_said() -> None:
    assert machine.warning(0.9) is None
    assert "load is 4.2" in str(machine.warning(4.2))


def test_an_edit_is_made_once(tmp_path: Path) -> None:
    """Twice is once; a file that is gone or says something else is left alone."""
    edit = build.Edit("a.cpp", "run();", "prepare();\nrun();", "why")
    path = tmp_path / "a.cpp"
    build._apply(edit, tmp_path)
    assert not path.exists()
    path.write_text("one\nrun();\n")
    for _ in range(2):
        build._apply(edit, tmp_path)
        assert path.read_text() == "one\nprepare();\nrun();\n"
    path.write_text("walk();\n")
    build._apply(edit, tmp_path)
    assert path.read_text() == "walk();\n"


def test_a_missing_file_is_added(tmp_path: Path) -> None:
    """With its folder; one that is there stays as it is."""
    edit = build.Edit("cmake/a.cmake", "", "set(A 1)\n", "why")
    path = tmp_path / "cmake" / "a.cmake"
    build._apply(edit, tmp_path)
    assert path.read_text() == "set(A 1)\n"
    path.write_text("theirs\n")
    build._apply(edit, tmp_path)
    assert path.read_text() == "theirs\n"


def test_a_build_folder_is_complete_or_refused(tmp_path: Path) -> None:
    """Programs may stand in the folder itself or in its bin."""
    with pytest.raises(FileNotFoundError, match="llama-bench"):
        build.bin_folder(tmp_path)
    (tmp_path / "bin").mkdir()
    for name in build.TARGETS:
        (tmp_path / "bin" / name).touch()
    assert build.bin_folder(tmp_path) == build.bin_folder(tmp_path / "bin") == tmp_path / "bin"


# ---- levels


@pytest.fixture
def cmake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A cmake that only writes down how it was called, and makes empty programs."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> None:
        calls.append(command[3:])  # without nice
        if "--build" in command:
            programs = Path(command[command.index("--build") + 1]) / "bin"
            programs.mkdir(parents=True)
            for name in (*build.TARGETS, "libggml-cpu.so"):
                (programs / name).touch()

    monkeypatch.setattr(build.subprocess, "run", run)
    monkeypatch.setattr(build, "unpacked", lambda source, home: home / "sources")
    monkeypatch.setattr(build, "ARM", False)
    return calls


def switches(call: list[str]) -> dict[str, str]:
    return dict(flag.removeprefix("-D").split("=", 1) for flag in call if flag.startswith("-D"))


@pytest.mark.parametrize("source", [build.LLAMA, build.IK])
def test_a_peer_of_each_level_has_a_folder_of_its_own(tmp_path: Path, cmake: list[list[str]], source: build.Source) -> None:
    """A second call finds it and compiles nothing; that of the machine has all that it has."""
    folders = [build.build(source, tmp_path, 2, level) for level in (None, "x86-64-v3", "x86-64-v4", "x86-64-v3")]
    assert [folder.parent.name for folder in folders] == ["build", "build-x86-64-v3", "build-x86-64-v4", "build-x86-64-v3"]
    configured = [switches(call) for call in cmake if "--build" not in call]
    assert [call["GGML_NATIVE"] for call in configured] == ["ON", "OFF", "OFF"]
    assert "-DLLAMA_BUILD_TESTS=OFF" in cmake[0]


def test_nothing_above_the_level(tmp_path: Path, cmake: list[list[str]]) -> None:
    """AVX2 alone: what Zen 1 to 3 have, and neither AVX-512 nor VNNI; a level above adds its own."""
    for level in ("x86-64-v3", "x86-64-v3-avxvnni", "x86-64-v4-vnni"):
        build.build(build.LLAMA, tmp_path, 2, level)
    v3, avxvnni, vnni = (switches(call) for call in cmake if "--build" not in call)
    on = {name for name, value in v3.items() if value == "ON"}
    assert on == {f"GGML_{name}" for name in ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")}
    assert v3["CMAKE_CXX_FLAGS"] == v3["CMAKE_C_FLAGS"] == "-mbmi2"
    assert {name for name in v3 if v3[name] == "OFF" and avxvnni[name] == "ON"} == {"GGML_AVX_VNNI"}
    assert {name for name in v3 if v3[name] == "OFF" and vnni[name] == "ON"} == {"GGML_AVX512", "GGML_AVX512_VNNI"}
    assert "-mavx512vl" in vnni["CMAKE_C_FLAGS"]


def test_libraries_without_amx_have_the_rest_of_the_level(tmp_path: Path, cmake: list[list[str]]) -> None:
    folder = build.libraries_without_amx(tmp_path, 2, "x86-64-v4-amx")
    assert folder.parent.name == "build-x86-64-v4-amx-no-amx"
    found = switches(cmake[0])
    assert (found["GGML_AVX512_VNNI"], found["GGML_AMX_INT8"]) == ("ON", "OFF")


def test_every_level_of_ours_has_peers() -> None:
    assert set(LEVELS) <= set(levels.LEVELS)
    assert levels.cmake_flags("neon-dotprod", arm=True)[:2] == ("-DGGML_NATIVE=OFF", "-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod")


@pytest.mark.parametrize(
    ("cache", "level", "said"),
    [
        ("GGML_NATIVE:BOOL=OFF\nGGML_AVX2:BOOL=ON\nGGML_AVX512:BOOL=OFF\n", "x86-64-v3", None),
        ("GGML_NATIVE:BOOL=OFF\nGGML_AVX2:BOOL=ON\nGGML_AVX512:BOOL=ON\n", "x86-64-v3", "GGML_AVX512=ON"),
        ("GGML_NATIVE:BOOL=OFF\nGGML_AVX2:BOOL=OFF\n", "x86-64-v3", "GGML_AVX2=OFF"),
        ("GGML_NATIVE:BOOL=ON\nGGML_AVX2:BOOL=OFF\n", "x86-64-v4", None),  # the machine's own
        ("GGML_NATIVE:BOOL=ON\nGGML_AVX2:BOOL=OFF\n", "x86-64-v3", "GGML_NATIVE=ON"),
    ],
)
def test_a_given_build_must_be_of_the_level(tmp_path: Path, cache: str, level: str, said: str | None) -> None:
    (tmp_path / "CMakeCache.txt").write_text(f"# comment = 1\nCMAKE_CXX_FLAGS:STRING=\n{cache}")
    found = levels.build_mismatch(tmp_path, level, best="x86-64-v4")
    assert said in found if said and found else found == said


def test_a_build_that_does_not_say_its_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot be known"):
        levels.build_mismatch(tmp_path, "x86-64-v3", best="x86-64-v4")


def test_the_level_is_forced_and_named() -> None:
    """Our engine is told it, and the report has it in words."""
    command = Headrace("x86-64-v3").command(BATCH, Path("m.gguf"), 2, Variant("any"))
    assert command[command.index("--cpu-level") + 1] == "x86-64-v3"
    best = available_levels()[-1]
    assert contest.level_line(None).startswith(f"Level {best}, the best")
    assert contest.level_line("base").startswith("Level base, forced")
    assert best in contest.level_line("base")


def test_limits_are_those_of_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> object:
        commands.append(command)
        return type("Done", (), {"stdout": "CpuOps(base)\n| limit |\n"})

    monkeypatch.setattr(machine.subprocess, "run", run)
    assert machine.measured_limits(3, "base") == ("| limit |",)
    assert commands[0][-2:] == ["--level", "base"]
