"""Passwords and tokens in what is given to envbuilder: refused or left out with a hint, and never written, shown or on a command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.errors import LockError, RecipeError
from envbuilder.lock.file import load_lock, lock_text, seal
from envbuilder.recipe.load import load
from tests.support import command_line
from tests.support.command_line import Call
from tests.support.locks import make_lock, make_recipe
from tests.support.toys import make_pair

call = command_line.call
SECRET = "s3cr3tPW99"
TOKEN = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
COMMIT = "1a" * 20
PINS = 'base: debian/bookworm\npython: "3.11"\ngcc: "12"\nlibxcrypt: "4.4"\npytorch: "2.13.0"\n'
RECIPES = {
    "a repository": f"extensions: [{{name: x, git: 'https://me:{SECRET}@host/x.git', commit: '{COMMIT}'}}]\n",
    "a token for a repository": f"extensions: [{{name: x, git: 'https://{SECRET}@host/x.git', commit: '{COMMIT}'}}]\n",
    "a repository over ssh": f"extensions: [{{name: x, git: 'ssh://git:{SECRET}@host/x', commit: '{COMMIT}'}}]\n",
    "a query": f"extensions: [{{name: x, git: 'https://host/x?private_token={SECRET}', commit: '{COMMIT}'}}]\n",
    "an archive": f"extensions: [{{name: x, url: 'https://me:{SECRET}@host/a.zip', sha256: '{'1a' * 32}'}}]\n",
    "a package": f"packages: ['x @ https://me:{SECRET}@host/x.whl']\n",
    "an option": f"packages: ['--extra-index-url https://me:{SECRET}@host/simple']\n",
    "a long address": f"packages: ['x @ https://{'a' * 70}:{SECRET}@host/x.whl']\n",
    "a variable": f"env: {{HF_TOKEN: {SECRET}}}\n",
    "a variable with an address": f"env: {{PIP_INDEX_URL: 'https://me:{SECRET}@host/simple'}}\n",
    "a variable of a build": f"extensions: [{{name: x, path: ., env: {{API_KEY: {SECRET}}}}}]\n",
    "a token": f"summary: {TOKEN}\n",
    "a test": f"tests: ['curl https://me:{SECRET}@host']\n",
    "an image": f"image: https://me:{SECRET}@host/x\n",
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_holds_no_password(tmp_path: Path, call: Call, recipe: str):
    (tmp_path / "x.yaml").write_text(PINS + RECIPES[recipe])
    (tmp_path / "setup.py").touch()
    with pytest.raises(RecipeError) as caught:
        load(tmp_path / "x.yaml")
    (finding,) = [finding for finding in caught.value.findings if finding.code == "EB110"]
    assert "credential helper" in finding.hint
    for more in ((), ("--json",)):
        answer = call("check", tmp_path / "x.yaml", *more)
        assert answer.code == 2
        assert SECRET not in answer.out + answer.err
        assert TOKEN not in answer.out + answer.err


def test_an_address_with_a_login_for_ssh_is_no_password(tmp_path: Path):
    text = f"extensions: [{{name: x, git: 'ssh://git@host/x.git', commit: '{COMMIT}'}}]\n"
    (tmp_path / "x.yaml").write_text(PINS + text)
    assert load(tmp_path / "x.yaml").extensions[0].git == "ssh://git@host/x.git"


def test_a_lock_holds_no_password(tmp_path: Path):
    text = lock_text(make_lock(make_recipe(tmp_path)))
    value = json.loads(text)
    value["wheels"][0]["path"] = f"https://me:{SECRET}@host/x.whl"
    path = tmp_path / "x.lock"
    path.write_text(json.dumps(value))
    with pytest.raises(LockError) as caught:
        load_lock(path)
    assert "EB110" in [finding.code for finding in caught.value.findings]
    assert SECRET not in str(caught.value.findings)


@pytest.mark.parametrize("epoch", [-1, 1 << 32, 253402300800, 10**17, 10**400, 1.5, "0", None, True])
def test_a_time_that_no_file_can_have_is_refused_in_a_lock(tmp_path: Path, epoch: object):
    value = json.loads(lock_text(make_lock(make_recipe(tmp_path))))
    path = tmp_path / "x.lock"
    path.write_text(json.dumps(seal(value | {"epoch": epoch})))
    with pytest.raises(LockError) as caught:
        load_lock(path)
    assert ["$.epoch" in finding.message for finding in caught.value.findings] == [True]


SOURCES = {
    "requirements.txt": f"--extra-index-url https://me:{SECRET}@host/simple\n-f https://{SECRET}@host/links\nnumpy\n"
    f"git+https://me:{SECRET}@host/x.git@{COMMIT}#egg=x\ny @ git+https://{TOKEN}@host/y@main\n"
    f"z @ https://me:{SECRET}@host/z-1.0.tar.gz#sha256={'1a' * 32}\n",
    "Dockerfile": f"FROM ubuntu:22.04\nARG INDEX=https://me:{SECRET}@host/simple\nENV HF_TOKEN={SECRET}\nENV PIP_INDEX_URL=$INDEX A=b\n"
    f"RUN pip install --index-url https://me:{SECRET}@host/simple numpy && curl -H 'Authorization: Bearer {SECRET}' x\n"
    f"RUN pip install git+https://me:{SECRET}@host/x.git@{COMMIT}\n",
    "environment.yml": f"channels: [https://host/t/x, 'https://me:{SECRET}@host/c']\nvariables: {{HF_TOKEN: {SECRET}, A: b}}\n"
    f"dependencies:\n  - numpy\n  - pip: ['--extra-index-url https://me:{SECRET}@host/s', 'git+https://me:{SECRET}@host/x@{COMMIT}']\n",
    "x.def": f"Bootstrap: docker\nFrom: ubuntu:22.04\n%environment\nexport WANDB_API_KEY={SECRET}\n%post\n"
    f"pip install -i https://me:{SECRET}@host/s numpy\n",
}


@pytest.mark.parametrize("name", SOURCES)
def test_init_writes_and_shows_no_password(tmp_path: Path, call: Call, monkeypatch, name: str):
    (tmp_path / name).write_text(SOURCES[name])
    monkeypatch.chdir(tmp_path)
    for at, more in enumerate(((), ("--json",))):
        answer = call("init", f"made{at}", "--gpu", "none", "--from", name, *more)
        assert answer.code == 0, answer.err
        written = (tmp_path / f"recipes/made{at}.yaml").read_text()
        shown = answer.out + answer.err + written
        assert SECRET not in shown
        assert TOKEN not in shown
        assert "***" in shown
    assert "credential helper" in shown or name == "x.def"


@pytest.mark.parametrize("words", [("init", "made", "--gpu", "none", "--from"), ("add", "x")])
def test_an_address_with_a_password_is_refused_before_git_gets_it(
    tmp_path: Path, call: Call, monkeypatch, words
):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/x.yaml").write_text(PINS)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/called\n')
    (programs / "git").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    answer = call(*words, f"git+https://me:{SECRET}@host/x.git")
    assert answer.code == 2
    assert "https://***@host/x.git" in answer.err
    assert SECRET not in answer.err
    assert not (tmp_path / "called").exists()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    return make_pair(tmp_path_factory.mktemp("pair"))[0]


@pytest.mark.programs
@pytest.mark.parametrize("program", ["apptainer", "docker"])
def test_a_variable_that_is_passed_by_its_name_is_in_no_list_of_processes(
    tmp_path: Path, pair: Outputs, program: str
):
    """`ps` shows every word of a command line to every user."""
    (tmp_path / program).write_text("#!/bin/sh\ntr '\\0' '\\n' </proc/$$/cmdline\necho ---\nenv\n")
    (tmp_path / program).chmod(0o755)
    # `exec` starts Apptainer by `env`, whose words are seen as well.
    (tmp_path / "env").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/words\nexec /usr/bin/env "$@"\n')
    (tmp_path / "env").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "MY_TOKEN": SECRET}
    if program == "apptainer":
        words = ["-m", "envbuilder", "exec", str(pair.sif), "--env", "MY_TOKEN", "--env", "A=b", "--", "true"]
    else:
        code = (
            "import os; from pathlib import Path; from envbuilder.core.process import exec_process;"
            "from envbuilder.run.container import image_argv, probe_surroundings;"
            "around = probe_surroundings(Path.cwd(), environment=os.environ, ids=(1, 1), given={'A': 'b'}, named=('MY_TOKEN',));"
            "exec_process(image_argv('x', ('true',), around, terminal=False), os.environ)"
        )
        words = ["-c", code]
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    line, _, inside = done.stdout.partition("---\n")
    assert SECRET not in line
    assert SECRET not in ((tmp_path / "words").read_text() if (tmp_path / "words").exists() else "")
    if program == "apptainer":
        assert {"APPTAINERENV_A=b", f"APPTAINERENV_MY_TOKEN={SECRET}"} <= set(inside.splitlines())
    else:
        assert {"--env=A=b", "--env=MY_TOKEN"} <= set(line.splitlines())
        assert f"MY_TOKEN={SECRET}" in inside.splitlines()


@pytest.mark.programs
def test_the_printed_command_line_passes_the_variable_without_its_value(tmp_path: Path, pair: Outputs):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MY_TOKEN": SECRET}
    words = ["exec", str(pair.sif), "--env", "MY_TOKEN", "--print", "--", "true"]
    done = subprocess.run(
        [sys.executable, "-m", "envbuilder", *words],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert SECRET not in done.stdout
    assert done.stdout.startswith('APPTAINERENV_MY_TOKEN="$MY_TOKEN" ')
