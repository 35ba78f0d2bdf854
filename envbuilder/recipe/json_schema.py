"""The recipe's form as a JSON schema, for editors: made from the types and shapes that the loader reads by.

It says what one file can say. Whether a path exists, whether a requirement can be read and what `extends` brings is left to
the loader; what the loader takes, the schema takes. Draft 7 is what the YAML servers of editors know best.
"""

import dataclasses
import json
import re
from collections.abc import Collection, Mapping
from typing import Final, get_type_hints

from envbuilder.core.decode import LINE, LINE_OR_EMPTY, Shape
from envbuilder.recipe import extension
from envbuilder.recipe import model as recipe
from envbuilder.recipe.extension import Extension
from envbuilder.recipe.fields import BELOW, VARIABLE
from envbuilder.recipe.model import Recipe

FILE: Final = "schema.json"  # beside the recipes
MODELINE: Final = f"# yaml-language-server: $schema={FILE}"

_Schema = dict[str, object]
_RECIPE: Final = {
    "summary": "One line for `envbuilder list`.",
    "gpus": "The GPUs that it is to run on, such as A100: they decide what extensions are compiled for.",
    "base": "Where the C library, the compilers and Python come from: a suite, or an image of a registry.",
    "python": "The Python of that suite, in quotes.",
    "cuda": "The CUDA toolkit with nvcc, in quotes; leave it out, with `gpus`, for PyTorch's build for the CPU.",
    "gcc": "The major version of the compiler, in quotes.",
    "libxcrypt": "Brings crypt.h, which the Python.h of some versions includes.",
    "pytorch": "The full version of torch, without `+cu124`: `cuda` chooses the build.",
    "packages": "Requirements as pip knows them, or {requirements: FILE} with a path from the recipe's own folder; the lock fixes each version and file.",
    "apt": "Packages of the suite by name; the lock fixes each version.",
    "extensions": "C++ and CUDA extensions, compiled while building, for exactly the GPUs named.",
    "env": "Environment variables inside.",
    "nccl": "`auto`: each node decides when torch starts; `off`; or a site's profile.",
    "tests": "Commands that run in image and SIF before a build gives them their names.",
    "extends": "Another recipe in this folder: maps merge, lists append.",
}
_EXTENSION: Final = {
    "name": "What Python imports.",
    "sources": "C++ and CUDA files, as torch's load() takes them; paths from the recipe's own folder, and below it.",
    "include": "Folders of headers; paths as those of `sources`.",
    "cflags": "Options for the C++ compiler.",
    "cuda_cflags": "Options for nvcc.",
    "path": "A folder with a setup.py or pyproject.toml, from the recipe's own folder and below it; with `git` or `sdist`, below what they bring.",
    "git": "The URL of a repository with a setup.py or pyproject.toml.",
    "commit": "The commit of that repository.",
    "sdist": "A source distribution, as name==version.",
    "capture": "Lines of Python: every load() that they reach is compiled.",
    "env": "Environment variables of its build alone.",
}


def schema_text() -> str:
    """The schema as the file holds it, the same on each machine."""
    return json.dumps(make_schema(), indent=1, ensure_ascii=False) + "\n"


def make_schema() -> _Schema:
    """The schema of one recipe file."""
    keys = (*recipe.REQUIRED, *recipe.OPTIONAL)
    types = get_type_hints(Recipe) | {"extends": str}
    shapes = recipe.SHAPES
    properties = {key: _value(types[key], shapes.get(key, LINE)) for key in keys}
    requirements = _map({"requirements": _below()}, required=("requirements",))
    properties["packages"] = _list({"anyOf": [_text(LINE), requirements]})
    image = _map({"image": _text(shapes["image"])}, required=("image",))
    properties["base"] = {"anyOf": [_text(shapes["base"]), image]}
    profile = _map({"profile": _below()}, required=("profile",))
    properties["nccl"] = {"anyOf": [_text(shapes["nccl"]), profile]}
    properties["extensions"] = _list(_extension())
    some_gpus = {"required": ["gpus"], "properties": {"gpus": {"minItems": 1}}}
    whole = {
        "required": list(recipe.REQUIRED),
        "allOf": [
            {"if": {"required": ["cuda"]}, "then": some_gpus},
            {"if": some_gpus, "then": {"required": ["cuda"]}},
        ],
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A recipe of envbuilder",
        **_map(_described(properties, _RECIPE)),
        "if": {"required": ["extends"]},
        "else": whole,
    }


def _extension() -> _Schema:
    types = get_type_hints(Extension)
    properties = {
        key: _value(types[key], extension.SHAPES.get(key, LINE))
        for key in (field.name for field in dataclasses.fields(Extension))
    }
    name = Shape(pattern=r"(?![0-9])(?:[A-Za-z0-9_]|[^\x00-\x7f])+", expected="a Python name")
    properties["name"] = _text(name) | {"maxLength": extension.LONGEST_NAME}
    endings = "|".join(re.escape(suffix) for suffix in extension.SOURCE_SUFFIXES)
    source = Shape(pattern=rf".*({endings})", expected=f"a source file: {endings}".replace("\\", ""))
    properties["sources"] = _list({"allOf": [_below(), _text(source)]}) | {"minItems": 1}
    properties["include"] = _list(_below())
    properties["path"] = _below()
    forms = [
        {"required": ["sources"], "not": _any_of("path", "git", "sdist", "capture", "commit")},
        {"required": ["path"], "not": _any_of("sources", "git", "sdist", "commit", *extension.OPTIONS)},
        {"required": ["git", "commit"], "not": _any_of("sources", "sdist", *extension.OPTIONS)},
        {"required": ["sdist"], "not": _any_of("sources", "git", "commit", *extension.OPTIONS)},
    ]
    return _map(_described(properties, _EXTENSION), required=("name",)) | {"oneOf": forms}


def _value(kind: object, shape: Shape) -> _Schema:
    """What a field of this type is in the file."""
    if kind is str:
        return _text(shape)
    if kind == tuple[str, ...]:
        return _list(_text(shape))
    if kind == tuple[tuple[str, str], ...]:
        names = {"propertyNames": {"pattern": _whole(VARIABLE)}}
        return {"type": "object", **names, "additionalProperties": _text(LINE_OR_EMPTY)}
    return _list({})  # of what the caller says


def _text(shape: Shape) -> _Schema:
    """Text of this shape; `patternErrorMessage` is what editors show, in the loader's words."""
    words = f"expected {shape.expected}" + (f" ({shape.hint})" if shape.hint else "")
    return {"type": "string", "pattern": _whole(shape), "patternErrorMessage": words}


def _whole(shape: Shape) -> str:
    return f"^(?:{shape.pattern})$"


def _below() -> _Schema:
    return {"allOf": [_text(LINE), _text(BELOW)]}


def _list(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


def _map(properties: Mapping[str, object], *, required: Collection[str] = ()) -> _Schema:
    rest = {"required": list(required)} if required else {}
    return {"type": "object", "properties": dict(properties), "additionalProperties": False, **rest}


def _any_of(*keys: str) -> _Schema:
    return {"anyOf": [{"required": [key]} for key in keys]}


def _described(properties: Mapping[str, _Schema], words: Mapping[str, str]) -> dict[str, _Schema]:
    return {key: {"description": words[key], **value} for key, value in properties.items()}
