"""Write what proves a folder of a release: its provenance, the sums of all its files and, with a key, signatures of both.

    python -m scripts.sign_release FOLDER COMMIT SECONDS [KEY]    SECONDS: the time of the commit

The same files, commit and key give the same bytes. KEY is a private key in PEM. Its passphrase is in ENVBUILDER_KEY_PASSPHRASE.
"""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from envbuilder import __version__
from envbuilder.artifacts.signing import load_private, make_bundle, sign_bytes
from envbuilder.artifacts.statement import SLSA_PROVENANCE, Release, Subject, make_statement, restate
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import EnvbuilderError
from envbuilder.plan.documents import BUILDER

ROOT = Path(__file__).parents[1]
NAME = "envbuilder-hpc"
BUILD_TYPE = "urn:envbuilder:release:1"
INPUTS = ("requirements.lock", "recipes/envbuilder-base.lock", "recipes/envbuilder-base-arm64.lock")
SUMS = "SHA256SUMS"


def provenance(folder: Path, commit: str, time: datetime) -> str:
    """Return the in-toto statement about the files of a folder, with SLSA provenance of version 1."""
    subjects = [Subject(name=path.name, sha256=sha256_file(path)) for path in sorted(folder.iterdir())]
    locks = [{"name": path, "digest": {"sha256": sha256_file(ROOT / path)}} for path in INPUTS]
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"program": "scripts/release", "commit": commit},
            "resolvedDependencies": [{"name": NAME, "digest": {"gitCommit": commit}}, *locks],
        },
        "runDetails": {"builder": {"id": BUILDER, "version": {"envbuilder": __version__}}},
    }
    statement = make_statement(subjects, predicate_type=SLSA_PROVENANCE, predicate=predicate)
    return restate(statement, subjects, Release(name=NAME, tag=f"v{__version__}", time=time))


def main(folder: str, commit: str, seconds: str, key: str = "") -> None:
    place, time = Path(folder), datetime.fromtimestamp(int(seconds), UTC)
    private = load_private(Path(key), lambda: os.environ.get("ENVBUILDER_KEY_PASSPHRASE")) if key else None
    statement = provenance(place, commit, time)
    name = f"{NAME}-{__version__}.provenance.json"
    (place / name).write_text(statement, encoding="utf-8")
    if private:
        bundle = place / name.replace(".json", ".sigstore.json")
        bundle.write_text(make_bundle(statement, private), encoding="utf-8")
    sums = "".join(f"{sha256_file(path)}  {path.name}\n" for path in sorted(place.iterdir()))
    (place / SUMS).write_text(sums, encoding="utf-8")
    if private:
        (place / f"{SUMS}.sig").write_bytes(sign_bytes(private, sums.encode()))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except EnvbuilderError as error:
        sys.exit(f"sign_release.py: {error.message}\n\nhint: {error.hint}")
