"""`add --installed --to-sif`: a SIF for the job of today, with what pip has installed by `exec --writable`."""

import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

from envbuilder.artifacts.sif import check_place, extend_sif, opened_sif
from envbuilder.core.errors import blaming_path
from envbuilder.core.system import usable_cores
from envbuilder.layers.layer import write_layer
from envbuilder.run.desk_packages import installed, venv_of

_PREFIX: Final = "opt/env"
_LABEL: Final = "envbuilder.desk"
_PROGRAM: Final = "#!/opt/env/bin/python\nimport sys\nfrom {module} import {first}\nsys.exit({attribute}())\n"


def pack(name: str, sif: Path, folder: Path, out: Path) -> tuple[str, ...]:
    """Write the SIF of an environment with the virtual environment of `folder` as one more layer. Returns its packages.

    Raises what `installed` and `extend_sif` raise.
    """
    check_place(out)
    requirements, venv = installed(name, folder), venv_of(name, folder)
    with opened_sif(sif) as system:
        epoch = system.epoch
    with blaming_path(f"cannot pack `{venv}`"), tempfile.TemporaryDirectory(prefix="envbuilder-") as work:
        tree, leave = Path(work, "tree"), shutil.ignore_patterns("environment.pth", "__pycache__")
        for part in filter(lambda part: (venv / part).is_dir(), ("lib", "share", "etc")):
            shutil.copytree(venv / part, tree / _PREFIX / part, symlinks=True, ignore=leave)
        _write_programs(venv, tree / _PREFIX / "bin")
        folder = Path(work, "layer")
        layer = write_layer(name="desk", tree=tree, folder=folder, epoch=epoch, threads=usable_cores())
        extend_sif(sif, layer, out, labels={_LABEL: " ".join(requirements)})
    return requirements


def _write_programs(venv: Path, folder: Path) -> None:
    """Write the packages' programs anew, for the environment's Python."""
    folder.mkdir(parents=True)
    sites = [str(site) for site in venv.glob("lib/python3.*/site-packages")]
    for package in metadata.distributions(path=sites):
        for program in package.entry_points.select(group="console_scripts"):
            path, (module, attribute) = folder / Path(program.name).name, (program.module, program.attr)
            first = attribute.partition(".")[0]
            path.write_text(_PROGRAM.format(module=module, first=first, attribute=attribute))
            path.chmod(0o755)
