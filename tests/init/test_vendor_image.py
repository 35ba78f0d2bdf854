"""`init --from IMAGE` and a Dockerfile's `FROM`: the torch of the image is that of the recipe, read without all of the image."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from envbuilder import cli
from envbuilder.recipe.load import load
from tests.support.bases import Shape, pack, sha256
from tests.support.registries import Fault, faulty, push, registry

pytestmark = pytest.mark.programs
FILL = bytes(range(256)) * 8000  # 2 MB in each layer that is not to be read
UBUNTU: dict[str, bytes | str] = {
    "usr/lib/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n', "etc/os-release -> ../usr/lib/os-release": "",
}  # fmt: skip


def torch(site: str, version: str, cuda: str) -> dict[str, bytes | str]:
    return {
        f"{site}/bin -> ../../bin": "",  # images have links before the files that are sought
        f"{site}/numpy-1.26.4.dist-info/METADATA": "Name: numpy\n",
        f"{site}/torch-{version}.dist-info/METADATA": "Name: torch\n",
        f"{site}/torch/version.py": f"cuda: Optional[str] = {cuda}\n",
        f"{site}/torch/lib/rest.so": FILL,
    }


LOCAL, CONDA = "usr/local/lib/python3.12/dist-packages", "opt/conda/lib/python3.11/site-packages"
SHAPES = {
    "nvidia": Shape(
        layers=[UBUNTU, {"usr/lib/middle": FILL}, torch(LOCAL, "2.6.0a0+ecf3bae40a.nv25.01", "'12.8'"), {"workspace/README.md": "x"}],
        env=("PATH=/usr/bin", "NVIDIA_PYTORCH_VERSION=25.01"),
    ),
    "pytorch": Shape(layers=[UBUNTU, {"usr/lib/middle": FILL}, torch(CONDA, "2.6.0+cu124", "'12.4'"), {"workspace/.wh.x": ""}]),
    "of conda": Shape(
        layers=[UBUNTU, {"opt/conda/bin/python3.11": b"", "opt/conda/conda-meta/pytorch-2.5.1-py3.11_cuda12.4_cudnn9.1.0_0.json": "{}"}],
    ),
    "cpu": Shape(layers=[UBUNTU, torch(CONDA, "2.6.0", "None")]),
    "removed": Shape(
        layers=[UBUNTU, torch(LOCAL, "2.5.1", "'12.4'"), {f"{LOCAL}/.wh.torch-2.5.1.dist-info": "", f"{LOCAL}/torch/.wh..wh..opq": ""}, torch(CONDA, "2.6.0", "'12.6'")],
    ),
    "rocky": Shape(layers=[{"etc/os-release": 'ID=rocky\nVERSION_ID="9.5"\n', "usr/bin/python3.9": b""}]),
    "old": Shape(layers=[UBUNTU, torch("usr/lib/python3.7/site-packages", "1.4.0", "'10.1'")]),
}  # fmt: skip


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as running:
        for name, shape in SHAPES.items():
            push(running.host, name.replace(" ", "-"), pack(shape))
        yield running.host


def start(
    capsys: pytest.CaptureFixture[str], folder: Path, *options: str
) -> tuple[int, Mapping[str, object]]:
    code = cli.run(["init", "mine", "--recipes", str(folder), "--json", *options])
    return code, json.loads(capsys.readouterr().out)


def messages(answer: Mapping[str, object]) -> str:
    return json.dumps(answer["findings"])


@pytest.mark.parametrize(
    ("name", "options", "pins"),
    [
        ("nvidia", (), ("3.12", "", "", True)),
        ("pytorch", (), ("3.11", "2.6.0", "12.4", False)),
        ("pytorch", ("--without-image",), ("3.11", "2.6.0", "12.4", False)),
        ("of-conda", (), ("3.11", "2.5.1", "12.4", False)),
        ("removed", (), ("3.11", "2.6.0", "12.6", False)),
    ],
)
def test_the_torch_of_an_image_is_that_of_its_recipe(
    name: str, options: tuple[str, ...], pins: tuple[str, ...], host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    code, answer = start(capsys, tmp_path, "--from", f"{host}/site/{name}:1", "--gpu", "A100", *options)
    assert code == 0, answer
    recipe = load(tmp_path / "mine.yaml")
    assert (recipe.python, recipe.pytorch, recipe.cuda, recipe.keeps_torch) == pins
    digest = sha256(pack(SHAPES[name.replace("-", " ")]).manifest)
    assert recipe.image == ("" if options else f"{host}/site/{name}:1@{digest}")
    if not options:
        assert recipe.gcc in ("13", "12")
    if name == "nvidia":
        assert "its vendor's own build, which no index has" in messages(answer)


def test_only_the_layers_that_are_needed_are_read(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = start(capsys, tmp_path, "--from", f"docker://{host}/site/pytorch:1", "--gpu", "none")
    assert code == 0
    assert "in 3 of 4 layers" in messages(answer)
    assert "the image has 1 packages where torch is: numpy" in messages(answer)


def test_a_version_that_is_named_stands_for_the_torch_of_the_image(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"{host}/site/nvidia:1"
    assert start(capsys, tmp_path, "--from", place, "--gpu", "A100", "--pytorch", "2.6.0")[0] == 0
    recipe = load(tmp_path / "mine.yaml")
    assert (recipe.pytorch, recipe.keeps_torch, bool(recipe.image)) == ("2.6.0", False, True)
    (tmp_path / "mine.yaml").unlink()
    (tmp_path / "Dockerfile").write_text(f"FROM {place}\nENV A=b\n")
    options = ("--from", str(tmp_path / "Dockerfile"), "--gpu", "A100", "--pytorch", "2.6.0")
    assert start(capsys, tmp_path, *options)[0] == 0
    recipe = load(tmp_path / "mine.yaml")
    assert (recipe.pytorch, recipe.image) == ("2.6.0", "")


def test_a_vendors_torch_is_kept_by_its_image_alone(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"{host}/site/nvidia:1"
    code, answer = start(capsys, tmp_path, "--from", place, "--gpu", "A100", "--without-image")
    assert code == 2
    assert "which no index has" in json.dumps(answer)
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("old:1", "has torch 1.4.0, and envbuilder does not offer that"),
        ("none:1", "there is no `"),
    ],
)
def test_another_torch_never_stands_for_that_of_the_image(
    name: str, words: str, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = start(capsys, tmp_path, "--from", f"{host}/site/{name}", "--gpu", "A100")
    assert code not in (0, 1)
    assert words in json.dumps(answer)
    assert not list(tmp_path.glob("*.yaml"))


def test_an_image_without_torch_is_a_base(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = start(capsys, tmp_path, "--from", f"{host}/site/rocky:1", "--gpu", "none", "--python", "3.11")
    assert code == 0
    assert load(tmp_path / "mine.yaml").image.startswith(f"{host}/site/rocky:1@sha256:")


def test_the_base_of_a_dockerfile_is_read_too(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(f"FROM {host}/site/pytorch:1 AS base\nFROM base\nRUN pip install einops\n")
    code, answer = start(capsys, tmp_path, "--from", str(file), "--gpu", "A100")
    assert code == 0, answer
    recipe = load(tmp_path / "mine.yaml")
    assert (recipe.pytorch, recipe.packages, recipe.image[-71:-64]) == ("2.6.0", ("einops",), "sha256:")
    file.write_text(f"FROM {host}/site/torch:none\n")
    (tmp_path / "mine.yaml").unlink()
    code, answer = start(capsys, tmp_path, "--from", str(file), "--gpu", "A100")
    assert code not in (0, 1)
    assert "there is no `" in json.dumps(answer)


def test_a_layer_is_read_again_after_a_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuilder.sources.http.session.PAUSES", (0, 0))
    with registry(tmp_path / "data") as running, faulty(running) as proxy:
        packed = pack(SHAPES["cpu"])
        push(running.host, "cpu", packed)
        proxy.faults.append(Fault(method="GET", path=sha256(packed.blobs[-1]), cut_answer=200))
        code, answer = start(capsys, tmp_path, "--from", f"{proxy.host}/site/cpu:1", "--gpu", "none")
    assert code == 0, answer
    assert load(tmp_path / "mine.yaml").pytorch == "2.6.0"
