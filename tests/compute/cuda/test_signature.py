"""Reading declarations, and holding arguments against them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from svc.compute.cuda.device import DeviceArray
from svc.compute.cuda.launch_limits import check_launch, full_dim, shared_limit_bytes
from svc.compute.cuda.signature import parse_signatures

SOURCE = """
// extern "C" __global__ void commented(int a) {}
#define THREADS 96
constexpr int MANY = 512;
__device__ float helper(const float* x, int n);
extern "C" __global__ void __launch_bounds__(THREADS, 2)
first(const float* __restrict__ x, float *out,
      const int* /* rows, or nullptr */ rows, struct BlockQ4 * blocks, int num_rows,
      long long stride, unsigned mask, float epsilon) {
}
extern "C" __global__ void __launch_bounds__(MANY) second(STATE_T* state, const void* any, u64 seed) {}
extern "C" __global__ void third(void) {}
"""


def array(dtype: str, *shape: int) -> DeviceArray:
    return DeviceArray(256, shape or (4,), dtype, None)


def signature(parameters: str, **defines: str) -> Any:
    return parse_signatures(f'extern "C" __global__ void k({parameters}) {{}}', defines)["k"]


def test_declarations() -> None:
    """Types, const, names, launch bounds by number, by #define, constexpr or -D; comments and helpers are none."""
    found = parse_signatures(SOURCE, {"STATE_T": "half"})
    assert list(found) == ["first", "second", "third"]
    assert [str(p) for p in found["first"].parameters] == [
        "const float* x",
        "float* out",
        "const int* rows",
        "BlockQ4* blocks",
        "int num_rows",
        "long long stride",
        "unsigned mask",
        "float epsilon",
    ]
    assert [str(p) for p in found["second"].parameters] == ["half* state", "const void* any", "u64 seed"]
    assert [found[name].max_threads for name in found] == [96, 512, None]
    assert found["third"].parameters == ()
    assert parse_signatures(SOURCE, {"STATE_T": "half", "THREADS": 32})["first"].max_threads == 32


@pytest.mark.parametrize("parameters", ["double x", "float** x", "size_t n", "Struct s"])
def test_parameters_that_no_launch_can_fill(parameters: str) -> None:
    with pytest.raises(ValueError, match="k: "):
        signature(parameters)


@pytest.mark.parametrize(
    ("parameter", "argument", "dtype"),
    [
        ("int n", 7, "int32"),
        ("int n", -(2**31), "int32"),
        ("unsigned n", 2**32 - 1, "uint32"),
        ("long long n", 2**40, "int64"),
        ("float x", 0.1, "float32"),
        ("float x", float("inf"), "float32"),
        ("int n", np.int32(3), "int32"),
        ("float x", np.float32(3), "float32"),
    ],
)
def test_scalars_get_the_declared_type(parameter: str, argument: Any, dtype: str) -> None:
    (value,) = signature(parameter).convert([argument])
    assert value.dtype == dtype
    assert value == np.dtype(dtype).type(argument)


@pytest.mark.parametrize(
    ("parameter", "argument"),
    [
        ("int n", 1.0),
        ("int n", True),
        ("int n", np.int64(3)),
        ("float x", 1),
        ("float x", np.float64(1)),
        ("float* x", 0),
        ("float* x", np.zeros(4, np.float32)),
        ("int n", None),
        ("float* x", array("float16")),
        ("half* x", array("float32")),
        ("u8* x", array("int8")),
        ("BlockQ4* x", array("float32")),
    ],
)
def test_wrong_types_are_refused(parameter: str, argument: Any) -> None:
    """Nothing is converted silently, and the message names kernel and parameter."""
    with pytest.raises(TypeError, match=rf"k: .*{parameter.split()[-1]} "):
        signature(parameter).convert([argument])


@pytest.mark.parametrize(("parameter", "argument"), [("int n", 2**31), ("unsigned n", -1), ("float x", 1e39)])
def test_values_out_of_range_are_refused(parameter: str, argument: Any) -> None:
    with pytest.raises(ValueError, match=r"k: .* cannot hold"):
        signature(parameter).convert([argument])


def test_arrays() -> None:
    """By element type; a struct takes bytes, a vector or void anything; None is a null pointer."""
    for parameter, dtype in [("const half* x", "float16"), ("bf16* x", "uint16"), ("BlockQ4* x", "uint8"), ("uint4* x", "float32")]:
        given = array(dtype)
        assert signature(parameter).convert([given]) == [given]
    assert signature("float* x").convert([None]) == [None]


def test_number_of_arguments() -> None:
    with pytest.raises(TypeError, match="k takes 2 arguments, not 1"):
        signature("int a, int b").convert([1])


# ---- limits of a launch


@pytest.mark.parametrize(
    ("arch", "kib"), [(75, 64), (80, 163), (86, 99), (87, 163), (89, 99), (90, 227), (100, 227), (120, 99), (130, 99)]
)
def test_shared_memory_limit(arch: int, kib: int) -> None:
    """The last byte that fits fits, fixed arrays counted."""
    assert shared_limit_bytes(arch) == kib << 10
    check_launch(signature("int n"), arch, (1, 1, 1), (32, 1, 1), (kib << 10) - 16, 16)
    with pytest.raises(ValueError, match=f"sm_{arch}"):
        check_launch(signature("int n"), arch, (1, 1, 1), (32, 1, 1), (kib << 10) - 16, 17)


@pytest.mark.parametrize(
    ("grid", "block"),
    [((0,), (1,)), ((1, 65536), (1,)), ((1,), (1025,)), ((1,), (32, 33)), ((1,), (1, 1, 65)), ((2**31,), (1,))],
)
def test_impossible_geometry(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="k: "):
        check_launch(signature("int n"), 90, full_dim(grid), full_dim(block), 0)


def test_launch_bounds() -> None:
    first = parse_signatures(SOURCE, {"STATE_T": "half"})["first"]
    check_launch(first, 90, (1, 1, 1), (96, 1, 1), 0)
    with pytest.raises(ValueError, match="first: 97 threads a block, 96 allowed"):
        check_launch(first, 90, (1, 1, 1), (97, 1, 1), 0)


# ---- arrays


def test_views_stay_inside() -> None:
    """A view shares the memory, keeps its owner, and never leaves it."""
    owner = object()
    whole = DeviceArray(512, (4, 6), "float32", owner)
    part = whole.view((2, 3), "float16", offset_bytes=8)
    assert (part.pointer, part.nbytes, part.owner) == (520, 12, owner)
    assert (whole.rows(1, 3).pointer, whole.rows(1, 3).shape) == (512 + 24, (2, 6))
    beyond: list[Callable[[], DeviceArray]] = [
        lambda: whole.view((97,), "uint8"),
        lambda: whole.view((1,), offset_bytes=93),
        lambda: whole.rows(2, 5),
    ]
    for view in beyond:
        with pytest.raises(ValueError, match="inside"):
            view()
    with pytest.raises(ValueError, match="aligned"):
        whole.view((1,), offset_bytes=2)


def test_a_device_array_is_no_host_array() -> None:
    """Reading it on the host fails: it would be a hidden synchronisation."""
    uses: list[Callable[[Any], object]] = [np.asarray, list, bool]
    for use in uses:
        with pytest.raises(TypeError):
            use(array("float32"))
