"""How an environment was made: an in-toto statement with SLSA provenance.

As the SBOM, the text follows from the plan alone and lies inside both artifacts.
"""

from collections.abc import Sequence
from typing import Final

from envbuilder import __version__
from envbuilder.artifacts.statement import Subject, make_statement
from envbuilder.core.cache import sha256_text
from envbuilder.plan.model import Plan
from envbuilder.plan.sbom import base_images, every_artifact, image_purl, purl

PROVENANCE: Final = "opt/envbuilder/provenance.json"
PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:envbuilder:{engine}:1"
BUILDER: Final = (
    "urn:envbuilder:local"  # a build on a machine of one's own: level 1 of SLSA, whoever signs it
)


def make_provenance(plan: Plan, subjects: Sequence[Subject], tools: Sequence[str], engine: str) -> str:
    """Return the statement: an in-toto statement about the subjects, with SLSA provenance of version 1."""
    dependencies = [
        {"name": one.filename, "uri": purl(one), "digest": {"sha256": one.sha256}}
        for one in every_artifact(plan)
    ]
    dependencies += [
        {"name": base.reference, "uri": image_purl(base), "digest": {"sha256": base.manifest.digest}}
        for base in base_images(plan)
    ]
    dependencies += [
        {"name": f"{extension.name}/{file.path}", "digest": {"sha256": file.sha256}}
        for extension in plan.extensions
        for file in extension.files
    ]
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE.format(engine=engine),
            "externalParameters": {"recipe": plan.name, "files": _files(plan)},
            "internalParameters": {"platform": plan.platform, "epoch": plan.epoch, "plan": plan.key},
            "resolvedDependencies": dependencies,
        },
        "runDetails": {
            "builder": {
                "id": BUILDER,
                "version": {"envbuilder": __version__} | dict(one.split(" ", 1) for one in tools),
            }
        },
    }
    return make_statement(subjects, predicate_type=PREDICATE_TYPE, predicate=predicate)


def _files(plan: Plan) -> list[dict[str, object]]:
    return [Subject(name=path, sha256=sha256_text(text)).data() for path, text in plan.runtime.files]
