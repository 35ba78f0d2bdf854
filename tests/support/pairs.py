"""Small pairs of an image and a SIF that hold the same layers."""

import tarfile
from dataclasses import dataclass
from pathlib import Path

from envbuilder.artifacts.oci.layout import write_layout
from envbuilder.artifacts.oci.model import ImageConfig
from envbuilder.layers.layer import Layer, write_layer, write_layer_from_tar
from tests.support.sifs import write_sif

EPOCH = 1_700_000_000
CAPABILITY = "\x01\x00\x00\x02\x00\x20\x00\x00"


@dataclass(frozen=True)
class Pair:
    """An image and a SIF of the same layers."""

    image: Path
    sif: Path
    layers: list[Layer]


def write_os_tar(
    path: Path, *, leave_out: str = "", link: str = "../" + "t" * 130, **changes: object
) -> Path:
    """A small root file system with everything that a tree can have; `changes` are those of `bin/tool`."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("", "bin", "etc", "opt", "tmp", "empty"):
            folder = tarfile.TarInfo(f"./{name}")
            folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755, 7
            tar.addfile(folder)
        content = b"".join(n.to_bytes(4, "big") for n in range(200_000))
        for name, data in {
            "bin/tool": content, "bin/zeros": bytes(700_000), "bin/small": b"small", "bin/none": b"", "bin/" + "ü" * 60: b"u",
        }.items():  # fmt: skip
            item = tarfile.TarInfo(name)
            item.mode, item.uid, item.gid, item.mtime = 0o755, 3, 65534, 11
            item.pax_headers = {"SCHILY.xattr.security.capability": CAPABILITY, "SCHILY.xattr.user.a": "b"}
            if name == "bin/tool":
                data = changes.pop("content", data)  # type: ignore[assignment]  # noqa: PLW2901
                for key, value in changes.items():
                    setattr(item, key, value)
            item.size = len(data)
            if name != leave_out:
                with Path(path.with_suffix(".data")).open("w+b") as stream:
                    stream.write(data)
                    stream.seek(0)
                    tar.addfile(item, stream)
        for name, kind, target in (
            ("bin/hard", tarfile.LNKTYPE, "bin/small"),
            ("bin/sh", tarfile.SYMTYPE, link),
        ):
            item = tarfile.TarInfo(name)
            item.type, item.linkname, item.mtime = kind, target, 13
            tar.addfile(item)
    return path


def make_layers(folder: Path, tar: Path) -> list[Layer]:
    folder.mkdir()
    (folder / "tree" / "opt" / "env" / "lib").mkdir(parents=True)
    for number in range(300):
        (folder / "tree" / "opt" / "env" / "lib" / f"module_{number}.py").write_text(
            f"x = {number}\n" * (number % 50)
        )
    upper = write_layer(
        name="python", tree=folder / "tree", folder=folder / "up", epoch=EPOCH, threads=1, omit=("opt",)
    )
    return [write_layer_from_tar(name="os", tar=tar, folder=folder / "low", epoch=EPOCH, threads=1), upper]


def make_pair(folder: Path, layers: list[Layer], sif_layers: list[Layer] | None = None) -> Pair:
    write_layout(
        layers=layers, config=ImageConfig(), epoch=EPOCH, platform="linux/amd64", folder=folder / "image",
        name="a:1",
    )  # fmt: skip
    write_sif(layers=sif_layers or layers, out=folder / "a.sif", epoch=EPOCH, definition="", labels={})
    return Pair(image=folder / "image", sif=folder / "a.sif", layers=layers)
