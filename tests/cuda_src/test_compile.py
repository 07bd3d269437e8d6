"""Every kernel compiles for every architecture we serve, without spilling registers and within its shared memory."""

from pathlib import Path

import pytest

from svc.compute.cuda.launch_limits import STATIC_SHARED_BYTES, TESTED_ARCHS
from svc.compute.cuda.signature import parse_signatures
from svc.compute.cuda.sources import Source, load_source, source_names
from tests.cuda_src.nvrtc import NvrtcError, compile_source, nvrtc_folder, parse_log, variants

needs_nvrtc = pytest.mark.skipif(nvrtc_folder() is None, reason="compiling kernels needs nvidia-cuda-nvrtc and nvidia-cuda-runtime")
PLANTED = Path(__file__).parents[1] / "cuda_emulator" / "planted"
CASES = [(name, defines) for name in source_names() for defines in variants(load_source(name))]


def case_id(value: object) -> str:
    return (
        value
        if isinstance(value, str)
        else ",".join(f"{k}={v}" for k, v in value.items())
        if isinstance(value, dict)
        else f"sm_{value}"
    )


@needs_nvrtc
@pytest.mark.parametrize("arch", TESTED_ARCHS, ids=case_id)
@pytest.mark.parametrize(("name", "defines"), CASES, ids=case_id)
def test_compiles(name: str, defines: dict[str, str], arch: int) -> None:
    """No error, no spill, no over-large shared array; and the kernels are those that the device layer reads from the text."""
    source = load_source(name)
    reports = compile_source(source, defines, arch)
    assert {report.name for report in reports} == set(parse_signatures(source.text, defines))
    assert {report.name: report.spilled_bytes for report in reports if report.spilled_bytes} == {}
    assert {report.name: report.shared_bytes for report in reports if report.shared_bytes > STATIC_SHARED_BYTES} == {}


@needs_nvrtc
@pytest.mark.parametrize("arch", TESTED_ARCHS, ids=case_id)
def test_shared_helpers_compile(arch: int) -> None:
    """Every instruction of include/ptx.cuh, and what no kernel may use yet, is one that the architecture has."""
    for name in ("numeric", "bfloat16") if arch >= 80 else ("numeric",):
        source = load_source(name, PLANTED)
        assert {report.name for report in compile_source(source, {}, arch)} == set(parse_signatures(source.text))


# ---- the gate itself


def planted(text: str) -> Source:
    """A source with a text of its own; common.cuh is part of it."""
    source = load_source("rms_norm")
    return Source("planted", source.path, source.text + text)


@needs_nvrtc
@pytest.mark.parametrize(
    ("mistake", "arch", "words"),
    [
        ('extern "C" __global__ void k(float* y) { y[0] = undeclared; }', 90, "undeclared"),
        ('extern "C" __global__ void k(float* y) { y[0] = host(); } float host() { return 1.f; }', 90, "host"),
        (
            'extern "C" __global__ void k(float* y) { __shared__ float s[16384]; s[threadIdx.x] = y[0]; y[1] = s[0]; }',
            90,
            "65536 bytes smem",
        ),
        ('extern "C" __global__ void k() { asm volatile("cp.async.wait_all;"); }', 75, "sm_80"),
    ],
    ids=["name", "host function", "shared memory", "instruction of a newer GPU"],
)
def test_gate_sees_errors(mistake: str, arch: int, words: str) -> None:
    with pytest.raises(NvrtcError, match=words):
        compile_source(planted(mistake), {}, arch)


@needs_nvrtc
def test_gate_sees_spills() -> None:
    """More live values than launch bounds leave registers for."""
    values = "".join(f"float v{i} = y[{i} * n];" for i in range(120))
    sums = "".join(f"y[{i}] = v{i} * v{(i * 37 + 5) % 120};" for i in range(120))
    source = planted(
        f'extern "C" __global__ void __launch_bounds__(1024, 2) spiller(float* y, int n) {{ {values} __syncthreads(); {sums} }}'
    )
    reports = {report.name: report for report in compile_source(source, {}, 90)}
    assert reports["spiller"].spilled_bytes > 0
    assert reports["rms_norm"].spilled_bytes == 0
    assert (reports["rms_norm"].max_threads, reports["rms_norm"].shared_bytes) == (1024, 128)


def test_log_of_the_assembler() -> None:
    """Every number is read from its place in the log."""
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compile time = 5.0 ms
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""
    first, second = parse_log(log, {".nv.info.first": 256})
    assert (first.name, first.registers, first.spilled_bytes, first.stack_bytes, first.shared_bytes, first.max_threads) == (
        "first",
        40,
        20,
        16,
        128,
        256,
    )
    assert (second.name, second.registers, second.spilled_bytes, second.stack_bytes, second.shared_bytes, second.max_threads) == (
        "second",
        8,
        0,
        0,
        0,
        0,
    )
