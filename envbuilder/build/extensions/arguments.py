"""What a container needs to compile a plan's extensions without envbuilder: arguments of programs, as JSON."""

import json
from collections.abc import Mapping

from envbuilder.build.extensions import commands
from envbuilder.build.extensions.call import relative, written_call
from envbuilder.build.extensions.compiled import PACKAGE
from envbuilder.build.extensions.install import VERSION, described, installed_at
from envbuilder.build.extensions.key import make_key, project_key, surroundings
from envbuilder.core.errors import UsageError
from envbuilder.lock.model import LockedExtension
from envbuilder.plan.model import ExtensionsStep, Plan
from envbuilder.plan.render import Compile
from envbuilder.recipe.extension import Form


def written(plan: Plan, *, jobs: int) -> tuple[Compile, ...]:
    """Every extension of the plan; raises UsageError where `need_calls` does."""
    need_calls(plan)
    steps = (step for step in plan.steps if isinstance(step, ExtensionsStep))
    return tuple(
        _project(plan, step, extension, jobs)
        if extension.form is Form.PROJECT
        else _call(plan, step, extension, jobs)
        for step in steps
        for extension in step.extensions
    )


def need_calls(plan: Plan) -> None:
    """Raise UsageError for an extension whose calls of torch's `load()` nobody knows before its project's imports run."""
    other = next((one for one in plan.extensions if one.form is Form.CAPTURE), None)
    if other is not None:
        raise UsageError(
            f"the extension `{other.name}` has `capture`, and the docker engine runs no imports to see what they compile",
            hint="name the `sources` that they compile"
            if plan.os.base
            else "`--engine assemble` runs them; or name the `sources` that they compile",
        )


def need_sources(plan: Plan) -> None:
    """Raise UsageError for an extension that no text can hold: a project builds itself out of more than a recipe's own files."""
    other = next((one for one in plan.extensions if one.form is not Form.LOAD), None)
    if other is not None:
        raise UsageError(
            f"the extension `{other.name}` cannot be written as text: a project's own build, or what its imports "
            "compile, is known only when it runs",
            hint="`sources` in a recipe can be written; `envbuilder build` makes the others",
        )


def _call(plan: Plan, step: ExtensionsStep, extension: LockedExtension, jobs: int) -> Compile:
    call = written_call(extension)
    files = json.dumps([(f"src/{file.path}", file.sha256) for file in extension.files])
    key = make_key(surroundings(plan, extension), call=call.to_json(), files=files)
    entry = {
        "name": call.name,
        "function": call.function,
        "key": key.digest,
        **described(call, installed_at(call.name, key)),
    }
    more = {
        "has_cuda": call.has_cuda,
        "base": call.base,
        "sources": [relative(source, call.base) for source in call.sources],
    }
    return Compile(
        name=extension.name,
        files=extension.files,
        specification=commands.compile_specification(call),
        entry=_entry(step, entry, **more),
        env=(*commands.environment(step.architectures, jobs), *extension.env),
    )


def _project(plan: Plan, step: ExtensionsStep, extension: LockedExtension, jobs: int) -> Compile:
    entry = {"name": extension.name, "function": PACKAGE, "key": project_key(plan, extension).digest}
    folder = commands.project_folder(extension)
    return Compile(
        name=extension.name,
        files=extension.files,
        specification=commands.build_specification(extension),
        entry=_entry(step, entry, project=folder),
        env=commands.build_environment(
            extension, architectures=step.architectures, jobs=jobs, epoch=plan.epoch
        ),
        project=folder,
    )


def _entry(step: ExtensionsStep, entry: Mapping[str, object], **more: object) -> str:
    """The argument of `place_extension.py`."""
    gpus = list(step.architectures)
    value = {
        "entry": entry,
        "head": {"version": VERSION, "architectures": gpus},
        "architectures": gpus,
        **more,
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
