"""Make the JSON schema of a line of the report (``--leakcheck-json``) from the classes that are written to it.

The schema is ``pytest_leakcheck/report/report.schema.json``, in draft 2020-12. Its descriptions are those of the classes.

Usage: python ci/report_schema.py            (exits with 1 if the file differs)
       python ci/report_schema.py --write
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.report.json_file import FirstLine, LastLine

PATH: Final = Path(__file__).parents[1] / "pytest_leakcheck" / "report" / "report.schema.json"
_SCALARS: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def make_schema() -> str:
    """Return the text of the schema."""
    definitions: dict[str, Any] = {}
    lines = [_describe(kind, definitions) for kind in (FirstLine, Finding, LastLine)]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:pytest-leakcheck:report:{FirstLine.SCHEMA}",
        "title": "A line of the JSON report of pytest-leakcheck",
        "oneOf": lines,
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }
    return json.dumps(schema, indent=2) + "\n"


def _describe_class(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what `model.decoding.encode` makes of a dataclass."""
    texts, hints = _attribute_texts(kind), get_type_hints(kind)
    properties: dict[str, Any] = {}
    required = []
    if hasattr(kind, "SCHEMA"):
        properties["schema"] = {"const": kind.SCHEMA, "description": "The version of this form."}
        required.append("schema")
    for one in fields(kind):
        key = str(one.metadata.get("key", one.name))
        properties[key] = _describe(hints[one.name], definitions) | _description(texts.get(one.name, ""))
        has_default = one.default is not MISSING or one.default_factory is not MISSING
        if not (has_default and getattr(kind, "SPARSE", False)):
            required.append(key)
    for name in getattr(kind, "DERIVED", ()):
        getter = getattr(kind, name).fget
        returned = get_type_hints(getter, vars(sys.modules[kind.__module__]))["return"]
        optional = NoneType in get_args(returned)
        (inner,) = [one for one in get_args(returned) if one is not NoneType] if optional else [returned]
        properties[name] = _describe(inner, definitions) | _description(inspect.getdoc(getter) or "")
        if not optional:
            required.append(name)
    summary = _description((inspect.getdoc(kind) or "").partition("\n\n")[0])
    return summary | {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _describe(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 - a return per kind of type
    """Return the schema of a value with this annotation."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if is_dataclass(kind):
        name = str(getattr(kind, "__name__", kind))
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _describe_class(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin is Literal:
        return {"enum": list(args)}
    if NoneType in args:
        (inner,) = (one for one in args if one is not NoneType)
        return {"anyOf": [_describe(inner, definitions), {"type": "null"}]}
    if origin in (Mapping, dict):
        return {"type": "object", "additionalProperties": _describe(args[1], definitions)}
    if origin is tuple and args[-1] is ...:
        return {"type": "array", "items": _describe(args[0], definitions)}
    if origin is tuple:
        parts = [_describe(one, definitions) for one in args]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "items": False}
    raise TypeError(f"no schema for {kind!r}")


def _description(text: str) -> dict[str, str]:
    plain = " ".join(text.replace("``", "").replace("`", "").split())
    return {"description": plain} if plain else {}


def _attribute_texts(kind: Any) -> dict[str, str]:
    """Return the descriptions under ``Attributes:`` in the docstring of a class."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    return dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE))


def main() -> int:
    """Compare or write the file."""
    parser = argparse.ArgumentParser(description="The JSON schema of the report.")
    parser.add_argument("--write", action="store_true", help="write the file")
    schema = make_schema()
    if parser.parse_args().write:
        PATH.write_text(schema, encoding="utf-8")
    elif PATH.read_text(encoding="utf-8") != schema:
        print(f"{PATH.name} differs from the classes: python ci/report_schema.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
