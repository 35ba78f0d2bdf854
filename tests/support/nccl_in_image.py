"""Fixtures that import `envbuilder_nccl` as an image has it."""

import importlib
import sys
from types import ModuleType

import pytest

from envbuilder import runtime as image


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module in this process, for what it decides by itself."""
    monkeypatch.syspath_prepend(image.path("lib"))
    for name in ("envbuilder_nccl", "envbuilder_nccl.kept"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("envbuilder_nccl")


@pytest.fixture
def kept(nccl: ModuleType) -> ModuleType:
    """Where it keeps decisions."""
    return importlib.import_module("envbuilder_nccl.kept")
