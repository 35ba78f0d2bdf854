"""What the Python files of a recipe's extensions say that does not fit its pins, before anything is compiled.

Only `check` reads them: a rule of `rules` decides by the recipe and the tables alone.
"""

import contextlib
import re
from collections.abc import Iterator

from envbuilder.compat.context import CheckCode, Tables
from envbuilder.compat.python_code import (
    CodeCall,
    PythonCode,
    certain_calls,
    certain_parts,
    imported_modules,
    plain_texts,
    project_files,
    read_code,
    set_variables,
)
from envbuilder.compat.rules.compiler import asked_standard
from envbuilder.core.beneath import leads_out
from envbuilder.core.findings import Finding, Severity
from envbuilder.recipe.extension import Extension, Form
from envbuilder.recipe.model import Recipe


def check_code(recipe: Recipe, tables: Tables) -> Iterator[Finding]:
    """Warn of flags in a project's build that its torch refuses, and of GPUs that it is not compiled for."""
    known = tables.gpus.by_name
    wanted = {known[name].capability for name in recipe.gpus if name in known}
    torch = tables.torches.by_name.get(recipe.pytorch)
    for index, extension in enumerate(recipe.extensions):
        place = recipe.place(f"$.extensions[{index}]")
        for code in _codes(recipe, extension):
            texts = {text: line for line, text in reversed(tuple(plain_texts(code)))}  # each once
            for text, line in texts.items():
                _, asked = asked_standard((text,))
                if torch and asked and asked < torch.std_min and not code.is_without_torch:
                    needed = f"the headers of torch {torch.version} need C++{torch.std_min} or newer"
                    message = f"`{extension.name}` sets `{text}` at {code.path}:{line}, and {needed}"
                    hint = "leave the flag out: torch adds the right one; or take an older torch"
                    yield _warning(CheckCode.STANDARD_TORCH, place, message, hint)
            named = [
                (line, capability) for line, capability in _architectures(code) if capability not in wanted
            ]
            if recipe.gpus and named:
                others = ", ".join(dict.fromkeys(capability for _, capability in named))
                message = f"`{extension.name}` names GPUs of its own at {code.path}:{named[0][0]} ({others})"
                message += ", and is compiled for those of the recipe"
                yield _warning(CheckCode.OWN_GPUS, place, message)


def check_cuda_code(recipe: Recipe) -> Iterator[Finding]:
    """Refuse a build without CUDA that surely asks for it: torch's CUDAExtension fails without a toolkit, and `.cu` needs nvcc.

    It is a warning on an image, which may have a toolkit of its own, and for an extension that `setup` may not take.
    A file that looks for CUDA or a GPU decides for itself.
    """
    for index, extension in enumerate(() if recipe.cuda else recipe.extensions):
        for code in _codes(recipe, extension):
            calls = code.extensions if extension.form is Form.PROJECT else _captured(recipe, extension, code)
            certain = {id(node) for node in certain_calls(code)}
            setup = code.setup()
            modules = code.keyword(setup, "ext_modules") if setup and id(setup.node) in certain else None
            sure = {id(node) for node in certain_parts(code, modules)}
            for call in calls:
                if id(call.node) in certain and _needs_cuda(code, call):
                    where = f"{code.path}:{call.node.lineno}"
                    is_sure = id(call.node) in sure if extension.form is Form.PROJECT else not call.inside
                    is_error = is_sure and not recipe.image
                    yield Finding(
                        code=CheckCode.CUDA_SOURCE, severity=Severity.ERROR if is_error else Severity.WARNING,
                        where=recipe.place(f"$.extensions[{index}]"),
                        message=f"`{extension.name}` calls `{call.short}` for CUDA at {where}, and the recipe has no CUDA",
                        hint='add `gpus: [A100]` and `cuda: "12.4"`, with your GPU and a CUDA that this torch is built for; '
                        "or call CppExtension where `torch.utils.cpp_extension.CUDA_HOME` is None",
                    )  # fmt: skip


def _captured(recipe: Recipe, extension: Extension, code: PythonCode) -> tuple[CodeCall, ...]:
    """Return the `load()` calls of a file that the lines of `capture` import."""
    parts = code.path.relative_to(recipe.path.parent / extension.path).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    with contextlib.suppress(SyntaxError, ValueError):
        return code.loads if name in imported_modules("\n".join(extension.capture)) else ()
    return ()


def _needs_cuda(code: PythonCode, call: CodeCall) -> bool:
    texts = (getattr(node, "value", "") for node in certain_parts(code, code.argument(call, 1, "sources")))
    has_source = any(isinstance(text, str) and text.endswith(".cu") for text in texts)
    return call.short == "CUDAExtension" or has_source or bool(code.keyword(call, "cuda_sources"))


def check_modules(recipe: Recipe) -> Iterator[Finding]:
    """Warn of two projects that build one module. The build refuses them only when both are compiled."""
    builders: dict[str, tuple[Extension, PythonCode, int]] = {}
    for index, extension in enumerate(recipe.extensions):
        for code in _codes(recipe, extension) if extension.form is Form.PROJECT else ():
            for call in code.extensions:
                name = code.text(code.argument(call, 0, "name"))
                other, theirs, line = builders.setdefault(name, (extension, code, call.node.lineno))
                if name and other is not extension:
                    message = (
                        f"`{other.name}` and `{extension.name}` both build the module `{name}` "
                        f"({theirs.path}:{line}, {code.path}:{call.node.lineno}), and one environment can have one of them"
                    )
                    hint = "leave one of them out, or give the module another name in one setup.py"
                    place = recipe.place(f"$.extensions[{index}]")
                    yield _warning(CheckCode.MODULE_TWICE, place, message, hint)


def describe_layout(recipe: Recipe) -> Iterator[str]:
    """Yield how each project runs whose package lies in the folder of its setup.py, where it hides the installed one."""
    for extension in recipe.extensions:
        for code in _codes(recipe, extension) if extension.form is Form.PROJECT else ():
            calls = (call for call in code.calls if call.short.endswith("Extension"))
            names = [code.text(code.argument(call, 0, "name")) for call in calls]
            packages = {name: name.rpartition(".")[0].replace(".", "/") for name in names if "." in name}
            folder = code.path.parent
            if hidden := [name for name, package in packages.items() if (folder / package).is_dir()]:
                modules = ", ".join(f"`{name}`" for name in hidden)
                yield (
                    f"programs in `{folder}` run that folder's `{hidden[0].partition('.')[0]}` with the environment's "
                    f"compiled {modules}, as with an editable install"
                )


def _codes(recipe: Recipe, extension: Extension) -> Iterator[PythonCode]:
    """Yield the files that say how an extension of the recipe's folder is compiled."""
    if extension.form is Form.LOAD or extension.is_remote or not extension.path:
        return
    folder = recipe.path.parent / extension.path
    is_built = extension.form is Form.PROJECT
    paths = (
        (folder / "setup.py",)
        if is_built
        else (path for path in project_files(folder) if path.suffix == ".py")
    )
    for path in paths:
        code = None if leads_out(recipe.path.parent, path) else read_code(path)
        if code and (is_built or code.loads):
            yield code


def _architectures(code: PythonCode) -> Iterator[tuple[int, str]]:
    """Yield the compute capabilities that a file names, each with its line: 3.7."""
    for line, text in plain_texts(code):
        for digits in re.findall(r"(?:compute|sm)_(\d{2,3})(?!\d)", text):
            yield line, f"{digits[:-1]}.{digits[-1]}"
    for line, text in set_variables(code, "TORCH_CUDA_ARCH_LIST"):
        for digits in re.findall(r"\d+\.\d", text):
            yield line, digits


def _warning(code: str, where: str, message: str, hint: str = "") -> Finding:
    return Finding(code=code, severity=Severity.WARNING, where=where, message=message, hint=hint)
