"""`headrace inspect`: numbers worked out by hand from the models' published sizes (heads, dimensions, layers)."""

import json
from pathlib import Path

import pytest

from svc import model_loading
from svc.cli import inspect, main
from svc.compute.cuda import cupy_device
from tests.cuda_emulator.device import EmulatedDevice

MODELS = Path(__file__).parent.parent / "data" / "gguf"
HYBRID = str(MODELS / "tiny-qwen35moe-Q4_K_M.gguf")  # 3 DeltaNet layers of 8 heads 32 x 32, 1 attention layer of 2 KV heads x 64
ATTENTION_ONLY = str(MODELS / "tiny-qwen3-Q8_0.gguf")  # 4 attention layers of 2 KV heads x 64

KV_PER_TOKEN = 1 * 2 * 2 * 64 * 2  # layers, K and V, heads, dimension, bytes of f16
CONV_CHANNELS = 4 * 32 + 4 * 32 + 8 * 32  # q, k, v
SNAPSHOT = 3 * (8 * 32 * 32 + 3 * CONV_CHANNELS) * 4 + 256 * 4  # layers x (state + 3 conv rows), and the hidden row


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert main(["inspect", *arguments, "--json"]) == 0
    parsed: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)
    return parsed


def test_model_facts(capsys: pytest.CaptureFixture[str]) -> None:
    """Layers by kind, heads and experts are those of the checkpoint the file was made from."""
    model = report(capsys, HYBRID)["model"]
    expected = {
        "architecture": "qwen35moe",
        "num_layers": 4,
        "num_recurrent_layers": 3,
        "num_attention_layers": 1,
        "num_mtp_layers": 0,
        "hidden_size": 256,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 64,
        "num_key_heads": 4,
        "num_value_heads": 8,
        "recurrent_head_dim": 32,
        "num_experts": 6,
        "num_experts_used": 3,
        "shared_expert_size": 256,
        "vocab_size": 2048,
        "pre_tokenizer": "qwen35",
        "trained_context_tokens": 4096,
    }
    assert {key: model[key] for key in expected} == expected


def test_file_facts(capsys: pytest.CaptureFixture[str]) -> None:
    """The shares of the block types are shares of one whole; the size is the file's."""
    file = report(capsys, HYBRID)["file"]
    shares = file["quant_types"]
    assert isinstance(shares, dict)
    assert {"Q4_K", "Q6_K", "F32"} == set(shares)
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert file["size_bytes"] == Path(HYBRID).stat().st_size
    assert file["has_chat_template"] is True


def test_costs_and_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole pages and whole snapshots of the budgets given."""
    flags = ["--kv-bytes", "1MiB", "--snapshot-bytes", "1000000", "--page-tokens", "16", "--max-slots", "3", "--ctx", "9000"]
    memory = report(capsys, HYBRID, *flags)["memory"]
    pages = 2**20 // (16 * KV_PER_TOKEN)
    expected = {
        "kv_bytes_per_token": KV_PER_TOKEN,
        "snapshot_bytes_each": SNAPSHOT,
        "snapshot_in_kv_tokens": round(SNAPSHOT / KV_PER_TOKEN),
        "context_tokens": 9000,
        "num_pages": pages,
        "kv_tokens": pages * 16,
        "kv_bytes": 2**20,
        "num_snapshots": 1_000_000 // SNAPSHOT,
        "num_slots": 3,
        "slot_bytes": 3 * SNAPSHOT,
    }
    assert {key: memory[key] for key in expected} == expected


def test_memory_of_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    """The mapped file, the live rows, and the caches when they are full; the program is an estimate."""
    flags = ["--device", "cpu", "--max-slots", "3", "--kv-bytes", "8MiB", "--snapshot-bytes", "4MiB"]
    found = report(capsys, HYBRID, *flags)
    resident, memory = found["resident"], found["memory"]
    assert resident["weights_bytes"] == Path(HYBRID).stat().st_size
    assert resident["start_bytes"] == sum(
        int(part)
        for part in (resident["weights_bytes"], resident["program_bytes"], memory["slot_bytes"])  # type: ignore[call-overload]
    )
    caches = resident["most_bytes"] - resident["start_bytes"]  # type: ignore[operator]
    assert caches == memory["kv_bytes"] + memory["snapshot_bytes"]  # type: ignore[operator]
    assert main(["inspect", HYBRID, *flags]) == 0
    assert "memory " in capsys.readouterr().out


def test_threads(capsys: pytest.CaptureFixture[str]) -> None:
    """How many and why; those that are set; none for a device that does not choose."""
    assert report(capsys, HYBRID, "--device", "cpu", "--threads", "1")["threads"] == {"num_threads": 1, "reason": "as set"}
    chosen = report(capsys, HYBRID, "--device", "cpu")["threads"]
    assert main(["inspect", HYBRID, "--device", "cpu"]) == 0
    assert f"{chosen['num_threads']}: of " in capsys.readouterr().out
    assert report(capsys, HYBRID, "--device", "reference")["threads"] is None


def test_host_tier(capsys: pytest.CaptureFixture[str]) -> None:
    """Budgets in numbers hold whole pages and snapshots; automatic ones are a GPU's and count for nothing here."""
    assert report(capsys, HYBRID)["memory"]["num_host_pages"] == 0
    flags = ["--host-kv-bytes", "1MiB", "--host-snapshot-bytes", "1000000", "--page-tokens", "16"]
    memory = report(capsys, HYBRID, *flags)["memory"]
    assert memory["num_host_pages"] == 2**20 // (16 * KV_PER_TOKEN)
    assert memory["num_host_snapshots"] == 1_000_000 // SNAPSHOT
    assert main(["inspect", HYBRID, *flags]) == 0
    assert f"{memory['num_host_pages'] * 16} tokens, " in capsys.readouterr().out


def test_f32_pages_cost_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """The KV number format is in the figure."""
    assert report(capsys, HYBRID, "--kv-type", "f32")["memory"]["kv_bytes_per_token"] == 2 * KV_PER_TOKEN


def test_attention_only_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Without recurrent layers a snapshot is one hidden row."""
    memory = report(capsys, ATTENTION_ONLY)["memory"]
    assert (memory["kv_bytes_per_token"], memory["snapshot_bytes_each"]) == (4 * KV_PER_TOKEN, 256 * 4)


GPU_BYTES = 96 * 2**20


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with CuPy and a GPU."""
    monkeypatch.setattr(cupy_device, "open_cupy_device", lambda index=0: EmulatedDevice(total_bytes=GPU_BYTES))
    for module in (model_loading, inspect):
        monkeypatch.setattr(module, "find_spec", lambda name: name)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_memory_of_the_gpu(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a GPU would compute, its memory is shared out: beside the weights and the steps all of it, up to a twentieth."""
    found = report(capsys, HYBRID, "--device", device, "--max-slots", "2", "--ctx", "4096")
    gpu, memory = found["gpu"], found["memory"]
    weights = Path(HYBRID).stat().st_size
    assert (gpu["total_bytes"], gpu["free_bytes"]) == (GPU_BYTES, GPU_BYTES)
    assert gpu["for_caches_bytes"] == int(0.95 * GPU_BYTES) - weights - gpu["steps_bytes"]
    taken = sum(int(memory[name]) for name in ("kv_bytes", "snapshot_bytes", "slot_bytes"))  # type: ignore[call-overload]
    page_bytes = KV_PER_TOKEN * int(memory["page_tokens"])  # type: ignore[call-overload]
    useful = 4 * 2 * 4096 * KV_PER_TOKEN + 64 * 2 * SNAPSHOT + 2 * SNAPSHOT  # contexts and snapshots that two slots have a use for
    assert abs(min(useful, int(gpu["for_caches_bytes"])) - taken) < page_bytes + SNAPSHOT  # type: ignore[call-overload]


@pytest.mark.usefixtures("emulated")
def test_gpu_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """One line more, and none on a machine's own memory."""
    assert main(["inspect", HYBRID]) == 0
    assert "emulated on the CPU: 96.0 MiB of 96.0 MiB free" in capsys.readouterr().out
    assert main(["inspect", HYBRID, "--device", "cpu"]) == 0
    assert "emulated" not in capsys.readouterr().out
    found = report(capsys, HYBRID, "--device", "cpu")
    assert found["gpu"] is None
    assert found["resident"] is not None
    assert report(capsys, HYBRID)["resident"] is None


@pytest.mark.usefixtures("emulated")
def test_too_large_for_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused as the server would, in one sentence."""
    assert main(["inspect", HYBRID, "--max-step-tokens", "60000"]) == 2
    message = capsys.readouterr().err
    assert "96 MiB free of 96" in message
    assert message.count("\n") == 1


def test_text_names_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    """What a person reads: one fact a line, no line left to guess."""
    assert main(["inspect", HYBRID, "--kv-bytes", "1MiB"]) == 0
    text = capsys.readouterr().out
    for fact in (
        "3 recurrent (Gated DeltaNet), 1 attention",
        "4 heads of 64, 2 KV heads",
        "6 experts of 256, 3 used, a shared one of 256",
        "trained to 4096 tokens",
        f"{KV_PER_TOKEN} bytes of KV (f16)",
        f"(= KV of {SNAPSHOT / KV_PER_TOKEN:.0f} tokens)",
        "64 pages of 32 = 2048 tokens",
        "the KV pages hold less than one sequence of 4096 tokens",
    ):
        assert fact in text


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "other architecture"])
def test_bad_file_is_one_sentence(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be served ends with exit code 2 and its name, never a traceback."""
    data = Path(HYBRID).read_bytes()
    broken = {
        "truncated": data[: len(data) // 2],
        "garbage": b"not a model" * 1000,
        "empty": b"",
        "other architecture": data.replace(b"qwen35moe", b"qwen99moe"),
    }[damage]
    path = tmp_path / "broken.gguf"
    path.write_bytes(broken)
    assert main(["inspect", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "broken.gguf" in captured.err


def test_budget_that_does_not_fit_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what would fit, or what there is."""
    assert main(["inspect", HYBRID, "--kv-bytes", "1KiB"]) == 2
    assert "kv_bytes" in capsys.readouterr().err
    assert main(["inspect", HYBRID, "--kv-bytes", "900TiB"]) == 2
    assert "free" in capsys.readouterr().err


def test_journals(capsys: pytest.CaptureFixture[str]) -> None:
    """What drafts take: a journal for each slot, of the drafts and the token before them; nothing without drafts."""
    assert report(capsys, HYBRID)["memory"]["journal_bytes"] == 0
    memory = report(capsys, HYBRID, "--draft-tokens", "8", "--max-slots", "3")["memory"]
    assert memory["journal_tokens"] == 9
    assert memory["journal_bytes"] % (3 * 9 * 4) == 0
    twice = report(capsys, HYBRID, "--draft-tokens", "17", "--max-slots", "3")["memory"]
    assert twice["journal_bytes"] == 2 * memory["journal_bytes"] > 0
