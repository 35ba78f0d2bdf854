"""Modules that handle what a sandbox, a clone or an archive wrote reach it by `core/beneath.py` alone.

A plain `open` follows the link that a project left. Each plain call in these modules is listed here, with why its path is ours.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "envbuilder"
MODULES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for pattern in (
        "builder/extensions/*.py", "builder/recipe_tests.py", "core/archive.py", "layers/import_tree.py", "layers/layer.py", "lock/resolve/extensions.py", "sources/git.py",
        "lock/source_files.py", "compat/project_files.py", "lock/resolve/project_metadata.py", "lock/resolve/extensions.py",
    )
    for path in PACKAGE.glob(pattern)
)  # fmt: skip
PLAIN = {
    "open", "FileIO", "read_text", "read_bytes", "write_text", "write_bytes", "touch", "sha256_file", "add_artifact", "copyfile", "copy",
    "copy2", "copytree", "move", "glob", "rglob", "iterdir", "walk", "fwalk", "listdir", "scandir", "mkdir", "makedirs", "symlink_to",
    "hardlink_to", "link", "link_or_copy", "rename", "replace_file", "unlink", "rmdir", "rmtree", "chmod", "truncate",
}  # fmt: skip
USUAL = {
    "copy",
    "link",
    "move",
    "rename",
    "touch",
    "truncate",
    "walk",
}  # names of local values too: only `x.copy` counts
OUR_OWN = "an entry of the cache, which no sandbox writes"
STORED = "an artifact of the cache, by its digest"
FRESH = "a new folder in a workspace, which no sandbox has seen"
LISTED = "names alone: a link is yielded and not followed"
ALLOWED = {
    ("builder/extensions/compile.py", "join_extensions", "mkdir"): FRESH,
    ("builder/extensions/compile.py", "_capture", "mkdir"): FRESH,
    ("builder/extensions/compile.py", "_ran", "mkdir"): FRESH,
    ("builder/extensions/compiled.py", "load_compiled", "read_text"): OUR_OWN,
    ("builder/extensions/compiled.py", "load_calls", "read_text"): OUR_OWN,
    ("builder/extensions/compiler_errors.py", "_lacking", "glob"): LISTED,
    ("builder/extensions/built_wheels.py", "_built_wheel", "glob"): OUR_OWN,
    ("builder/recipe_tests.py", "import_in_sif", "read_text"): "a program of this package",
    ("core/archive.py", "__init__", "open"): STORED,
    ("core/archive.py", "read", "open"): "a member of a zip file",
    ("lock/resolve/project_metadata.py", "_tar_files", "open"): STORED,
    ("lock/resolve/project_metadata.py", "_without_xz", "open"): STORED,
    ("lock/resolve/project_metadata.py", "_zip_files", "open"): "a member of a zip file",
    ("layers/import_tree.py", "index_tar", "open"): "the tar of a Docker engine",
    ("layers/import_tree.py", "_walk", "scandir"): LISTED,
    ("layers/layer.py", "_files_of", "open"): "a regular file of a tree that is listed; O_NOFOLLOW",
    ("layers/layer.py", "write_layer_from_tar", "open"): "the tar of a Docker engine",
    ("layers/layer.py", "_load", "read_text"): OUR_OWN,
    ("layers/layer.py", "_load", "sha256_file"): OUR_OWN,
    ("layers/layer.py", "find_blobs", "read_text"): OUR_OWN,
    ("layers/layer.py", "_open_blob", "open"): OUR_OWN,
    ("layers/layer.py", "read_manifest", "read_text"): OUR_OWN,
    ("layers/layer.py", "read_blocks", "read_text"): OUR_OWN,
    ("lock/resolve/extensions.py", "export_commit", "sha256_file"): FRESH,
    ("lock/resolve/extensions.py", "export_commit", "add_artifact"): FRESH,
    ("sources/git.py", "check_out", "mkdir"): FRESH,
    ("lock/source_files.py", "visible", "rglob"): LISTED,
    ("lock/source_files.py", "_visible_names", "iterdir"): LISTED,
    ("compat/project_files.py", "_searches", "walk"): "a syntax tree",
    ("lock/source_files.py", "store_source", "open"): FRESH,
    ("lock/source_files.py", "store_source", "add_artifact"): FRESH,
    ("lock/resolve/extensions.py", "_store_commit", "sha256_file"): "a folder that the user names in ENVBUILDER_FOLDERS",
    ("lock/resolve/extensions.py", "_store_commit", "add_artifact"): "the same",
    ("lock/resolve/extensions.py", "_download", "read_bytes"): "the same",
}  # fmt: skip


def plain_calls(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the function, the call and the line of every plain call; a reference without a call counts as one."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str, int]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        name = node.attr if isinstance(node, ast.Attribute) else ""
        if isinstance(node, ast.Name) and node.id not in USUAL:
            name = node.id
        if name in PLAIN and isinstance(node, ast.expr):
            yield function, name, node.lineno
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(ast.parse(text), "")


def test_no_module_opens_a_foreign_path_plainly() -> None:
    found = {
        (module, function, name): line
        for module in MODULES
        for function, name, line in plain_calls((PACKAGE / module).read_text(encoding="utf-8"))
    }
    new = [f"{key[0]}:{line}: `{key[2]}` in `{key[1]}`" for key, line in found.items() if key not in ALLOWED]
    assert not new, (
        "reach these paths by `core/beneath.py`, or say in ALLOWED why they are ours:\n" + "\n".join(new)
    )
    assert not ALLOWED.keys() - found.keys(), "these calls are gone: remove them from ALLOWED"


@pytest.mark.parametrize("line", [
    "open(build_dir / 'facts.json')", "(build_dir / 'facts.json').read_text()", "shutil.copytree(a, b)", "os.walk(build_dir)",
    "list(map(Path.read_bytes, files))", "with path.open() as stream: pass",
])  # fmt: skip
def test_the_rule_sees_a_new_plain_call(line: str) -> None:
    assert [function for function, _, _ in plain_calls(f"def collect():\n    {line}\n")] == ["collect"]
