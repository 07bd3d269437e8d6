"""The operations in native C, called through ctypes without the GIL.

Exact: a token's bits do not depend on what it is computed with.
"""

from svc.compute.cpu.ops import CpuOps

__all__ = ["CpuOps"]
