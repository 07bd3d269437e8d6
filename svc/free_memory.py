"""Gives memory back to the system that the C library keeps after it was freed: what reading a vocabulary leaves behind."""

import ctypes


def give_back() -> None:
    """Nothing where the C library has no such call (not glibc). Takes a few milliseconds."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return
    trim.argtypes = [ctypes.c_size_t]
    trim(0)
