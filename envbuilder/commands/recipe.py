"""Verbs on recipes: list, show, check, lock."""

import functools
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuilder.commands.context import (
    RECIPES,
    Json,
    Name,
    NoColor,
    Recipes,
    Session,
    Verbose,
    verb,
    workshop,
)
from envbuilder.core.errors import RecipeError, UsageError

if TYPE_CHECKING:
    from envbuilder.compat.image_facts import Base
    from envbuilder.recipe.model import Recipe

app = typer.Typer()


@app.command("list")
def list_(
    *, recipes: Recipes = RECIPES, as_json: Json = False, verbose: Verbose = 0, no_color: NoColor = False
) -> None:
    """List the recipes with their pins."""
    from envbuilder.core.console import columns  # noqa: PLC0415
    from envbuilder.recipe.model import load_all  # noqa: PLC0415

    with verb("list", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        rows = []
        sound, session.findings = load_all(recipes)
        if session.findings:
            session.exit_code = RecipeError.exit_code
        for recipe in sound:
            pins = {
                "base": recipe.base or recipe.image,
                "python": recipe.python,
                "pytorch": recipe.pytorch,
                "cuda": recipe.cuda,
                "gcc": recipe.gcc,
            }
            rows.append({"name": recipe.name, "summary": recipe.summary, "gpus": list(recipe.gpus)} | pins)
        session.data = rows
        session.text = columns([_row(row) for row in rows], session.width)


def _row(row: Mapping[str, object]) -> list[str]:
    titles = {"pytorch": "torch", "cuda": "cuda", "gcc": "gcc", "python": "python"}
    pins = [f"{title} {row[key] or '-'}" for key, title in titles.items()]
    return [str(row["name"]), *pins, str(row["base"]), str(row["summary"])]


@app.command()
def show(
    name: Name,
    *,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Show the effective recipe, where each value came from, and what follows from the pins."""
    from envbuilder.compat.check import load_tables  # noqa: PLC0415
    from envbuilder.compat.explain import brief, facts  # noqa: PLC0415
    from envbuilder.compat.tables.toolkit import load_toolkits  # noqa: PLC0415
    from envbuilder.core.console import columns  # noqa: PLC0415
    from envbuilder.recipe.model import find_recipe, load  # noqa: PLC0415

    with verb("show", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        recipe = load(find_recipe(name, recipes))
        values = {key: value for key, value in json.loads(recipe.canonical()).items() if key != "format"}
        base = _known_base(recipe, session=session, recipes=recipes) if recipe.image else None
        found = facts(recipe, load_tables(load_toolkits()), base)
        session.data = {
            "name": recipe.name,
            "recipe": values,
            "places": dict(recipe.places),
            "facts": [{"name": one.name, "value": one.value, "source": one.source} for one in found],
        }
        pins = [(key, brief(value), recipe.place(f"$.{key}")) for key, value in values.items()]
        session.text = (
            f"{columns(pins, session.width)}\n\n"
            f"{columns([(one.name, one.value, one.source) for one in found], session.width)}"
        )


@app.command()
def check(
    name: Name,
    *,
    host: Annotated[
        Path | None, typer.Option("--host", help="facts of the machine it is to run on: `driver`, `gpus`")
    ] = None,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Report everything in the recipe that cannot work, before anything is downloaded."""
    from envbuilder.compat.check import examine_file, need_sound  # noqa: PLC0415

    with verb("check", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        base_of = functools.partial(_known_base, session=session, recipes=recipes)
        recipe, report = examine_file(name, recipes, host, base_of=base_of)
        session.data = {"name": recipe.name, "repairs": [repair.data() for repair in report.repairs]}
        need_sound(recipe, report)
        session.findings = report.findings
        session.text = f"{name}: no problems found" if not report.findings else ""


def _known_base(recipe: "Recipe", *, session: Session, recipes: Path) -> "Base | None":
    """Few recipes stand on an image, and for the others the whole pipeline need not be imported."""
    from envbuilder.lock.known_base import known_base  # noqa: PLC0415

    return known_base(recipe, store=workshop(session, recipes, writes=False).store)


class Form(StrEnum):
    """What `render` writes."""

    DOCKERFILE = "dockerfile"
    APPTAINER = "apptainer"


@app.command()
def render(
    name: Name,
    *,
    form: Annotated[
        Form, typer.Option("--as", help="a Dockerfile, or a definition file of Apptainer")
    ] = Form.DOCKERFILE,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Print the whole build as text for `docker buildx build` or `apptainer build`: it needs no envbuilder."""
    from envbuilder.build.pipeline import render_recipe  # noqa: PLC0415

    with verb("render", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        text = render_recipe(name, workshop(session, recipes, writes=False), form.value)
        session.data = {"name": name, "form": form.value, "text": text}
        session.text = text.removesuffix("\n")


@app.command()
def lock(
    name: Name,
    packages: Annotated[
        list[str] | None,
        typer.Argument(help="with --upgrade: the packages that may move", metavar="PKG"),
    ] = None,
    *,
    check: Annotated[bool, typer.Option("--check", help="write nothing; print what would change")] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="choose versions anew: of PKG…, or all of them")
    ] = False,
    before: Annotated[
        datetime | None,
        typer.Option(
            "--before", formats=["%Y-%m-%d"], metavar="DATE", help="choose as of the start of that day, UTC"
        ),
    ] = None,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Resolve a recipe into its lock, `NAME.lock` beside it."""
    from envbuilder.build.pipeline import lock_recipe  # noqa: PLC0415
    from envbuilder.lock.resolve import Wish  # noqa: PLC0415

    with verb("lock", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        if packages and not upgrade:
            raise UsageError(
                "packages go with `--upgrade`", hint=f"envbuilder lock {name} --upgrade {' '.join(packages)}"
            )
        wish = Wish(
            today=datetime.now(UTC).date(),
            upgrade=upgrade and not packages,
            upgrade_only=tuple(packages or ()),
            before=before.date() if before else None,
        )
        shop = workshop(session, recipes)
        with shop.console.group(f"lock {name}"):
            changes = lock_recipe(name, shop, wish=wish, save=not check)
        session.data = {"changes": list(changes)}
        session.text = "\n".join(changes) or f"the lock of {name} is as it was"
        if check and changes:
            session.exit_code = 4
