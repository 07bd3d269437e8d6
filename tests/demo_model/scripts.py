"""The scripts of ops/demo_model are no package: a test loads those it needs by file."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[2] / "ops" / "demo_model"
MODEL = Path(__file__).parents[2] / "svc" / "models" / "headrace-demo.gguf"


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"demo_model_{name}", SCRIPTS / f"{name}.py")
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
