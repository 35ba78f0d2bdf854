"""Join the extensions of a recipe into one layer: `extensions.py SPEC INPUTS OUT`.

SPEC has `parts`, name and form of each extension, and `gpus`. INPUTS has a folder for each name, which `extension.py` wrote: in it,
a folder for each call. Their trees go into OUT, with one index for the start hook.
"""

import json
import os
import shutil
import sys
import tempfile

FOLDER = "opt/envbuilder/extensions"
VERSION = 2  # of the index


def add_tree(tree, out, name):
    """Copy a tree into OUT. A file that is there, or a link in place of a folder, is another extension's."""
    for parent, folders, files in os.walk(tree):
        target = os.path.normpath(os.path.join(out, os.path.relpath(parent, tree)))
        if os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target)):
            refuse(name, target[len(out) :])
        os.makedirs(target, exist_ok=True)
        links = [folder for folder in folders if os.path.islink(os.path.join(parent, folder))]
        for file in files + links:
            source, path = os.path.join(parent, file), os.path.join(target, file)
            if os.path.lexists(path) or not (os.path.islink(source) or os.path.isfile(source)):
                refuse(name, path[len(out) :])
            shutil.copy2(source, path, follow_symlinks=False)


def refuse(name, path):
    sys.exit(f"the extension `{name}` installs `{path}`, as another does, or through a link")


def is_imported(entry, form, names):
    """Return whether `import NAME` finds it: a Python module of the recipe's `sources`, or with a unique name."""
    is_module = entry["function"] != "package" and entry["is_python_module"] and not entry["is_standalone"]
    return is_module and (form == "load" or names.count(entry["name"]) == 1)


def main(spec_file, inputs, out):
    os.umask(0o022)
    with open(spec_file, encoding="utf-8") as stream:
        spec = json.load(stream)
    entries, forms = {}, {}
    facts: dict[str, object] = {}
    for part, form in spec["parts"]:
        folder = os.path.join(inputs, part)
        for number in sorted(os.listdir(folder), key=int):
            with open(os.path.join(folder, number, "index.json"), encoding="utf-8") as stream:
                index = json.load(stream)
            entry = index["entry"]
            if entry["key"] in entries:  # two captures may make the same call
                continue
            entries[entry["key"]], forms[entry["key"]] = entry, form
            facts = facts or index["facts"]  # of the first, as all are made for one torch
            add_tree(os.path.join(folder, number, "tree"), out, entry["name"])
    names = [entry["name"] for entry in entries.values() if entry["function"] != "package"]
    index = dict(facts, version=VERSION, architectures=spec["gpus"], extensions=list(entries.values()))
    with tempfile.TemporaryDirectory() as tree:
        modules = os.path.join(tree, FOLDER, "modules")
        os.makedirs(modules)
        for key, entry in entries.items():
            if is_imported(entry, forms[key], names):
                library = "/".join(entry["file"].split("/")[-2:])
                os.symlink("../" + library, os.path.join(modules, entry["name"] + ".so"))
        if not os.listdir(modules):
            os.rmdir(modules)
        with open(os.path.join(tree, FOLDER, "index.json"), "w", encoding="utf-8") as stream:
            json.dump(index, stream, indent=1, sort_keys=True)
            stream.write("\n")
        add_tree(tree, out, "index")


if __name__ == "__main__":
    main(*sys.argv[1:])
