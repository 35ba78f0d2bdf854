"""Validate what commands answer under `--json` against the published schema."""

import functools
import json
from pathlib import Path

import jsonschema

SCHEMA = Path(__file__).parents[2] / "docs/reference/answers.schema.json"


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check_answer(text: str) -> None:
    """Raise ValidationError where the answer does not fit the schema."""
    validator().validate(json.loads(text))
