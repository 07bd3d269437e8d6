"""The kernels for ARM, cross-compiled and run in an emulator: the bits of plain C on this machine.

Needs gcc-aarch64-linux-gnu and qemu-user. An ARM machine runs all other tests of this folder instead.
"""

import ast
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.cpu import CpuOps
from svc.compute.cpu.library import ARM, CODEBOOKS
from svc.compute.cpu.structs import address
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.grids import grid
from svc.gguf.quant import QUANT_TYPES, quant_type
from tests.compute.cpu import test_float, test_int8
from tests.compute.cpu.conftest import MakeOps
from tests.compute.cpu.test_elementwise import same_bits

ROOT = Path(__file__).parents[3]
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
SOURCES = (
    "runtime",
    "pool",
    "level",
    "quant",
    "embed",
    "elementwise",
    "matmul",
    "float_matmul",
    "int_activations",
    "int_matmul",
    "output_head",
)
# Level -> a processor that has it and nothing newer.
PROCESSORS = {"neon": "cortex-a57", "neon-dotprod": "cortex-a76"}
Float32 = NDArray[np.float32]

pytestmark = [
    pytest.mark.skipif(ARM, reason="this is an ARM machine"),
    pytest.mark.skipif(
        not shutil.which(COMPILER) or not shutil.which(EMULATOR), reason=f"{COMPILER} or {EMULATOR} is not installed"
    ),
]


@dataclass
class Driver:
    """arm/driver.c on an emulated processor: commands are collected, and all run at once."""

    program: Path
    processor: str
    commands: list[bytes] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, operation: int, shape: tuple[int, ...], numbers: Sequence[int], data: NDArray[Any], x: bytes = b"") -> None:
        head = np.array([operation, *numbers, data.nbytes], np.int64)
        self.commands.append(head.tobytes() + data.tobytes() + x)
        self.shapes.append(shape)

    def product(self, tensor: GgufTensor, x: Float32, *, int8: bool, threads: int, up: GgufTensor | None = None) -> None:
        rows, cols = tensor.shape
        data = np.concatenate([tensor.data, up.data]) if up else tensor.data
        kind = int8 + 2 * (up is not None)
        self.add(0, (len(x), rows), [tensor.quant.ggml_id, rows, cols, len(x), kind, threads], data, x.tobytes())

    def run(self) -> tuple[str, list[Float32]]:
        """The best level for that processor, and the results in the order of the commands."""
        grids = [grid(name) for name in CODEBOOKS]
        books = [np.array([3, i, 0, 0, 0, 0, 0, g.nbytes], np.int64).tobytes() + g.tobytes() for i, g in enumerate(grids)]
        command = [EMULATOR, "-cpu", self.processor, str(self.program)]
        done = subprocess.run(command, input=b"".join(books + self.commands), stdout=subprocess.PIPE, check=True, timeout=300)
        level, _, results = done.stdout.partition(b"\n")
        values = np.frombuffer(results, np.float32)
        *parts, rest = np.split(values, np.cumsum([int(np.prod(shape)) for shape in self.shapes]))
        assert not len(rest)
        return level.decode(), [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def build(level: str, folder: Path) -> Path:
    """The driver with the kernels of one level, with the flags of setup.py; less optimised, which is sooner done."""
    setup = ast.parse((ROOT / "setup.py").read_text())
    setup.body = [statement for statement in setup.body if isinstance(statement, ast.Assign)]
    names: dict[str, Any] = {"Path": Path}
    exec(compile(setup, "setup.py", "exec"), names)
    flags = [*(flag for flag in names["FLAGS"] if flag not in ("-O3", "-shared", "-fPIC")), *names["LEVEL_FLAGS"]["aarch64"][level]]
    csrc, program = ROOT / names["SOURCES"], folder / "driver"
    sources = [*(csrc / f"{name}.c" for name in SOURCES), Path(__file__).parent / "arm" / "driver.c"]
    objects = [str(folder / f"{source.stem}.o") for source in sources]
    compilers = [
        subprocess.Popen([COMPILER, *flags, "-O1", f"-I{csrc}", "-c", str(source), "-o", out])
        for source, out in zip(sources, objects, strict=True)
    ]
    codes = [compiler.wait() for compiler in compilers]
    assert not any(codes)
    subprocess.run([COMPILER, "-static", "-pthread", *objects, "-lm", "-o", str(program)], check=True)
    return program


@pytest.fixture(scope="module", params=["neon", "neon-dotprod"])
def make_driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Driver]:
    program = build(request.param, tmp_path_factory.mktemp("arm"))
    return lambda: Driver(program, PROCESSORS[request.param])


def expected_product(ops: CpuOps, tensor: GgufTensor, x: Float32, up: GgufTensor | None = None) -> Float32:
    return np.concatenate([test_float.product(ops, tensor, x[t : t + 1], up) for t in range(len(x))])


FLOAT_SHAPES = [(1, 1, 1), (3, 15, 2), (4, 17, 3), (16, 256, 4), (17, 257, 5), (37, 700, 9), (21, 513, 20), (19, 48, 130)]


def test_products_in_floats(make_driver: Callable[[], Driver], make_ops: MakeOps) -> None:
    """F32, F16 and BF16 of odd shapes, one matrix and gate with up; every packed type."""
    driver, base, expected = make_driver(), make_ops(1, "base"), []
    for name in test_float.FLOATS:
        for rows, columns, tokens in FLOAT_SHAPES:
            (tensor, _), (up, _) = (test_float.float_tensor(name, rows, columns, seed=seed) for seed in (0, 1))
            x = test_float.activations(tokens, columns)
            for second in (None, up):
                driver.product(tensor, x, int8=False, threads=1 + rows % 3, up=second)
                expected.append(expected_product(base, tensor, x, second))
    for name in sorted(set(QUANT_TYPES) - set(test_float.FLOATS)):
        tensor, x = test_float.packed_tensor(name, 21, 768), test_float.activations(5, 768)
        driver.product(tensor, x, int8=False, threads=2)
        expected.append(expected_product(base, tensor, x))
    results = driver.run()[1]
    assert [ours.tobytes() == theirs.tobytes() for ours, theirs in zip(results, expected, strict=True)] == [True] * len(expected)


INT8_SHAPES = [(16, 256, 1), (37, 768, 1), (37, 768, 2), (19, 1280, 3), (33, 512, 7), (16, 512, 40)]


def test_products_in_integers(make_driver: Callable[[], Driver], make_int8_ops: MakeOps) -> None:
    """Every type with an integer kernel: random codes, one token and many; and all codes alike, where sums are largest."""
    driver, base, expected, what = make_driver(), make_int8_ops(1, "base"), [], []
    for name, (block, _) in test_int8.TYPES.items():
        short = [(21, 32, 1), (21, 288, 4)] if block == 32 else []
        for rows, columns, tokens in INT8_SHAPES + short:
            tensor, up = (test_int8.random_tensor(name, rows, columns, seed) for seed in (0, 1))
            x = test_float.activations(tokens, columns)
            for second in (None, up):
                driver.product(tensor, x, int8=True, threads=2, up=second)
                expected.append(expected_product(base, tensor, x, second))
                what.append((name, rows, columns, tokens, second))
        for fill in (0x00, 0x7F, 0x80, 0xFF):
            tensor = test_int8.filled_tensor(name, fill)
            x = np.stack([np.ones(512), -np.ones(512), np.tile([1, -1], 256)]).astype(np.float32)
            driver.product(tensor, x, int8=True, threads=1)
            driver.product(tensor, x[:1], int8=True, threads=1)
            expected += [expected_product(base, tensor, x), expected_product(base, tensor, x[:1])]
            what += [(name, fill), (name, fill, "one token")]
    results = driver.run()[1]
    wrong = [w for w, ours, theirs in zip(what, results, expected, strict=True) if ours.tobytes() != theirs.tobytes()]
    assert not wrong


def test_dequantization(make_driver: Callable[[], Driver]) -> None:
    """Random blocks of every type at an odd address of the file: the bits of numpy's definition."""
    driver = make_driver()
    packed = {
        name: np.random.default_rng(q.ggml_id).integers(0, 256, 51 * q.block_bytes, np.uint8) for name, q in QUANT_TYPES.items()
    }
    for name, data in packed.items():
        quant = quant_type(name)
        driver.add(1, (51 * quant.block_size,), [quant.ggml_id, 51, quant.block_size, 0, 0, 0], data)
    for (name, data), got in zip(packed.items(), driver.run()[1], strict=True):
        assert same_bits(got, quant_type(name).dequantize(data).reshape(-1)), name


def test_functions(make_driver: Callable[[], Driver], make_ops: MakeOps) -> None:
    """exp, sigmoid, SiLU, softplus and rounding to halves."""
    x = np.concatenate([np.linspace(-110, 110, 20001), np.geomspace(1e-38, 1, 501), [np.inf, -np.inf, 0.0, -0.0]]).astype(
        np.float32
    )
    driver, base = make_driver(), make_ops(1, "base")
    for function in range(5):
        driver.add(2, x.shape, [function, 1, len(x), 0, 0, 0], x)
    for function, got in enumerate(driver.run()[1]):
        expected = np.empty_like(x)
        base._kernels.library.hr_elementwise(function, address(x), address(expected), len(x))
        assert same_bits(got, expected), function


def test_best_level(make_driver: Callable[[], Driver]) -> None:
    """The processor decides: the build for older ones finds the newer level on a newer one."""
    driver = make_driver()
    own = next(level for level, processor in PROCESSORS.items() if processor == driver.processor)
    assert driver.run()[0] == own
    driver.processor = PROCESSORS["neon-dotprod"]
    assert driver.run()[0] == "neon-dotprod"
