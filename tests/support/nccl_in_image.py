"""Fixtures that import `envbuilder_nccl` as inside an image."""

import importlib
import sys
from types import ModuleType

import pytest

from envbuilder import runtime as image


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, imported into this process, for tests of its own decisions."""
    monkeypatch.syspath_prepend(image.path("lib"))
    for name in ("envbuilder_nccl", "envbuilder_nccl.kept"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("envbuilder_nccl")


@pytest.fixture
def kept(nccl: ModuleType) -> ModuleType:
    """The folder where the module saves decisions."""
    return importlib.import_module("envbuilder_nccl.kept")
