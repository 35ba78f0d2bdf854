"""Write the dev container settings of an environment: the image's label and the files of a project.

Both have the same settings, because people edit the file or use the image without it. A label cannot
hold `runArgs` or the workspace's mount (containers.dev), so only the file has these. The project's
Dockerfile adds a layer with git and a second environment, so the image stays equal to the SIF.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder import __version__
from envbuilder.core.beneath import pinned_folder
from envbuilder.core.cache import need_same, save_text
from envbuilder.core.errors import ToolError, UsageError, blaming_path
from envbuilder.core.plain import one_line
from envbuilder.core.process import ProcessRunner
from envbuilder.lock.file import load_lock, lock_path
from envbuilder.plan.contents import USER
from envbuilder.plan.model import STANDALONE_PREFIX, Plan
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import UBUNTU, probe_sources, shown

LABEL: Final = "devcontainer.metadata"
FOLDER: Final = ".devcontainer"
FILE: Final = "devcontainer.json"
SERVICE: Final = "desk"
SHARED_MEMORY: Final = "type=tmpfs,target=/dev/shm"  # Docker's default of 64 MB is too small for data loaders
EXTENSIONS: Final = ("ms-python.python", "ms-python.debugpy", "ms-vscode.cpptools")
CUDA_EXTENSION: Final = "nvidia.nsight-vscode-edition"
_OF_COMPOSE: Final = ("init", "capAdd", "mounts", "containerEnv")  # its own file has these


@dataclass(frozen=True, slots=True, kw_only=True)
class EditorFacts:
    """The facts of an environment that an editor needs."""

    python: str  # 3.11
    has_cuda: bool
    has_user: bool = True  # a foreign base image may lack the user
    has_standalone: bool = False  # a Python at /opt/python

    @property
    def home(self) -> str:
        return f"/home/{USER}" if self.has_user else "/root"

    @property
    def venv(self) -> str:
        """The second environment, for a project's own packages."""
        return f"{self.home}/venv"


def facts_of(recipe: Recipe, typed: str) -> EditorFacts:
    """Return the facts of a recipe, which need not be locked yet."""
    path = lock_path(recipe)
    return EditorFacts(
        python=recipe.python, has_cuda=bool(recipe.cuda), has_user=not recipe.image,
        has_standalone=path.exists() and load_lock(path, recipe=typed).interpreter is not None,
    )  # fmt: skip


def metadata(facts: EditorFacts, python: str = "/opt/env/bin/python") -> dict[str, object]:
    """Return the settings that the file and the label share."""
    user = {"remoteUser": USER, "updateRemoteUserUID": True} if facts.has_user else {}
    extensions = [*EXTENSIONS, *([CUDA_EXTENSION] if facts.has_cuda else [])]
    return {
        "hostRequirements": {"gpu": "optional"},  # `--gpus all` would fail on a machine without a GPU
        "init": True,
        "capAdd": ["SYS_PTRACE"],  # for debuggers
        "mounts": [SHARED_MEMORY],
        "containerEnv": {"PYTHONNOUSERSITE": "1"},
        **user,
        # The image's variables are enough. A probing shell would read start files, which may choose another Python.
        "userEnvProbe": "none",
        "customizations": {"vscode": {"extensions": extensions, "settings": _settings(facts, python)}},
    }


def image_labels(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return the labels of the plan's image: those of the plan, and the settings for editors."""
    facts = EditorFacts(
        python=plan.python.python, has_cuda="CUDA_HOME" in dict(plan.runtime.env), has_user=not plan.os.base,
        has_standalone=plan.interpreter is not None,
    )  # fmt: skip
    text = json.dumps([metadata(facts)], sort_keys=True, separators=(",", ":"))
    return (*plan.runtime.labels, (LABEL, text))


def probe_mirror(base: str, environment: Mapping[str, str], report: Callable[[str], None]) -> str:
    """Return the first mirror of the base's distribution, "" where none is known: the container starts without one."""
    try:
        sources = probe_sources(environment, ProcessRunner(environment))
    except (UsageError, ToolError) as error:
        report(f"warning: {error.message}")
        return ""
    mirrors = sources.ubuntu if base.startswith(UBUNTU) else sources.debian
    return shown(mirrors[0]) if mirrors else ""


def make_files(
    name: str, image: str, facts: EditorFacts, *, base: str, mirror: str, compose: str
) -> dict[str, str]:
    """Return the files of a project's dev container: name → text.

    `base` is a distribution and its suite, "" if unknown; `mirror` has its packages. `compose` is the name of the
    project's folder, for the form for Docker Compose; "" for the other form.
    """
    distribution, _, suite = base.partition("/")
    values = {
        "name": name, "version": __version__, "image": image, "service": SERVICE, "venv": facts.venv, "home": facts.home,
        "user": USER if facts.has_user else "root", "mirror": mirror, "suite": suite,
        "components": "main universe" if distribution == "ubuntu" else "main",
        "setting": f"ENVBUILDER_{distribution.upper() or 'DEBIAN'}_MIRROR",
    }  # fmt: skip
    shared = metadata(facts, f"{facts.venv}/bin/python")
    if compose:
        config = {
            "dockerComposeFile": "compose.yaml",
            "service": SERVICE,
            "workspaceFolder": "/workspaces/project",
            **{key: value for key, value in shared.items() if key not in _OF_COMPOSE},
        }
    else:
        mirror_here, person = f"${{localEnv:{values['setting']}}}", "${localEnv:USER}:${localEnv:HOME}"
        config = {
            "build": {"dockerfile": "Dockerfile", "args": {"MIRROR": mirror_here, "HOST_PERSON": person}},
            "workspaceMount": "source=${localWorkspaceFolder},target=/workspaces/${localWorkspaceFolderBasename},type=bind",
            "workspaceFolder": "/workspaces/${localWorkspaceFolderBasename}",
            "runArgs": ["--ipc=host"],  # for CUDA IPC with processes outside the container
            **shared,
        }
    files = {
        FILE: json.dumps({"name": name, **config}, indent=2, ensure_ascii=False) + "\n",
        "Dockerfile": _filled("desk.dockerfile", values),
    }
    if compose:
        project = re.sub(r"[^a-z0-9]+", "-", f"{compose}-{name}".lower()).strip("-")
        files |= {
            "compose.yaml": _filled("desk.compose.yaml", values),
            "compose.gpu.yaml": _filled("desk.compose.gpu.yaml", values),
            # Otherwise Compose takes the folder's name, which all projects share. Compose 1 has no key for it.
            ".env": f"COMPOSE_PROJECT_NAME={project}\n",
        }
    return files


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Return the template with a value for each `@name@`."""
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", one_line(value))
    return text


def save_files(folder: Path, files: Mapping[str, str], *, force: bool) -> tuple[Path, ...]:
    """Write the files into a project's folder and return their paths.

    Raises UsageError when one has other content, and then writes none.
    """
    texts = {folder / FOLDER / name: text for name, text in files.items()}
    for path, text in texts.items():
        hint = "`--print` shows what would be written; `--force` replaces yours"
        need_same(path, text, force=force, hint=hint)
    with blaming_path(f"cannot write to `{folder / FOLDER}`"), pinned_folder(folder, FOLDER) as inside:
        for name, text in files.items():
            save_text(inside / name, text)
    return tuple(texts)


def _settings(facts: EditorFacts, python: str) -> dict[str, object]:
    torch = f"/opt/env/lib/python{facts.python}/site-packages/torch/include"
    prefix = STANDALONE_PREFIX if facts.has_standalone else "/usr"
    cuda = ["/usr/local/cuda/include"] if facts.has_cuda else []
    headers = [torch, f"{torch}/torch/csrc/api/include", *cuda, f"{prefix}/include/python{facts.python}"]
    return {
        "python.defaultInterpreterPath": python,
        "C_Cpp.default.compilerPath": "/usr/local/bin/g++",
        "C_Cpp.default.includePath": ["${workspaceFolder}/**", *headers],
    }
