"""The parameters of a kernel, read from its declaration, and the check of arguments against them.

A GPU accepts any bits for any parameter silently (and CuPy passes a Python int as 64 bits), so every launch is checked here, on
real and emulated devices alike."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Scalars that a kernel may take, and array elements with a numpy type, by their C spelling (include/common.cuh has the short
# names).
SCALARS = {
    "int": "int32",
    "unsigned int": "uint32",
    "unsigned": "uint32",
    "u32": "uint32",
    "i32": "int32",
    "long long": "int64",
    "i64": "int64",
    "unsigned long long": "uint64",
    "u64": "uint64",
    "float": "float32",
}
ELEMENTS = SCALARS | {
    "double": "float64",
    "char": "int8",
    "signed char": "int8",
    "i8": "int8",
    "unsigned char": "uint8",
    "u8": "uint8",
    "short": "int16",
    "i16": "int16",
    "unsigned short": "uint16",
    "u16": "uint16",
    "half": "float16",
    "f16": "float16",
    "__half": "float16",
    "__nv_bfloat16": "uint16",
    "bf16": "uint16",
}
# Any array may be passed as untyped bytes or as whole vectors; a struct (a quantized block) is passed as bytes.
ANY_ELEMENT = {"void", "int2", "int4", "uint2", "uint4", "float2", "float4", "half2", "__half2", "__nv_bfloat162"}

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\(\s*(?P<bounds>[^(),]+)[^()]*\)\s*)?(?P<name>\w+)\s*\((?P<list>[^()]*)\)'
)
_CONSTANT = re.compile(
    r"^[ \t]*(?:#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)|(?:static[ \t]+)?constexpr[ \t]+int[ \t]+(\w+)[ \t]*=[ \t]*(\d+)[ \t]*;)", re.M
)
_QUALIFIERS = {"__restrict__", "__restrict", "volatile", "__grid_constant__"}


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: str  # element type of a pointer, C spelling without const
    pointer: bool
    const: bool  # the kernel only reads through the pointer

    def __str__(self) -> str:
        return f"{'const ' if self.const else ''}{self.type}{'*' if self.pointer else ''} {self.name}"


@dataclass(frozen=True, slots=True)
class Signature:
    """`max_threads`: the bound in `__launch_bounds__`, None unless it is a number or a name defined in the source."""

    kernel: str
    parameters: tuple[Parameter, ...]
    max_threads: int | None = None
    bounds: str | None = None  # the first argument of `__launch_bounds__` as written

    def convert(self, args: Sequence[Any]) -> list[Any]:
        """A DeviceArray or None for each pointer and a numpy scalar of the declared type for each other parameter."""
        if len(args) != len(self.parameters):
            raise TypeError(f"{self.kernel} takes {len(self.parameters)} arguments, not {len(args)}")
        return [self._pointer(p, a) if p.pointer else self._scalar(p, a) for p, a in zip(self.parameters, args, strict=True)]

    def _pointer(self, parameter: Parameter, argument: Any) -> Any:
        if argument is None:
            return None
        dtype = getattr(argument, "dtype", None)
        if not hasattr(argument, "pointer") or dtype is None:
            raise TypeError(f"{self.kernel}: {parameter} must be a device array, not {type(argument).__name__}")
        if parameter.type not in ANY_ELEMENT and dtype != ELEMENTS.get(parameter.type, "uint8"):
            raise TypeError(f"{self.kernel}: {parameter} does not take an array of {dtype}")
        return argument

    def _scalar(self, parameter: Parameter, argument: Any) -> Any:
        wanted = np.dtype(SCALARS[parameter.type])
        if isinstance(argument, np.generic) and argument.dtype == wanted:
            return argument
        if wanted.kind == "f" and type(argument) is float:
            with np.errstate(over="ignore"):
                value = wanted.type(argument)
            if np.isinf(value) and abs(argument) != float("inf"):
                raise ValueError(f"{self.kernel}: {parameter} cannot hold {argument}")
            return value
        if wanted.kind in "iu" and type(argument) is int:
            limits = np.iinfo(wanted)
            if not limits.min <= argument <= limits.max:
                raise ValueError(f"{self.kernel}: {parameter} cannot hold {argument}")
            return wanted.type(argument)
        kind = argument.dtype if isinstance(argument, np.generic) else type(argument).__name__
        raise TypeError(f"{self.kernel}: {parameter} does not take a {kind}")


def parse_signatures(text: str, defines: Mapping[str, int | str] | None = None) -> dict[str, Signature]:
    """All `extern "C" __global__ void` functions spelled out in a source. ValueError for a parameter that no launch can fill.

    Type names and launch bounds may be names from `defines`; bounds also those of a plain `#define` or `constexpr int`.
    """
    defines = defines or {}
    text = _COMMENT.sub(" ", text)
    constants = {a or c: int(b or d) for a, b, c, d in _CONSTANT.findall(text)}
    found = {}
    for match in _KERNEL.finditer(text):
        name = match["name"]
        declared = [part for part in match["list"].split(",") if part.strip() not in ("", "void")]
        bounds = (match["bounds"] or "").strip()
        value = str(defines.get(bounds, constants.get(bounds, bounds)))
        max_threads = int(value) if value.isdigit() else None
        found[name] = Signature(name, tuple(_parameter(name, part, defines) for part in declared), max_threads, bounds or None)
    return found


def _parameter(kernel: str, declaration: str, defines: Mapping[str, int | str]) -> Parameter:
    words = [word for word in declaration.replace("*", " * ").split() if word not in _QUALIFIERS]
    name, words = words[-1], words[:-1]
    pointer = "*" in words
    if words.count("*") > 1:
        raise ValueError(f"{kernel}: {name} is a pointer to a pointer")
    target = words[: words.index("*")] if pointer else words
    const = pointer and "const" in target
    spelled = " ".join(str(defines.get(word, word)) for word in target if word not in ("const", "struct"))
    if not pointer and spelled not in SCALARS:
        raise ValueError(f"{kernel}: {name} is a {spelled}, but a scalar must be one of {', '.join(SCALARS)}")
    return Parameter(name, spelled, pointer, const)
