"""The schemas that generated answers are checked with: one per line of output, as JSON."""

import json

STRING, INTEGER, NUMBER, BOOLEAN, NULL = ({"type": kind} for kind in ("string", "integer", "number", "boolean", "null"))


def record(required=None, more=False, **properties):
    """An object with these properties, all of them required unless said otherwise."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": more}


def items(of, **bounds):
    return {"type": "array", "items": of, **bounds}


ADDRESS = record(street=STRING, city=STRING, zip={"type": "string", "pattern": "^[0-9]{5}$"})
TREE = {
    "$defs": {"node": record(["value"], value=INTEGER, children=items({"$ref": "#/$defs/node"}, maxItems=3))},
    "$ref": "#/$defs/node",
}
SHORT = {"type": "string", "maxLength": 12}

SCHEMAS = [
    {"type": "object"},
    STRING,
    INTEGER,
    NUMBER,
    BOOLEAN,
    NULL,
    {"type": ["string", "null"]},
    {"enum": ["red", "green", 3, None, True]},
    {"const": {"exactly": ["this", 1]}},
    {"type": "string", "minLength": 3, "maxLength": 8},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "email"},
    {"type": "integer", "minimum": -20, "maximum": 20},
    {"type": "integer", "exclusiveMinimum": 0, "multipleOf": 7},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2.25},
    items(INTEGER, minItems=1, maxItems=5),
    items(items(BOOLEAN, maxItems=3), maxItems=3),
    {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    record(),
    record(name=STRING, age={"type": "integer", "minimum": 0, "maximum": 150}),
    record(["name"], name=STRING, nickname=SHORT, email={"type": "string", "format": "email"}),
    record(id=INTEGER, address=ADDRESS, billing=ADDRESS),
    record(tags=items({"enum": ["a", "b", "c"]}, maxItems=4), scores=items(NUMBER, minItems=2, maxItems=2)),
    record(value={"anyOf": [SHORT, INTEGER, NULL]}),
    record(shape={"anyOf": [record(kind={"const": "circle"}, radius=NUMBER),
                            record(kind={"const": "square"}, side=NUMBER)]}),
    {"type": "object", "additionalProperties": INTEGER, "properties": {}},
    {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": {"type": "boolean"}, "required": ["a"]},
    {"type": "object", "patternProperties": {"^x_[a-z]{1,4}$": INTEGER}, "additionalProperties": False},
    TREE,
    {"allOf": [record(more=True, a=INTEGER), record(more=True, b=STRING)]},
    record(matrix=items(items(INTEGER, minItems=2, maxItems=2), minItems=2, maxItems=2)),
    record(query=STRING, filters=record([], city=SHORT, from_year=INTEGER, open=BOOLEAN), limit=INTEGER),
    record(steps=items(record(action={"enum": ["read", "write", "run"]}, target=SHORT, retry=BOOLEAN), maxItems=4)),
    record(a=record(b=record(c=record(d=record(e=record(f=BOOLEAN)))))),
    {"$defs": {"money": record(amount=NUMBER, currency={"enum": ["EUR", "USD", "JPY"]})},
     **record(total={"$ref": "#/$defs/money"}, parts=items({"$ref": "#/$defs/money"}, maxItems=3))},
    record(**{"with space": INTEGER, "quote\"d": BOOLEAN, "ünï": SHORT, "line\nend": NULL}),
    record(**{f"field_{number}": {"type": ["integer", "null"]} for number in range(20)}),
    record(text={"type": "string", "pattern": "^(yes|no|maybe)( please)?$"}, times={"type": "integer", "minimum": 1, "maximum": 99}),
    {"anyOf": [items(SHORT, maxItems=2), record(error=SHORT)]},
    record(file=STRING, edits=items(record(line={"type": "integer", "minimum": 1}, old=STRING, new=STRING), maxItems=3)),
]

if __name__ == "__main__":
    for schema in SCHEMAS:
        print(json.dumps(schema))
