"""Limits of a launch on each architecture."""

from svc.compute.cuda.signature import Signature

OLDEST_ARCH = 75
# The tests compile every kernel for these architectures; others run code of the nearest one below.
TESTED_ARCHS = (75, 80, 86, 89, 90, 100, 120)
STATIC_SHARED_BYTES = 48 << 10  # limit of shared arrays of fixed size, on every architecture
# Most shared memory one block may have, dynamic and static together, after opting in.
SHARED_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
REGISTERS_PER_SM = 65536
MAX_THREADS_PER_SM = {
    75: 1024,
    80: 2048,
    86: 1536,
    87: 1536,
    88: 1536,
    89: 1536,
    90: 2048,
    100: 2048,
    103: 2048,
    110: 1536,
    120: 1536,
    121: 1536,
}
MAX_BLOCKS_PER_SM = {75: 16, 80: 32, 86: 16, 87: 16, 88: 16, 89: 24, 90: 32, 100: 32, 103: 32, 110: 24, 120: 24, 121: 24}
SHARED_KIB_PER_SM = {75: 64, 80: 164, 86: 100, 87: 164, 88: 100, 89: 100, 90: 228, 100: 228, 103: 228, 110: 228, 120: 100, 121: 100}

MAX_BLOCK_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)


def shared_limit_bytes(arch: int) -> int:
    """Shared memory of a block; for an architecture newer than the table, the smallest of the recent ones."""
    return SHARED_KIB.get(arch, 99) << 10


def full_dim(dim: tuple[int, ...]) -> tuple[int, int, int]:
    """(x, y, z) of one to three sizes."""
    if not 1 <= len(dim) <= 3:
        raise ValueError(f"{dim} is not one to three sizes")
    x, y, z = (*dim, 1, 1)[:3]
    return int(x), int(y), int(z)


def check_launch(
    signature: Signature,
    arch: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    static_bytes: int = 0,
) -> None:
    """ValueError naming the kernel if no GPU of this architecture can run the launch."""
    name = signature.kernel
    threads = block[0] * block[1] * block[2]
    for what, dim, most in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if any(not 1 <= size <= limit for size, limit in zip(dim, most, strict=True)):
            raise ValueError(f"{name}: {what} {dim} is out of range")
    allowed = signature.max_threads or MAX_BLOCK_THREADS
    if threads > allowed:
        raise ValueError(f"{name}: {threads} threads a block, {allowed} allowed")
    limit = shared_limit_bytes(arch)
    if shared_bytes < 0 or shared_bytes + static_bytes > limit:
        raise ValueError(f"{name}: {shared_bytes + static_bytes} bytes of shared memory a block, sm_{arch} has {limit}")
