"""Numbers and structures that Python, C and CUDA each write down: the same on every side."""

import ctypes
import re
from pathlib import Path
from types import ModuleType

import pytest

from svc.compute.cpu import caches as cpu_caches
from svc.compute.cpu import library, structs
from svc.compute.cuda import attention, delta_chunks, delta_core, matmul, moe, sample
from svc.gguf.quant import QUANT_TYPES

ROOT = Path(__file__).parents[2]
CSRC, CUDA = "svc/compute/cpu/csrc", "cuda_src"

_CONSTANT = re.compile(r"(?:constexpr int|#define) +(\w+) *=? +([^;\n]+?) *;?[ \t]*$", re.MULTILINE)
_ENUM = re.compile(r"enum \{([^}]*)\}")
_STRUCT = re.compile(r"typedef struct \{(.*?)\} (\w+);", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def text(file: str) -> str:
    return _COMMENT.sub("", (ROOT / file).read_text())


def constants(file: str) -> dict[str, int]:
    """Integers defined by name; an expression may use those defined before it."""
    found: dict[str, int] = {}
    for name, expression in _CONSTANT.findall(text(file)):
        if (
            name not in found
            and re.fullmatch(r"[\w\s()+*-]+", expression)
            and set(re.findall(r"[A-Za-z_]\w*", expression)) <= set(found)
        ):
            found[name] = eval(expression, {"__builtins__": {}}, found)
    for body in _ENUM.findall(text(file)):
        value = -1
        for entry in body.split(","):
            name, _, given = entry.partition("=")
            if given and not given.strip().isdigit():
                break  # an enum that depends on the variant
            value = int(given) if given else value + 1
            found[name.strip()] = value
    return found


@pytest.mark.parametrize(
    ("module", "name", "file", "there"),
    [
        (attention, "ROWS", f"{CUDA}/include/attention.cuh", "ROWS"),
        (delta_chunks, "CHUNK", f"{CUDA}/include/delta.cuh", "CHUNK"),
        (delta_chunks, "STEP_TOKENS", f"{CUDA}/delta_decode.cu", "STEP_TOKENS"),
        (delta_core, "CHUNK_FLOATS", f"{CUDA}/include/delta.cuh", "CHUNK_WORK"),
        (matmul, "GEMV_THREADS", f"{CUDA}/gemv.cu", "THREADS"),
        (matmul, "GEMM_THREADS", f"{CUDA}/gemm.cu", "THREADS"),
        (matmul, "GEMM_THREADS", f"{CUDA}/gemm_float.cu", "THREADS"),
        (matmul, "_STORE", f"{CUDA}/include/matmul.cuh", "STORE"),
        (matmul, "_ADD", f"{CUDA}/include/matmul.cuh", "ADD"),
        (matmul, "_GATE", f"{CUDA}/include/matmul.cuh", "GATE"),
        (moe, "MOST_EXPERTS", f"{CUDA}/moe_sort.cu", "MOST_EXPERTS"),
        (moe, "FEW_PAIRS", f"{CUDA}/moe_sort.cu", "FEW"),
        (moe, "CHUNK_PAIRS", f"{CUDA}/moe_sort.cu", "CHUNK"),
        (moe, "SORT_THREADS", f"{CUDA}/moe_sort.cu", "THREADS"),
        (moe, "COMBINE_THREADS", f"{CUDA}/moe_combine.cu", "THREADS"),
        (sample, "LISTED", f"{CUDA}/include/select.cuh", "LISTED"),
        (sample, "NUM_NUMBERS", f"{CUDA}/sample.cu", "NUMBERS"),
        (sample, "REPEATED", f"{CUDA}/sample.cu", "REPEATED"),
        (sample, "BANNED", f"{CUDA}/sample.cu", "BANNED"),
        (cpu_caches, "LANES", f"{CSRC}/simd.h", "LANES"),
        (cpu_caches, "LANES", f"{CSRC}/attention_tile.h", "TILE"),
    ],
)
def test_numbers(module: ModuleType, name: str, file: str, there: str) -> None:
    assert constants(file)[there] == getattr(module, name)


def test_operations() -> None:
    """`Instruction.operation` is the position in the enum."""
    enum = constants(f"{CSRC}/forward.c")
    assert [enum[name.upper()] for name in structs.OPERATIONS] == list(range(len(structs.OPERATIONS)))


def test_codebooks() -> None:
    """`hr_set_codebook` takes the position of a pointer in the structure."""
    (body,) = (body for body, name in _STRUCT.findall(text(f"{CSRC}/quant.h")) if name == "codebooks")
    assert [name.upper() for name in re.findall(r"\*(\w+)", body)] == [
        name.removesuffix("_S") if name == "IQ1_S" else name for name in library.CODEBOOKS
    ]


@pytest.mark.parametrize("file", [f"{CSRC}/int_matmul.h", f"{CSRC}/simd_floats.h"])
def test_ids_of_quantized_types(file: str) -> None:
    """They are GGML's."""
    ids = {name: value for name, value in constants(file).items() if name in QUANT_TYPES}
    assert len(ids) >= 3
    assert ids == {name: QUANT_TYPES[name].ggml_id for name in ids}


KINDS = {"int32_t": structs.Int, "int64_t": structs.Long, "float": structs.Float, "matrix": structs.Matrix}


@pytest.mark.parametrize(
    ("structure", "file", "name"),
    [
        (structs.Matrix, "runtime.h", "matrix"),
        (structs.Inputs, "runtime.h", "step_inputs"),
        (structs.CacheSlabs, "runtime.h", "caches"),
        (structs.DeltaLayer, "runtime.h", "delta_layer"),
        (structs.AttentionLayer, "runtime.h", "attention_layer"),
        (structs.DenseLayer, "runtime.h", "dense_layer"),
        (structs.MoeLayer, "runtime.h", "moe_layer"),
        (structs.Instruction, "forward.c", "instruction"),
    ],
)
def test_structures(structure: type[ctypes.Structure], file: str, name: str) -> None:
    """Field for field: the order, the names and the types."""
    (body,) = (body for body, found in _STRUCT.findall(text(f"{CSRC}/{file}")) if found == name)
    fields: list[tuple[str, object]] = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        kind, first, *rest = re.split(r"[\s,]+", declaration.removeprefix("const "))
        fields += [(field.lstrip("*"), structs.Pointer if field.startswith("*") else KINDS[kind]) for field in (first, *rest)]
    assert fields == [(field, kind) for field, kind, *_ in structure._fields_]
