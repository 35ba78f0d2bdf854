"""A kernel of a hub on loopback, in the image and the SIF of both runners, and to the program that looks for kernels.

`tests/lock/test_hub.py` holds how it is locked for every change; `test_rendered.py` both printed texts. The package `kernels` 0.17.2
took it from such a folder by the variable that the start sets.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import CODE, NAME, make_kernels
from tests.support.two_runners import inside, need_the_same
from tests.support.workbench import NO_ENGINE, Built, build, cache_with_artifacts, open_folder

pytestmark = [pytest.mark.builds, pytest.mark.release]
USE = """
import importlib.util, os, sys
sys.path.insert(0, "/tmp/site")
os.makedirs("/tmp/site", exist_ok=True)
open("/tmp/site/kernels.py", "w").close()
import kernels
name, _, place = os.environ["LOCAL_KERNELS"].partition("=")
print(name, sorted(os.listdir(place + "/build")), open(place + "/build/torch-universal/__init__.py").read() == {code!r})
"""


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    with open_folder() as folder:
        yield build(str(make_kernels(folder)), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


def test_the_package_kernels_is_told_where_it_is(built: Built):
    assert built.recipe
    answer = inside(built, built.recipe, "python", "-c", USE.format(code=CODE))
    assert answer == f"{NAME} ['torch-universal'] True\n"


def test_both_runners_write_the_same(built: Built, spacious: Path):
    assert built.recipe
    apart = {"ENVBUILDER_CACHE": str(cache_with_artifacts(spacious, built.recipe))}
    options = ("--runner", "buildkit", "--no-load")
    need_the_same(built, build(str(built.recipe), spacious / "baked", *options, env=apart))
