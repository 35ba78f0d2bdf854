"""The apt sources of an image, in both forms, and the repositories that they become."""

from pathlib import Path

import pytest

from envbuilder.compat.image_facts import Base, Name
from envbuilder.compat.repositories import addresses, repositories
from envbuilder.recipe.repository import Repository
from tests.support import bases
from tests.support.bases import look
from tests.support.locks import make_recipe

OTHER = "https://apt.example/repos/ubuntu2204/x86_64/"
KEY = "/usr/share/keyrings/cuda-archive-keyring.gpg"
FIELDS = f"""\
# a comment
Types: deb deb-src
URIs: {OTHER}
Suites: stable
# another
Components: main
 extra
Signed-By: {KEY}

Types: deb
Enabled: no
URIs: https://off.example/
Suites: /

Types: deb
URIs: https://inline.example/
Suites: /
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDME
 -----END PGP PUBLIC KEY BLOCK-----
"""


def found_in(files: dict[str, str]) -> list[tuple[str, str]]:
    inside = look(bases.over(bases.debian(), files))
    return [(fact.value, fact.path) for fact in inside.facts if fact.name == Name.APT]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (f"deb [signed-by={KEY}] {OTHER} /", f"deb [signed-by={KEY}] {OTHER} /"),
        (f"deb {OTHER.rstrip('/')} / # NVIDIA", f"deb {OTHER} /"),
        ("deb [arch=$(ARCH)] https://a.example stable main", ""),  # apt has no such variable there
        ("deb [arch=arm64,amd64] https://a.example/$(ARCH) stable main x", "deb https://a.example/amd64/ stable main x"),
        ("deb [arch=arm64] https://a.example stable main", ""),
        ("deb [trusted=yes] https://me:secret@a.example/ stable main", "deb https://a.example/ stable main"),
        ("deb-src https://a.example stable main", ""),
        ("# deb https://a.example stable main", ""),
        ("deb file:/opt/local ./", ""),
        ("deb http://mirror.example/debian bookworm main contrib", ""),  # the distribution's own
        ("deb http://mirror.example/debian-security bookworm-security main", ""),
        ("deb http://mirror.example/debian sid main", "deb http://mirror.example/debian/ sid main"),
        ("deb https://download.example/linux/debian bookworm stable", "deb https://download.example/linux/debian/ bookworm stable"),
        ("deb [signed-by=ABCDEF] https://a.example /", "deb https://a.example/ /"),
    ],
)  # fmt: skip
def test_a_line_of_an_image_is_a_source_beside_the_distribution_s_or_none(line: str, value: str) -> None:
    path = "etc/apt/sources.list.d/some.list"
    assert found_in({path: f"\n{line}\n"}) == ([(value, f"/{path}")] if value else [])


def test_a_file_of_fields_is_read_as_apt_does_with_the_keys_inside() -> None:
    path = "etc/apt/sources.list.d/cuda.sources"
    assert [value for value, _ in found_in({path: FIELDS})] == [
        f"deb [signed-by=/{path}-2.asc] https://inline.example/ /",
        f"deb [signed-by={KEY}] {OTHER} stable main extra",
    ]
    key = look(bases.over(bases.debian(), {path: FIELDS})).keys[f"{path}-2.asc"]
    assert key == b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDME\n-----END PGP PUBLIC KEY BLOCK-----\n"


def test_sources_of_an_image_get_names_by_their_files(tmp_path: Path) -> None:
    files = {
        "etc/apt/sources.list": "deb http://a.example/ /\n",
        "etc/apt/sources.list.d/cuda-ubuntu2204-x86_64.list": "deb http://b.example/ x main\ndeb http://b.example/ y main\n"
        "deb http://c.example/ x main\n",
    }
    inside = look(bases.over(bases.debian(), files))
    base = Base(facts=inside.facts)
    assert addresses(make_recipe(tmp_path), base) == {
        "apt-image-cuda-ubuntu2204-x86-64": "http://b.example/",
        "apt-image-cuda-ubuntu2204-x86-64-2": "http://c.example/",
        "apt-image-sources": "http://a.example/",
    }
    own = Repository(name="mine", url="http://b.example/", suite="x", components=("main",))
    found = repositories(make_recipe(tmp_path, apt_sources=(own,)), base)
    assert found[0] == own
    assert ("http://b.example/", "x") not in {(one.url, one.suite) for one in found[1:]}
    assert len(found) == 4
