"""Real tiny models on the cpu backend, driven step by step without a server."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from svc.compute.cpu.ops import CpuOps
from svc.compute.runner import ModelRunner, open_model
from svc.config import BUNDLED_MODEL
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
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
ALL_MODELS = [*HYBRID_MODELS, "tiny-qwen3-Q8_0"]


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
    num_host_pages: int = 0
    num_host_snapshots: int = 0


@pytest.fixture
def fresh() -> Callable[..., Driver]:
    """`fresh(model, **setting)`: a new server's worth of memory around a model, nothing cached."""
    runners: list[ModelRunner] = []

    def make(model: str, **changes: object) -> Driver:
        setting = Setting(**changes)  # type: ignore[arg-type]
        file, _, activations = model.partition(" ")
        ops = CpuOps(setting.threads, activations=activations or "float", level=setting.level, poison=True)  # type: ignore[arg-type]
        config, source = open_model(BUNDLED_MODEL if file == BUNDLED_MODEL.stem else MODELS / f"{file}.gguf")
        layout = config.memory_layout(setting.page_tokens, setting.kv_type)
        host = (setting.num_host_pages, setting.num_host_snapshots)
        plan = MemoryPlan(layout, setting.num_pages, setting.num_rows, setting.num_snapshots, *host)
        runners.append(ModelRunner(load_model(source, config, ops), ops, plan, setting.max_step_tokens))
        return Driver(runners[-1])

    yield make
    for runner in runners:
        runner.close()
