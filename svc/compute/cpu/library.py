"""Finds and loads the compiled kernels: the same C sources, built once per level of the instruction set.

Every level gives the same bits; "base" is plain C and the oracle of the others. setup.py puts `_kernels_<level>.so` beside this
file.
"""

import ctypes
import platform
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.compute.cpu import structs
from svc.compute.cpu.source_hash import source_hash
from svc.errors import BackendUnavailableError
from svc.gguf.grids import grid

HERE = SOURCES = Path(__file__).parent  # of the compiled kernels; of csrc/
ARM = platform.machine() in ("aarch64", "arm64")
LEVELS = (  # rising; a processor need not have all those below its best
    ("base", "neon", "neon-dotprod")
    if ARM
    else ("base", "x86-64-v3", "x86-64-v3-avxvnni", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-amx")
)
CODEBOOKS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S")  # in the order of csrc/quant.h

P = structs.Pointer
SIGNATURES: dict[str, list[Any]] = {
    "hr_open": [structs.Int, structs.Long, structs.Long, structs.Int],
    "hr_close": [P],
    "hr_threads": [P],
    "hr_runs": [ctypes.c_char_p],
    "hr_supports": [structs.Int],
    "hr_set_codebook": [P, structs.Int, P],
    "hr_forward": [P, P, structs.Int, P, P],
    "hr_hidden_rows": [P, P, P, P, structs.Float, structs.Int, P, structs.Int],
    "hr_copy_blocks": [P, P, P, P, structs.Int, structs.Int, structs.Long],
    "hr_settle_rows": [P, P, P, structs.Int, structs.Int],
    "hr_save_rows": [P, P, P, structs.Int],
    "hr_restore_rows": [P, P, P, P, structs.Int],
    "hr_dequantize": [P, structs.Int, P, P, structs.Long],
    "hr_matmul": [P, P, P, P, P, structs.Int],
    "hr_integer_peak": [P, structs.Int, P],
    "hr_elementwise": [structs.Int, P, P, structs.Long],
    "hr_name_mapped_files": [P, P, P, structs.Int],
}
RESULTS = {"hr_open": P, "hr_close": None}  # the others: an int, 0 for success


def library_path(level: str) -> Path:
    return HERE / f"_kernels_{level.replace('-', '_')}.so"


@cache
def load(level: str) -> ctypes.CDLL:
    """The library of one level. BackendUnavailableError if it was not built, cannot be loaded or is not of the sources beside it.

    Kernels of other sources would read other structures: wrong answers, or a crash.
    """
    path = library_path(level)
    if not path.exists():
        raise BackendUnavailableError(
            "the cpu device was not built (no C compiler at installation); install a compiler, then install headrace again"
        )
    try:
        library = ctypes.CDLL(str(path))
        check_sources(library, path)
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = RESULTS.get(name, ctypes.c_int)
    except (OSError, AttributeError) as error:
        raise BackendUnavailableError(f"the compiled kernels in {path} cannot be loaded: {error}") from None
    return library


def check_sources(library: ctypes.CDLL, path: Path) -> None:
    """Only where sources are beside the library. One without the function is older than it."""
    wanted = source_hash(SOURCES)
    built = getattr(library, "hr_sources", None)
    if built is not None:
        built.argtypes, built.restype = [], ctypes.c_char_p
    if wanted and (built is None or built().decode() != wanted):
        raise BackendUnavailableError(
            f"the compiled kernels in {path} were built from other sources than those beside them; "
            "build them again: python setup.py build_ext --inplace"
        )


def available_levels() -> list[str]:
    """Levels that were built and that this processor can run, "base" first; empty if nothing was built."""
    if not library_path(LEVELS[0]).exists():
        return []
    runs = load(LEVELS[0]).hr_runs
    return [level for level in LEVELS if library_path(level).exists() and runs(level.encode())]


def choose_level(wanted: str | None) -> str:
    """`wanted`, or the best available level. BackendUnavailableError if there is none."""
    levels = available_levels()
    if wanted is None and levels:
        return levels[-1]
    if levels and wanted not in LEVELS:
        raise BackendUnavailableError(f"there are no kernels for {wanted!r}: this processor can run {', '.join(levels)}")
    if wanted is None or wanted not in levels:
        load(wanted or LEVELS[0])  # raises with the reason, if it was not built
        raise BackendUnavailableError(f"this processor cannot run the kernels built for {wanted}")
    return wanted


class TimedLibrary:
    """Wraps a library and adds up the time of calls into it, including the conversion of arguments by ctypes."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.seconds = 0.0
        self._library = library

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function, clock = getattr(self._library, name), time.perf_counter

        def timed(*arguments: Any) -> Any:
            started = clock()
            result = function(*arguments)
            self.seconds += clock() - started
            return result

        setattr(self, name, timed)
        return timed


class KernelLibrary:
    """Owner of one C runtime: its threads and scratch memory. One call at a time.

    `close()` ends the threads and may be called twice. The garbage collector closes a library that nobody closed.
    """

    def __init__(
        self, level: str | None, num_threads: int, least_shared_work: int, most_partial_bytes: int, round_activations: bool = False
    ) -> None:
        self.level = choose_level(level)
        self.library: Any = load(self.level)
        self._codebooks: dict[str, NDArray[np.float32]] = {}
        handle = self.library.hr_open(num_threads, least_shared_work, most_partial_bytes, round_activations)
        if not handle:
            raise MemoryError("no memory for the threads of the cpu device")
        self._handle: int = handle
        self.close = weakref.finalize(self, self.library.hr_close, handle)

    @property
    def handle(self) -> int:
        assert self.close.alive, "the cpu device is closed"
        return self._handle

    @property
    def num_threads(self) -> int:
        return int(self.library.hr_threads(self.handle))

    def need_codebook(self, quant: str) -> None:
        """Passes the codebook of an IQ type to the C side, on the first use of the type (making them all costs 0.1 s)."""
        book = "IQ1_S" if quant == "IQ1_M" else quant
        if book in CODEBOOKS and book not in self._codebooks:
            self._codebooks[book] = grid(book)
            self.library.hr_set_codebook(self.handle, CODEBOOKS.index(book), structs.address(self._codebooks[book]))

    @contextmanager
    def timed(self) -> Iterator[TimedLibrary]:
        """Times the calls inside the block, at a cost of some tenths of a microsecond each."""
        plain = self.library
        self.library = timed = TimedLibrary(plain)
        try:
            yield timed
        finally:
            self.library = plain

    def call(self, name: str, *arguments: Any) -> None:
        """Runs an operation of the library. MemoryError if it found no scratch memory."""
        function: Callable[..., int] = getattr(self.library, name)
        if function(self.handle, *arguments):
            raise MemoryError(f"no memory for the scratch of {name.removeprefix('hr_')}")
