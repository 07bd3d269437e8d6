"""Memory of the emulated device: each allocation ends at a page that cannot be touched, and starts out as NaN."""

import ctypes

import numpy as np
from numpy.typing import NDArray

PAGE = 4096
ALIGNMENT = 256
FRESH = 0xFF  # NaN in every float format, -1 in integers
CANARY = 0xA5

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_READ_WRITE, _PRIVATE_ANONYMOUS = 3, 0x22
_FAILED = ctypes.c_void_p(-1).value


class GuardedMemory:
    """`nbytes` at `address`, aligned as on a GPU. The gap that alignment leaves before the closing page holds a pattern:
    `intact`."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        padded = (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self._length = (padded + PAGE - 1) // PAGE * PAGE + 2 * PAGE
        self._map = _libc.mmap(None, self._length, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        if self._map == _FAILED:
            raise MemoryError(f"no {nbytes} bytes for the emulated device")
        end = self._map + self._length - PAGE
        _libc.mprotect(self._map, PAGE, 0)
        _libc.mprotect(end, PAGE, 0)
        self.address: int = end - padded
        ctypes.memset(self.address, FRESH, nbytes)
        self._gap = (ctypes.c_ubyte * (padded - nbytes)).from_address(self.address + nbytes)
        self._pattern = bytes([CANARY]) * (padded - nbytes)
        ctypes.memset(self._gap, CANARY, padded - nbytes)

    def intact(self) -> bool:
        """Whether nothing was written right behind the end."""
        return bytes(self._gap) == self._pattern

    def bytes(self) -> NDArray[np.uint8]:
        """All of it as a host array, which keeps the memory alive."""
        view = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        view._owner = self  # type: ignore[attr-defined]
        return np.ctypeslib.as_array(view)

    def __del__(self) -> None:
        if getattr(self, "_map", _FAILED) != _FAILED:
            _libc.munmap(self._map, self._length)
