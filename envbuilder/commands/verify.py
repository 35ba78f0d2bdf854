"""`verify`: prove that image and SIF hold the same files, and audit what they hold."""

from pathlib import Path
from typing import Annotated

import typer

from envbuilder.artifacts.outputs import SIF, find_outputs, names_built
from envbuilder.artifacts.sif import is_sif
from envbuilder.builder.inspection import verifier, verify_built
from envbuilder.commands._console import build_context
from envbuilder.commands.context import Artifacts, Recipes, Session, command, recipe_argument
from envbuilder.core.answer import BareAnswer, Reply
from envbuilder.run.named import need_file
from envbuilder.verify.alone import VerifiedSif
from envbuilder.verify.pair import Verified, VerifiedPair, glibc_of


class VerifiedPairs(BareAnswer[tuple[VerifiedPair, ...]]):
    """The answer for a recipe that was built for several processors, one row for each."""


@command(
    "verify",
    "envbuilder verify a100",
    "envbuilder verify build/a100.oci build/a100.sif",
    "envbuilder verify a100.sif --key public.pem",
)
def verify(
    session: Session,
    name: Annotated[
        str, recipe_argument("a recipe that was built, or a SIF; or an image: an OCI layout, an archive, a name in the Docker "
                             "engine", "NAME|SIF|IMAGE")
    ],
    sif: Annotated[Path | None, typer.Argument(help="the SIF, if the first argument is an image")] = None,
    *,
    key: Annotated[Path | None, typer.Option(help="a public key: image and SIF must be signed with it")] = None,
    oldest_host: Annotated[
        str, typer.Option(metavar="GLIBC",
                          help="report files that need a newer glibc: a version, or a base such as debian/bullseye")
    ] = "",
    artifacts: Artifacts, recipes: Recipes,
) -> Reply[VerifiedPair | VerifiedPairs | VerifiedSif]:  # fmt: skip
    """Prove that an image and a SIF hold the same files, path by path, and audit them."""
    context = build_context(session, recipes)
    work = verifier(context, glibc=glibc_of(oldest_host), key=key)
    path = Path(name)
    is_alone = sif is None and (path.suffix == SIF or is_sif(path))
    if is_alone and not find_outputs(name, artifacts).image.exists():
        need_file(path, name, recipes)
        alone, warnings = work.alone(path)
        return Reply(data=alone, text=alone.text(), findings=warnings)
    pairs: list[Verified] = []
    for built in (name,) if sif else names_built(name, artifacts):
        with context.console.group(f"verify {built}"):
            pairs.append(
                work.pair(built, sif) if sif else verify_built(built, context, work, output=artifacts)
            )
    answers = tuple(pair.answer for pair in pairs)
    return Reply(
        data=answers[0] if len(answers) == 1 else VerifiedPairs(answers),
        text="\n".join(answer.text() for answer in answers),
        findings=tuple(finding for pair in pairs for finding in pair.findings),
    )
