"""Compiles the extensions of the usual way as projects do that call torch's load(); runs inside `docker build`.

`extensions.json` lies beside it with the arguments; so do the sources.
"""

import json
import shutil
import sysconfig
from pathlib import Path

from torch.utils import cpp_extension

here = Path(__file__).parent
site = Path(sysconfig.get_paths()["platlib"])
for one in json.loads((here / "extensions.json").read_text()):
    build = here / "build" / one["name"]
    build.mkdir(parents=True)
    cpp_extension.load(
        name=one["name"],
        sources=[str(here / source) for source in one["sources"]],
        extra_include_paths=[str(here / folder) for folder in one["include"]],
        extra_cflags=one["cflags"],
        extra_cuda_cflags=one["cuda_cflags"],
        build_directory=str(build),
        with_cuda=any(source.endswith(".cu") for source in one["sources"]),
        verbose=True,
    )
    shutil.move(build / f"{one['name']}.so", site)
shutil.rmtree(here / "build")
