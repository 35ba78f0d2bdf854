"""The table of the shell's variables, and the script that is made of it, as the image's entry point reads it."""

import shutil
import subprocess
from collections import Counter

import pytest

from envbuilder.plan import shell


def test_each_variable_has_one_rule():
    names = Counter(name for row in shell.load_rows() for name in row.names)
    assert names.most_common(1)[0][1] == 1


@pytest.mark.programs
@pytest.mark.parametrize("program", ["dash", "bash", "zsh"])
@pytest.mark.parametrize(
    ("given", "stay", "said"),
    [
        ({"CC": "/opt/gcc/bin/gcc", "LD": "sh -e", "PYTHONPATH": "/x"}, {"LD": "sh -e", "PYTHONPATH": "/x"}, "CC"),
        ({"CFLAGS": "-O2 -I/gone/x", "TMP": "/gone", "TMPDIR": "/"}, {"TMPDIR": "/"}, "CFLAGS, TMP"),
        ({"NVCC_PREPEND_FLAGS": "-ccbin gone", "NVCC_APPEND_FLAGS": "-ccbin=sh"}, {"NVCC_APPEND_FLAGS": "-ccbin=sh"}, "NVCC_PREPEND_FLAGS"),
        ({"CC": "$(touch ran)`touch ran`;touch ran\n'\""}, {}, "CC"),
        ({"CC": "gone", "ENVBUILDER_SHELL": "quiet"}, {"ENVBUILDER_SHELL": "quiet"}, ""),
        ({"CC": "gone", "ENVBUILDER_SHELL": "off"}, {"CC": "gone", "ENVBUILDER_SHELL": "off"}, ""),
    ],
)  # fmt: skip
def test_an_image_leaves_out_what_names_nothing_in_it(tmp_path, program, given, stay, said):
    (tmp_path / "98-shell.sh").write_text(shell.script(), encoding="utf-8")
    options = ("-o", "shwordsplit") if program == "zsh" else ()
    ended = subprocess.run(
        [shutil.which(program), *options, "-euc", ". ./98-shell.sh; exec /usr/bin/env -0"],
        env={"PATH": "/usr/bin:/bin"} | given, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    seen = dict(line.split("=", 1) for line in ended.stdout.split("\0") if line)
    assert {name: seen[name] for name in given if name in seen} == stay
    names = ended.stderr.partition("environment: ")[2].partition(" (")[0].split(", ")
    assert sorted(names) == said.split(", ")
    assert not (tmp_path / "ran").exists()
