"""What a container needs to compile a plan's extensions without envbuilder: arguments of programs, as JSON."""

import json

from envbuilder.engines.extensions import commands
from envbuilder.engines.extensions.call import relative, written_call
from envbuilder.engines.extensions.key import make_key, surroundings
from envbuilder.engines.extensions.layer import VERSION, described, installed_at
from envbuilder.errors import UsageError
from envbuilder.extension import Form
from envbuilder.lock import LockedExtension
from envbuilder.plan import ExtensionsStep, Plan
from envbuilder.render import Compile


def written(plan: Plan, *, jobs: int) -> tuple[Compile, ...]:
    """Every extension of the plan; raises UsageError for one that is no plain call of torch's `load()`."""
    for extension in plan.extensions:
        if extension.form is not Form.LOAD:
            raise UsageError(
                f"the extension `{extension.name}` cannot be written as text: a project's own build, or what its imports "
                "compile, is known only when it runs",
                hint="`sources` in a recipe can be written; `envbuilder build` makes the others",
            )
    steps = (step for step in plan.steps if isinstance(step, ExtensionsStep))
    return tuple(_written(plan, step, extension, jobs) for step in steps for extension in step.extensions)


def _written(plan: Plan, step: ExtensionsStep, extension: LockedExtension, jobs: int) -> Compile:
    call = written_call(extension)
    files = json.dumps([(f"src/{file.path}", file.sha256) for file in extension.files])
    key = make_key(surroundings(plan, extension), call=call.to_json(), files=files)
    entry = {
        "name": call.name,
        "function": call.function,
        "key": key.digest,
        **described(call, installed_at(call.name, key)),
    }
    value = {
        "entry": entry,
        "head": {"version": VERSION, "architectures": list(step.architectures)},
        "architectures": list(step.architectures),
        "has_cuda": call.has_cuda,
        "base": call.base,
        "sources": [relative(source, call.base) for source in call.sources],
    }
    return Compile(
        name=extension.name,
        files=extension.files,
        specification=commands.compile_specification(call),
        entry=json.dumps(value, indent=1, sort_keys=True) + "\n",
        env=(*commands.environment(step.architectures, jobs), *extension.env),
    )
