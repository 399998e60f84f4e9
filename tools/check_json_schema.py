#!/usr/bin/env python3
"""Checks the JSON Schema compiler against jsonschema (PyPI) and the JSON-Schema-Test-Suite.

    check_json_schema.py GRAMMAR_MATCH suite FOLDER    # a checkout of the suite; its draft2020-12
    check_json_schema.py GRAMMAR_MATCH random COUNT    # random schemas and values
    check_json_schema.py MEGALITH generate COUNT       # what the demo model says of random schemas

Nothing that a grammar takes may be invalid: that is an error, and so is generated text that is not
valid. Valid values that it does not take, and schemas that it refuses, are counted.
"""
import decimal
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import jsonschema


def ask(program, questions):
    lines = "".join(json.dumps(q) + "\n" for q in questions)
    run = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def texts_of(value):
    """Ways to write a value: compact, as Python does, and with indentation."""
    return [json.dumps(value, separators=(",", ":"), ensure_ascii=False), json.dumps(value),
            json.dumps(value, indent=2)]


def is_valid(schema, value):
    # As decimals: 19.99 is a multiple of 0.01, and no multiple in binary floating point.
    schema, value = (json.loads(json.dumps(x), parse_float=decimal.Decimal)
                     for x in (schema, value))
    return jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).is_valid(value)


def check_suite(program, folder):
    groups = []
    for path in sorted(pathlib.Path(folder).glob("tests/draft2020-12/*.json")):
        groups += [(path.stem, group) for group in json.loads(path.read_text())]
    schemas = [dict(g["schema"]) if isinstance(g["schema"], dict) else g["schema"]
               for _, g in groups]
    for schema in schemas:
        if isinstance(schema, dict):
            schema.pop("$schema", None)
    answers = ask(program, [
        {"schema": s, "texts": [json.dumps(t["data"], separators=(",", ":"), ensure_ascii=False)
                                for t in g["tests"]]}
        for s, (_, g) in zip(schemas, groups)])
    refused, taken, missed, wrong, right = 0, 0, 0, 0, 0
    for (name, group), answer in zip(groups, answers):
        if "error" in answer:
            refused += 1
            continue
        for test, matched in zip(group["tests"], answer["matches"]):
            if matched and not test["valid"]:
                wrong += 1
                print(f"WRONG {name}: {group['description']}: {test['description']}")
            elif test["valid"]:
                taken += matched
                missed += not matched
            else:
                right += 1
    print(f"{len(groups)} schemas, {refused} refused; of the others' values: {taken + missed} "
          f"valid, {taken} taken; {right + wrong} invalid, {wrong} taken")
    return wrong


# --- random schemas ------------------------------------------------------------------------------

def random_schema(r, depth):
    kind = r.randrange(12 if depth > 0 else 8)
    if kind == 0:
        return {"type": "string", **r.choice([{}, {"minLength": 1}, {"maxLength": r.randrange(6)},
                                               {"pattern": "^[a-c]+$"}, {"pattern": "b"}])}
    if kind == 1:
        low = r.randrange(-120, 100)
        return {"type": "integer", **r.choice([{}, {"minimum": low}, {"maximum": low},
                                                {"minimum": low, "maximum": low + r.randrange(90)},
                                                {"multipleOf": r.choice([2, 3, 5, 10, 12, 60])},
                                                {"multipleOf": 7, "minimum": low}])}
    if kind == 2:
        low = r.randrange(-300, 300) / 100
        return {"type": "number", **r.choice([{}, {"exclusiveMinimum": low}, {"maximum": low},
                                               {"minimum": low, "exclusiveMaximum": low + 1.5},
                                               {"multipleOf": r.choice([0.01, 0.25, 0.5, 1.5, 3])},
                                               {"multipleOf": 0.1, "exclusiveMaximum": low}])}
    if kind == 3:
        return {"enum": r.sample(["a", "ab", 1, 2.5, None, True, [1], {"x": 0}], 3)}
    if kind == 4:
        return r.choice([{"const": "c"}, {"type": "boolean"}, {"type": ["null", "integer"]}])
    if kind == 5:
        return {"format": r.choice(["date", "ipv4", "uuid", "email", "date-time"]),
                "type": "string"}
    if kind < 8:
        return r.choice([{}, True, {"type": "object"}, {"type": "array"}])
    if kind == 8:
        return {"anyOf": [random_schema(r, depth - 1) for _ in range(2)]}
    if kind == 9:
        return {"type": "array", "items": random_schema(r, depth - 1),
                **r.choice([{}, {"minItems": 1}, {"maxItems": 2},
                            {"prefixItems": [random_schema(r, 0)]}])}
    names = r.sample(["a", "b", "ab", "key", "\u00e4\"", "x y"], r.randrange(1, 4))
    return {"type": "object", "properties": {n: random_schema(r, depth - 1) for n in names},
            "required": [n for n in names if r.random() < 0.5],
            **r.choice([{}, {"additionalProperties": False}, {"additionalProperties": True},
                        {"additionalProperties": {"type": "integer"}}])}


def random_value(r, schema, depth=3):
    """A value that is often valid."""
    if not isinstance(schema, dict) or r.random() < 0.1:
        return r.choice([None, True, 1, -5, 2.5, "", "a", "abc", [], {}, {"a": 1}])
    if "anyOf" in schema:
        return random_value(r, r.choice(schema["anyOf"]), depth)
    if "enum" in schema:
        return r.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object" and depth > 0:
        return {n: random_value(r, s, depth - 1) for n, s in schema.get("properties", {}).items()
                if n in schema.get("required", []) or r.random() < 0.6} | (
                    {"zz": r.choice([1, "s"])} if r.random() < 0.2 else {})
    if kind == "array" and depth > 0:
        return [random_value(r, schema.get("items", True), depth - 1)
                for _ in range(r.randrange(3))]
    if kind == "integer":
        return r.randrange(-130, 200)
    if kind == "number":
        return r.choice([r.randrange(-5, 5), round(r.uniform(-4, 4), r.randrange(1, 4)), 1e20])
    return r.choice(["a", "b", "abc", "xbx", "c", "2024-02-29", "127.0.0.1", "", "\n\"\\"])


def check_random(program, count):
    r = random.Random(1)
    cases = []
    for _ in range(count):
        schema = random_schema(r, 3)
        cases.append((schema, [random_value(r, schema) for _ in range(12)]))
    answers = ask(program, [{"schema": s, "texts": [t for v in values for t in texts_of(v)]}
                            for s, values in cases])
    wrong, taken, valid, refused = 0, 0, 0, 0
    for (schema, values), answer in zip(cases, answers):
        if "error" in answer:
            refused += 1
            if "no text matches" not in answer["error"]:
                print(json.dumps(schema), answer["error"])
            continue
        for i, value in enumerate(values):
            matched = answer["matches"][3 * i:3 * i + 3]
            fits = is_valid(schema, value)
            valid += fits
            taken += fits and matched[0]
            if any(matched) and not fits:
                wrong += 1
                print("WRONG", json.dumps(schema), json.dumps(value))
    print(f"{count} random schemas, {refused} refused; {valid} valid values, {taken} taken; "
          f"{wrong} invalid ones taken")
    return wrong


def check_generated(program, count):
    """Each text that ended by itself is valid; with random choices among what is allowed."""
    r = random.Random(2)
    schemas = [random_schema(r, 3) for _ in range(count)]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as lines:
        for i, schema in enumerate(schemas):
            lines.write(json.dumps({"prompt": "JSON:", "temperature": 100, "seed": i,
                                    "max_tokens": 400, "structured_outputs": {"json": schema}
                                    if isinstance(schema, dict) and schema else
                                    {"json": {"anyOf": [True]}}}) + "\n")
        lines.flush()
        run = subprocess.run([program, "run", "--jsonl", "-f", lines.name], capture_output=True,
                             text=True, check=False)
    wrong, ended, cut, refused = 0, 0, 0, 0
    for schema, line in zip(schemas, run.stdout.splitlines()):
        answer = json.loads(line)
        if answer["finish_reason"] == "error":
            refused += 1
            if "no text matches" not in answer["error"]:
                print(json.dumps(schema), answer["error"])
        elif answer["finish_reason"] != "stop":
            cut += 1
        else:
            ended += 1
            try:
                fits = is_valid(schema, json.loads(answer["text"]))
            except ValueError:
                fits = False
            if not fits:
                wrong += 1
                print("WRONG", json.dumps(schema), answer["text"])
    print(f"{count} random schemas: {ended} texts ended, {cut} were cut off, {refused} schemas "
          f"refused; {wrong} texts are not valid")
    return wrong + (ended == 0)


if __name__ == "__main__":
    mode, what = sys.argv[2], sys.argv[3]
    check = {"suite": lambda: check_suite(sys.argv[1], what),
             "random": lambda: check_random(sys.argv[1], int(what)),
             "generate": lambda: check_generated(sys.argv[1], int(what))}[mode]
    sys.exit(1 if check() else 0)
