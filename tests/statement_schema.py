"""Check of statements against their published JSON Schema."""

import functools
import json
from typing import Any

from jsonschema import Draft202012Validator

from terrine.privacy.statement import SCHEMA


@functools.cache
def validator() -> Draft202012Validator:
    """Return the validator of the schema, which is valid itself."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check_schema(content: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError unless the content of a privacy.json follows its schema."""
    validator().validate(json.loads(json.dumps(content, default=lambda value: value.item())))
