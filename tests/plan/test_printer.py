"""`render`: the whole text of real recipes, and that no value of a recipe is anything but data in it."""

import difflib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from envbuilder import steps
from envbuilder.builder.render import PRINTERS, print_recipe
from envbuilder.commands.render import PrintedForm
from envbuilder.core.cache import Store
from envbuilder.core.errors import UsageError
from envbuilder.lock.model import Artifact, LockedBuild
from envbuilder.plan.model import ExtensionsStep
from envbuilder.plan.printer.definition import print_definition
from envbuilder.plan.printer.dockerfile import folder_dockerfile, print_dockerfile
from envbuilder.plan.printer.printed import (
    BUILD_DOCUMENTS,
    WRITE,
    WRITE_MARKED,
    Printed,
    fetch,
    file_lines,
    in_comment,
    in_dockerfile,
    in_shell,
    marked,
)
from envbuilder.plan.program import SPEC, Program
from tests.support.locks import make_artifact, make_parts
from tests.support.plans import DIFFERS, INTERPRETER_ARCHIVE, make_small_printed, sdist, wheel

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
HADOLINT = Path(sys.executable).with_name("hadolint")
NAMES = ("cpu", "a100", "t4")
LINES = some.text(some.characters(exclude_categories=("Cc", "Cs")), max_size=40)
HOSTILE = (
    "$(touch /x)",
    '"; RUN x',
    "'",
    "\\",
    "`id`",
    "END",
    "SCRIPT",
    "# escape=`",
    "${PATH}",
    "<<'SCRIPT'",
    "RUN true",
)


def shown(text: str) -> str:
    """A text without the programs, which stand in files of their own."""
    for name in sorted(path.name for path in steps.FOLDER.iterdir() if path.is_file()):
        lines = "".join(f"|{line}\n" for line in steps.text(name).splitlines())
        text = text.replace(lines, f"|the program {name}\n")
    return text


@pytest.mark.parametrize("form", PRINTERS)
def test_the_text_of_a_recipe(form: str, golden: Callable[[str, str], None]):
    suffix = {"dockerfile": "dockerfile", "apptainer": "def"}[form]
    golden(f"printed-cpu.{suffix}", shown(PRINTERS[form](make_small_printed("cpu"))))


@pytest.mark.parametrize("name", ["cpu", "a100"])
def test_the_definition_files_are_what_is_printed(name: str, request: pytest.FixtureRequest, tmp_path: Path):
    locked = re.search(r"^uv==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked
    text = print_recipe(name, RECIPES, Store(tmp_path), "apptainer")
    text = text.replace(f"uv=={metadata.version('uv')}\n", f"{locked[0]}\n")
    path = ROOT / f"apptainer/{name}.def"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"{path} differs; `pytest --update-golden` writes it anew"
    )


BUILT_WITH = LockedBuild(name="zlang", wheels=(wheel("setuptools", "80.0.0"), wheel("wheel", "0.45.0")))


@pytest.mark.parametrize(
    ("change", "given"),
    [
        ("standalone", {"interpreter": INTERPRETER_ARCHIVE}),
        ("sdist", {"more": (sdist("zlang", "1.0"),), "builds": (BUILT_WITH,)}),
    ],
)
def test_what_a_kind_of_recipe_changes_in_a_text(
    change: str, given: dict[str, Any], golden: Callable[[str, str], None]
):
    before, after = (
        shown(print_dockerfile(make_small_printed("cpu", **more))).splitlines() for more in ({}, given)
    )
    golden(f"printed-{change}.diff", "\n".join(difflib.unified_diff(before, after, n=0, lineterm="")) + "\n")


@pytest.mark.parametrize("render", PRINTERS.values())
@pytest.mark.parametrize("name", [*NAMES, "gh200", "mudiff"])
def test_every_program_that_a_text_runs_is_written_by_it(name: str, render: Callable[[Printed], str]):
    printed = make_small_printed(name)
    text = render(printed)
    written = re.findall(r"^file [0-7]+ /steps/(\S+) <<", text, re.MULTILINE)
    run = set(re.findall(rf" /steps/(\S+) \S*{SPEC} ", text))
    assert run == {program.files[0] for program in printed.every}
    assert {name for program in printed.every for name in program.files} <= set(written)


@pytest.mark.parametrize("render", PRINTERS.values())
def test_a_text_for_arm_names_nothing_of_another_processor(render: Callable[[Printed], str]):
    text = shown(render(make_small_printed("gh200")))
    assert text.splitlines()[1] == "# It is for 64-bit Arm and builds on such a machine, without an emulator."
    assert not re.search(r"x86.64|amd64|qemu", text)


def test_the_command_line_offers_what_can_be_printed():
    assert {form.value for form in PrintedForm} == set(PRINTERS)


@pytest.mark.programs
@pytest.mark.parametrize("name", [*NAMES, "mudiff"])
@pytest.mark.parametrize("of_folder", [False, True])
def test_hadolint_finds_nothing(name: str, of_folder: bool, tmp_path: Path):
    printed, path = make_small_printed(name), tmp_path / "Dockerfile"
    names = {program.name for program in printed.programs}
    path.write_text(folder_dockerfile(printed.plan, names) if of_folder else print_dockerfile(printed))
    checked = subprocess.run([HADOLINT, "--no-color", path], capture_output=True, text=True, check=False)
    assert (checked.stdout, checked.stderr) == ("", "")


@pytest.mark.programs
def test_shellcheck_finds_nothing_in_the_programs():
    scripts = sorted(steps.FOLDER.glob("*.sh"))
    assert scripts
    assert subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False).stdout == ""


def test_documents_about_another_build_are_left_out():
    printed = make_small_printed("cpu")
    written = {path for program in printed.every for path, _ in program.texts}
    assert written
    assert not written & set(BUILD_DOCUMENTS)
    assert set(BUILD_DOCUMENTS) <= {path for path, _ in printed.plan.runtime.files}


def instructions(text: str) -> list[str]:
    """What Docker reads: the instructions, each with the here-document that belongs to it left out."""
    found, end = [], ""
    for line in text.split("\n"):
        if end:
            end = "" if line == end else end
        elif line and not line.startswith("#"):
            found.append(line)
            match = re.search(r"<<'(\w+)'$", line) if line.startswith("RUN ") else None
            end = match[1] if match else ""
    assert not end
    return found


def with_values(value: str) -> Printed:
    printed = make_small_printed("cpu")
    files = (("etc/first", value), ("etc/second", f"{value}\n{value}\n"))
    runtime = replace(printed.plan.runtime, env=(*printed.plan.runtime.env, ("MINE", value)), files=files)
    extensions = (
        replace(
            step,
            extensions=tuple(replace(extension, env=(("MINE", value),)) for extension in step.extensions),
        )
        if isinstance(step, ExtensionsStep)
        else step
        for step in printed.plan.steps[:-1]
    )
    return replace(
        printed,
        summary=value,
        labels=(("mine", value),),
        plan=replace(printed.plan, steps=(*extensions, runtime)),
    )


EMPTY = instructions(print_dockerfile(with_values("")))


@settings(max_examples=40, deadline=None)
@given(LINES | some.sampled_from(HOSTILE))
def test_a_value_adds_nothing_to_what_docker_reads(value: str):
    found = instructions(print_dockerfile(with_values(value)))
    changed = [one for one, other in zip(found, EMPTY, strict=True) if one != other]
    assert [one.split("=")[0] for one in changed] == (["ENV MINE", "LABEL mine"] if value else [])
    assert [unquoted(one.partition("=")[2]) for one in changed] == [value] * len(changed)


def sections(text: str) -> list[str]:
    """What Apptainer takes for headers and sections: every line that begins with a word of its own or a percent sign."""
    return [line for line in text.split("\n") if re.match(r"%|\s*(Bootstrap|From|Stage):", line)]


def posts(text: str) -> str:
    """The script that Apptainer puts together of the first stage's sections."""
    first = text.partition("\nBootstrap: scratch")[0]
    return "".join(re.split(r"(?m)^%post.*\n", first)[1:])


DEFINITION = print_definition(with_values(""))


@settings(max_examples=40, deadline=None)
@given(LINES | some.sampled_from((*HOSTILE, "%post", "Bootstrap: docker", "{{ BASE }}", "{{{{", "{^{{^")))
def test_a_value_adds_nothing_to_what_apptainer_reads(value: str):
    found = print_definition(with_values(value))
    assert sections(found) == sections(DEFINITION)
    assert re.findall(r"\{\{.*?\}\}", found) == re.findall(r"\{\{.*?\}\}", DEFINITION)
    assert found.count("{{") == DEFINITION.count("{{")


@pytest.mark.parametrize("name", [*NAMES, "gh200"])
def test_no_section_is_longer_than_apptainer_reads(name: str):
    parts = re.split(r"(?m)^(?=%)", print_definition(make_small_printed(name)))
    assert max(len(part.encode()) for part in parts) < 64 * 1024


def test_a_script_too_long_for_one_section_is_the_same_in_several():
    kit = make_small_printed("cpu")
    runtime = replace(kit.plan.runtime, files=tuple((f"etc/{number}", "x\n" * 9000) for number in range(9)))
    several = replace(kit.plan, steps=(*kit.plan.steps[:-1], runtime))
    text = print_definition(replace(kit, plan=several))
    assert len(re.findall(r"(?m)^%post", text)) > 2
    assert max(len(part.encode()) for part in re.split(r"(?m)^(?=%)", text)) < 64 * 1024
    script = posts(text).split("\n")
    assert script.count("|x") == 81000


@pytest.mark.parametrize("name", [*NAMES, "gh200", "gsplat", "torch_scatter", "mudiff"])
@pytest.mark.parametrize("more", [(), (wheel("einops", "0.8.1"),)])
def test_each_program_of_a_definition_file_runs_on_its_lower_steps_and_no_other(
    name: str, more: tuple[Artifact, ...]
):
    printed = make_small_printed(name, interpreter=INTERPRETER_ARCHIVE, more=more)
    script, there = posts(print_definition(printed)).split("\n"), {"os"}
    programs = {program.name: program for program in printed.every}
    for line in script:
        word, _, step = line.partition(" ")
        if word == "keep":
            there.add(step)
        elif word == "enter" and step.split()[0] != "os":
            root = set(programs[step.split()[0]].root)
            assert root <= there, line[:80]
            assert not {"python"} & (there - root) or "wheels.py" not in line, line[:80]
    assert there == {program.name for program in printed.programs}


def test_a_definition_file_removes_only_what_it_made():
    """Apptainer mounts the host's own folders into the stage: a word `rm` outside the new root names a folder of the text's own."""
    script = posts(print_definition(make_small_printed("a100"))).split("\n")
    removing = [
        line for line in script if not line.startswith("|") and re.search(r"\brm\b|-delete|\bmv\b", line)
    ]
    assert {re.sub(r"made/[\w-]+|inputs/[\w-]+", "STEP", line) for line in removing} == {
        "mv /uv/uv-*.data/scripts/uv /steps/uv && chmod 755 /steps/uv && rm -r /uv",
        "rm /steps/list",
        "mv /STEP/out/* /STEP/step/STEP/",
        "mv /STEP/step/STEP/root /target",
        "mv /target/out /STEP/out",
        '  mv "/made/$1/out" /target/out',
        "  chroot /target /bin/sh -euc 'cp -a /out/. / && rm -r /out'",
    }
    made = {re.match(r"mkdir /(\w+)", line) for line in script}
    assert {found[1] for found in made if found} == {"steps", "made"}


@pytest.mark.programs
@settings(max_examples=25, deadline=None)
@given(some.text("{}^|", max_size=12))
def test_braces_that_were_kept_apart_are_together_again(tmp_path_factory: pytest.TempPathFactory, text: str):
    path = tmp_path_factory.mktemp("file") / "name"
    lines = marked(file_lines(shlex.quote(str(path)), text))
    assert "{{" not in "".join(lines)
    subprocess.run(["sh", "-c", "\n".join(["set -eu", WRITE_MARKED, *lines])], check=True)
    assert path.read_bytes().decode() == text


def unquoted(text: str) -> str:
    """A word of a Dockerfile as its documentation says: in double quotes a backslash escapes, and a `$` is a variable."""
    assert re.fullmatch(r'"(?:[^"\\$]|\\.)*"', text)
    return re.sub(r"\\(.)", r"\1", text[1:-1])


@pytest.mark.programs
@settings(max_examples=25, deadline=None)
@given(LINES | some.sampled_from(HOSTILE))
def test_a_word_is_that_word_to_a_shell(value: str):
    ended = subprocess.run(["sh", "-c", f"printf %s {in_shell(value)}"], stdout=subprocess.PIPE, check=True)
    assert ended.stdout.decode() == value


@pytest.mark.programs
@settings(max_examples=25, deadline=None)
@given(
    some.lists(LINES | some.sampled_from(HOSTILE)).map("\n".join) | some.sampled_from(["", "\n", "\n\n", "x"])
)
def test_a_file_is_written_byte_for_byte(tmp_path_factory: pytest.TempPathFactory, text: str):
    path = tmp_path_factory.mktemp("file") / "folder/name"
    script = "\n".join(["set -eu", WRITE, *file_lines(shlex.quote(str(path)), text)])
    subprocess.run(["sh", "-c", script], check=True)
    assert path.read_bytes().decode() == text


@pytest.mark.parametrize("quote", [in_shell, in_dockerfile])
@pytest.mark.parametrize("value", ["a\nb", "a\rb", "\0"])
def test_a_control_character_is_refused(quote: Callable[[str], str], value: str):
    with pytest.raises(UsageError, match="control character"):
        quote(value)


@given(some.text())
def test_a_comment_stays_one_line(text: str):
    assert len(in_comment(text).splitlines()) <= 1


def test_the_documentation_lists_every_path_that_is_not_the_same():
    table = (
        (ROOT / "docs/how-to/render.md").read_text(encoding="utf-8").partition("## What is not the same")[2]
    )
    assert set(re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)) == set(DIFFERS)


def test_components_of_nvidia_s_archive_come_from_a_mirror_or_from_nvidia():
    lines = fetch(with_inputs(make_parts("12.6", "archive")), make_small_printed("cpu"))
    assert "mirror=${CUDA_REDIST:-https://developer.download.nvidia.com/compute/cuda/redist/}" in lines


def test_packages_of_a_recipe_s_repository_come_from_its_address():
    printed = replace(make_small_printed("cpu"), repositories={"apt-site": "https://apt.site.org/$(id)/"})
    deb = replace(make_artifact("tool", kind="deb"), source="apt-site")
    lines = fetch(with_inputs((deb,)), printed)
    assert "mirror='https://apt.site.org/$(id)/'" in lines
    assert f"|{deb.sha256}  /step/inputs/{deb.filename}\t{deb.path}" in lines


def with_inputs(artifacts: tuple[Artifact, ...]) -> Program:
    inputs = tuple((artifact.filename, artifact) for artifact in artifacts)
    return Program(name="x", files=(), interpreter="sh", root=(), spec="{}", inputs=inputs)
