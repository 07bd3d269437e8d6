"""A compiled module in this process: launches its kernels on the CPU."""

import ctypes
import re
import struct
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from svc.compute.cuda.device import DeviceFaultError
from svc.compute.cuda.signature import ELEMENTS, SCALARS, Signature
from tests.cuda_emulator.build import Build, build_runtime
from tests.cuda_emulator.elf import read_image

Order = Literal["forward", "reverse", "random"]
ORDERS: tuple[Order, ...] = ("forward", "reverse", "random")

# The runtime has one state, and catches the signals of the whole process: one launch at a time.
_ONE_LAUNCH = threading.Lock()
_TEXT = ctypes.create_string_buffer(16384)  # what a launch has to say; under the lock


class _Description(ctypes.Structure):
    pass


_Description._fields_ = [
    ("name", ctypes.c_char_p),
    ("thunk", ctypes.c_void_p),
    ("num_arguments", ctypes.c_int),
    ("types", ctypes.POINTER(ctypes.c_char_p)),
    ("max_threads", ctypes.c_int),
    ("next", ctypes.POINTER(_Description)),
]


class _Launch(ctypes.Structure):
    """core.h has the same."""

    _fields_ = (
        ("kernel", ctypes.POINTER(_Description)),
        ("arguments", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_bytes", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("seed", ctypes.c_uint),
        ("lazy_copies", ctypes.c_uint),
        ("limit_s", ctypes.c_double),
        ("image_low", ctypes.c_uint64),
        ("image_high", ctypes.c_uint64),
        ("shared", ctypes.c_void_p),
        ("num_shared", ctypes.c_uint64),
        ("arrays", ctypes.c_void_p),
        ("num_arrays", ctypes.c_uint64),
    )


class Stats(ctypes.Structure):
    """Of one launch. Bytes are counted by the checked build only: loads and stores of arrays, however often the same."""

    blocks: int
    barriers: int
    collectives: int
    read_bytes: int
    written_bytes: int
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("blocks", "barriers", "collectives", "read_bytes", "written_bytes"))


@dataclass(frozen=True, slots=True)
class Run:
    """How launches run."""

    order: Order = "forward"
    seed: int = 1
    limit_s: float = 60.0  # CPU time of one launch


class KernelImage:
    """The loaded library. `signatures` are held against what the compiler saw."""

    def __init__(self, path: Path, build: Build, signatures: dict[str, Signature]) -> None:
        self.path, self.build, self.signatures = path, build, signatures
        self._library = ctypes.CDLL(str(path))
        image = read_image(path)
        self._shared = image.shared
        self.static_shared_bytes = sum(variable.nbytes for variable in image.shared)
        self._low = _load_address(self._library, path)
        self._high = self._low + image.size
        ranges = [(self._low + v.offset, self._low + v.offset + v.nbytes, 1) for v in image.shared]
        self._shared_ranges = _pack_ranges(ranges)
        self._kernels = self._descriptions()
        for signature in signatures.values():
            self._compare(signature)

    def max_threads(self, kernel: str) -> int:
        """What `__launch_bounds__` says, computed by the compiler."""
        return int(self._kernels[kernel].contents.max_threads)

    def launch(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        values: Sequence[Any],
        arrays: Sequence[tuple[int, int, bool]],
        shared_bytes: int,
        run: Run,
    ) -> Stats:
        """`values`: numpy scalars, and addresses as uint64. `arrays`: (first byte, end, writable) of all memory the kernel may
        touch."""
        snapshots = ctypes.create_string_buffer(b"".join(value.tobytes().ljust(8, b"\0") for value in values) or b"\0")
        first = ctypes.addressof(snapshots)
        arguments = (ctypes.c_void_p * max(len(values), 1))(*range(first, first + 8 * len(values), 8))
        ranges = _pack_ranges([(low, high, int(writable)) for low, high, writable in arrays])
        launch = _Launch(
            kernel=self._kernels[kernel],
            arguments=ctypes.addressof(arguments),
            grid=grid,
            block=block,
            dynamic_bytes=shared_bytes,
            order=ORDERS.index(run.order),
            seed=run.seed,
            lazy_copies=run.order == "reverse",
            limit_s=run.limit_s,
            image_low=self._low,
            image_high=self._high,
            shared=ctypes.addressof(self._shared_ranges),
            num_shared=len(self._shared),
            arrays=ctypes.addressof(ranges),
            num_arrays=len(arrays),
        )
        stats = Stats()
        with _ONE_LAUNCH:
            failed = _runtime(self.build).emu_launch(ctypes.byref(launch), ctypes.byref(stats), _TEXT, len(_TEXT))
            text = _TEXT.value.decode(errors="replace") if failed else ""
        if failed:
            raise DeviceFaultError(f"{kernel}: {self._explain(text)}")
        return stats

    def _descriptions(self) -> dict[str, Any]:
        function = self._library.emu_kernels
        function.restype = ctypes.POINTER(_Description)
        found, at = {}, function()
        while at:
            found[at.contents.name.decode()] = at
            at = at.contents.next
        return found

    def _compare(self, signature: Signature) -> None:
        """The parser of declarations (signature.py) against the compiler; they differ only through a macro it cannot see."""
        at = self._kernels[signature.kernel].contents
        seen = [at.types[i].decode() for i in range(at.num_arguments)]
        for parameter, spelled in zip(signature.parameters, seen, strict=True):
            table = ELEMENTS if parameter.pointer else SCALARS
            known = _CODES.get(table.get(parameter.type, ""), "?")
            code = spelled.removeprefix("*").removeprefix("c") if parameter.pointer else spelled
            same = spelled.startswith("*") == parameter.pointer and spelled.startswith("*c") == parameter.const
            if not same or (known != "?" and code not in (known, "b2" if known == "u2" else known)):
                raise TypeError(f"{signature.kernel}: {parameter} was read from the declaration, the compiler says {spelled}")

    def _explain(self, text: str) -> str:
        """Addresses in the module as lines of its source, numbers of shared variables as names."""
        text = re.sub(r"<shared (\d+)>", lambda match: f"shared {_plain_name(self._shared[int(match[1])].name)}", text)
        places = _lines_of(self.path, set(re.findall(r"<pc 0x([0-9a-f]+)>", text)))
        return re.sub(r"<pc 0x([0-9a-f]+)>", lambda match: places.get(match[1], match[1]), text)


def _lines_of(path: Path, addresses: set[str]) -> dict[str, str]:
    """Lines of the sources, innermost function first: "ptx.cuh:10 called at gemm.cu:52"."""
    if not addresses:
        return {}
    wanted = sorted(addresses)
    # The hooks see return addresses: the byte before belongs to the access.
    command = ["addr2line", "--addresses", "--inlines", "-e", str(path), *(hex(int(address, 16) - 1) for address in wanted)]
    groups = re.split(r"^0x[0-9a-f]+\n", subprocess.run(command, capture_output=True, text=True).stdout, flags=re.MULTILINE)[1:]
    frames = ([line.rpartition("/")[2].partition(" ")[0] for line in group.splitlines()] for group in groups)
    return {address: " called at ".join(lines) for address, lines in zip(wanted, frames, strict=False)}


_CODES = {
    "float32": "f4",
    "float64": "f8",
    "float16": "f2",
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
}


@cache
def _runtime(build: Build) -> Any:
    library = ctypes.CDLL(str(build_runtime(build)))
    library.emu_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return library


def _pack_ranges(ranges: Sequence[tuple[int, int, int]]) -> Any:
    return ctypes.create_string_buffer(b"".join(struct.pack("<QQQ", *entry) for entry in ranges) or bytes(24))


def _load_address(library: ctypes.CDLL, path: Path) -> int:
    """Where the loader put it: the first mapping of the file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            return int(line.partition("-")[0], 16)
    raise OSError(f"{path} is not mapped")


def _plain_name(symbol: str) -> str:
    done = subprocess.run(["c++filt", symbol], capture_output=True, text=True)
    return done.stdout.strip() or symbol
