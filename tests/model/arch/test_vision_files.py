"""Text-only use of multimodal models: the model file is served without what images need, the file for images alone is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.compute.model_file import open_model
from svc.errors import ModelFileError
from svc.gguf.gguf_file import GgufFile
from svc.gguf.writer import write_gguf
from svc.model.arch import read_config
from tests.compute.rig import GGUF, Rig, prompt
from tests.model.arch.test_layouts import parts

ONES = (np.ones((3, 32), np.float32), "F32")


def same_logits(changed: Path, fixture: str) -> Rig:
    """The rig of the changed file, whose logits are those of the fixture bit for bit."""
    rig, tokens = Rig(changed), prompt("s2")
    np.testing.assert_array_equal(rig.prefill(tokens), Rig(GGUF / f"{fixture}.gguf").prefill(tokens))
    return rig


def test_a_hybrid_model_with_its_vision_tower_inside(tmp_path: Path) -> None:
    """Tensors and keys for images, separate scales among them, change no logit and are no surprise."""
    metadata, tensors = parts("tiny-qwen35-hd128-bf16")
    metadata |= {
        "qwen35.rope.dimension_sections": [11, 11, 10, 0],
        "qwen35.n_deepstack_layers": 3,
        "qwen35.vision.block_count": 2,
        "clip.has_vision_encoder": True,
        "general.type": "model",
    }
    tensors |= dict.fromkeys(("v.blk.0.attn_q.weight", "v.blk.0.attn_q.scale", "mm.0.weight", "a.conv1d.0.weight"), ONES)
    write_gguf(tmp_path / "m.gguf", metadata, tensors)
    assert same_logits(tmp_path / "m.gguf", "tiny-qwen35-hd128-bf16").model.unused_tensors == ()


def test_qwen3vl_is_qwen3_to_text(tmp_path: Path) -> None:
    """The three components of a position are equal for text, so that the sections of the rotation make no difference."""
    metadata, tensors = parts("tiny-qwen3-Q8_0")
    renamed: dict[str, Any] = {key.replace("qwen3.", "qwen3vl.", 1): value for key, value in metadata.items()}
    renamed |= {
        "general.architecture": "qwen3vl",
        "qwen3vl.rope.dimension_sections": [12, 10, 10, 0],
        "qwen3vl.n_deepstack_layers": 3,
    }
    write_gguf(tmp_path / "m.gguf", renamed, tensors)
    rig = same_logits(tmp_path / "m.gguf", "tiny-qwen3-Q8_0")
    assert (rig.config.architecture, rig.model.unused_tensors) == ("qwen3vl", ())


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"general.architecture": "clip"}, "the part of a model that sees or hears (mmproj)"),
        ({"general.architecture": "qwen35", "general.type": "mmproj"}, "the part of a model that sees or hears (mmproj)"),
        ({"general.architecture": "qwen35", "general.type": "adapter"}, "a file of the type 'adapter', not a model"),
        ({"general.architecture": "imatrix", "general.type": "imatrix"}, "a file of the type 'imatrix', not a model"),
    ],
)
def test_files_that_go_with_a_model(tmp_path: Path, keys: dict[str, Any], reason: str) -> None:
    """One line says what the file is; the keys a model must have are not asked for first."""
    write_gguf(tmp_path / "mmproj.gguf", keys, {"v.patch_embd.weight": ONES})
    with pytest.raises(ModelFileError) as caught:
        read_config(GgufFile.open(tmp_path / "mmproj.gguf"))
    assert str(caught.value).startswith(f"{tmp_path / 'mmproj.gguf'}: this is {reason}")
    assert "\n" not in str(caught.value)


def test_a_separate_scale_of_the_text_part_is_still_refused(tmp_path: Path) -> None:
    """Only what images need may have one: ignoring it elsewhere would compute nonsense."""
    metadata, tensors = parts("tiny-qwen3-Q8_0")
    tensors["blk.0.attn_q.scale"] = ONES
    write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.scale"):
        open_model(tmp_path / "m.gguf")
