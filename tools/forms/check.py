"""Validates answers against their schemas with the package jsonschema: check.py SCHEMAS.jsonl ANSWERS.jsonl [--suite]

Of a suite, schemas may be refused: they are counted, and what is refused is never answered wrongly.
"""

import json
import sys

from jsonschema import Draft202012Validator, FormatChecker


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main():
    schemas, told = lines(sys.argv[1]), lines(sys.argv[2])
    answers = [line for line in told if "text" in line]
    refused = {line["schema"] for line in told if "refused" in line}
    endless = [line for line in told if "endless" in line]
    for line in endless:
        print(f"schema {line['schema']}: {line['endless'][:200]}", file=sys.stderr)
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
    print(f"{len(answers)} answers to {len(schemas) - len(refused)} schemas, {wrong} wrong, {len(endless)} endless;"
          f" {len(refused)} schemas refused")
    if wrong or not answers or ((refused or endless) and "--suite" not in sys.argv):
        sys.exit(1)


if __name__ == "__main__":
    main()
