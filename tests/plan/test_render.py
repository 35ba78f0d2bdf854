"""`render`: the whole text of real recipes, and that no value of a recipe is anything but data in it."""

import difflib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from envbuilder import runtime as image
from envbuilder.builder.render import RENDERERS, make_kit, render_recipe
from envbuilder.commands.render import Form
from envbuilder.core.cache import Store
from envbuilder.core.errors import UsageError
from envbuilder.lock.model import Artifact, LockedBuild
from envbuilder.plan.model import OsStep
from envbuilder.plan.render import steps
from envbuilder.plan.render.definition import render_definition
from envbuilder.plan.render.dockerfile import render_base, render_dockerfile
from envbuilder.plan.render.kit import Kit
from envbuilder.plan.render.quote import (
    WRITE,
    WRITE_MARKED,
    file_lines,
    in_comment,
    in_dockerfile,
    in_shell,
    marked,
)
from envbuilder.plan.render.stages import STAGES
from envbuilder.plan.render.steps import BUILD_DOCUMENTS
from envbuilder.recipe.load import load
from tests.support.locked_base import BASE
from tests.support.locks import make_artifact, make_parts
from tests.support.plans import DIFFERS, INTERPRETER_ARCHIVE, make_small_kit, sdist, wheel

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


@pytest.mark.parametrize("name", NAMES)
def test_the_text_of_a_recipe(name: str, golden: Callable[[str, str], None]):
    golden(f"render-{name}.dockerfile", render_dockerfile(make_small_kit(name)))


def test_the_text_of_a_recipe_as_a_definition_file(golden: Callable[[str, str], None]):
    golden("render-t4.def", render_definition(make_small_kit("t4")))


@pytest.mark.parametrize("name", ["cpu", "a100"])
def test_the_definition_files_are_what_render_prints(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
):
    locked = re.search(r"^uv==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked
    text = render_recipe(name, RECIPES, Store(tmp_path), "apptainer")
    text = text.replace(f"uv=={metadata.version('uv')}\n", f"{locked[0]}\n")
    path = ROOT / f"apptainer/{name}.def"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"{path} differs; `pytest --update-golden` writes it anew"
    )


@pytest.mark.parametrize("form", RENDERERS)
def test_what_a_standalone_python_changes_in_a_text(form: str, golden: Callable[[str, str], None]):
    before, after = (
        RENDERERS[form](make_small_kit("cpu", interpreter=one)).splitlines()
        for one in (None, INTERPRETER_ARCHIVE)
    )
    golden(
        f"render-standalone.{form}", "\n".join(difflib.unified_diff(before, after, n=0, lineterm="")) + "\n"
    )


@pytest.mark.parametrize("form", RENDERERS)
def test_what_a_source_distribution_changes_in_a_text(form: str, golden: Callable[[str, str], None]):
    build = LockedBuild(name="zlang", wheels=(wheel("setuptools", "80.0.0"), wheel("wheel", "0.45.0")))
    before, after = (
        RENDERERS[form](make_small_kit("cpu", more=more, builds=builds)).splitlines()
        for more, builds in (((), ()), ((sdist("zlang", "1.0"),), (build,)))
    )
    golden(f"render-sdist.{form}", "\n".join(difflib.unified_diff(before, after, n=0, lineterm="")) + "\n")


@pytest.mark.parametrize("render", RENDERERS.values())
@pytest.mark.parametrize(
    ("name", "interpreter"), [*((name, None) for name in (*NAMES, "gh200")), ("t4", INTERPRETER_ARCHIVE)]
)
def test_every_program_that_a_text_runs_is_written_by_it(
    name: str, interpreter: Artifact | None, render: Callable[[Kit], str]
):
    text = render(make_small_kit(name, interpreter=interpreter))
    written = re.findall(r"^\|?file [0-7]+ /kit/(\S+) <<", text, re.MULTILINE)
    run = set(re.findall(r"/kit/(\w+\.(?:py|sh|ld))\b", text)) & {
        program for program, _ in image.files("kit")
    }
    assert {"configure_os.sh", "check_byte_code.py"} <= run
    assert run <= set(written)


@pytest.mark.parametrize("render", RENDERERS.values())
def test_a_text_for_arm_names_nothing_of_another_processor(render: Callable[[Kit], str]):
    text = render(make_small_kit("gh200"))
    assert text.splitlines()[1] == "# It is for 64-bit Arm and builds on such a machine, without an emulator."
    assert "aarch64-linux-gnu-gcc=gcc" in text
    assert not re.search(r"x86.64|amd64|qemu", text)


def test_the_command_line_offers_what_can_be_rendered():
    assert {form.value for form in Form} == set(RENDERERS)


@pytest.mark.programs
@pytest.mark.parametrize(
    "name",
    [*(f"tests/golden/render-{name}.dockerfile" for name in NAMES), "Dockerfile.base", "Dockerfile.extend"],
)
def test_hadolint_finds_nothing(name: str):
    checked = subprocess.run(
        [HADOLINT, "--no-color", name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (checked.stdout, checked.stderr) == ("", "")


@pytest.mark.programs
def test_shellcheck_finds_nothing_in_the_programs_of_a_text():
    scripts = sorted((ROOT / "envbuilder/runtime/kit").glob("*.sh"))
    assert len(scripts) > 3
    assert subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False).stdout == ""


def test_each_step_but_the_runtime_has_a_stage_in_the_order_of_the_layers():
    steps = [step.name for step in make_small_kit("a100").plan.steps]
    assert [stage.name for stage in STAGES] == [steps[0], "interpreter", *steps[1:-1], "added"]


def test_the_dockerfile_of_buildkit_is_what_the_stages_say(request: pytest.FixtureRequest):
    path = ROOT / "Dockerfile.base"
    if request.config.getoption("--update-golden"):
        path.write_text(render_base(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == render_base()


def test_documents_about_another_build_are_left_out():
    kit = make_small_kit("cpu")
    written = [line for line in steps.runtime(kit, out="") if line.startswith("file ")]
    assert written
    assert not [line for line in written for path in BUILD_DOCUMENTS if path in line]
    assert set(BUILD_DOCUMENTS) <= {path for path, _ in kit.plan.runtime.files}


@pytest.mark.parametrize("render", RENDERERS.values())
def test_a_capture_and_a_project_are_written_as_text(render: Callable[[Kit], str]):
    assert '"form": "capture"' in render(make_small_kit("mudiff"))


def test_an_archive_is_refused_with_a_reason():
    with pytest.raises(UsageError, match="cannot be written as text"):
        make_small_kit("gsplat")


def test_a_base_that_is_an_image_is_refused_with_a_reason():
    plan = make_small_kit("cpu").plan
    assert isinstance(plan.steps[0], OsStep)
    on_an_image = replace(plan, steps=(replace(plan.steps[0], base=BASE), *plan.steps[1:]))
    with pytest.raises(UsageError, match="is based on the image `site/base@sha256:"):
        make_kit(load(RECIPES / "cpu.yaml"), on_an_image, pytorch_index="")


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


def with_values(value: str) -> Kit:
    kit = make_small_kit("cpu")
    files = (("etc/one", value), ("etc/two", f"{value}\n{value}\n"))
    runtime = replace(kit.plan.runtime, env=(*kit.plan.runtime.env, ("MINE", value)), files=files)
    assert kit.extensions
    (part, *_) = kit.extensions.parts
    extensions = replace(
        kit.extensions, parts=(replace(part, spec=json.dumps(value)),), spec=json.dumps(value)
    )
    return replace(
        kit,
        summary=value,
        labels=(("mine", value),),
        plan=replace(kit.plan, steps=(*kit.plan.steps[:-1], runtime)),
        extensions=extensions,
    )


EMPTY = instructions(render_dockerfile(with_values("")))


@settings(max_examples=40, deadline=None)
@given(LINES | some.sampled_from(HOSTILE))
def test_a_value_adds_nothing_to_what_docker_reads(value: str):
    found = instructions(render_dockerfile(with_values(value)))
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


DEFINITION = render_definition(with_values(""))


@settings(max_examples=40, deadline=None)
@given(LINES | some.sampled_from((*HOSTILE, "%post", "Bootstrap: docker", "{{ BASE }}", "{{{{", "{^{{^")))
def test_a_value_adds_nothing_to_what_apptainer_reads(value: str):
    found = render_definition(with_values(value))
    assert sections(found) == sections(DEFINITION)
    assert re.findall(r"\{\{.*?\}\}", found) == re.findall(r"\{\{.*?\}\}", DEFINITION)
    assert found.count("{{") == DEFINITION.count("{{")


@pytest.mark.parametrize("name", [*NAMES, "gh200"])
def test_no_section_is_longer_than_apptainer_reads(name: str):
    parts = re.split(r"(?m)^(?=%)", render_definition(make_small_kit(name)))
    assert max(len(part.encode()) for part in parts) < 64 * 1024


def test_a_script_too_long_for_one_section_is_the_same_in_several():
    kit = make_small_kit("cpu")
    runtime = replace(kit.plan.runtime, files=tuple((f"etc/{number}", "x\n" * 9000) for number in range(9)))
    several = replace(kit.plan, steps=(*kit.plan.steps[:-1], runtime))
    text = render_definition(replace(kit, plan=several))
    assert len(re.findall(r"(?m)^%post", text)) > 2
    assert max(len(part.encode()) for part in re.split(r"(?m)^(?=%)", text)) < 64 * 1024
    script = posts(text).split("\n")
    assert script.count("|x") == 81000


def test_a_definition_file_removes_only_what_it_made():
    """Apptainer mounts the host's own folders into the stage: a word `rm` outside the new root names a folder of the text's own."""
    script = posts(render_definition(make_small_kit("a100"))).split("\n")
    removing = [
        line for line in script if not line.startswith("|") and re.search(r"\brm\b|-delete|\bmv\b", line)
    ]
    assert removing == [
        "mv /kit/wheel/uv-*.data/scripts/uv /kit/uv && chmod 755 /kit/uv && rm -r /kit/wheel",
        "rm /debs/list",
        "rm /parts/list",
    ]
    made = [line for line in script if line.startswith("mkdir /")]
    assert made == ["mkdir /kit", "mkdir /debs", "mkdir /target /target/usr && cd /target", "mkdir /parts"]


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


@pytest.mark.programs
def test_the_script_that_removes_files_refuses_a_machine_that_is_installed():
    """It is for a root of unpacked packages only; this machine's own dpkg has a status, so nothing may be touched here."""
    script = Path(__file__).parents[2] / "envbuilder/runtime/kit/configure_os.sh"
    text = script.read_text(encoding="utf-8")
    guard = text[: text.index("export DEBIAN_FRONTEND")]
    assert "rm " not in guard.partition("set -eu")[2]
    ended = subprocess.run(["sh", "-c", guard, "sh", "/nonexistent", "12"], capture_output=True, check=False)
    assert ended.returncode == 1
    assert b"only in a new root" in ended.stderr


def test_the_documentation_lists_every_path_that_is_not_the_same():
    table = (
        (ROOT / "docs/how-to/render.md").read_text(encoding="utf-8").partition("## What is not the same")[2]
    )
    assert set(re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)) == set(DIFFERS)


def test_components_of_nvidia_s_archive_come_from_a_mirror_or_from_nvidia():
    parts = make_parts("12.6", "archive")
    lines = steps.fetch_files(make_small_kit("cpu"), parts, "/parts")
    assert "mirror=${CUDA_REDIST:-https://developer.download.nvidia.com/compute/cuda/redist/}" in lines
    assert {f"|{one.sha256}  {one.path}" for one in parts} <= set(lines)


def test_packages_of_a_recipe_s_repository_come_from_its_address():
    kit = replace(make_small_kit("cpu"), repositories={"apt-site": "https://apt.site.org/$(id)/"})
    deb = replace(make_artifact("tool", kind="deb"), source="apt-site")
    lines = steps.fetch_files(kit, (deb,), "/debs")
    assert "mirror='https://apt.site.org/$(id)/'" in lines
    assert f"|{deb.sha256}  {deb.path}" in lines
