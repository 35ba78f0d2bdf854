"""Command lines in messages can be pasted: what a user chose, a path or a name with a blank, is quoted in them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "envbuilder"
# A command line that has begun, in a text up to a value.
LINE = re.compile(
    r"(?:^|`|\$ |: |=)(?:envbuilder|git|ssh|docker|podman|apptainer|chmod|cp|rm|sbatch|ldconfig) [^`]*$"
)
# Values without blanks and quotes: names of recipes, which have a pattern, tags, hosts of registries, numbers and constants; and
# words that were quoted where they were put together.
PLAIN = {
    "builder/job.py: __version__",
    "cli.py: __version__",
    "cli.py: word",
    "commands/init.py: example",
    "init/__init__.py: name",
    "init/shell_lines.py: self.clones[folder].git",
    "init/recipe_text.py: recipe.name",
    "compat/rules/base_image.py: base.distribution",
    "compat/rules/base_image.py: context.recipe.name",
    "core/private.py: letters",
    "lock/package_lists.py: recipe.name",
    "node/doctor/node.py: device",
    "plan/make.py: plan.name",
    "registry/client.py: host",
    "registry/push.py: tagged.tag",
    "run/launch/job.py: job.where",
    "run/launch/prepare.py: words",
    "verify/report.py: gpus",
    "verify/report.py: name",
    "verify/report.py: nodes",
    "verify/report.py: nv",
    "verify/report.py: sif",
    "verify/report.py: subject.recipe.name",
}
NO_MESSAGES = {
    "plan/model.py",
    "plan/contents.py",
    "plan/printer/fetch.py",
    "plan/printer/definition.py",
}


def unquoted() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        texts = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.JoinedStr))
        for text in () if name in NO_MESSAGES or name.startswith("runtime/") else texts:
            before = ""
            for part in text.values:
                if isinstance(part, ast.Constant):
                    before += str(part.value)
                elif isinstance(part, ast.FormattedValue):
                    value = ast.unparse(part.value)
                    if (
                        LINE.search(before)
                        and isinstance(part.value, ast.Name | ast.Attribute)
                        and not value.isupper()
                    ):
                        yield f"{name}: {value}"
                    before += "VALUE"


def test_what_a_user_chose_is_quoted_in_command_lines():
    assert set(unquoted()) - PLAIN == set()
