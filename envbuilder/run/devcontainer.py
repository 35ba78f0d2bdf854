"""Write the dev container settings of an environment: the image's label and a project's devcontainer.json.

Both have the same settings, because people edit the file or use the image without it. A label cannot
hold `runArgs` or the workspace's mount (containers.dev), so only the file has these.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.cache import save_text
from envbuilder.core.errors import UsageError, blaming_path
from envbuilder.plan.contents import USER
from envbuilder.plan.model import STANDALONE_PREFIX, Plan

LABEL: Final = "devcontainer.metadata"
FOLDER: Final = ".devcontainer"
FILE: Final = "devcontainer.json"
SHARED_MEMORY: Final = "type=tmpfs,target=/dev/shm"  # Docker's default of 64 MB is too small for data loaders
EXTENSIONS: Final = ("ms-python.python", "ms-python.debugpy", "ms-vscode.cpptools")
CUDA_EXTENSION: Final = "nvidia.nsight-vscode-edition"


@dataclass(frozen=True, slots=True, kw_only=True)
class EditorFacts:
    """The facts of an environment that an editor needs."""

    python: str  # 3.11
    has_cuda: bool
    has_user: bool = True  # a foreign base image may lack the user
    has_standalone: bool = False  # a Python at /opt/python


def metadata(facts: EditorFacts) -> dict[str, object]:
    """Return the settings that the file and the label share."""
    extensions = [*EXTENSIONS, *([CUDA_EXTENSION] if facts.has_cuda else [])]
    user = {"remoteUser": USER, "updateRemoteUserUID": True} if facts.has_user else {}
    return {
        "hostRequirements": {"gpu": "optional"},  # `--gpus all` would fail on a machine without a GPU
        "init": True,
        "capAdd": ["SYS_PTRACE"],  # for debuggers
        "mounts": [SHARED_MEMORY],
        "containerEnv": {"PYTHONNOUSERSITE": "1"},
        **user,
        # Debian's /etc/profile would remove the environment from PATH.
        "userEnvProbe": "none",
        "customizations": {"vscode": {"extensions": extensions, "settings": _settings(facts)}},
    }


def image_labels(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return the labels of the plan's image: those of the plan, and the settings for editors."""
    has_cuda = "CUDA_HOME" in dict(plan.runtime.env)
    facts = EditorFacts(
        python=plan.python.python, has_cuda=has_cuda, has_user=not plan.os.base, has_standalone=plan.interpreter is not None
    )  # fmt: skip
    text = json.dumps([metadata(facts)], sort_keys=True, separators=(",", ":"))
    return (*plan.runtime.labels, (LABEL, text))


def make_file(name: str, image: str, facts: EditorFacts) -> str:
    """Return the text of devcontainer.json for the environment `name` in the image."""
    value = {
        "name": name,
        "image": image,
        "workspaceMount": "source=${localWorkspaceFolder},target=/workspaces/${localWorkspaceFolderBasename},type=bind",
        "workspaceFolder": "/workspaces/${localWorkspaceFolderBasename}",
        "runArgs": ["--ipc=host"],  # for CUDA IPC with processes outside the container
        **metadata(facts),
    }
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def save_file(folder: Path, text: str, *, force: bool) -> Path:
    """Write devcontainer.json into a project's folder; raises UsageError when the file has other content."""
    path = folder / FOLDER / FILE
    try:
        found = path.read_text(encoding="utf-8") if path.exists() else text
    except (OSError, UnicodeDecodeError):
        found = ""
    if found != text and not force:
        raise UsageError(
            f"`{path}` exists with other content",
            hint="`--print` shows what would be written; `--force` replaces yours",
        )
    with blaming_path(f"cannot write `{path}`"):
        save_text(path, text)
    return path


def _settings(facts: EditorFacts) -> dict[str, object]:
    torch = f"/opt/env/lib/python{facts.python}/site-packages/torch/include"
    prefix = STANDALONE_PREFIX if facts.has_standalone else "/usr"
    cuda = ["/usr/local/cuda/include"] if facts.has_cuda else []
    headers = [torch, f"{torch}/torch/csrc/api/include", *cuda, f"{prefix}/include/python{facts.python}"]
    return {
        "python.defaultInterpreterPath": "/opt/env/bin/python",
        "C_Cpp.default.compilerPath": "/usr/local/bin/g++",
        "C_Cpp.default.includePath": ["${workspaceFolder}/**", *headers],
    }
