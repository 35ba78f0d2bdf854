"""A compile of ten sources that is killed in the middle goes on where it was, and makes the bytes of one that is not.

`tests/builder/test_extensions.py` holds for every change what of a killed compile is used again.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from envbuilder.builder.extensions.compiled import CachedExtension
from tests.support.stores import Listening
from tests.support.workbench import ENVBUILDER, ROOT, make_extensions, recipe_like, run

pytestmark = [pytest.mark.builds, pytest.mark.torch, pytest.mark.release]
PARTS = 9
# `lock` reads the names of the sources in it.
SETUP = f"""\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

names = {["ten.cpp", *(f"part{number}.cpp" for number in range(PARTS))]}
setup(name="ten", version="1.0", ext_modules=[CppExtension("ten", names)], cmdclass={{"build_ext": BuildExtension}})
"""
# A second or two each: templates of the standard library.
PART = """\
#include <functional>
#include <map>
#include <regex>
#include <string>

int part{number}(const std::string &text) {{
  std::map<std::string, std::function<int(int)>> known{{{{"{number}", [](int value) {{ return value + {number}; }}}}}};
  std::regex digits("[0-9]+");
  return known.at(std::regex_replace(text, digits, "{number}"))(1);
}}
"""
WHOLE = """\
#include <torch/extension.h>
{declared}
int whole() {{ return {called}; }}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("whole", &whole); }}
"""
# What a user does who types `envbuilder build`, as far as the extensions.
BUILD = """\
import sys
from pathlib import Path
from envbuilder.core.console import Console
from tests.support.workbench import make_extensions

class Printing(Console):
    def say(self, text):
        print(text, flush=True)

make_extensions(Path(sys.argv[1]), Printing(quiet=True))
"""


def write_project(folder: Path) -> Path:
    project = folder / "ten"
    project.mkdir()
    (project / "setup.py").write_text(f"# {uuid.uuid4()}\n{SETUP}")
    names = [f"part{number}" for number in range(PARTS)]
    declared = "\n".join(f"int {name}(const std::string &text);" for name in names)
    called = " + ".join(f'{name}("7")' for name in names)
    (project / "ten.cpp").write_text(WHOLE.format(declared=declared, called=called))
    for number, name in enumerate(names):
        (project / f"{name}.cpp").write_text(PART.format(number=number))
    return recipe_like("cpu", folder / "ten.yaml", "{name: ten, path: ten}")


def make(recipe: Path) -> tuple[CachedExtension, list[int]]:
    """Make the extension. Returns it, and of how many commands ninja said that they are to be run."""
    console = Listening()
    (made,) = make_extensions(recipe, console)
    return made, [int(count) for count in re.findall(r"\(\d+ of (\d+) commands", "\n".join(console.said))]


def contents(made: CachedExtension) -> dict[str, bytes]:
    tree = made.folder / "tree"
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def test_a_compile_that_is_killed_goes_on_where_it_was(spacious: Path) -> None:
    recipe = write_project(spacious)
    run(ENVBUILDER, "lock", recipe)
    began = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(recipe)], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert began.stdout is not None
    said = []
    for line in began.stdout:
        said.append(line)
        # ninja prints a command before it records it: once the fifth is there, four are recorded.
        if re.search(r"\(5 of \d+ commands", line):
            break
    os.killpg(began.pid, signal.SIGKILL)
    began.wait()
    began.stdout.close()
    made, counts = make(recipe)
    assert counts, said
    assert max(counts) <= PARTS + 1 - 4, "what was complete is not compiled again"
    assert made.compiled.memory > 50 << 20
    resumed = contents(made)
    assert any(name.endswith(".so") for name in resumed)
    # The same once more, from nothing and without a break.
    shutil.rmtree(made.folder)
    for folder in made.folder.parents[1].glob("build-directories/*"):
        if (folder / "src/ten/ten.cpp").is_file():
            shutil.rmtree(folder)
    again, counts = make(recipe)
    assert max(counts) == PARTS + 1
    assert contents(again) == resumed
