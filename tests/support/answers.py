"""Validate what commands answer under `--json` against the schema of the documentation."""

import functools
import json

import jsonschema

from docs import make_reference


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    schema = make_reference.answers_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check_answer(text: str) -> None:
    """Raise ValidationError where the answer does not fit the schema."""
    validator().validate(json.loads(text))
