"""What `add` refuses before it writes anything."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import command_line
from tests.support.command_line import Call
from tests.support.stranger import STRANGER, as_user, reachable_folder

pytestmark = pytest.mark.usefixtures("clean_environment")
call = command_line.call
PINS = 'base: debian/bookworm\npython: "3.11"\ngcc: "12"\nlibxcrypt: "4.4"\npytorch: "2.13.0"\n'


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (PINS, ("x", "einops", "torch==2.6.0"), "torch is pinned by the key `pytorch`"),
        (PINS, ("x", "einops=1"), "did you mean `einops==1`"),
        (f"{PINS}cude: x\n", ("x", "einops"), "unknown key `cude`"),
        (f"{PINS}packages: [a<1, a>0]\n", ("x", "einops", "a==1"), "has `a` 2 times"),
        (f"{PINS}matrix: {{gcc: ['11', '12']}}\n", ("x@gcc12", "einops"), "hint: envbuilder add recipes/x.yaml einops"),
        (PINS, ("y", "einops"), 'there is no recipe "y"'),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_before_anything_is_written(
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    words: tuple[str, ...],
    message: str,
):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "recipes/x.yaml"
    recipe.parent.mkdir()
    recipe.write_text(text)
    answer = call("add", *words)
    assert (answer.code, message in answer.err) == (2, True), answer.err
    assert [path.name for path in recipe.parent.iterdir()] == ["x.yaml"]
    assert recipe.read_text() == text


@pytest.mark.programs
def test_a_recipe_that_the_user_may_not_write_is_copied_by_the_command_in_the_hint():
    nowhere = dict.fromkeys(("INDEX", "DEBIAN_MIRROR", "PYTORCH_INDEX"), "http://127.0.0.1:9/")
    settings = [f"ENVBUILDER_{name}={value}" for name, value in nowhere.items()]
    with reachable_folder() as folder:
        shared, home = folder / "shared", folder / "home"
        for made in (shared, home):
            made.mkdir()
        home.chmod(0o777)
        (shared / "x.yaml").write_text(PINS)
        (shared / "x.yaml").chmod(0o444)
        start = ("env", *settings, f"ENVBUILDER_CACHE={home}/cache")

        def attempt(*words: object) -> str:
            line = as_user(STRANGER, *start, *words)
            ended = subprocess.run(line, cwd=home, capture_output=True, text=True, timeout=100, check=False)
            return ended.stderr

        python = (sys.executable, "-m", "envbuilder")
        refused = attempt(*python, "add", "x", "einops", "--recipes", shared)
        assert f"you may not write the recipe `{shared}/x.yaml`" in refused
        copy, again = re.findall(r"`([^`]+)`", refused.partition("hint: ")[2])
        assert attempt(*shlex.split(copy)) == ""
        retried = attempt(*python, *shlex.split(again)[1:])
        assert "lock x" in retried
        assert "may not write" not in retried
        assert (home / "my-recipes/x.yaml").read_text() == PINS  # nothing can be locked here
