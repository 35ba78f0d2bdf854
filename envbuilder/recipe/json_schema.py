"""The JSON schema of recipes, for editors, made by pydantic from the types that the loader reads.

The schema describes one file and accepts every file that the loader accepts. Only the loader checks that
paths exist, that requirements parse, and what `extends` and `matrix` add. Editors' YAML servers support draft 7 best.
"""

import json
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, with_config

from envbuilder.recipe.extension import OPTIONS, Extension
from envbuilder.recipe.model import RecipeFile
from envbuilder.recipe.repository import RepositoryFile

FILE: Final = "schema.json"  # beside the recipes
MODELINE: Final = f"# yaml-language-server: $schema={FILE}"

_Schema = dict[str, object]


def schema_text() -> str:
    """Return the text of the schema's file, the same on each machine."""
    return json.dumps(make_schema(), indent=1, ensure_ascii=False) + "\n"


def make_schema() -> _Schema:
    # Not in the loader: pydantic reads these texts from the source, in 0.04 s.
    for kind in (RecipeFile, Extension, RepositoryFile):
        with_config(ConfigDict(use_attribute_docstrings=True))(kind)
    raw = TypeAdapter(RecipeFile).json_schema()
    made: Any = _plain(raw, raw["$defs"])
    required = made.pop("required")
    del made["description"]
    remote = ("git", "commit", "sdist", "url", "sha256")
    forms = made["properties"]["extensions"]["items"]["oneOf"] = [
        {"required": ["sources"], "not": _any_of("path", "capture", "patch", *remote)},
        {"required": ["path"], "not": _any_of("sources", *remote, *OPTIONS)},
    ]
    for keys in (["git", "commit"], ["sdist"], ["url", "sha256"]):
        others = (key for key in remote if key not in keys)
        forms.append({"required": keys, "not": _any_of("sources", *others, *OPTIONS)})
    some_gpus = {"required": ["gpus"], "properties": {"gpus": {"minItems": 1}}}
    pairs = [
        {"if": {"required": ["cuda"]}, "then": some_gpus},
        {"if": some_gpus, "then": {"required": ["cuda"]}},
    ]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A recipe of envbuilder",
        **made,
        "if": _any_of("extends", "matrix"),
        "else": {"required": required, "allOf": pairs},
    }


def _plain(schema: Any, definitions: Any) -> Any:
    """Return pydantic's schema as draft 7: definitions inlined, without defaults and titles."""
    if isinstance(schema, list):
        return [_plain(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        named = {key: value for key, value in definitions[name].items() if key != "description"}
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _plain(named | rest, definitions)
    if "properties" in schema:
        properties = {key: _plain(value, definitions) for key, value in schema["properties"].items()}
        schema = {"additionalProperties": False} | schema | {"properties": properties}
    dropped = ("title", "default", "$defs")
    return {
        "anyOf" if key == "oneOf" else key: value if key == "properties" else _plain(value, definitions)
        for key, value in schema.items()
        if key not in dropped
    }


def _any_of(*keys: str) -> _Schema:
    return {"anyOf": [{"required": [key]} for key in keys]}
