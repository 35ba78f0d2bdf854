"""`report`: an HTML page about what was built, which needs neither network nor script."""

from envbuilder.builder.inspection import WrittenReport, write_report
from envbuilder.commands._console import build_context
from envbuilder.commands.context import Artifacts, Name, Recipes, Session, command
from envbuilder.core.answer import Reply


@command("report", "envbuilder report a100")
def report(session: Session, name: Name, *, artifacts: Artifacts, recipes: Recipes) -> Reply[WrittenReport]:
    """Write one HTML page about what was built: digests, how to run it, what is proven, pins, sizes, licenses, SBOM."""
    context = build_context(session, recipes)
    with context.console.group(f"report {name}"):
        written, findings = write_report(name, context, artifacts)
    # The page says the same as the findings.
    return Reply(data=written, text=str(written.file), findings=findings if session.as_json else ())
