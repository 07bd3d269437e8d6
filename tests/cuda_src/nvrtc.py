"""Compiles kernels for real GPUs without having one: NVIDIA's runtime compiler from its wheel, through ctypes.

`-arch=sm_XX` gives machine code, so the assembler ran: its log tells registers, spills and shared memory of each kernel. Reports
are cached by the content of the source, as nothing else matters.
"""

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from svc.compute.cuda.sources import Source
from tests.cuda_emulator.build import cache_directory
from tests.cuda_emulator.elf import sections

OPTIONS = ("-std=c++17", "--ptxas-options=-v")
VERSION = 2  # of the stored form of a report
_SIZED, _MAX_THREADS = 4, 5
_VARIANT = re.compile(r"^//\s*Variant:\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KernelReport:
    name: str
    registers: int
    spilled_bytes: int
    stack_bytes: int  # local memory: spills, and arrays that could not be kept in registers
    shared_bytes: int  # of fixed size
    max_threads: int  # of a block, by its launch bounds; 0 without them


class NvrtcError(Exception):
    """The compiler's log."""


def variants(source: Source) -> list[dict[str, str]]:
    """The -D of each `// Variant: HEAD_DIM=64 TYPE=q4_k` line in the source's own head; without any, one without -D."""
    lines = _VARIANT.findall(source.path.read_text())
    return [dict(define.split("=", 1) for define in line.split()) for line in lines] or [{}]


def compile_source(source: Source, defines: Mapping[str, str], arch: int) -> list[KernelReport]:
    """One report a kernel. NvrtcError when it does not compile."""
    key = [
        str(VERSION),
        nvrtc().version,
        source.text,
        *OPTIONS,
        str(arch),
        *(f"{name}={value}" for name, value in sorted(defines.items())),
    ]
    cached = cache_directory() / f"{source.name}-sm_{arch}-{hashlib.sha256(chr(0).join(key).encode()).hexdigest()[:20]}.json"
    if cached.exists():
        cached.touch()  # in use: build.py removes unused files
        return [KernelReport(**entry) for entry in json.loads(cached.read_text())]
    options = [f"-arch=sm_{arch}", *OPTIONS, *(f"-D{name}={value}" for name, value in defines.items())]
    log, cubin = nvrtc().compile(source, options)
    reports = parse_log(log, {name: launch_bounds(content) for name, content in sections(cubin).items()})
    fresh = cached.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps([asdict(report) for report in reports]))
    fresh.replace(cached)
    return reports


def launch_bounds(info: bytes) -> int:
    """Most threads of a block, from the section `.nv.info.<kernel>` of the machine code: records of format, attribute, size."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            if attribute == _MAX_THREADS:
                x, y, z = struct.unpack_from("<III", info, at)
                return int(x * y * z)
            at += size
    return 0


def parse_log(log: str, bounds: Mapping[str, int]) -> list[KernelReport]:
    """Of the assembler in its verbose mode. `bounds`: of each section of the machine code."""
    reports = []
    for part in re.split(r"Compiling entry function '", log)[1:]:
        numbers = {
            name: int(found[1]) if (found := re.search(pattern, part)) else 0
            for name, pattern in {
                "stack": r"(\d+) bytes stack frame",
                "stores": r"(\d+) bytes spill stores",
                "loads": r"(\d+) bytes spill loads",
                "registers": r"Used (\d+) registers",
                "shared": r"(\d+) bytes smem",
            }.items()
        }
        name = part.partition("'")[0]
        spilled = numbers["stores"] + numbers["loads"]
        reports.append(
            KernelReport(
                name, numbers["registers"], spilled, numbers["stack"], numbers["shared"], bounds.get(f".nv.info.{name}", 0)
            )
        )
    return reports


class Nvrtc:
    """The loaded library."""

    def __init__(self, folder: Path) -> None:
        (builtins,) = (path for path in (folder / "lib").glob("libnvrtc-builtins.so.*"))
        (library,) = (path for path in (folder / "lib").glob("libnvrtc.so.*"))
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # the library asks for it by its bare name
        self._library = ctypes.CDLL(str(library))
        self._include = folder / "include"
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, source: Source, options: list[str]) -> tuple[str, bytes]:
        """The log and the machine code."""
        program = ctypes.c_void_p()
        self._library.nvrtcCreateProgram(ctypes.byref(program), source.text.encode(), source.path.name.encode(), 0, None, None)
        all_options = [option.encode() for option in (*options, f"-I{self._include}")]
        try:
            failed = self._library.nvrtcCompileProgram(
                program, len(all_options), (ctypes.c_char_p * len(all_options))(*all_options)
            )
            log, cubin = self._log(program), b"" if failed else self._cubin(program)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))
        if failed:
            raise NvrtcError(log)
        return log, cubin

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._library.nvrtcGetProgramLog(program, text)
        return text.value.decode(errors="replace")

    def _cubin(self, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        self._library.nvrtcGetCUBIN(program, code)
        return code.raw


def nvrtc_folder() -> Path | None:
    """Where the wheels nvidia-cuda-nvrtc and nvidia-cuda-runtime (test extra) put library and headers, if both are installed."""
    package: Any = importlib.util.find_spec("nvidia")
    for location in package.submodule_search_locations or () if package else ():
        for header in Path(location).glob("*/include/cuda_fp16.h"):
            if any((header.parents[1] / "lib").glob("libnvrtc.so.*")):
                return header.parents[1]
    return None


@cache
def nvrtc() -> Nvrtc:
    folder = nvrtc_folder()
    assert folder is not None
    return Nvrtc(folder)
