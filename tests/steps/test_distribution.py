"""A root of unpacked packages: what dpkg would make of them, and nothing outside of it."""

import hashlib
import json
import shlex
import stat
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.steps import distribution
from envbuilder.steps.distribution import Package, PackageError, Root, owner_rows, preinst_lines
from tests.support.debs import Member, header, write_package

FOLDER, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@dataclass
class Unpacked:
    top: Root
    packages: list[Package]
    left: list[Package]

    @property
    def names(self) -> tuple[list[str], list[str]]:
        return [package.name for package in self.packages], [package.name for package in self.left]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def install(root: Path, *debs: Path) -> Unpacked:
    top = Root(str(root))
    packages, left = distribution.unpack_all([str(deb) for deb in debs], top)
    top.set_modes(packages)
    return Unpacked(top, packages, left)


def write_database(root: Path, *debs: Path) -> list[Package]:
    unpacked = install(root, *debs)
    distribution.write_database(unpacked.packages, unpacked.top, "amd64")
    return unpacked.packages


def package(root: Path, name: str, *members: Member, about: str = "", **control: str) -> Path:
    return write_package(root.parent / f"{name}.deb", members, about=about, control=control)


def test_files_keep_modes_and_times_and_owners_are_listed(root: Path):
    shadow, crontab = header("./etc/s", gid=42, mode=0o640), header("./usr/bin/c", gid=101, mode=0o2755)
    shadow.mtime = 1_600_000_000
    spool = header("./var/spool/", FOLDER, uid=1, gid=101, mode=0o1730)
    unpacked = install(root, package(root, "a", shadow, crontab, spool))
    rows = owner_rows(unpacked.packages, is_image=False)
    listed = {path: (uid, gid, special) for path, uid, gid, special in (*rows["files"], *rows["folders"])}
    shadow_files = dict.fromkeys(distribution.SECRET, (0, 42, 0))
    assert listed == shadow_files | {
        "etc/s": (0, 42, 0), "usr/bin/c": (0, 101, 0o2000), "var/spool": (1, 101, 0), "home/vscode": (65000, 65000, 0)
    }  # fmt: skip
    modes = {name: stat.S_IMODE((root / name).stat().st_mode) for name in ("etc/s", "usr/bin/c", "var/spool")}
    assert modes == {"etc/s": 0o640, "usr/bin/c": 0o2755, "var/spool": 0o1730}
    assert (root / "etc/s").stat().st_mtime == 1_600_000_000


def test_the_owners_of_an_image_are_listed_whole_merged_and_not(root: Path):
    root.parent.mkdir(exist_ok=True)
    deb = package(
        root,
        "a",
        ("./bin/x", "x", 0o4755),
        ("./usr/share/man/x", "x", 0o644),
        header("./srv/", FOLDER, mode=0o755),
    )
    _, left = distribution.unpack_all([str(deb)])
    assert owner_rows(left, is_image=True) == {
        "files": [["bin/x", 0, 0, 0o4000], ["usr/bin/x", 0, 0, 0o4000]], "folders": [["srv", 0, 0, 0]]
    }  # fmt: skip


def test_each_package_is_shown_when_it_is_unpacked(root: Path, capsys: pytest.CaptureFixture[str]):
    install(root, *(package(root, name, (f"./usr/{name}", name, 0o644)) for name in ("a", "b")))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["1/2", "2/2"]
    assert {line.split(" ", 1)[1] for line in lines} == {"unpack a", "unpack b"}


def test_paths_go_below_the_merged_usr(root: Path):
    hard = header("./lib/twin", HARD, target="./lib/one")
    install(root, package(root, "a", ("./lib/one", "1", 0o644), hard, ("./usr/bin/two", "2", 0o755)))
    assert (root / "usr/lib/one").samefile(root / "usr/lib/twin")
    assert (root / "lib").is_symlink()
    assert (root / "bin/two").read_text() == "2"


def test_manuals_stay_out_and_copyright_files_come(root: Path):
    doc = "./usr/share/doc/a"
    names = ("./usr/share/man/man1/a.1", f"{doc}/README", f"{doc}/copyright", "./usr/share/locale/de/a.mo")
    link = header("./usr/share/doc/b", LINK, target="a")
    unpacked = install(root, package(root, "a", *((name, "x", 0o644) for name in names), link))
    assert sorted(str(one.relative_to(root)) for one in (root / "usr/share").rglob("*")) == [
        "usr/share/doc", "usr/share/doc/a", "usr/share/doc/a/copyright", "usr/share/doc/b",
    ]  # fmt: skip
    assert unpacked.packages[0].listed == [*(name[1:] for name in names), "/usr/share/doc/b"]


def test_a_folder_has_the_mode_that_base_files_says(root: Path):
    first = package(root, "aaa", header("./srv/", FOLDER, mode=0o700))
    base = package(
        root, "base-files", header("./srv/", FOLDER, mode=0o755), header("./tmp/", FOLDER, mode=0o1777)
    )
    install(root, first, base)
    assert [stat.S_IMODE((root / name).stat().st_mode) for name in ("srv", "tmp")] == [0o755, 0o1777]


@pytest.mark.parametrize(
    "member",
    [
        header("./dev/null", tarfile.CHRTYPE),
        header("./run/pipe", tarfile.FIFOTYPE),
        ("../outside", "x", 0o644),
        ("./usr/../../outside", "x", 0o644),
        ("./usr/.wh.lib", "x", 0o644),
        ("../outside/", "", 0o755),
    ],
    ids=lambda member: member[0] if isinstance(member, tuple) else member.name,
)
def test_what_no_root_may_have_is_refused(root: Path, member: Member):
    with pytest.raises(
        PackageError, match=r"a\.deb` has `.*`, which is no file, folder or link below the root"
    ):
        install(root, package(root, "a", member))
    assert not (root.parent / "outside").exists()


def test_an_absolute_path_stays_below_the_root(root: Path):
    install(root, package(root, "a", ("/etc/x", "x", 0o644)))
    assert (root / "etc/x").read_text() == "x"


@pytest.mark.parametrize("target", ["/{outside}", "../../outside"])
def test_a_link_that_leads_out_is_not_followed(root: Path, target: str):
    """The root's own dpkg unpacks such a package: for it, the link leads elsewhere in the root."""
    outside = root.parent / "outside"
    outside.mkdir()
    link = header("./etc/way", LINK, target=target.format(outside=outside))
    unpacked = install(root, package(root, "a", link, ("./etc/way/file", "x", 0o644)))
    assert unpacked.names == ([], ["a"])
    assert [*outside.iterdir(), *(root / "etc").iterdir()] == []


def test_a_hard_link_to_a_file_of_others_is_left_to_dpkg(root: Path):
    (root.parent / "secret").write_text("x")
    unpacked = install(root, package(root, "a", header("./etc/mine", HARD, target="../secret")))
    assert unpacked.names == ([], ["a"])


SHARED = {
    "the same file": ((("./etc/both", "a", 0o644),), (("./etc/both", "b", 0o644),)),
    "a link and a file below it": (
        (header("./etc/x", LINK, target="y"),),
        (("./etc/x/deep/file", "b", 0o644),),
    ),
    "a link and a folder below it": (
        (header("./etc/x", LINK, target="y"),),
        (header("./etc/x/deep/", FOLDER),),
    ),
    "a file and a folder below it": ((("./etc/x", "a", 0o644),), (header("./etc/x/deep/", FOLDER),)),
}


@pytest.mark.parametrize("way", SHARED)
@pytest.mark.parametrize("order", ["first", "last"])
def test_packages_whose_paths_meet_are_left_to_dpkg_whole(root: Path, way: str, order: str):
    """Both, whichever was first."""
    first, second = SHARED[way]
    one = package(root, "a", ("./etc/mine", "a" * 999, 0o644), *first)
    two = package(root, "b", *second, ("./usr/mine", "b", 0o644))
    third = package(root, "c", ("./etc/third", "c", 0o644), ("./etc/near/both", "c", 0o644))
    unpacked = install(root, *((one, two, third) if order == "first" else (third, two, one)))
    assert unpacked.names == (["c"], ["a", "b"])
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == ["both", "third"]


def test_a_folder_where_another_package_has_a_link_is_the_links(root: Path):
    one = package(root, "a", header("./etc/x", LINK, target="y"))
    unpacked = install(root, one, package(root, "b", header("./etc/x/", FOLDER)))
    assert (unpacked.left, (root / "etc/x").readlink()) == ([], Path("y"))


@pytest.mark.parametrize("name", ["status", "info/a.list", "triggers/Unincorp"])
def test_a_package_cannot_lead_dpkgs_database_elsewhere(root: Path, name: str):
    (root.parent / "precious").write_text("mine")
    link = header(f"./var/lib/dpkg/{name}", LINK, target=str(root.parent / "precious"))
    with pytest.raises(PackageError, match=rf"a package has `.*/{name}`, which belongs to dpkg's database"):
        write_database(root, package(root, "a", link))
    assert (root.parent / "precious").read_text() == "mine"


def test_a_list_of_conffiles_shows_no_file_of_the_machine(root: Path):
    (root.parent / "precious").write_text("mine")
    link = header("./etc/way", LINK, target="../../precious")
    write_database(root, package(root, "a", ("./x", "", 0o644), link, conffiles="/../precious\n/etc/way\n"))
    status = (root / "var/lib/dpkg/status").read_text()
    assert " /../precious newconffile\n /etc/way newconffile\n" in status


def test_the_database_says_what_dpkg_would(root: Path):
    about = "Package: a\nVersion: 2\nArchitecture: amd64\nMulti-Arch: same\nDescription: x\n more\n"
    control = {
        "conffiles": "/etc/a.conf\nremove-on-upgrade /etc/old\n",
        "triggers": "# words\ninterest-noawait /usr/lib/x\ninterest ldconfig\nactivate-noawait other\n",
        "preinst": "#!/bin/sh\n",
    }
    one = package(root, "a", ("./etc/a.conf", "mine", 0o644), about=about, **control)
    base = package(root, "base-passwd", ("./b", "", 0o644), preinst="#!/bin/sh\n")
    packages = write_database(root, one, base, package(root, "dpkg", ("./d", "", 0o644)))
    database = root / "var/lib/dpkg"
    digest = hashlib.md5(b"mine").hexdigest()
    assert (database / "status").read_text().split("\n\n")[0] == (
        "Package: a\nStatus: install ok unpacked\nVersion: 2\nArchitecture: amd64\nMulti-Arch: same\nDescription: x\n more\n"
        f"Conffiles:\n /etc/a.conf {digest}\n /etc/old newconffile remove-on-upgrade"
    )
    assert (database / "info/a:amd64.list").read_text() == "/etc/a.conf\n"
    assert (database / "info/base-passwd.list").read_text() == "/b\n"
    assert (database / "triggers/File").read_text() == "/usr/lib/x a/noawait\n"
    assert (database / "triggers/ldconfig").read_text() == "a\n"
    assert not (database / "triggers/other").exists()
    scripts = [line.strip().split("/")[-1] for line in preinst_lines(packages)]
    assert scripts == ["base-passwd.preinst install", "a:amd64.preinst install"]
    assert "DPKG_RUNNING_VERSION=1 " in next(preinst_lines(packages))


OUT = "x/../../../../../../outside"


@pytest.mark.parametrize(
    ("folder", "about", "control"),
    [
        ("info/a.x", "", {OUT: ""}),
        ("info/a:x", f"Multi-Arch: same\nArchitecture: {OUT}\n", {}),
        ("triggers/x", "", {"triggers": f"interest {OUT}\n"}),
    ],
    ids=["a script", "an architecture", "a trigger"],
)
def test_the_control_part_of_a_package_writes_nothing_outside(
    root: Path, folder: str, about: str, control: dict[str, str]
):
    """A folder of the package makes the first part of the path exist, so that `..` after it would lead out."""
    way = header(f"./var/lib/dpkg/{folder}/", FOLDER, mode=0o755)
    deb = package(root, "a", way, about=about, **control)
    with pytest.raises(PackageError, match=r"the package `.*a\.deb` has `.*` in its control part"):
        write_database(root, deb)
    assert list(root.parent.glob("outside*")) == []


def run(folder: Path, spec: dict[str, str], *debs: Path) -> Path:
    """Run the program as a runner does. Returns its OUT."""
    (folder / "inputs/debs").mkdir(parents=True)
    (folder / "out").mkdir()
    for deb in debs:
        deb.rename(folder / "inputs/debs" / deb.name)
    text = {"architecture": "amd64", "triplet": "x86_64-linux-gnu", "gcc": "9"} | spec
    (folder / "spec.json").write_text(json.dumps(text))
    argv = (sys.executable, "-I", distribution.__file__, "spec.json", "inputs", "out")
    subprocess.run(argv, cwd=folder, check=True, timeout=60)
    return folder / "out"


def settings(out: Path) -> dict[str, str]:
    lines = shlex.split((out / "settings").read_text())
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.programs
def test_the_program_leaves_a_root_and_what_the_other_half_needs(tmp_path: Path):
    (tmp_path / "debs").mkdir()
    names = ("a_1%3a1", "b_1", "c_1", "python3.9-minimal_3.9.2", "dash_0.5.10.2-6")
    members = {"a_1%3a1": "./etc/both", "b_1": "./etc/both"}
    debs = [
        write_package(
            tmp_path / f"debs/{name}.deb", [(members.get(name, f"./etc/{name}"), "x", 0o644)],
            about=f"Package: {name.partition('_')[0]}\nVersion: 1\nArchitecture: all\n",
            control={"preinst": "#!/bin/sh\n"} if name == "c_1" else {},
        )
        for name in names
    ]  # fmt: skip
    out = run(tmp_path, {}, *debs)
    assert sorted(path.name for path in out.iterdir()) == [
        "left",
        "owners",
        "owners.json",
        "preinst",
        "root",
        "settings",
    ]
    assert sorted(path.name for path in (out / "left").iterdir()) == ["a_1%3a1.deb", "b_1.deb"]
    assert "/var/lib/dpkg/info/c.preinst install" in (out / "preinst").read_text()
    found = settings(out)
    assert {name: found[name] for name in ("COUNT", "COMPILE", "GCC", "TOOLS", "MANUALS")} == {
        "COUNT": "5", "COMPILE": "3.9", "GCC": "9", "TOOLS": "", "MANUALS": "usr/share/man/man1",
    }  # fmt: skip
    assert (out / "root/usr/share/man/man1").is_dir()
    links = list((out / "root/usr/local/bin").iterdir())
    assert {str(path.readlink()) for path in links} >= {"../../bin/gcc-9", "../../bin/g++-9"}
    assert "x86_64-linux-gnu-g++" in {path.name for path in links}


@pytest.mark.programs
def test_the_packages_of_an_image_are_left_to_its_dpkg(tmp_path: Path):
    deb = write_package(tmp_path / "a_1.deb", [("./bin/x", "x", 0o644)])
    out = run(tmp_path, {"tools": "/usr/bin"}, deb)
    assert sorted(path.name for path in out.iterdir()) == [
        "left",
        "owners",
        "owners.json",
        "preinst",
        "settings",
    ]
    assert settings(out)["TOOLS"] == "/usr/bin"
    assert [path.name for path in (out / "left").iterdir()] == ["a_1.deb"]


@pytest.mark.programs
def test_a_damaged_package_ends_the_program_with_one_line(tmp_path: Path):
    deb = write_package(tmp_path / "a_1.deb", [("./x", "x", 0o644)])
    deb.write_bytes(deb.read_bytes()[:-40])
    with pytest.raises(subprocess.CalledProcessError):
        run(tmp_path, {}, deb)
