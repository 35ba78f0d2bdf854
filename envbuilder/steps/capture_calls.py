"""Run a project's own import lines and record which extensions it would compile.

`extension.py` starts it as `python capture_calls.py SPEC`. SPEC is a JSON file with `lines`, `source` (the folder of the
project's files), `kept` (a folder for copies), and the files to write: `calls`, and `places` with the line of each. `load` and
`load_inline` of torch's `cpp_extension` are replaced by recorders. They return a module that has every name, so the project's
code goes on. If a line raises an error, the last line on stderr is `envbuilder capture: ` and JSON: the line, the error, and the
place in the project's files. A line that first calls `load` and then computes on a GPU ends there, and stdout has "envbuilder
capture stopped: " with the same JSON.
"""

import importlib.machinery
import inspect
import json
import os
import shutil
import sys
import traceback
import types

with open(sys.argv[1]) as stream:
    spec = json.load(stream)

import torch
from torch.utils import cpp_extension

HEADERS = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl", ".inc", ".ipp", ".tpp", ".def")
LISTS = ("cpp_sources", "cuda_sources", "extra_cflags", "extra_cuda_cflags", "extra_ldflags")
DEFAULTS = {
    "with_cuda": None, "with_pytorch_error_handling": True, "is_python_module": True, "is_standalone": False,
}  # fmt: skip
NOT_DECIDING = ("build_directory", "verbose", "keep_intermediates")
# Functions of `torch.library` that name an operator first.
REGISTER = (
    *("register_fake", "register_autograd", "register_kernel", "register_vmap", "register_autocast"),
    "impl_abstract",  # `register_fake` in torch 2.2 and 2.3
)
# How torch's errors begin where nothing can run on the GPU.
NO_GPU = ("CUDA error", "Found no NVIDIA driver", "No CUDA GPUs")
# torch's own namespaces of operators.
OWNED = {schema.name.partition("::")[0] for schema in torch._C._jit_get_all_schemas()}
calls: "list[dict[str, object]]" = []
places: "list[str]" = []  # of each of the calls: net/ops.py:12
reached: "list[str]" = []  # the names of all calls, those that were made before too


class Anything:
    """Stands for anything that a compiled module holds."""

    def __call__(self, *args, **kwargs):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class Recorded(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


def words(value):
    """Return a list of texts for None, one text or path, or several."""
    if value is None:
        return []
    return [os.fspath(value)] if isinstance(value, (str, os.PathLike)) else list(map(os.fspath, value))


def placed(extension, path):
    """Return the path of a source of the extension at its compile. A copy outside the project is kept, with the headers beside it."""
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            "the call that compiles `%s` names the source `%s`, which is not there" % (extension, path)
        )
    if path.startswith((spec["source"] + "/", "/opt/env/", "/usr/")):
        return path
    folder = os.path.dirname(path)
    target = os.path.join(spec["kept"], folder.strip("/").replace("/", "-"))
    os.makedirs(target, exist_ok=True)
    for name in sorted(os.listdir(folder)):
        if name == os.path.basename(path) or name.endswith(HEADERS):
            shutil.copyfile(os.path.join(folder, name), os.path.join(target, name))
    return os.path.join(target, os.path.basename(path))


def caller(frame):
    """Return the innermost of the project's own lines that made a call."""
    while frame and not frame.f_code.co_filename.startswith(spec["source"] + "/"):
        frame = frame.f_back
    return "%s:%s" % (frame.f_code.co_filename[len(spec["source"]) + 1 :], frame.f_lineno) if frame else ""


def recorder(function, original):
    def record(*args, **kwargs):
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        call = {"function": function, "name": given["name"]}
        call["sources"] = [placed(given["name"], path) for path in words(given.get("sources"))]
        functions = given.get("functions")
        call["functions"] = json.dumps([functions] if isinstance(functions, str) else functions)
        for key in LISTS:
            call[key] = words(given.get(key))
        folders = words(given.get("extra_include_paths"))
        call["extra_include_paths"] = [os.path.abspath(folder) for folder in folders]
        for key, default in DEFAULTS.items():
            value = given.get(key, default)
            call[key] = value if value is None else bool(value)
        # Arguments of newer releases, such as `no_implicit_headers`.
        others = {key: given[key] for key in given if key not in call and key not in NOT_DECIDING}
        call["others"] = json.dumps(others, sort_keys=True)
        reached.append(call["name"])
        if call not in calls:
            calls.append(call)
            places.append(caller(sys._getframe(1)))
        if not call["is_python_module"] or call["is_standalone"]:
            return None
        module = Recorded(call["name"])
        module.__spec__ = importlib.machinery.ModuleSpec(call["name"], None)
        return sys.modules.setdefault(call["name"], module)

    return record


def lenient(find):
    """Return any operator that the project's library would define. torch's own operators and questions get torch's answers."""

    def getattr_(self, name):
        try:
            return find(self, name)
        except AttributeError:
            asking = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
            if asking == "torch" or self.name in OWNED or name.startswith("__") or not name.isidentifier():
                raise
            return Anything()

    return getattr_


def is_known(operator):
    """Return whether an operator `space::name.overload` is torch's own or defined."""
    owned = operator.partition("::")[0] in OWNED
    return owned or bool(torch._C._jit_get_schemas_for_operator(operator.partition(".")[0]))


def without_operator(register):
    """Register nothing for an operator that the project's library would define."""

    def registered(operator, *args, **kwargs):
        if not isinstance(operator, str) or is_known(operator):
            return register(operator, *args, **kwargs)
        return lambda function: function

    return registered


def without_meta(impl):
    """Let `Library.impl` go on where torch refuses an implementation, for `Meta`, because nothing defined the operator."""

    def implemented(self, op_name, *args, **kwargs):
        try:
            return impl(self, op_name, *args, **kwargs)
        except RuntimeError:
            if not isinstance(op_name, str) or is_known("%s::%s" % (self.ns, op_name.rpartition("::")[2])):
                raise

    return implemented


def place(error):
    """Return the last of the project's own lines that ran, or the line that is not Python."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    lines = ["%s:%s" % line for line in places if line[0].startswith(spec["source"] + "/")]
    return lines[-1] if lines else ""


for function in ("load", "load_inline"):
    setattr(cpp_extension, function, recorder(function, getattr(cpp_extension, function)))
torch._ops._OpNamespace.__getattr__ = lenient(torch._ops._OpNamespace.__getattr__)
torch.library.Library.impl = without_meta(torch.library.Library.impl)
for function in filter(lambda name: hasattr(torch.library, name), REGISTER):
    setattr(torch.library, function, without_operator(getattr(torch.library, function)))

sys.path[0] = os.getcwd()  # as `python -c` has it, instead of this file's folder
for line in spec["lines"]:
    before = len(reached)
    try:
        exec(compile(line, "<capture>", "exec"), {"__name__": "__main__"})  # noqa: S102 - it is what the recipe says
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the project raises
        traceback.print_exc()
        said = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        report = json.dumps({"line": line, "error": said, "where": place(error)})
        if len(reached) == before or not str(error).startswith(NO_GPU):
            sys.exit("envbuilder capture: " + report)
        print("envbuilder capture stopped: " + report)

with open(spec["calls"], "w") as stream:
    json.dump(calls, stream, indent=1, sort_keys=True)
with open(spec["places"], "w") as stream:
    json.dump(places, stream)
