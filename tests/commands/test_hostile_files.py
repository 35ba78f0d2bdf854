"""Files that others wrote, hostile in form: each command ends in an error that a person can act on, and never in a traceback."""

import pytest

from envbuilder.core.errors import EnvbuilderError
from tests.support import command_line
from tests.support.command_line import Call

call = command_line.call
DIGITS = "9" * 6000  # more than Python turns into a number
DEEP = 100_000
REQUIREMENTS: dict[str, str | bytes] = {
    "a huge version": f"numpy=={DIGITS}\ntorch=={DIGITS}\n",
    "a huge line": "numpy" + "[a]" * 200_000,
    "a deep marker": f"numpy; {'(' * DEEP}python_version>'3'{')' * DEEP}\n",
    "a huge option": "--find-links " + "a" * 900_000 + "\n",
    "a huge name": "a" * 900_000 + "\n",
    "blanks": "a" + " " * 900_000 + "b\n",
    "another encoding": b"\xff\xfe" + "numpy".encode("utf-16-le"),
    "a NUL": b"numpy\0",
    "an address that is none": "x @ http://[::1\n-e git+https://[/x\n",
    "a file that names itself": "-r x.txt\n-r x.txt\n",
    "terminal commands": "numpy\x1b]0;owned\x07\x1b[31m==1 \u202e; \x9b2J\n",
}
TOML: dict[str, str | bytes] = {
    "deep nesting": f"[project]\na = {'[' * DEEP}{']' * DEEP}\n",
    "a huge number": f"[project]\na = {DIGITS}\n",
    "a huge version": f'[project]\nrequires-python = ">={DIGITS}"\ndependencies = ["torch=={DIGITS}"]\n',
    "a huge Poetry version": f'[tool.poetry.dependencies]\npython = "^{DIGITS}"\n',
    "other types": "project = 5\ntool = 5\n[build-system]\nrequires = 5\n",
    "other types inside": '[project]\ndependencies = 5\noptional-dependencies = 5\nname = ["x"]\n[tool]\npoetry = 5\n',
}
YAML: dict[str, str | bytes] = {
    "deep nesting": f"dependencies: {'[' * DEEP}{']' * DEEP}\n",
    "an alias bomb": "a: &a [x, x]\n"
    + "".join(
        f"b{n}: &b{n} [*{'a' if n == 0 else f'b{n - 1}'}, *{'a' if n == 0 else f'b{n - 1}'}]\n"
        for n in range(60)
    )
    + "dependencies: *b59\n",
    "an alias of itself": "dependencies: &a [*a]\n",
    "a huge number": f"dependencies:\n  - {DIGITS}\n  - python={DIGITS}\n  - pytorch=={DIGITS}\n",
    "a huge spec": "dependencies:\n  - " + "a" * 900_000 + "\n  - a=" + "=" * 900 + "\n",
    "a tag": "dependencies: !!python/object/apply:os.system [id]\n",
    "other types": "dependencies: {a: {b: c}}\nvariables: 5\nchannels: 5\n",
}
DOCKERFILE: dict[str, str | bytes] = {
    "a huge version": f"FROM pytorch/pytorch:{DIGITS}-cuda{DIGITS}-cudnn9-devel\nRUN pip install torch=={DIGITS}\n",
    "a variable of itself": "FROM x\nENV A=$A\nENV B=${A}${A}${A}${A}${A}${A}${A}${A}\n"
    + "ENV B=${B}${B}${B}${B}\n" * 40,
    "an argument of itself": "ARG A=aaaaaaaaaaaaaaaa\nFROM x\n" + "ARG A=${A}${A}${A}${A}\n" * 40,
    "a huge word": "FROM x\nENV A=" + "a" * 900_000 + "\nRUN pip install " + "a" * 900_000 + "\n",
    "a huge command": "FROM x\nRUN " + "a && " * 5_000 + "a\n",
    "blanks": "FROM x\nRUN a" + " " * 900_000 + "b\n",
    "a huge base": "FROM " + "a/" * 100_000 + "\nRUN <<" + "E" * 100_000 + "\n",
    "redirections": "FROM x\nRUN a" + " >" * 400_000 + "\n",
    "comments": "FROM x\nRUN a" + " #" * 400_000 + "\n",
    "options": "FROM x\nRUN " + "--mount=a " * 90_000 + "a\n",
    "an unclosed document": "FROM x\nRUN <<END\npip install numpy\n",
    "an unclosed quotation": "FROM x\nENV A='\nRUN pip install 'x\n",
    "no instruction": "\\\n" * 50_000,
    "terminal commands": "FROM x\x1b]0;owned\x07\nMAINTAINER y\nENV A=\x1b[31m\nFROB \u202ex\n",
}
DEFINITION: dict[str, str | bytes] = {
    "no header": "Bootstrap:\nFrom:\n%post\n",
    "a lone percent": "Bootstrap: docker\nFrom: x\n%\n%%\n% post\n",
    "an unknown section": "Bootstrap: docker\nFrom: x\n%frob\nid\n%files from\nx\n%environment\nexport A='\n",
    "a huge version": f"Bootstrap: docker\nFrom: pytorch/pytorch:{DIGITS}\n%post\npip install torch=={DIGITS}\n",
    "a huge line": "Bootstrap: docker\nFrom: x\n%post\npip install "
    + "a" * 900_000
    + "\n%environment\nexport A="
    + "a" * 900_000
    + "\n",
    "continued lines": "Bootstrap: docker\nFrom: x\n%post\n" + "pip install \\\n" * 20_000,
    "many lines": "Bootstrap: docker\nFrom: x\n%post\n" + "a\n" * 5_000,
    "lines before it": "id\nid\nBootstrap: docker\n",
}
SETUP: dict[str, str | bytes] = {
    "deep nesting": f"from setuptools import setup\nsetup(install_requires={'[' * 5000}{']' * 5000})\n",
    "a deep sum": "from setuptools import setup\nx = []\nsetup(install_requires=[]"
    + " + ['a']" * 5000
    + ")\n",
    "a huge number": f"from setuptools import setup\nsetup(python_requires='>={DIGITS}', x={DIGITS})\n",
    "a name of itself": "from setuptools import setup\nx = x\nsetup(install_requires=x)\n",
    "deep attributes": "from setuptools import setup\nsetup(install_requires=a" + ".b" * 20_000 + ")\n",
    "many assignments": "from setuptools import setup\n"
    + "x = ['a']\n" * 5_000
    + "setup(install_requires=["
    + "x, " * 2_000
    + "])\n",
    "a NUL": b"\0",
}
CONFIG: dict[str, str | bytes] = {
    "no section": "a = b\n",
    "a section twice": "[options]\n[options]\n",
    "interpolation": "[options]\npython_requires = %(python_requires)s\ninstall_requires = %(x\n",
}
FILES = {
    "x.txt": REQUIREMENTS, "pyproject.toml": TOML, "environment.yml": YAML, "Dockerfile": DOCKERFILE, "x.def": DEFINITION,
    "setup.py": SETUP, "setup.cfg": CONFIG,
}  # fmt: skip
CASES = [(name, content) for name, contents in FILES.items() for content in contents]


def need_clean(code: int, out: str, err: str) -> None:
    """An error of the family or an answer, without commands to a terminal."""
    assert code != EnvbuilderError.exit_code, err
    assert "Traceback" not in out + err
    assert not [sign for sign in out + err if not (sign.isprintable() or sign in "\n\t")]


@pytest.mark.parametrize(("name", "case"), CASES)
@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
def test_init_reads_a_hostile_file_without_a_traceback(
    tmp_path, call: Call, monkeypatch, name, case, is_folder
):
    content = FILES[name][case]
    project = tmp_path / "project"
    project.mkdir()
    (project / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(tmp_path)
    source = project if is_folder else project / name
    for more in ((), ("--json",)):
        answer = call("init", "made", "--gpu", "none", "--from", source, *more)
        need_clean(*answer)
        (tmp_path / "recipes/made.yaml").unlink(missing_ok=True)


def test_init_reads_a_folder_of_links_without_an_end(tmp_path, call: Call, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    for name in ("requirements.txt", "pyproject.toml", "setup.py", "Dockerfile", "a.cu"):
        (project / name).symlink_to(name)
    (project / "folder").symlink_to(".")
    (project / ".gitmodules").symlink_to("/dev/zero")
    monkeypatch.chdir(tmp_path)
    for source in (project, project / "setup.py", project / "folder"):
        need_clean(*call("init", "made", "--gpu", "none", "--from", source))
        (tmp_path / "recipes/made.yaml").unlink(missing_ok=True)
