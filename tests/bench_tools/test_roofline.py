"""The counts behind every limit that is stated: by hand, against published figures, against a file, against the launchers."""

import dataclasses
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.compute.backend import Chunk as BatchChunk
from svc.compute.backend import StepBatch
from svc.compute.cuda.delta_chunks import plan_chunks
from svc.compute.cuda.ops import CudaOps
from svc.compute.forward import forward
from svc.compute.model_file import open_model
from svc.compute.step_inputs import build_step_inputs
from svc.gguf.gguf_file import GgufFile
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from svc.model.layers.attention import AttentionWeights
from svc.model.layers.delta import DeltaWeights
from tests.bench.roofline import kernels
from tests.bench.roofline.__main__ import main
from tests.bench.roofline.kernels import Matrix, WeightType, expected_distinct
from tests.bench.roofline.models import NAMED, file_model, named_model, recipe
from tests.bench.roofline.step import Piece, by_kernel, decode, prefill, sequential_s, step, whole
from tests.bench.roofline.work import Machine, Work, total
from tests.bench_tools.recording_device import RecordingDevice

GGUF = Path(__file__).parent.parent / "data" / "gguf"
FILES = ["tiny-qwen3-Q8_0", "tiny-qwen35-hd128-bf16", "tiny-qwen35moe-Q4_K_M", "tiny-qwen3next-Q4_K_M"]
ONE = Machine("one of everything a second", 1.0, 1.0, 1.0, 1.0, cache_bytes=100)


# ---- published figures


@pytest.mark.parametrize(
    ("name", "batch", "gigabytes", "tokens_per_s"),
    [
        ("80b-a3b", 1, 2.66, (1807, 1619)),
        ("80b-a3b", 8, 10.39, (3695, 3310)),
        ("80b-a3b", 64, 51.65, (5948, 5329)),
        ("35b-a3b", 1, 2.18, (2201, 1971)),
        ("35b-a3b", 8, 7.46, (5147, 4611)),
        ("35b-a3b", 64, 32.12, (9563, 8567)),
    ],
)
def test_decode_ceilings(name: str, batch: int, gigabytes: float, tokens_per_s: tuple[float, float]) -> None:
    """Traffic a step and tokens/s at 4.8 and 4.3 TB/s as worked out independently for these models: 4,096 keys in float16, files of
    the mix Q4_K_M, uniform routing. Bytes per weight were not stated; 4.85 bits and a head in Q6_K follow from three batches."""
    work = whole(step(named_model(name, recipe("q4_k_m")), decode(batch, 4096)))
    assert work.memory_bytes / 1e9 == pytest.approx(gigabytes, rel=0.005)
    for bandwidth, expected in zip((4.8e12, 4.3e12), tokens_per_s, strict=True):
        assert batch * bandwidth / work.memory_bytes == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(("name", "tokens_per_s"), [("80b-a3b", 106e3), ("35b-a3b", 139e3)])
def test_prefill_ceilings(name: str, tokens_per_s: float) -> None:
    """A chunk of 8,192 tokens with every operation at 788 TFLOP/s, as worked out independently."""
    work = whole(step(named_model(name, recipe("q4_k_m")), prefill(8192)))
    assert 8192 * 788e12 / work.operations == pytest.approx(tokens_per_s, rel=0.02)


@pytest.mark.parametrize(
    ("name", "parameters", "state_mib", "kv_kib"),
    [("80b-a3b", 80e9, 75.4, 24), ("35b-a3b", 35e9, 62.8, 20), ("27b", 27e9, 149.6, 64), ("9b", 9e9, 50.25, 32)],
)
def test_named_shapes(name: str, parameters: float, state_mib: float, kv_kib: int) -> None:
    """Names say how many weights there are; states and pages are published sizes (float32, float16)."""
    model, layout = named_model(name, recipe("F32")), NAMED[name].memory_layout(16, "f16")
    matrices = [model.embedding, model.output, *chain.from_iterable(map(matrices_of, chain.from_iterable(model.layers)))]
    count = sum(matrix.rows * matrix.columns * (matrix.num_experts or 1) for matrix in matrices)
    assert count == pytest.approx(parameters, rel=0.025)
    assert (layout.state_bytes - 4 * layout.hidden_size) / 2**20 == pytest.approx(state_mib, abs=0.06)
    assert layout.kv_bytes_per_token == kv_kib << 10


def matrices_of(weights: object) -> list[Matrix]:
    assert dataclasses.is_dataclass(weights)
    values = (getattr(weights, field.name) for field in dataclasses.fields(weights))
    return [value for value in values if isinstance(value, Matrix)]


def test_distinct_experts() -> None:
    """One token uses its own; two of two in four miss a quarter of them; many use all."""
    assert expected_distinct(512, 10, 1) == pytest.approx(10)
    assert expected_distinct(4, 2, 2) == 3
    assert expected_distinct(256, 8, 5000) == pytest.approx(256)


# ---- by hand


def test_one_gemv() -> None:
    """Q8_0 [4, 64] times one row: 8 blocks of 34 bytes; 2 blocks of 40 in, 4 floats out; 256 products. Float weights: floats."""
    work = kernels.matmul(Matrix(WeightType.of("Q8_0"), 4, 64), 1)
    assert work == Work(weight_bytes=8 * 34, activation_bytes=2 * 40 + 16, int8_ops=512, launches=1)
    work = kernels.matmul(Matrix(WeightType.of("F16"), 4, 64), 3, adds=True)
    assert work == Work(weight_bytes=512, activation_bytes=3 * (256 + 32), float_ops=3 * 512, launches=1)


def test_gate_and_up() -> None:
    """One launch reads the activations once and writes one result; two types take two launches, which hand one result on."""
    kinds = [Matrix(WeightType.of(name), 32, 256) for name in ("Q4_K", "Q6_K")]
    alike, mixed = kernels.gate_up(kinds[0], kinds[0], 1), kernels.gate_up(kinds[0], kinds[1], 1)
    assert alike == Work(weight_bytes=64 * 144, activation_bytes=320 + 128, int8_ops=4 * 32 * 256, launches=1)
    assert mixed == Work(weight_bytes=32 * (144 + 210), activation_bytes=640 + 384, int8_ops=4 * 32 * 256, launches=2)


def test_repeated_weights() -> None:
    """Pairs that share an expert ask for it again in gemv; tiles of tokens do in gemm. Weights are counted once all the same."""
    stack = Matrix(WeightType.of("Q8_0"), 4, 64, num_experts=64)
    few = kernels.matmul(stack, 3, 6, distinct=4.0)
    assert (few.weight_bytes, few.repeated_bytes) == (4 * 272, 2 * 272)
    many = kernels.matmul(Matrix(WeightType.of("Q8_0"), 4, 64), 65)  # tiles of 64 rows
    assert (many.weight_bytes, many.repeated_bytes) == (272, 272)


def test_one_delta_decode() -> None:
    """One key head and two value heads of 32, 4 taps: 128 channels, a state of 2,048 floats that is read and written."""
    layer = delta_layer(key_heads=1, value_heads=2, size=32)
    assert kernels.delta_decode(layer, 1, 1) == Work(
        weight_bytes=4 * (128 * 4 + 2 + 2),
        state_bytes=4 * (2 * 2048 + 3 * 128),
        activation_bytes=4 * (128 + 2 + 2 + 64),
        float_ops=2048 * 7 + 128 * 4 * 2,
        launches=1,
    )
    drafts = kernels.delta_decode(layer, 5, 1)  # the state goes through memory once whatever the number of tokens
    assert drafts.state_bytes == 4 * (2 * 2048 + 3 * 128)


def test_one_chunk() -> None:
    """64 tokens and one head of 32: the products that are left when 16 x 16 blocks above the diagonal are not made."""
    layer = delta_layer(key_heads=1, value_heads=1, size=32)
    chunk = kernels.delta_chunk(layer, 64, 1)
    half = 10 * 256  # entries on and below the diagonal, in blocks
    solved = 4 * 16 * 2 * sum(range(16))  # four blocks of 16 columns by substitution
    paired = 2 * 2 * (2 * 16**3 + 32**3)  # C B', then E' times that: two pairs of blocks of 16, one of 32
    seen = 2 * 16**3 * (4 * 1 + 3 * 2 + 2 * 3 + 1 * 4)
    assert chunk.float_ops == 2 * 2 * half * 32 + solved + paired + seen
    scan = kernels.delta_scan(layer, 64, 1, 1)
    assert scan.float_ops == 2 * 2 * 64 * 32 * 32 + 2 * 2 * half * 32 + 2 * 64 * 32 * 32 + 32 * 32
    assert scan.state_bytes == 2 * 4 * 32 * 32


def test_one_attention_decode() -> None:
    """Four query heads, two KV heads of 64, 300 keys in float16: two splits."""
    layer = attention_layer(heads=4, kv_heads=2, size=64)
    split, merge = kernels.attention_split(layer, 1, 300, 2), kernels.attention_merge(layer, 1, 300)
    results = 4 * 2 * 4 * (64 + 2)  # heads, splits
    assert split == Work(kv_bytes=300 * 2 * 2 * 64 * 2, activation_bytes=1024 + results, half_ops=2 * 2 * 4 * 64 * 300)
    assert merge == Work(activation_bytes=results + 1024 + 1024)
    written = kernels.qk_norm_rope_kv(layer, 1, 2)
    assert written.kv_bytes == 2 * 2 * 64 * 2


def test_seen_keys() -> None:
    """A whole prompt sees a triangle, a token behind a past all of it."""
    assert kernels.seen_keys(4, 4) == 1 + 2 + 3 + 4
    assert kernels.seen_keys(2, 10) == 9 + 10


def delta_layer(key_heads: int, value_heads: int, size: int) -> DeltaWeights:
    sizes = {"num_key_heads": key_heads, "num_value_heads": value_heads, "key_dim": size, "value_dim": size, "conv_kernel": 4}
    others = {field.name: None for field in dataclasses.fields(DeltaWeights)}
    return DeltaWeights(**others | sizes)  # type: ignore[arg-type]


def attention_layer(heads: int, kv_heads: int, size: int) -> AttentionWeights:
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": size, "rotary_dims": size, "gated": True}
    others = {field.name: None for field in dataclasses.fields(AttentionWeights)}
    return AttentionWeights(**others | sizes)  # type: ignore[arg-type]


# ---- limits


def test_limits() -> None:
    """The slowest resource bounds a launch; activations count once a launch has more of them than the cache holds."""
    assert ONE.launch_s(Work(weight_bytes=3, int8_ops=2, activation_bytes=100)) == 3
    assert ONE.launch_s(Work(weight_bytes=3, int8_ops=2, activation_bytes=101)) == 104
    assert ONE.launch_s(Work(weight_bytes=3, int8_ops=5)) == 5
    assert ONE.launch_s(Work(half_ops=6, float_ops=7)) == 7
    assert ONE.memory_s(Work(weight_bytes=1, state_bytes=2, kv_bytes=4, activation_bytes=8, repeated_bytes=16)) == 7


def test_sums() -> None:
    """Kernels add up to the step, and launches one by one take at least as long as all their bytes."""
    launches = step(named_model("35b-a3b", recipe("q4_k_m")), [*decode(3, 1000), Piece(5, 80), *prefill(700, 64)])
    parts, everything = total(by_kernel(launches).values()), whole(launches)
    for field in dataclasses.fields(Work):
        assert getattr(parts, field.name) == pytest.approx(getattr(everything, field.name))
    assert sequential_s(launches, ONE) >= ONE.memory_s(everything)


# ---- against a file and the launchers


@pytest.mark.parametrize("name", FILES)
def test_a_step_that_uses_everything_reads_the_file_once(name: str) -> None:
    """A long piece of a prompt uses every expert and every other tensor; of the embedding only its tokens' rows. MTP heads rest."""
    path, tokens = GGUF / f"{name}.gguf", 3000
    model, file = file_model(path), GgufFile.open(path)
    heads = tuple(f"blk.{model.config.num_layers + number}." for number in range(model.config.num_mtp_layers))
    tensors = {key: tensor for key, tensor in file.tensors.items() if not (heads and key.startswith(heads))}
    read = sum(tensor.nbytes for key, tensor in tensors.items() if key != "token_embd.weight" or "output.weight" not in tensors)
    rows = tokens * tensors["token_embd.weight"].data.shape[-1]
    assert whole(step(model, prefill(tokens))).weight_bytes == pytest.approx(read + rows, rel=1e-9)


@pytest.mark.parametrize("start", [0, 1, 63, 64, 100])
@pytest.mark.parametrize("tokens", [1, 8, 9, 63, 64, 65, 257])
def test_chunks(start: int, tokens: int) -> None:
    """As many as the launcher plans."""
    inputs = build_step_inputs(batch([(start, tokens)]), None)
    assert Piece(tokens, start + tokens).chunks == plan_chunks(inputs).num_chunks


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "pieces", [[(9, 1)], [(5, 1)] * 8, [(5, 1)] * 40, [(0, 100)], [(3, 1), (0, 70), (60, 8)], [(0, 1100)]], ids=str
)
def test_launches(name: str, pieces: Sequence[tuple[int, int]]) -> None:
    """The counted kernels are those that the CUDA backend launches, in its order: (start, tokens) of each sequence."""
    config, source = open_model(GGUF / f"{name}.gguf")
    device, tokens = RecordingDevice(), sum(count for _, count in pieces)
    ops: Any = CudaOps(device)  # type: ignore[arg-type]
    model = load_model(source, config, ops)
    inputs = build_step_inputs(batch(pieces), model.rope)
    caches = ops.caches(MemoryPlan(config.memory_layout(16, "f16"), 80 * len(pieces), len(pieces), 0))
    width, rows = config.hidden_size, np.arange(len(pieces), dtype=np.int32)
    forward(ops, model, ops.empty((tokens, width)), inputs, caches)
    vectors = ops.empty((len(pieces), width))
    ops.live_hidden(vectors, rows, caches)
    ops.logits(ops.empty((len(pieces), config.vocab_size)), model.output, vectors)

    counted = step(file_model(GGUF / f"{name}.gguf"), [Piece(count, start + count) for start, count in pieces])
    assert counted.pop().kernel == "sample"
    sources = [[launch.kernel.split()[0]] * launch.work.launches for launch in counted]
    assert list(chain.from_iterable(sources)) == [source for source, _ in device.launches]


def batch(pieces: Sequence[tuple[int, int]]) -> StepBatch:
    def piece(row: int, start: int, count: int) -> BatchChunk:
        pages = np.arange(80 * row, 80 * row + -(-(start + count) // 16), dtype=np.int32)
        return BatchChunk(row, start, np.zeros(count, np.int32), pages)

    return StepBatch(chunks=[piece(row, *ends) for row, ends in enumerate(pieces)], captures=[])


# ---- the command


def output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["roofline", *arguments])
    main()
    return capsys.readouterr().out


def test_measured_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A time twice the limit is half of the bandwidth: 2.66 GB at 4.8 TB/s take 0.554 ms."""
    text = output(monkeypatch, capsys, "80b-a3b", "--batch", "1", "--prefill", "--measured-ms", "1.109", "--kernels")
    assert "measured 1.109 ms: 50.0% of the bandwidth" in text
    assert "| delta_mixer | delta_decode | 36 |" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a GGUF file, or one of 80b-a3b"),
        (["no-such-file.gguf"], "no-such-file.gguf"),
        (["27b", "--types", "q9"], "Q9 is not supported"),
        (["27b", "--measured-ms", "1"], "one step"),
    ],
)
def test_mistakes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """One sentence, no trace."""
    with pytest.raises(SystemExit, match=message):
        output(monkeypatch, capsys, *arguments)


def test_ceilings_are_those_of_the_documentation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/performance.md holds the table that the command prints."""
    documented = (Path(__file__).parent.parent.parent / "docs" / "performance.md").read_text()
    table = output(monkeypatch, capsys, "--ceilings").strip()
    assert len(table.splitlines()) == 2 + 3 * len(NAMED)
    assert table in documented
