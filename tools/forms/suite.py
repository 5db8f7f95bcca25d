"""Prints the schemas of the JSON Schema Test Suite, one a line: suite.py FOLDER, the folder of a draft's tests.

Left out are what is no object, what refers to other documents, and what was there before.
"""

import json
import pathlib
import sys


def refers_outside(schema):
    if isinstance(schema, dict):
        if any(name in schema for name in ("$dynamicRef", "$dynamicAnchor", "$vocabulary", "$id")):
            return True
        ref = schema.get("$ref")
        if isinstance(ref, str) and not ref.startswith("#"):
            return True
        return any(refers_outside(inner) for inner in schema.values())
    return isinstance(schema, list) and any(refers_outside(inner) for inner in schema)


def main():
    seen = set()
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        for case in json.loads(path.read_text(encoding="utf-8")):
            schema = case["schema"]
            if isinstance(schema, dict):
                # Which draft it is of is known.
                schema = {name: inner for name, inner in schema.items() if name != "$schema"}
            line = json.dumps(schema, sort_keys=True)
            if isinstance(schema, dict) and not refers_outside(schema) and line not in seen:
                seen.add(line)
                print(line)


if __name__ == "__main__":
    main()
