"""Translate a recipe for two peers, HPC Container Maker and neurodocker. bench/README.md has the table."""

from collections.abc import Mapping
from typing import Any, Final

from envbuilder.compat.tables.cuda import load_gpus

# The Ubuntu with the nearest glibc, since no `nvidia/cuda` is based on Debian. An unknown suite stays as written.
UBUNTU: Final = {"bullseye": "ubuntu20.04", "bookworm": "ubuntu22.04", "trixie": "ubuntu24.04"}
CONDA: Final = "/usr/local/anaconda"
Recipe = Mapping[str, Any]


def image(recipe: Recipe) -> str:
    """Return the base image for the recipe's base and CUDA."""
    distribution, _, suite = str(recipe["base"]).partition("/")
    if not recipe.get("cuda"):
        return f"{distribution}:{suite}"
    return f"nvidia/cuda:{recipe['cuda']}.0-devel-{UBUNTU.get(suite, suite)}"


def architectures(recipe: Recipe) -> str:
    """Return the GPUs in the form of `TORCH_CUDA_ARCH_LIST`. An unknown name stays as written."""
    known = {row.name: row.capability for row in load_gpus().rows}
    return ";".join(known.get(gpu, gpu) for gpu in recipe.get("gpus", ()))


def wheels(recipe: Recipe) -> list[str]:
    return [f"torch=={recipe['pytorch']}", *map(str, recipe.get("packages", ()))]


def compiles(recipe: Recipe) -> list[str]:
    """Return the commands that compile the recipe's extensions."""
    found = []
    for extension in recipe.get("extensions", ()):
        for source in extension["sources"]:
            cuda = source.endswith(".cu")
            flags = extension.get("cuda_cflags" if cuda else "cflags", ())
            found.append(" ".join(["nvcc" if cuda else "g++", *map(str, flags), "-c", source]))
    return found


def for_hpccm(recipe: Recipe) -> str:
    lines = [
        f"baseimage(image={image(recipe)!r})",
        f"gnu(version={str(recipe['gcc'])!r}, extra_repository=True)",
        f"conda(eula=True, packages=[{'python=' + str(recipe['python'])!r}])",
        f"pip(packages={wheels(recipe)!r}, pip='{CONDA}/bin/pip')",
    ]
    if recipe.get("gpus"):
        lines.insert(3, f"environment(variables={{'TORCH_CUDA_ARCH_LIST': {architectures(recipe)!r}}})")
    if commands := compiles(recipe):
        lines += ["copy(src='src', dest='src')", f"shell(commands={commands!r})"]
    return "".join(f"Stage0 += {line}\n" for line in lines)


def for_neurodocker(recipe: Recipe) -> list[str]:
    gcc = recipe["gcc"]
    arguments = ["--pkg-manager", "apt", "--base-image", image(recipe), "--yes"]
    arguments += ["--install", f"gcc-{gcc}", f"g++-{gcc}"]
    if recipe.get("gpus"):
        arguments += ["--env", f"TORCH_CUDA_ARCH_LIST={architectures(recipe)}"]
    packages = " ".join(wheels(recipe))
    arguments += ["--miniconda", "version=latest", "env_name=env", "env_exists=false"]
    arguments += [f"conda_install=python={recipe['python']}"]
    arguments += [f"pip_install={packages}"]
    if commands := compiles(recipe):
        arguments += ["--copy", "src", "src"]
        arguments += [word for command in commands for word in ("--run", command)]
    return arguments
