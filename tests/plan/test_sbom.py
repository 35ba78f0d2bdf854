"""The SBOM and the provenance: what stands in them, and that others' libraries read them."""

import dataclasses
import json
from dataclasses import replace

import pytest
from google.protobuf.json_format import Parse
from hypothesis import given
from hypothesis import strategies as st
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from envbuilder.artifacts.statement import Subject, subject_digests
from envbuilder.core.cache import Sha256, save_text, sha256_text
from envbuilder.core.errors import BuildError
from envbuilder.layers.layer import write_layer
from envbuilder.lock.model import Artifact, LockedExtension, SourceFile
from envbuilder.plan.contents import PROVENANCE, SBOM
from envbuilder.plan.documents import make_provenance, write_documents
from envbuilder.plan.model import CondaStep, ExtensionsStep, OsStep, Plan, PythonStep, RuntimeStep
from envbuilder.plan.sbom import (
    UNKNOWN,
    License,
    debian_license,
    make_sbom,
    own_references,
    purl,
    wheel_license,
)

EPOCH = 1_700_000_000


def artifact(kind: str, name: str, version: str, path: str) -> Artifact:
    source = "debian" if kind == "deb" else "pypi"
    return Artifact(
        kind=kind, name=name, version=version, sha256=sha256_text(name), size=1, source=source, path=path
    )


DEB = artifact("deb", "libx", "1:2.0+b1", "pool/main/libx/libx_2.0+b1_amd64.deb")
LINKED = artifact("deb", "libx-dev", "1:2.0", "pool/main/libx/libx-dev_2.0_all.deb")
WHEEL = artifact("wheel", "A_wheel", "1.0+cpu", "a-wheel/a_wheel-1.0+cpu-py3-none-any.whl")
EXTENSION = LockedExtension(
    name="fused", sources=("a.cpp",), include=(), cflags=(), cuda_cflags=(),
    files=(SourceFile(path="a.cpp", sha256=sha256_text("a"), size=1),),
)  # fmt: skip
RUNTIME = RuntimeStep(env=(), labels=(), files=(("opt/envbuilder/lock.json", "{}"),))
PLAN = Plan(
    name="x",
    platform="linux/amd64",
    epoch=EPOCH,
    steps=(
        OsStep(suite="bookworm", gcc="12", artifacts=(DEB, LINKED)),
        PythonStep(python="3.11", artifacts=(WHEEL,)),
        ExtensionsStep(architectures=(), extensions=(EXTENSION,)),
        RUNTIME,
    ),
)
LICENCES = {
    DEB.sha256: License(expression="MIT AND LicenseRef-odd", stated="Expat; odd"),
    WHEEL.sha256: License(stated="BSD"),
}
SUBJECTS = (Subject(name="os.tar", sha256=sha256_text("os")),)
TOOLS = ("zstd 1.5.7", "uv 0.9.0")


def test_the_parts_list_is_spdx_that_its_own_library_accepts():
    document = JsonLikeDictParser().parse(json.loads(make_sbom(PLAN, LICENCES)))
    assert [message.validation_message for message in validate_full_spdx_document(document)] == []


def test_every_artifact_and_extension_is_a_part():
    packages = json.loads(make_sbom(PLAN, LICENCES))["packages"]
    assert [one["name"] for one in packages] == ["x", "libx", "libx-dev", "A_wheel", "fused"]
    assert [one["checksums"][0]["checksumValue"] for one in packages[1:4]] == [
        DEB.sha256,
        LINKED.sha256,
        WHEEL.sha256,
    ]
    assert "sha256:" + sha256_text("a") + " a.cpp" in packages[-1]["comment"]


def test_a_license_that_is_not_certain_is_quoted_and_not_asserted():
    packages = {one["name"]: one for one in json.loads(make_sbom(PLAN, LICENCES))["packages"]}
    assert packages["libx"]["licenseDeclared"] == "MIT AND LicenseRef-odd"
    assert packages["A_wheel"]["licenseDeclared"] == "NOASSERTION"
    assert packages["A_wheel"]["licenseComments"] == "the package says: BSD"
    assert "licenseComments" not in packages["libx-dev"]


def test_both_texts_are_the_same_each_time():
    assert make_sbom(PLAN, LICENCES) == make_sbom(PLAN, LICENCES)
    assert make_provenance(PLAN, SUBJECTS, TOOLS) == make_provenance(PLAN, SUBJECTS, TOOLS)


def test_the_provenance_is_a_statement_that_in_totos_own_library_accepts():
    text = make_provenance(PLAN, SUBJECTS, TOOLS)
    Statement.copy_from_pb(Parse(text, statement_pb2.Statement())).validate()
    provenance = Parse(json.dumps(json.loads(text)["predicate"]), provenance_pb2.Provenance())
    names = [one.name for one in provenance.build_definition.resolved_dependencies]
    assert names == [DEB.filename, LINKED.filename, WHEEL.filename, "fused/a.cpp"]
    assert dict(provenance.run_details.builder.version)["uv"] == "0.9.0"


def test_package_urls_escape_what_versions_hold():
    assert purl(DEB) == "pkg:deb/debian/libx@1%3A2.0%2Bb1?arch=amd64"
    assert purl(LINKED).endswith("?arch=all")
    given = dataclasses.replace(artifact("sdist", "knn", "0123abc", "knn.zip"), source="url-0123abc")
    assert purl(given) == "pkg:generic/knn@0123abc"
    assert purl(artifact("git", "dwconv", "0123abc", "dwconv.tar")) == "pkg:generic/dwconv@0123abc"
    assert (
        purl(artifact("archive", "cpython", "3.10.1+20260101", "x.tar.gz"))
        == "pkg:generic/cpython@3.10.1%2B20260101"
    )
    conda = replace(
        artifact("conda", "_mutex", "1!2.0", "noarch/_mutex-1!2.0-conda_forge.tar.bz2"), source="channel-x"
    )
    assert purl(conda) == "pkg:conda/_mutex@1%212.0?build=conda_forge&channel=x&subdir=noarch"
    assert purl(WHEEL) == "pkg:pypi/a-wheel@1.0%2Bcpu"


# ---------------------------------------------------------------------------------------------------------- licenses

DEP5 = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"


@pytest.mark.parametrize(
    ("said", "expression"),
    [
        ("GPL-2+", "GPL-2.0-or-later"),
        ("LGPL-2.1", "LGPL-2.1-only"),
        ("Expat", "MIT"),
        ("BSD-3-clause", "BSD-3-Clause"),
        ("GPL-2+ or Artistic", "GPL-2.0-or-later OR Artistic-1.0-Perl"),
        ("GPL-2+ or AFL-2.1, and Expat", "GPL-2.0-or-later OR AFL-2.1 AND MIT"),
        ("public-domain", "LicenseRef-public-domain"),
        ("GPL-3+ with Bison exception", "LicenseRef-GPL-3-with-Bison-exception"),
    ],
)
def test_debians_names_of_licenses_become_spdx(said, expression):
    assert debian_license(f"{DEP5}Files: *\nLicense: {said}\n").expression == expression


def test_all_files_of_a_package_count_and_mere_texts_do_not():
    text = f"{DEP5}Files: *\nLicense: Expat\n\nFiles: x\nLicense: ISC or Zlib\n\nLicense: GPL-3\n the text\n"
    assert debian_license(text) == License(expression="(ISC OR Zlib) AND MIT", stated="Expat; ISC or Zlib")


def test_a_copyright_file_for_people_says_nothing():
    assert debian_license("This is free software.\nLicense: MIT\n") == UNKNOWN


@pytest.mark.parametrize(
    ("fields", "expression", "stated"),
    [
        ("License-Expression: mit and Apache-2.0", "MIT AND Apache-2.0", "mit and Apache-2.0"),
        ("License: Apache 2.0", "Apache-2.0", "Apache 2.0"),
        ("License: BSD", "", "BSD"),
        ("Classifier: License :: OSI Approved :: MIT License", "MIT", "MIT License"),
        ("Classifier: License :: OSI Approved :: BSD License", "", "BSD License"),
        ("License: MIT\nClassifier: License :: OSI Approved :: Apache Software License", "", "MIT"),
        ("License: LicenseRef-scancode-3com-microcode", "", "LicenseRef-scancode-3com-microcode"),
        ("Summary: none", "", ""),
    ],
)
def test_what_a_wheel_says_of_its_license(fields, expression, stated):
    metadata = f"Metadata-Version: 2.4\nName: x\nVersion: 1\n{fields}\n".encode()
    assert wheel_license(metadata) == License(expression=expression, stated=stated)


@given(st.text(max_size=80))
def test_whatever_a_copyright_file_says_the_references_are_spdxs(said):
    found = debian_license(f"{DEP5}Files: *\nLicense: {said}\n")
    for name in own_references(found.expression):
        assert set(name.removeprefix("LicenseRef-")) <= set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-"
        )


# ------------------------------------------------------------------------------------------- from layers to documents

STATUS = """\
Package: libx
Status: install ok installed
Version: 1:2.0+b1

Package: libx-dev
Status: install ok installed
Version: 1:2.0

Package: gone
Status: deinstall ok config-files
Version: 1
"""


@pytest.fixture
def trees(tmp_path):
    """What the os and the Python step would have left on disk."""
    os_tree, python_tree = tmp_path / "os", tmp_path / "python"
    doc = os_tree / "usr/share/doc/libx"
    doc.mkdir(parents=True)
    (doc / "copyright").write_text(f"{DEP5}Files: *\nLicense: Expat\n")
    (doc.parent / "libx-dev").symlink_to("libx")
    (os_tree / "var/lib/dpkg").mkdir(parents=True)
    (os_tree / "var/lib/dpkg/status").write_text(STATUS)
    info = python_tree / "opt/env/lib/python3.11/site-packages/a_wheel-1.0+cpu.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a.wheel\nVersion: 1.0+cpu\nLicense: ISC\n")
    return {OsStep.name: os_tree, PythonStep.name: python_tree}


@pytest.fixture
def layers(trees, tmp_path):
    made = {
        name: write_layer(name=name, tree=tree, folder=tmp_path / f"layer-{name}", epoch=1, threads=1)
        for name, tree in trees.items()
    }
    (tmp_path / "empty").mkdir()
    extensions = write_layer(
        name="extensions", tree=tmp_path / "empty", folder=tmp_path / "e", epoch=1, threads=1
    )
    return made | {ExtensionsStep.name: extensions}


def test_licenses_come_from_what_is_installed_also_through_linked_folders(layers):
    documents = write_documents(PLAN, layers.__getitem__, TOOLS)
    packages = {one["name"]: one["licenseDeclared"] for one in json.loads(documents[SBOM])["packages"]}
    assert packages | {"x": "", "fused": ""} == {
        "x": "", "libx": "MIT", "libx-dev": "MIT", "A_wheel": "ISC", "fused": "",
    }  # fmt: skip


def test_the_provenance_inside_names_the_layers_below_it(layers):
    documents = write_documents(PLAN, layers.__getitem__, TOOLS)
    assert subject_digests(documents[PROVENANCE]) == {layer.diff_id for layer in layers.values()}


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        ("var/lib/dpkg/status", "1:2.0+b1", "1:2.1", "libx: locked 1:2.0+b1, installed 1:2.1"),
        ("var/lib/dpkg/status", "deinstall ok config-files", "install ok installed", "gone: locked not"),
    ],
)
def test_a_package_that_the_lock_does_not_name_is_refused(trees, tmp_path, layers, path, old, new, said):
    file = trees[OsStep.name] / path
    file.write_text(file.read_text().replace(old, new))
    made = write_layer(
        name="os", tree=trees[OsStep.name], folder=tmp_path / "layer-other", epoch=1, threads=1
    )
    layers = layers | {OsStep.name: made}
    with pytest.raises(BuildError, match="not those of the lock") as caught:
        write_documents(PLAN, layers.__getitem__, TOOLS)
    assert said in caught.value.message


RECORD = '{"name": "tool", "version": "1!2", "license": "%s"}'


@pytest.mark.parametrize(
    ("text", "license_or_error"),
    [
        (RECORD % "BSD-3-Clause", "BSD-3-Clause"),
        (RECORD % "its own", "NOASSERTION"),
        (RECORD.replace("1!2", "1!3"), "the conda packages are not those of the lock"),
        ("[]", "`/opt/conda-env/conda-meta/tool.json` is no record of a package of conda"),
        ("{", "is no record of a package of conda"),
    ],
)
def test_packages_of_conda_are_those_of_its_records(text: str, license_or_error: str, tmp_path, layers):
    tool = artifact("conda", "tool", "1!2", "linux-64/tool-1!2-0.conda")
    step = CondaStep(artifacts=(tool,), allow_scripts=())
    save_text(tmp_path / "tree/opt/conda-env/conda-meta/tool.json", text)
    made = write_layer(name="conda", tree=tmp_path / "tree", folder=tmp_path / "layer", epoch=1, threads=1)
    plan = replace(PLAN, steps=(*PLAN.steps[:-1], step, RUNTIME))
    if "conda" in license_or_error:
        with pytest.raises(BuildError, match=license_or_error):
            write_documents(plan, (layers | {"conda": made}).__getitem__, TOOLS)
    else:
        documents = write_documents(plan, (layers | {"conda": made}).__getitem__, TOOLS)
        packages = {one["name"]: one["licenseDeclared"] for one in json.loads(documents[SBOM])["packages"]}
        assert packages["tool"] == license_or_error


def test_digests_of_subjects_are_texts():
    assert subject_digests(make_provenance(PLAN, SUBJECTS, TOOLS)) == {Sha256(SUBJECTS[0].sha256)}
