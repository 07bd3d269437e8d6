"""The operations in native C, called through ctypes without the GIL.

Exact: the bits of a token do not depend on the tokens that share its step.
"""

from svc.compute.cpu.ops import CpuOps

__all__ = ["CpuOps"]
