"""Validates answers against their schemas with the package jsonschema: check.py SCHEMAS.jsonl ANSWERS.jsonl"""

import json
import sys

from jsonschema import Draft202012Validator, FormatChecker


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main():
    schemas, answers = lines(sys.argv[1]), lines(sys.argv[2])
    validators = [Draft202012Validator(schema, format_checker=FormatChecker()) for schema in schemas]
    wrong = 0
    for answer in answers:
        try:
            value = json.loads(answer["text"])
            problem = next(iter(validators[answer["schema"]].iter_errors(value)), None)
        except json.JSONDecodeError as error:
            problem = error
        if problem is not None:
            wrong += 1
            print(f"schema {answer['schema']}: {answer['text'][:200]!r}: {str(problem)[:200]}", file=sys.stderr)
    print(f"{len(answers)} answers to {len(schemas)} schemas, {wrong} wrong")
    if wrong or not answers or {answer["schema"] for answer in answers} != set(range(len(schemas))):
        sys.exit(1)


if __name__ == "__main__":
    main()
