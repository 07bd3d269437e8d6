"""The report of a benchmark: machine, model, settings, and a result per test."""

import math
import os
import platform
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from svc.cli.bench.cases import Case
from svc.cli.bench.loop import Round

if TYPE_CHECKING:
    from svc.gguf.gguf_file import GgufFile
    from svc.memory.plan import MemoryPlan
    from svc.model.model_config import ModelConfig

CPUINFO = Path("/proc/cpuinfo")


class Machine(msgspec.Struct, frozen=True):
    processor: str
    num_cores: int  # available to this process
    load: float  # runnable processes, average of the minute before the start; above 0, figures are too low
    device: str  # "cpu", "cuda", "reference"
    device_name: str  # of the GPU; empty for other devices
    level: str  # instruction set of the cpu device's kernels; empty for other devices
    threads: int  # 0 if the device does not choose
    activations: str  # "float" or "int8"


class BenchedModel(msgspec.Struct, frozen=True):
    """`quant_types`: shares of the tensors' bytes. `num_active_parameters`: those that one token uses."""

    file: str
    name: str
    architecture: str
    size_bytes: int
    num_parameters: int
    num_active_parameters: int
    quant_types: dict[str, float]


class CacheFacts(msgspec.Struct, frozen=True):
    """Memory of the caches in this run."""

    kv_type: str
    kv_bytes: int
    kv_bytes_per_token: int
    state_bytes: int  # state rows and snapshots
    state_bytes_per_sequence: int


class Result(msgspec.Struct, frozen=True):
    """Tokens a second of all sequences together; `step_ms` is the median of a round's average step."""

    test: str
    prompt_tokens: int
    generated_tokens: int
    num_sequences: int
    depth_tokens: int
    median: float
    smallest: float
    largest: float
    step_ms: float
    rates: list[float]  # of each round, in order


class HostShare(msgspec.Struct, frozen=True):
    """Time of a step outside the kernels: Python's planning, metadata and bookkeeping."""

    test: str
    step_ms: float
    outside_ms: float

    @property
    def share(self) -> float:
        return self.outside_ms / self.step_ms


class Report(msgspec.Struct, frozen=True):
    version: str
    machine: Machine
    model: BenchedModel
    caches: CacheFacts
    max_step_tokens: int
    num_rounds: int
    results: list[Result]
    host_shares: list[HostShare]  # empty for a backend that cannot measure it
    left_out: list[str]  # tests that do not fit the model's context


def result(case: Case, rounds: list[Round]) -> Result:
    rates = [one.rate for one in rounds]
    step_ms = 1000 * statistics.median(one.seconds / one.steps for one in rounds)
    sizes = (case.prompt, case.generate, case.batch, case.depth)
    return Result(case.name, *sizes, statistics.median(rates), min(rates), max(rates), step_ms, rates)


def host_share(case: Case, rounds: list[Round]) -> HostShare:
    """Of the fastest round, which other programs disturbed least."""
    best = min(rounds, key=lambda one: one.seconds)
    return HostShare(case.name, 1000 * best.seconds / best.steps, 1000 * (best.seconds - best.kernel_s) / best.steps)


def model_facts(file: "GgufFile", config: "ModelConfig") -> BenchedModel:
    return BenchedModel(
        file=str(file.path),
        name=config.name,
        architecture=config.architecture,
        size_bytes=file.file_bytes,
        num_parameters=file.num_parameters,
        num_active_parameters=num_active(file, config),
        quant_types=file.type_shares(),
    )


def num_active(file: "GgufFile", config: "ModelConfig") -> int:
    """Parameters that one token uses: its experts only, and one row of an embedding table that is not the output head too."""
    count = 0
    for name, tensor in file.tensors.items():
        size = math.prod(tensor.shape)
        if len(tensor.shape) == 3 and config.num_experts:
            size = size // config.num_experts * config.num_experts_used
        elif name == "token_embd.weight" and "output.weight" in file.tensors:
            size = config.hidden_size
        count += 0 if _is_mtp(name, config) else size
    return count


def _is_mtp(name: str, config: "ModelConfig") -> bool:
    """Whether the tensor belongs to a layer for multi-token prediction; those follow the trunk."""
    first, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return first == "blk" and number.isdecimal() and int(number) >= config.num_layers


def cache_facts(plan: "MemoryPlan") -> CacheFacts:
    return CacheFacts(
        kv_type=plan.layout.kv_type,
        kv_bytes=plan.kv_bytes,
        kv_bytes_per_token=plan.layout.kv_bytes_per_token,
        state_bytes=plan.row_bytes + plan.snapshot_bytes,
        state_bytes_per_sequence=plan.layout.state_bytes,
    )


def load_average() -> float:
    """Average of the last minute; 0 if the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """The processor's own name, or at least its architecture."""
    try:
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown processor"
