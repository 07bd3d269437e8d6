"""An installed package has the CUDA sources beside the code that compiles them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[3]
NOT_PACKAGED = shutil.ignore_patterns(".*", "tests", "*.so", "build", "dist", "*.egg-info", "__pycache__")


@pytest.mark.slow
def test_the_wheel_has_the_cuda_sources(tmp_path: Path) -> None:
    """All of them but the laboratory, and the loader finds them there. Slow: pip makes an environment for the build."""
    shutil.copytree(ROOT, tmp_path / "source", ignore=NOT_PACKAGED)
    (tmp_path / "source/cuda_src/lab").mkdir(exist_ok=True)
    (tmp_path / "source/cuda_src/lab/experiment.cu").write_text("")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(tmp_path / "source")]
    subprocess.run(command, check=True, env={**os.environ, "CC": "/bin/false"})
    [wheel] = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    program = "from svc.compute.cuda.sources import *; print(source_directory()); [load_source(n) for n in source_names()]"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "installed", capture_output=True, text=True, check=True)
    packaged = tmp_path / "installed/svc/compute/cuda/cuda_src"
    assert Path(done.stdout.strip()) == packaged
    in_checkout = {path.relative_to(ROOT / "cuda_src") for path in (ROOT / "cuda_src").rglob("*.cu*")}
    assert {path.relative_to(packaged) for path in packaged.rglob("*.cu*")} == {
        path for path in in_checkout if path.parts[0] != "lab"
    }
