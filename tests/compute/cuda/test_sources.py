"""Sources as one text: headers inlined, lines still known, the hash seeing everything."""

from pathlib import Path

import pytest

from svc.compute.cuda.sources import load_source, source_directory, source_names


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_dot_", ".")).write_text(text)


def test_headers_are_inlined_once(tmp_path: Path) -> None:
    """Two ways to one header, and a header of a header."""
    write(
        tmp_path,
        k_dot_cu='#include "a.cuh"\n#include "b.cuh"\nint k;\n',
        a_dot_cuh='#pragma once\n#include "b.cuh"\nint a;\n',
        b_dot_cuh="#pragma once\n#include <cuda_fp16.h>\nint b;\n",
    )
    text = load_source("k", tmp_path).text
    assert [line for line in text.splitlines() if line.startswith(("int", "#include"))] == [
        "#include <cuda_fp16.h>",
        "int b;",
        "int a;",
        "int k;",
    ]


def test_lines_are_known(tmp_path: Path) -> None:
    """What follows an include has its own line number again."""
    write(tmp_path, k_dot_cu='int one;\n#include "a.cuh"\nint three;\n', a_dot_cuh="int a;\n")
    lines = load_source("k", tmp_path).text.splitlines()
    assert lines[lines.index("int three;") - 1] == '#line 3 "k.cu"'
    assert lines[lines.index("int a;") - 1] == '#line 1 "a.cuh"'


def test_header_in_a_condition(tmp_path: Path) -> None:
    """A header that the compiler may skip in one place is still there in the next."""
    write(tmp_path, k_dot_cu='#if X\n#include "a.cuh"\n#endif\n#include "a.cuh"\n', a_dot_cuh="int a;\n")
    text = load_source("k", tmp_path).text
    assert text.count("int a;") == 2
    assert text.count("#ifndef INLINED_") == 2


def test_digest_sees_headers(tmp_path: Path) -> None:
    write(tmp_path, k_dot_cu='#include "a.cuh"\n', a_dot_cuh="int a;\n")
    before = load_source("k", tmp_path).digest
    write(tmp_path, a_dot_cuh="int b;\n")
    assert load_source("k", tmp_path).digest != before


def test_missing_header(tmp_path: Path) -> None:
    write(tmp_path, k_dot_cu='#include "gone.cuh"\n')
    with pytest.raises(FileNotFoundError, match=r"k\.cu includes gone\.cuh"):
        load_source("k", tmp_path)


def test_our_kernels_are_found() -> None:
    """The folder of the kernels, in a checkout as in an installed package."""
    assert {"copy_blocks", "rms_norm"} <= set(source_names())
    assert (source_directory() / "include" / "common.cuh").is_file()
