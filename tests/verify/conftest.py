import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pairs import Pair, make_layers, make_pair, write_os_tar


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("built")
    return make_pair(folder / "out", make_layers(folder / "layers", write_os_tar(folder / "os.tar")))


@pytest.fixture
def pair(tmp_path: Path, built: Pair) -> Pair:
    """A copy, for a test to damage."""
    shutil.copytree(built.image.parent, tmp_path / "out")
    return replace(built, image=tmp_path / "out" / "image", sif=tmp_path / "out" / "a.sif")
