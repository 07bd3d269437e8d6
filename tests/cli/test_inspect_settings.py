"""`headrace inspect` with the settings that change what a file says, and with files of other kinds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.cli import main
from svc.gguf.gguf_file import GgufFile
from svc.gguf.writer import write_gguf

MODEL = Path(__file__).parent.parent / "data" / "gguf" / "tiny-qwen35-hd128-bf16.gguf"


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--json"]) == 0
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def text(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def rewritten(tmp_path: Path, keys: dict[str, Any], tensors: dict[str, Any], **options: int) -> None:
    model = GgufFile.open(MODEL)
    own = {name: (tensor.data, tensor.type) for name, tensor in model.tensors.items()}
    write_gguf(tmp_path / "m.gguf", {**model.metadata, **keys}, {**own, **tensors}, **options)


def test_rope_settings_and_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    """What the scaling makes of the trained 4096 tokens, and the context that is served."""
    arguments = (str(MODEL), "--rope-scaling", "yarn", "--rope-scale", "4")
    found = report(capsys, *arguments)
    assert found["model"]["trained_context_tokens"] == 4096
    assert (found["model"]["rope_scaling"], found["model"]["rope_scale"]) == ("yarn", 4)
    assert found["model"]["full_context_tokens"] == found["memory"]["context_tokens"] == 16384
    assert found["remarks"] == []
    assert "trained to 4096 tokens, stretched to 16384 (yarn, factor 4)" in text(capsys, *arguments)
    for ctx, served in (((), 16384), (("--ctx", "100"), 100)):
        assert f"{served} tokens at most in one sequence" in text(capsys, *arguments, *ctx)


def test_what_the_server_would_warn_about(capsys: pytest.CaptureFixture[str]) -> None:
    """The same sentences, and values given twice or in one text alike."""
    arguments = (str(MODEL), "--ctx", "5000", "--override-kv", "a=int:1,b=str:x", "--override-kv", "general.name=str:Other")
    found = report(capsys, *arguments)
    assert found["model"]["name"] == "Other"
    assert [remark.split()[0] for remark in found["remarks"]] == ["override_kv:", "override_kv:", "ctx"]
    assert all(remark in text(capsys, *arguments) for remark in found["remarks"])


def test_bad_settings_end_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, with the exit code of bad input."""
    assert main(["inspect", str(MODEL), "--override-kv", "a=list:1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headrace: override_kv: 'a=list:1' has the unknown type 'list'")
    assert captured.err.count("\n") == 1


def test_layers_for_multi_token_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counted apart from the four layers that run, however the file's own count includes them."""
    mtp = {"blk.4.nextn.eh_proj.weight": (np.ones((256, 512), np.float32), "F32")}
    kinds = {"qwen35.attention.recurrent_layers": [True, True, True, False, False]}
    rewritten(tmp_path, {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1, **kinds}, mtp)
    model = report(capsys, str(tmp_path / "m.gguf"))["model"]
    assert (model["num_layers"], model["num_mtp_layers"]) == (4, 1)
    assert (model["num_recurrent_layers"], model["num_attention_layers"]) == (3, 1)
    assert "and 1 for multi-token prediction" in text(capsys, str(tmp_path / "m.gguf"))


def test_a_split_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All files count; the first is named, whichever was given."""
    rewritten(tmp_path, {}, {}, split_tensors=25)
    given = str(tmp_path / "m-00002-of-00003.gguf")
    file = report(capsys, given)["file"]
    assert (file["path"], file["num_files"]) == (str(tmp_path / "m-00001-of-00003.gguf"), 3)
    assert file["size_bytes"] == sum(path.stat().st_size for path in tmp_path.glob("*.gguf"))
    assert file["num_tensors"] == len(GgufFile.open(MODEL).tensors)
    assert "in 3 files" in text(capsys, given)
