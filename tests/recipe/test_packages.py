"""Requirements files as projects have them: what is taken, what the recipe decides, and what is refused."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.core.errors import RecipeError
from envbuilder.core.findings import Severity
from envbuilder.recipe.load import load
from envbuilder.recipe.requirement_file import parse_direct

COMMIT = "0123456789abcdef0123456789abcdef01234567"
RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.6.0"
gpus: [A100]
cuda: "12.4"
packages: [{requirements: r.txt}]
"""
HASH = "sha256:" + "1" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One file, with those beside it and what else the recipe says, and what becomes of its lines."""

    text: str
    more: tuple[tuple[str, str], ...] = ()
    recipe: str = ""
    packages: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # line, and the beginning of the message
    mistakes: tuple[str, ...] = ()


SETUP = ("ops/setup.py", "")
FILES = {
    "plain": Case(text="numpy<2\neinops\n", packages=("numpy<2", "einops")),
    "byte order mark": Case(text="\ufeffnumpy\n", packages=("numpy",)),
    "windows lines": Case(text="numpy\r\n# x\r\n\r\neinops\r\n", packages=("numpy", "einops")),
    "comments": Case(text="# all\nnumpy # old\n  # more\ntqdm#no comment\n", mistakes=('4: "tqdm#no comment" is not a PEP 508',)),
    "continued": Case(text="numpy \\\n  >=1.21, \\\n  <2\neinops\n", packages=("numpy<2,>=1.21", "einops")),
    "continued to the end": Case(text="numpy \\\n", packages=("numpy",)),
    "a comment ends what is continued": Case(text="numpy \\\n# why\neinops\n", packages=("numpy", "einops")),
    "markers": Case(
        text='dataclasses; python_version < "3.7"\npywin32 ; sys_platform == "win32"\n',
        packages=('dataclasses; python_version < "3.7"', 'pywin32; sys_platform == "win32"'),
    ),
    "extras": Case(text="ray[tune,rllib]>=2\n", packages=("ray[rllib,tune]>=2",)),
    "compiled with hashes": Case(
        text=f"numpy==1.26.4 \\\n    --hash={HASH} \\\n    --hash={HASH}\n    # via scipy\nscipy==1.11.4 --hash={HASH}\n",
        packages=("numpy==1.26.4", "scipy==1.11.4"),
        hashes=(f"numpy==1.26.4 {HASH} {HASH}", f"scipy==1.11.4 {HASH}"),
    ),
    "hashes of other kinds": Case(
        text=f"numpy==1.26.4 --hash=sha512:12 --hash={HASH}\nscipy==1.11.4 --hash=md5:12\n",
        mistakes=("2: expected `--hash=sha256:` and 64 hexadecimal digits",),
    ),
    "hashes of some": Case(
        text=f"numpy==1.26.4 --hash={HASH}\nscipy>=1.9 --hash={HASH}\ntqdm==4.0\ntorch\n-c bounds.txt\n",
        more=(("bounds.txt", "einops<1\n"),),
        mistakes=("2: `scipy>=1.9` has no version by `==`; in", "3: `tqdm==4.0` has no hash; in"),
    ),
    "hashes that are required": Case(text="--require-hashes\nnumpy==1.26.4\n", mistakes=("2: `numpy==1.26.4` has no hash",)),
    "the hash of an archive": Case(
        text=f"https://h/d.zip --hash={HASH}\n",
        recipe=f"extensions: [{{name: d, url: 'https://h/d.zip', sha256: {'a' * 64}}}]\n",
        mistakes=("1: the archive `https://h/d.zip` is a project",),
    ),
    "torch as the pin": Case(text="torch==2.6.0\n"),
    "torch within bounds": Case(text="torch>=1.10,<3\n"),
    "another torch": Case(text="numpy\ntorch==1.10.1\n", packages=("numpy",), notes=("2: the recipe's `pytorch: 2.6.0` at",)),
    "another build of torch": Case(text="torch==2.6.0+cu118\n", notes=("1: the recipe's `cuda: 12.4` decides",)),
    "the same build of torch": Case(text="torch==2.6.0+cu124\n"),
    "torch of another system": Case(text='torch==1.13.1; sys_platform == "darwin"\ntorch==2.6.0; sys_platform == "linux"\n'),
    "a wheel of torch": Case(text="torch @ https://wheels.example.org/torch-2.1.0-cp311-cp311-linux_x86_64.whl\n"),
    "the index of the build": Case(text="--extra-index-url https://wheels.example.org/whl/cu124\nnumpy\n", packages=("numpy",)),
    "the index of another build": Case(
        text="--extra-index-url https://wheels.example.org/whl/cu121\n",
        notes=("1: `--extra-index-url https://wheels.example.org/whl/cu121` has torch's build cu121",),
    ),
    "indexes": Case(
        text="-i https://pkgs.example.org/simple\n--find-links=https://wheels.example.org/pyg.html\n--trusted-host pkgs.example.org\n",
        notes=("1: `--index-url https://pkgs.example.org/simple` is not asked", "2: `--find-links https://wheels"),
    ),
    "options": Case(
        text="--pre\n--prefer-binary\n--no-binary :all:\n",
        notes=("1: `--pre` is not followed", "3: `--no-binary :all:` is an option of pip"),
    ),
    "other files": Case(
        text="-r more/base.txt\n--requirement=more/base.txt\ntqdm\n",
        more=(("more/base.txt", "-r deep.txt\nnumpy\n"), ("more/deep.txt", "einops\n-r ../r.txt\n")),
        packages=("einops", "numpy", "tqdm"),
    ),
    "constraints": Case(
        text="-c bounds.txt\nscipy\n",
        more=(("bounds.txt", "numpy<2\ntorch<2\n-r older.txt\n"), ("older.txt", "tqdm==4.0\n")),
        packages=("scipy",),
        constraints=("numpy<2", "tqdm==4.0"),
        notes=("bounds.txt:2: the recipe's `pytorch: 2.6.0`",),
    ),
    "files that are not there": Case(
        text="-r gone.txt\n-c ../r.txt\n-r https://host.example.org/r.txt\n",
        mistakes=("1: `--requirement gone.txt`: there is no file", "2: `--constraint ../r.txt` is outside", "3: `--requirement https"),
    ),
    "a folder": Case(text="-e ./ops\n", more=(SETUP,), mistakes=("1: the folder `ops` is a project",)),
    "a folder that is an extension": Case(
        text="-e ./ops\nops/\nfile:ops\nops @ file:ops\n", more=(SETUP,), recipe="extensions: [{name: ops, path: ops}]\n"
    ),
    "the project itself": Case(text="-e .\n.[dev]\n", notes=("1: `.` is not installed", "2: `.[dev]` is not installed")),
    "the project itself as an extension": Case(
        text="-e .\n", more=(("setup.py", ""),), recipe="extensions: [{name: own, path: .}]\n"
    ),
    "other folders": Case(
        text="-e ../ops\n./gone\n./data\n",
        more=(("data/x.txt", ""),),
        mistakes=("1: there is no folder", "2: there is no folder `gone`", "3: the folder `data` has neither"),
    ),
    "repositories": Case(
        text=f"git+https://git.example.org/a/knn.git@main#egg=knn\nb @ git+https://git.example.org/a/b@{COMMIT}#subdirectory=ops\n",
        recipe=f"extensions: [{{name: b, git: 'https://git.example.org/a/b.git', commit: {COMMIT}, path: ops}}]\n",
        mistakes=("1: the repository `https://git.example.org/a/knn.git` is a project",),
    ),
    "a repository that is an extension": Case(
        text="-e git+ssh://git@git.example.org/a/knn.git@v1#egg=knn\n",
        recipe=f"extensions: [{{name: knn, git: 'ssh://git@git.example.org/a/knn.git', commit: {COMMIT}}}]\n",
    ),
    "wheels at an address": Case(
        text=f"fast @ https://h.example.org/v2/fast-2.0%2Bcu12-cp311-cp311-linux_x86_64.whl ; python_version > '3'\n"
        f"https://h.example.org/slow-1.0-py3-none-any.whl#{HASH.replace(':', '=')}\nhttps://h.example.org/torch-2.6.0-py3-none-any.whl\n",
        packages=(
            'fast @ https://h.example.org/v2/fast-2.0%2Bcu12-cp311-cp311-linux_x86_64.whl ; python_version > "3"',
            f"slow @ https://h.example.org/slow-1.0-py3-none-any.whl#{HASH.replace(':', '=')}",
        ),
    ),
    "wheels at an address in a file with hashes": Case(
        text=f"https://h/slow-1.0-py3-none-any.whl#{HASH.replace(':', '=')}\nfast @ https://h/fast-1-py3-none-any.whl --hash={HASH}\n"
        "bare @ https://h/bare-1-py3-none-any.whl\n",
        mistakes=("3: `bare @ https://h/bare-1-py3-none-any.whl` has no hash",),
    ),
    "wheels that cannot be taken": Case(
        text="fast @ http://h.example.org/fast-2.0-py3-none-any.whl\nfast @ https://h/slow-1.0-py3-none-any.whl\n"
        "fast @ https://h/fast-2.0-py3-none-any.whl?token=x\nfast @ https://h/fast-2.0-py3-none-any.whl#md5=1\n",
        mistakes=(
            '1: "http://h.example.org/fast-2.0-py3-none-any.whl" is the address of a wheel, and has no encryption',
            "2: `slow-1.0-py3-none-any.whl` is a wheel of `slow`, and the requirement is on `fast`",
            "3: ",
            "4: expected `#sha256=` and 64 hexadecimal digits",
        ),
    ),
    "an index of the recipe": Case(
        text="--extra-index-url https://pkgs.example.org/simple/\neinops\n",
        recipe="indexes: [{name: own, url: 'https://pkgs.example.org/simple', packages: [einops]}]\n",
        packages=("einops",),
    ),
    "single files": Case(
        text="./apex-0.1-cp38-cp38-linux_x86_64.whl\nhttps://files.example.org/dlib.whl\nd @ file:///x/dlib.whl\n",
        mistakes=("1: ", "2: ", "3: "),
    ),
    "an archive that is an extension": Case(
        text="https://files.example.org/dlib-19.tar.gz\nd @ https://h/d.zip#sha256=12\n",
        recipe=f"extensions: [{{name: dlib, url: 'https://files.example.org/dlib-19.tar.gz', sha256: {COMMIT[:24]}{COMMIT}}}]\n",
        mistakes=("2: the archive `https://h/d.zip` is a project, which the recipe takes as an extension",),
    ),
    "neither": Case(
        text='this is none\n"numpy\n--config-settings "x\n', mistakes=("1: ", "2: ", "3: ")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in FILES.items()])
def test_a_requirements_file_in_a_real_shape(case: Case, tmp_path: Path) -> None:
    for name, text in (("r.txt", case.text), *case.more, ("x.yaml", RECIPE + case.recipe)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")

    def short(where: str, message: str) -> str:
        return f"{where.removeprefix(f'{tmp_path}/').removeprefix('r.txt:').removesuffix(':1')}: {message}"

    def agree(found: list[str], wanted: tuple[str, ...]) -> None:
        pairs = zip(found, wanted, strict=True)
        assert all(one.startswith(other) for one, other in pairs), found

    if case.mistakes:
        with pytest.raises(RecipeError) as caught:
            load(tmp_path / "x.yaml")
        agree([short(one.where, one.message) for one in caught.value.findings], case.mistakes)
        return
    recipe = load(tmp_path / "x.yaml")
    assert (recipe.packages, recipe.constraints) == (case.packages, case.constraints)
    shas = (" ".join((one.requirement, *(f"sha256:{sha}" for sha in one.sha256))) for one in recipe.hashes)
    assert tuple(shas) == case.hashes
    agree([short(one.where, one.message) for one in recipe.notes], case.notes)
    assert {one.severity for one in recipe.notes} <= {Severity.WARNING}
    assert recipe.files[1:] == (
        tmp_path / "r.txt",
        *(tmp_path / name for name, _ in case.more if "setup" not in name),
    )


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("git+https://host/a/My.Ops.git", "{name: my_ops, git: https://host/a/My.Ops.git, commit: COMMIT}"),
        (f"x @ git+https://host/a/b@{COMMIT}", f"{{name: x, git: https://host/a/b, commit: {COMMIT}}}"),
        (
            "git+ssh://git@host/a/b.git@v1#subdirectory=sub/ops&egg=b-ops",
            "{name: b_ops, git: ssh://git@host/a/b.git, commit: COMMIT, path: sub/ops}",
        ),
        ("./third_party/chamfer3D", "{name: chamfer3d, path: third_party/chamfer3D}"),
        ("ops/", "{name: ops, path: ops}"),
        ("ops[all]; python_version > '3'", None),
        ("numpy<2", None),
        ("einops @ https://host/einops-0.8.0-py3-none-any.whl", "{name: einops}"),
        (
            "https://host/a/dlib-19.1.zip#sha256=12",
            "{name: dlib, url: https://host/a/dlib-19.1.zip, sha256: 12}",
        ),
    ],
)
def test_a_project_becomes_the_entry_of_an_extension(text: str, entry: str | None) -> None:
    found = parse_direct(text)
    assert (found.entry() if found else None) == entry
