"""What is printed for programs, against the schemas that are published."""

import json
from pathlib import Path
from typing import Any

import jsonschema

PUBLISHED = Path(__file__).parent.parent / "docs" / "reference"


def follows(document: Any, schema: str) -> None:
    """Check a document by a published schema, as any validator does.

    Raises:
        jsonschema.ValidationError: it is not as the schema has it.
    """
    definition = json.loads((PUBLISHED / schema).read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator
    validator.check_schema(definition)
    validator(definition).validate(document)
