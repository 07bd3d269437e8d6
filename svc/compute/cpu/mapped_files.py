"""Names the model file on stderr when its truncation kills the process (csrc/mapped_files.c)."""

from collections.abc import Sequence
from ctypes import c_char_p, c_uint64
from pathlib import Path

from svc.compute.cpu.library import LEVELS, load
from svc.errors import BackendUnavailableError

SENTENCE = (
    "headrace: the model file {path} was truncated, or can no longer be read, while it was in use: the process ends. "
    "Restore the file and start again; to replace a model file, rename the new one over it, never copy.\n"
)

# The C side keeps pointers to these: of the last call, for the rest of the process's life.
_sentences: list[bytes] = []


def name_mapped_files(files: Sequence[tuple[Path, int, int]]) -> None:
    """`files`: (path, address, bytes) of each map. Replaces those of an earlier call. Does nothing where no kernels were built."""
    try:
        library = load(LEVELS[0])
    except BackendUnavailableError:
        return
    sentences = [SENTENCE.format(path=path).encode("utf-8", "surrogateescape") for path, _, _ in files]
    numbers, texts = c_uint64 * len(files), c_char_p * len(files)
    starts, sizes = numbers(*(start for _, start, _ in files)), numbers(*(size for _, _, size in files))
    library.hr_name_mapped_files(starts, sizes, texts(*sentences), len(files))
    _sentences[:] = sentences
