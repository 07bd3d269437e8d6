"""`make kernels`: compiles all kernels for all architectures and prints their use of a multiprocessor.

Exits with 1 when one fails, spills or has too much shared memory. Occupancy is at the block size of the launch bounds, without
dynamic shared memory: the share of a multiprocessor's threads that its registers and shared memory allow.
"""

import sys

from svc.compute.cuda import launch_limits
from svc.compute.cuda.signature import parse_signatures
from svc.compute.cuda.sources import load_source, source_names
from tests.cuda_src.nvrtc import KernelReport, NvrtcError, compile_source, nvrtc_folder, variants

REGISTERS_PER_UNIT = 256  # registers are handed out by this many a warp
SYSTEM_SHARED_BYTES = 1024  # of each block, from sm_80 on


def occupancy(report: KernelReport, arch: int) -> float:
    warps = -(-(report.max_threads or launch_limits.MAX_BLOCK_THREADS) // 32)
    registers = -(-report.registers * 32 // REGISTERS_PER_UNIT) * REGISTERS_PER_UNIT * warps
    shared = report.shared_bytes + (SYSTEM_SHARED_BYTES if arch >= 80 else 0)
    most = [
        launch_limits.MAX_BLOCKS_PER_SM[arch],
        launch_limits.MAX_THREADS_PER_SM[arch] // (32 * warps),
        launch_limits.REGISTERS_PER_SM // max(registers, 1),
    ]
    if shared:
        most.append((launch_limits.SHARED_KIB_PER_SM[arch] << 10) // shared)
    return min(most) * 32 * warps / launch_limits.MAX_THREADS_PER_SM[arch]


def main() -> int:
    if nvrtc_folder() is None:
        print("CUDA kernels: not compiled, as nvidia-cuda-nvrtc and nvidia-cuda-runtime are not installed (test extra)")
        return 0
    archs = launch_limits.TESTED_ARCHS
    print(f"{'kernel':44}{'shared':>7}  " + "".join(f"{f'sm_{arch}':>12}" for arch in archs) + "   registers, occupancy")
    problems = [problem for name in source_names() for problem in _report_source(name, archs)]
    print("\n".join(problems) or "no spills, no errors")
    return 1 if problems else 0


def _report_source(name: str, archs: tuple[int, ...]) -> list[str]:
    """Prints a line per kernel; returns the problems."""
    source, problems = load_source(name), []
    for defines in variants(source):
        label = " ".join(f"{key}={value}" for key, value in defines.items())
        signatures = parse_signatures(source.text, defines)
        rows: dict[str, list[KernelReport]] = {kernel: [] for kernel in signatures}
        for arch in archs:
            try:
                for report in compile_source(source, defines, arch):
                    rows[report.name].append(report)
            except NvrtcError as error:
                problems.append(f"{name}.cu {label} for sm_{arch}:\n{error}")
        for kernel, reports in rows.items():
            snapshots = [f"{r.registers:>4} {occupancy(r, arch):>4.0%}" for r, arch in zip(reports, archs, strict=False)]
            print(
                f"{f'{kernel} {label}':44}{reports[0].shared_bytes if reports else 0:>7}  "
                + "".join(f"{snapshot_id:>12}" for snapshot_id in snapshots)
            )
            problems += [
                f"{kernel} {label} spills {r.spilled_bytes} bytes on sm_{arch}"
                for r, arch in zip(reports, archs, strict=False)
                if r.spilled_bytes
            ]
    return problems


if __name__ == "__main__":
    sys.exit(main())
