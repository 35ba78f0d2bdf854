"""Import a program of `envbuilder/steps`, to test its functions. It finds the modules beside it as it does in a build."""

import importlib.util
import sys
from typing import Any

from envbuilder import steps


def load_program(name: str) -> Any:
    sys.path.insert(0, str(steps.FOLDER))
    try:
        spec: Any = importlib.util.spec_from_file_location(f"program_{name}", steps.FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(steps.FOLDER))
    return module
