"""Real tiny models on the cpu backend, driven step by step without a server."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from svc.compute.cpu.ops import CpuOps
from svc.compute.model_file import open_model
from svc.compute.runner import ModelRunner
from svc.config import BUNDLED_MODEL
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from svc.slots.speculator import Speculator
from tests.model.arch.attention_only import MODELS as ATTENTION_ONLY
from tests.slots.harness import Driver

MODELS = Path(__file__).parents[1] / "data" / "gguf"
# A file, or a file and the activations.
HYBRID_MODELS = [
    BUNDLED_MODEL.stem,
    "tiny-qwen35moe-Q4_K_M",
    "tiny-qwen35moe-Q4_K_M int8",
    "tiny-qwen3next-Q4_K_M",
    "tiny-qwen35-hd128-bf16",
]
# Written when first used, with random weights: q and k that rotate in neighbours, and biases.
RANDOM_MODELS = ["llama", "qwen2 int8"]
ALL_MODELS = [*HYBRID_MODELS, "tiny-qwen3-Q8_0", *RANDOM_MODELS]


@dataclass(frozen=True)
class Setting:
    """What must not change a single bit of any answer."""

    threads: int = 2
    level: str | None = None  # instruction set of the kernels; None: the best there is
    max_step_tokens: int = 256
    num_pages: int = 200
    num_rows: int = 4
    num_snapshots: int = 64
    page_tokens: int = 16
    kv_type: str = "f16"
    snapshot_type: str = "f32"
    num_host_pages: int = 0
    num_host_snapshots: int = 0
    journal_tokens: int = 0
    capture_every: int = 0
    speculator: Speculator | None = None


def model_file(name: str) -> Path:
    """The file of a model in ALL_MODELS, named without its activations."""
    if name in ATTENTION_ONLY:
        return ATTENTION_ONLY[name].written
    return BUNDLED_MODEL if name == BUNDLED_MODEL.stem else MODELS / f"{name}.gguf"


@pytest.fixture
def fresh() -> Iterator[Callable[..., Driver]]:
    """`fresh(model, **setting)`: a new server's worth of memory around a model, nothing cached."""
    runners: list[ModelRunner] = []

    def make(model: str, **changes: object) -> Driver:
        setting = Setting(**changes)  # type: ignore[arg-type]
        file, _, activations = model.partition(" ")
        ops = CpuOps(setting.threads, activations=activations or "float", level=setting.level, poison=True)  # type: ignore[arg-type]
        config, source = open_model(model_file(file))
        layout = config.memory_layout(setting.page_tokens, setting.kv_type, setting.snapshot_type)
        host = (setting.num_host_pages, setting.num_host_snapshots, setting.journal_tokens)
        plan = MemoryPlan(layout, setting.num_pages, setting.num_rows, setting.num_snapshots, *host)
        runners.append(ModelRunner(load_model(source, config, ops), ops, plan, setting.max_step_tokens))
        return Driver(runners[-1], capture_every=setting.capture_every, speculator=setting.speculator)

    yield make
    for runner in runners:
        runner.close()
