"""A fingerprint of a model's weights, quick enough for every start: of names, types, shapes, and samples of each tensor's bytes."""

import hashlib

import numpy as np

from svc.gguf.gguf_file import GgufFile

SAMPLES = 16  # of each tensor, evenly spread, its beginning and end among them
SAMPLE_BYTES = 1024


def fingerprint(file: GgufFile) -> str:
    """32 hexadecimal digits. Files that differ in a few bytes between the samples have the same one; a converter, a quantizer or a
    training does not make such files."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(file.tensors.items()):
        digest.update(f"{name} {tensor.type} {tensor.shape} {tensor.nbytes}\n".encode())
        data = tensor.data.reshape(-1)
        for start in np.linspace(0, max(len(data) - SAMPLE_BYTES, 0), SAMPLES).astype(np.int64):
            digest.update(data[start : start + SAMPLE_BYTES].tobytes())
    return digest.hexdigest()
