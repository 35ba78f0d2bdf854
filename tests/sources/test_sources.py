"""Where artifacts may come from: settings first, then configuration, then defaults."""

from datetime import date
from pathlib import Path

import pytest
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from envbuilder.core.errors import ToolError, UsageError
from envbuilder.core.process import Command
from envbuilder.sources.names import (
    CUDA,
    CUDA_REDIST,
    DEBIAN_ARCHIVE,
    PYTORCH_INDEX,
    STANDALONE_RELEASES,
    UBUNTU_ARCHIVE,
    Sources,
    file_path,
    probe_sources,
    shown,
)
from tests.support.runner import FakeRunner

QUIET = {"PIP_CONFIG_FILE": "/dev/null"}  # not this machine's pip.conf


KEY = "main/binary-amd64/Packages"


def apt(lists: Path | None = None, *lines: str) -> FakeRunner:
    """Return a runner of an apt with these lines `origin|label|address`; without `origin|label|`, its list was not read."""
    rows = []
    for number, line in enumerate(lines):
        *publisher, address = line.split("|")
        rows.append(f"/nonexistent/list{number}_{KEY.replace('/', '_')}\t{KEY}\t{address}\n")
        if publisher and lists:
            fields = "Origin: {}\nLabel: {}\nSuite: x\n".format(*publisher)
            (lists / f"list{number}_{'InRelease' if number % 2 else 'Release'}").write_text(fields)
    return FakeRunner({"apt-get": "".join(rows), "apt-config": f"lists='{lists}/'\n"})


def probe(environment: dict[str, str], runner: FakeRunner | None = None) -> Sources:
    return probe_sources(QUIET | environment, runner or apt())


def test_settings_win_and_then_apt_is_not_asked(tmp_path: Path) -> None:
    runner = apt(tmp_path, "Debian|Debian|http://apt.invalid/debian/")
    found = probe(
        {
            "ENVBUILDER_DEBIAN_MIRROR": "http://one.invalid/debian http://two.invalid/debian/",
            "ENVBUILDER_DEBIAN_SECURITY": "http://one.invalid/security",
            "ENVBUILDER_UBUNTU_MIRROR": "http://one.invalid/ubuntu",
            "ENVBUILDER_UBUNTU_KEYRING": "/ubuntu.gpg",
            "ENVBUILDER_UBUNTU_SNAPSHOT": "",
            "ENVBUILDER_UBUNTU_FILES": "http://one.invalid/files",
            "ENVBUILDER_INDEX": "https://index.invalid/simple",
            "ENVBUILDER_PYTORCH_INDEX": "https://torch.invalid/whl",
            "ENVBUILDER_FOLDERS": f"{tmp_path}:/nonexistent/folder",
            "ENVBUILDER_DEBIAN_KEYRING": "/site.gpg",
            "UV_DEFAULT_INDEX": "https://other.invalid/simple",
            "UV_PYTHON_INSTALL_MIRROR": "https://python.invalid/releases",
        },
        runner,
    )
    assert tuple(found.debian) == ("http://one.invalid/debian/", "http://two.invalid/debian/")
    assert found.indexes == ("https://index.invalid/simple/",)
    assert found.pytorch == "https://torch.invalid/whl/"
    assert found.standalone == ("https://python.invalid/releases/",)
    assert found.folders == (tmp_path,)
    assert found.keyring == Path("/site.gpg")
    assert tuple(found.security) == ("http://one.invalid/security/",)
    assert tuple(found.ubuntu) == ("http://one.invalid/ubuntu/",)
    assert (found.ubuntu_snapshot, found.ubuntu_files) == ("", "http://one.invalid/files/")
    assert found.ubuntu_keyring == Path("/ubuntu.gpg")
    assert runner.commands == []


def test_apt_is_asked_once_and_not_before_a_mirror_is_needed(tmp_path: Path) -> None:
    runner = apt(
        tmp_path,
        "Debian|Debian|http://apt.invalid/debian/",
        "Debian|Debian-Security|http://apt.invalid/security/",
    )
    sources = probe({}, runner)
    assert sources.indexes
    assert runner.commands == []
    assert [*sources.debian, *sources.security] == [
        "http://apt.invalid/debian/",
        "http://apt.invalid/security/",
    ]
    assert [command.argv[0] for command in runner.commands] == ["apt-config", "apt-get"]


@pytest.mark.parametrize("address", ["foo", "https://10.9.9.9:99999/x", "https://[::1/x"])
def test_an_address_that_cannot_be_read_is_refused_by_its_setting(address: str) -> None:
    with pytest.raises(UsageError, match="ENVBUILDER_INDEX holds"):
        probe({"ENVBUILDER_INDEX": address})


def test_without_settings_the_tools_own_defaults_count() -> None:
    found = probe({})
    assert found.indexes == (PYPI_SIMPLE_ENDPOINT,)
    assert found.pytorch == f"{PYTORCH_INDEX}/"
    assert found.standalone == STANDALONE_RELEASES
    assert found.folders == ()


def test_apt_gives_the_mirrors_of_each_archive(tmp_path: Path) -> None:
    runner = apt(
        tmp_path,
        "Ubuntu|Ubuntu|http://mirror.invalid/ubuntu/",
        "Debian|Debian|http://mirror.invalid/debian/",
        "Debian|Debian-Security|http://mirror.invalid/debian-security/",
        "Debian|Debian|http://mirror.invalid/debian/",
        "Debian|Debian|cdrom:[Debian]/",
        "Node Source|Node Source|https://node.invalid/",
        "Debian|Debian|file:/srv/mirror",
    )
    found = probe({}, runner)
    assert tuple(found.debian) == ("http://mirror.invalid/debian/", "file:/srv/mirror/")
    assert tuple(found.security) == ("http://mirror.invalid/debian-security/",)
    assert tuple(found.ubuntu) == ("http://mirror.invalid/ubuntu/",)


@pytest.mark.parametrize(
    ("mirror", "security"),
    [
        ("http://site.invalid/debian", ("http://site.invalid/debian-security/",)),
        ("http://site.invalid/mirrors/bookworm/", ()),
    ],
)
def test_a_named_mirror_has_the_security_archive_beside_it(mirror: str, security: tuple[str, ...]) -> None:
    found = probe({"ENVBUILDER_DEBIAN_MIRROR": mirror})
    assert tuple(found.security) == security
    assert tuple(found.ubuntu) == (UBUNTU_ARCHIVE,)


def test_the_archive_of_a_day_is_named_for_each_source() -> None:
    found = Sources(debian=(), snapshot="https://one.invalid/", ubuntu_snapshot="https://two.invalid/ubuntu/")
    places = [
        found.mirror_of(source, date(2026, 6, 30)) for source in ("debian", "debian-security", "ubuntu")
    ]
    assert places == [
        "https://one.invalid/archive/debian/20260630T000000Z/",
        "https://one.invalid/archive/debian-security/20260630T000000Z/",
        "https://two.invalid/ubuntu/20260630T000000Z/",
    ]
    assert Sources(debian=(), snapshot="").mirror_of("debian", date(2026, 6, 30)) == ""


@pytest.mark.parametrize("publisher", ["", "Debian|Debian|"])
def test_a_mirror_whose_lists_were_not_read_yet_is_known_by_its_path(tmp_path: Path, publisher: str) -> None:
    runner = apt(
        tmp_path,
        f"{publisher}http://mirror.invalid/debian/",
        "http://mirror.invalid/debian-security/",
        "Docker|Docker|https://docker.invalid/linux/debian/",
    )
    found = probe({}, runner)
    assert tuple(found.debian) == ("http://mirror.invalid/debian/",)
    assert tuple(found.security) == ("http://mirror.invalid/debian-security/",)


def test_a_list_of_mirrors_is_read(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(
        "# ours\nhttp://one.invalid/debian priority:1\n\nhttp://two.invalid/debian\n"
    )
    found = probe({}, apt(tmp_path, f"Debian|Debian|mirror+file:{tmp_path}/list"))
    assert tuple(found.debian) == ("http://one.invalid/debian/", "http://two.invalid/debian/")


def test_a_machine_without_apt_takes_debians_own_mirror() -> None:
    class NoApt(FakeRunner):
        def run(self, command: Command, **_options: object) -> str:
            raise ToolError("`apt-get` is not installed")

    found = probe({}, NoApt())
    assert tuple(found.debian) == (DEBIAN_ARCHIVE,)
    assert tuple(found.security) == (DEBIAN_ARCHIVE.replace("/debian/", "/debian-security/"),)


def test_pip_and_uv_variables_count_with_their_ways_to_write_several(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = probe(
        {
            "UV_DEFAULT_INDEX": "https://main.invalid/simple/",
            "UV_INDEX": "site=https://site.invalid/simple other=file:///srv/simple",
            "UV_FIND_LINKS": f"{tmp_path}/a,{(tmp_path / 'b').as_uri()},https://links.invalid/page.html",
            "PIP_INDEX_URL": "https://pip.invalid/simple",
        }
    )
    assert found.indexes == (
        "https://main.invalid/simple/",
        "https://site.invalid/simple/",
        "file:///srv/simple/",
    )
    assert found.folders == (tmp_path / "a", tmp_path / "b")


def test_pip_configuration_files_count_and_the_later_ones_win(tmp_path: Path) -> None:
    home, named = tmp_path / "home", tmp_path / "named.conf"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text(
        f"[global]\nindex-url = https://user.invalid/simple\nfind-links = {tmp_path}\nextra-index-url =\n    https://x.invalid/s\n"
        "cert = /site.pem\n"
    )
    named.write_text("[install]\nindex-url = https://named.invalid/simple%20dir\n")
    found = probe_sources({"HOME": str(home), "PIP_CONFIG_FILE": str(named)}, apt())
    assert found.indexes == ("https://named.invalid/simple%20dir/", "https://x.invalid/s/")
    assert found.folders == (tmp_path,)
    assert found.certificates == Path("/site.pem")


def test_a_broken_pip_configuration_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("index-url = https://x.invalid\n")
    with pytest.raises(ToolError, match=r"pip\.conf"):
        probe({"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")})


def test_certificates_come_from_the_environment() -> None:
    assert probe({"SSL_CERT_FILE": "/ca.pem"}).certificates == Path("/ca.pem")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://user:secret@host.invalid:8080/simple/?token=x#y", "https://host.invalid:8080/simple/"),
        ("http://host.invalid/debian", "http://host.invalid/debian"),
        ("file:///srv/mirror", "file:///srv/mirror"),
    ],
)
def test_messages_show_urls_without_secrets(url: str, text: str) -> None:
    assert shown(url) == text


def test_only_file_urls_have_a_path() -> None:
    assert file_path("file:///srv/my%20mirror") == Path("/srv/my mirror")
    assert file_path("https://host.invalid/srv") is None


@pytest.mark.parametrize(
    ("setting", "address"),
    [
        (None, CUDA_REDIST),
        ("", ""),
        ("https://mirror.invalid/redist", "https://mirror.invalid/redist/"),
        ("/usr/share", "file:///usr/share/"),
        ("file:///media/redist/", "file:///media/redist/"),
    ],
)
def test_nvidia_s_archive_may_be_a_mirror_a_folder_or_none(setting: str | None, address: str):
    own = {} if setting is None else {"ENVBUILDER_CUDA_REDIST": setting}
    found = probe(own)
    assert found.cuda == address
    assert found.mirrors(CUDA) == ((address,) if address else ())
