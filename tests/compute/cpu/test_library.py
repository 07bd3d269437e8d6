"""Finding the compiled kernels, the messages when they are missing, and the thread pool."""

import gc
import shutil
import threading
from ctypes import byref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from svc.compute.cpu import CpuOps, library
from svc.compute.cpu.structs import address
from svc.errors import BackendUnavailableError, ModelFileError
from svc.gguf.gguf_file import GgufTensor
from svc.gguf.quant import QUANT_TYPES
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from tests.compute.cpu.conftest import MakeOps


def test_without_kernels_there_is_one_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "HERE", tmp_path)
    library.load.cache_clear()
    assert library.available_levels() == []
    with pytest.raises(BackendUnavailableError, match="not built"):
        CpuOps(1)
    with pytest.raises(BackendUnavailableError, match="not built"):
        CpuOps(1, level="base")
    library.load.cache_clear()


def test_a_library_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file is named; nothing crashes."""
    monkeypatch.setattr(library, "HERE", tmp_path)
    library.load.cache_clear()
    library.library_path("base").write_bytes(b"not an object")
    with pytest.raises(BackendUnavailableError, match=r"_kernels_base\.so cannot be loaded"):
        CpuOps(1)
    library.load.cache_clear()


def test_kernels_of_other_sources_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """A changed file, a new one, a changed structure: a sentence that says how to build again. Without sources nothing is asked."""
    package = library.SOURCES
    folder = tmp_path / "cpu"
    shutil.copytree(package / "csrc", folder / "csrc")
    shutil.copy(package / "structs.py", folder)
    monkeypatch.setattr(library, "SOURCES", folder)
    library.load.cache_clear()
    library.load(level)  # the same sources elsewhere
    for path, text in ((folder / "csrc" / "pool.c", "\n"), (folder / "csrc" / "new.h", ""), (folder / "structs.py", "\n")):
        before = path.read_text() if path.exists() else None
        path.write_text((before or "") + text)
        library.load.cache_clear()
        with pytest.raises(BackendUnavailableError, match=r"other sources than those beside them.*setup\.py build_ext"):
            library.load(level)
        path.unlink() if before is None else path.write_text(before)
    shutil.rmtree(folder / "csrc")
    library.load.cache_clear()
    library.load(level)
    library.load.cache_clear()


def test_best_level_is_taken(level: str) -> None:
    ops = CpuOps(1)
    assert ops.level == library.available_levels()[-1]
    ops.close()


def test_unsupported_type_names_the_tensor(make_ops: MakeOps, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that numpy can decode and C cannot: a sentence at load, not garbage later. (Q8_K, 15, occurs in no file.)"""
    monkeypatch.setitem(QUANT_TYPES, "Q8_K", replace(QUANT_TYPES["Q8_0"], name="Q8_K", ggml_id=15))
    tensor = GgufTensor("blk.0.odd", (1, 32), "Q8_K", np.zeros((1, 34), np.uint8))
    with pytest.raises(ModelFileError, match=r"blk\.0\.odd has the type Q8_K"):
        make_ops(1, level).weight(tensor)


@pytest.mark.parametrize(("name", "size"), [("head_dim", 20), ("key_dim", 8), ("value_dim", 24)])
def test_sizes_without_a_kernel_are_refused(make_ops: MakeOps, level: str, name: str, size: int) -> None:
    sizes = {"head_dim": 16, "key_dim": 16, "value_dim": 16} | {name: size}
    layout = MemoryLayout(64, 1, 1, sizes["head_dim"], 1, 1, sizes["key_dim"], sizes["value_dim"], 48, 3, 16)
    with pytest.raises(ModelFileError, match=f"{name} is {size}"):
        make_ops(1, level).caches(MemoryPlan(layout, 1, 1, 1))


class Product:
    """A float matrix times a few vectors through the pool, and the exact answer: small integers have no rounding."""

    def __init__(self, ops: CpuOps, rows: int = 333) -> None:
        random = np.random.default_rng(1)
        values = random.integers(-8, 9, (rows, 48)).astype(np.float32)
        self.x = random.integers(-8, 9, (5, 48)).astype(np.float32)
        self.expected = self.x @ values.T
        self.ops = ops
        self.weight = ops.weight(GgufTensor("integers", values.shape, "F32", values.view(np.uint8)))
        self.out = np.empty(self.expected.shape, np.float32)

    def check(self) -> None:
        self.out.fill(np.nan)
        self.ops._kernels.call("hr_matmul", address(self.out), byref(self.weight.matrix), None, address(self.x), len(self.x))
        np.testing.assert_array_equal(self.out, self.expected)


def test_pool_loses_no_task(make_ops: MakeOps, level: str) -> None:
    """Thousands of short jobs on more threads than cores, so that workers come late, sleep and wake in every order."""
    product = Product(make_ops(7, level))
    for _ in range(500):
        product.check()


def test_two_pools_at_once(make_ops: MakeOps, level: str) -> None:
    """Engines share nothing: each is driven by a thread of its own."""
    products = [Product(make_ops(3, level)) for _ in range(2)]
    failures: list[BaseException] = []

    def work(product: Product) -> None:
        try:
            for _ in range(200):
                product.check()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(product,)) for product in products]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_threads_end_with_their_owner(level: str) -> None:
    gc.collect()
    before = num_threads()
    ops = CpuOps(6, level=level)
    assert (ops.num_threads, num_threads()) == (6, before + 5)
    ops.close()
    assert num_threads() == before
    ops.close()  # twice is harmless
    forgotten = CpuOps(4, level=level)
    assert num_threads() == before + 3
    del forgotten
    gc.collect()
    assert num_threads() == before
