"""Run a recipe's own tests in the image and in the SIF, before either gets its final name."""

import os
import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError, ToolError
from envbuilder.core.findings import CodeEnum, Finding, Severity
from envbuilder.core.process import Completed
from envbuilder.recipe.model import Recipe
from envbuilder.run.container import probe_surroundings, run_in_image, run_in_sif

if TYPE_CHECKING:
    from envbuilder.artifacts.docker_engine import DockerEngine


class BuildCode(CodeEnum):
    UNTESTED = "EB650", "the tests of the recipe were not run in the SIF"


def run_recipe_tests(
    recipe: Recipe, sif: Path, *,
    docker: "DockerEngine | None", image: str, environment: Mapping[str, str], console: Console,
) -> tuple[Finding, ...]:  # fmt: skip
    """Run each test of the recipe in both artifacts. Raises BuildError for a failed test.

    `image` is the image's name in the Docker engine, if there is one. Returns a warning if Apptainer is not installed.
    """
    findings: list[Finding] = []
    surroundings = probe_surroundings(Path.cwd(), environment=environment, ids=(os.geteuid(), os.getegid()))

    def in_sif(test: str) -> None:
        with console.step(f"test in the SIF: {test}") as step:
            try:
                _need_success(run_in_sif(sif, shlex.split(test), surroundings, environment), test, "the SIF")
            except ToolError as error:
                step.skip("Apptainer is not installed")
                findings.append(
                    Finding(
                        code=BuildCode.UNTESTED, severity=Severity.WARNING, where=recipe.place("$.tests"), hint=error.hint,
                        message="the recipe's tests were not run in the SIF: Apptainer is not installed",
                    )
                )  # fmt: skip

    def in_image(test: str) -> None:
        if docker:
            with console.step(f"test in the image: {test}"):
                _need_success(run_in_image(docker, image, shlex.split(test), surroundings), test, "the image")

    for test in recipe.tests:
        with ThreadPoolExecutor(2) as pool:
            for tested in [pool.submit(run, test) for run in (in_sif, in_image)]:
                tested.result()
    return tuple(findings)


def _need_success(ran: Completed, test: str, where: str) -> None:
    if ran.code:
        tail = "\n".join(ran.output.splitlines()[-20:])
        raise BuildError(f"the recipe's test `{test}` failed in {where} with exit code {ran.code}\n{tail}")
