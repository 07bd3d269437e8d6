"""ops/real_models/fetch.py as a module: the scripts of ops are no package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PATH = Path(__file__).parents[2] / "ops" / "real_models" / "fetch.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("real_models_fetch", PATH)
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
