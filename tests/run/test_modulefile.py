"""A module of a cluster: whole texts, and a command that gives Apptainer the same options as `exec`."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from envbuilder import __version__
from envbuilder.core.errors import UsageError
from envbuilder.run.container import probe_surroundings, sif_argv
from envbuilder.run.launch.script import render_enter
from envbuilder.run.launch.site import Site
from envbuilder.run.modulefile import Module, render_lua, render_tcl, save_module

SITE = Site(
    modules=("apptainer/1.3",), binds=("$PROJECT/data set", "/scratch:/scratch:ro"), scratch="$SCRATCH"
)
A100 = Module(name="a100", sif=Path("/shared/my env/a100.sif"), torch="2.6.0", cuda="12.4", site=SITE)
CPU = Module(name="cpu", sif=Path("/shared/cpu.sif"), torch="2.13.0", cuda="", site=Site())
NASTY = Module(name="x", sif=Path("/a \"$[exit]{};\\'b/x.sif"), torch="1", cuda="", site=Site())


def test_the_whole_texts(golden):
    commands = Path("/shared/modules/commands/a100")
    script = render_enter(A100.name, A100.sif, A100.site)
    golden("module-exec.sh", script.replace(f"envbuilder {__version__}", "envbuilder VERSION"))
    golden("module.lua", render_lua(A100, commands))
    golden("module.tcl", render_tcl(A100, commands))


@pytest.mark.programs
@pytest.mark.parametrize("module", [A100, CPU, NASTY], ids=["a100", "cpu", "nasty"])
def test_shellcheck_finds_nothing(module: Module, tmp_path: Path):
    script = tmp_path / "script"
    script.write_text(render_enter(module.name, module.sif, module.site))
    checked = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert checked.stdout == ""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A module whose Apptainer prints the words that it is given."""
    apptainer, sif = tmp_path / "apptainer", tmp_path / "my x.sif"
    apptainer.write_text("#!/bin/sh\nprintf '%s\\0' apptainer \"$@\"\n")
    apptainer.chmod(0o755)
    sif.touch()
    site = Site(apptainer=str(apptainer), binds=("$GIVEN/data", "/etc:/data/etc:ro", "/nowhere", "/var/tmp"))
    save_module(Module(name="x", sif=sif, torch="1", cuda="", site=site), tmp_path / "my modules")
    return tmp_path / "my modules/commands/x"


@pytest.mark.programs
@pytest.mark.parametrize("place", ["a b/src", "a b", ".", "/usr/share", "/", "/opt"])
def test_a_command_has_the_options_of_exec(
    written: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
):
    base = tmp_path / "base"
    folder = base / place  # in a checkout, or not
    for path in ("given/data", "a b/src", "a b/.git"):
        (base / path).mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"], "GIVEN": str(base / "given"), "TMPDIR": str(base / "given")}
    environment |= {"HOME": str(base)}
    (base / ".bashrc").touch()
    # What Apptainer shares by itself is not bound again, and here everything is below /tmp.
    monkeypatch.setattr("envbuilder.run.container.SHARED_BY_APPTAINER", ("/var/tmp",))
    script = written / "x-exec"
    script.write_text(script.read_text().replace("shared_trees=(/tmp /var/tmp)", "shared_trees=(/var/tmp)"))
    said = subprocess.run(
        [written / "torchrun", "--x", "a b", ""], cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    site_binds = (f"{base}/given/data", "/etc:/data/etc:ro")
    around = probe_surroundings(
        folder, environment=environment, ids=(os.getuid(), os.getgid()), binds=site_binds
    )
    monkeypatch.setattr("envbuilder.run.container.START_FILE", written / "start_file.sh")
    wanted = sif_argv(tmp_path / "my x.sif", ["torchrun", "--x", "a b", ""], around)
    assert sorted_options(said.split("\0")[:-1]) == sorted_options(list(wanted))


def sorted_options(argv: list[str]) -> list[object]:
    """The command line with its options in one order: `--bind` and `--env` with their values."""
    at = next(number for number, word in enumerate(argv) if word.endswith("x.sif"))
    options = argv[2:at]
    pairs = (
        sorted(zip(options[::2], options[1::2], strict=True)) if "--nv" not in options else sorted(options)
    )
    return [*argv[:2], *pairs, *argv[at:]]


@pytest.mark.programs
def test_an_option_does_not_become_the_program(written: Path):
    def said(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([written / "x-exec", *words], capture_output=True, text=True, check=False)

    refused = said("--nv", "python")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "there is no option --nv" in refused.stderr
    assert said("--", "python", "-V").stdout == said("python", "-V").stdout
    assert said("--").stdout == said().stdout


@pytest.mark.programs
def test_a_sif_that_was_moved_is_said(written: Path, tmp_path: Path):
    (tmp_path / "my x.sif").unlink()
    ended = subprocess.run([written / "python", "-V"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "cannot read" in ended.stderr
    assert "was it moved" in ended.stderr


@pytest.mark.programs
def test_tcl_reads_every_value_as_it_was_given():
    procedures = "proc module-whatis {text} { puts $text }\nproc prepend-path {name value} { puts $value }\n"
    text = procedures + render_tcl(NASTY, Path("/c $x[y]"))
    said = subprocess.run(["tclsh"], input=text, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [NASTY.summary, "/c $x[y]"]


def test_a_module_that_is_written_again_is_the_new_one(tmp_path: Path):
    save_module(A100, tmp_path)
    assert (tmp_path / "commands/a100/nvcc").is_symlink()
    save_module(Module(name="a100", sif=CPU.sif, torch="2", cuda="", site=Site()), tmp_path)
    assert not (tmp_path / "commands/a100/nvcc").is_symlink()
    assert shlex.quote(str(CPU.sif)) in (tmp_path / "commands/a100/a100-exec").read_text()


def versioned(tmp_path: Path, version: str, content: str) -> Module:
    sif = tmp_path / "x.sif"
    sif.unlink(missing_ok=True)  # a build renames a new file to it
    sif.write_text(content)
    return Module(name="x", sif=sif, torch="2", cuda="", site=Site(), version=version)


def test_versions_of_a_module_lie_beside_each_other_and_keep_their_sif(tmp_path: Path):
    save_module(versioned(tmp_path, "2026.10", "old"), tmp_path)
    files = save_module(versioned(tmp_path, "2026.11", "new"), tmp_path)
    names = ["2026.10", "2026.10.lua", "2026.11", "2026.11.lua"]
    assert sorted(one.name for one in (files / "x").iterdir()) == names
    for version, content in (("2026.10", "old"), ("2026.11", "new")):
        kept = tmp_path / f"x-{version}.sif"
        assert kept.read_text() == content
        assert f"sif={kept}\n" in (tmp_path / f"commands/x/{version}/x-exec").read_text()
        assert str(tmp_path / f"commands/x/{version}") in (files / f"x/{version}.lua").read_text()
    save_module(versioned(tmp_path, "2026.12", "x"), tmp_path)
    with pytest.raises(UsageError, match=r"version 2026.11 is there: .* is another SIF"):
        save_module(versioned(tmp_path, "2026.11", "newer"), tmp_path)
    assert (tmp_path / "x-2026.11.sif").read_text() == "new"
    (tmp_path / "b").mkdir()
    elsewhere = versioned(tmp_path / "b", "2026.11", "another")
    with pytest.raises(
        UsageError, match=r"version 2026.11 is there: .* runs another SIF than .*b/x-2026.11.sif"
    ):
        save_module(elsewhere, tmp_path)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["x.sif"]


def test_a_module_with_versions_and_one_without_do_not_share_a_name(tmp_path: Path):
    save_module(versioned(tmp_path, "", "one"), tmp_path)
    with pytest.raises(UsageError, match=r"the module `x` in .* has no version"):
        save_module(versioned(tmp_path, "1", "one"), tmp_path)
    assert not (tmp_path / "x-1.sif").exists()
    save_module(versioned(tmp_path, "1", "one"), tmp_path / "other")
    with pytest.raises(UsageError, match=r"the module `x` in .* has versions"):
        save_module(versioned(tmp_path, "", "one"), tmp_path / "other")


def test_a_folder_that_cannot_be_written_or_found_is_said(tmp_path: Path):
    (tmp_path / "commands").touch()
    with pytest.raises(UsageError, match="cannot write the module"):
        save_module(CPU, tmp_path)
    with pytest.raises(UsageError, match="colon"):
        save_module(CPU, tmp_path / "a:b")


def test_a_link_in_a_folder_of_modules_is_not_followed(tmp_path: Path):
    """What has the module's name where it leads was removed."""
    (tmp_path / "precious/cpu").mkdir(parents=True)
    (tmp_path / "precious/cpu/file").write_text("precious")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/commands").symlink_to("../precious")
    with pytest.raises(UsageError, match="found a link"):
        save_module(CPU, tmp_path / "modules")
    assert (tmp_path / "precious/cpu/file").read_text() == "precious"
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["cpu"]
