"""Renders chat templates with Python's Jinja2, as Hugging Face sets it up, and with midstream, and compares the texts.

usage: compare.py TEMPLATES PROGRAM; TEMPLATES is a folder of *.jinja, PROGRAM is examples/templates.rs, built. Needs
jinja2==3.1.6. scripts/templates runs it.

A template may want the same conversation in one of several shapes (arguments as a mapping or as text, reasoning in one
field or another, ...), and midstream finds out which. So its text must be one of those that Jinja2 gives for the
shapes. What a template does not know at all midstream says in another way; that is counted as adapted. Fails where a
text differs, or where midstream alone refuses a conversation, unless KNOWN says why.
"""
import datetime
import difflib
import itertools
import json
import pathlib
import subprocess
import sys

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 3, 14, 9, 26, 53, tzinfo=datetime.timezone.utc)

# (template, conversation) with the reason why the texts differ; "" stands for every conversation.
KNOWN = {
    ("meetkai-functionary-medium-v3.1", ""): "Jinja2 escapes what is added to a text that is marked as safe",
}

WEATHER = {
    "name": "get_weather",
    "description": "Says <how> the weather & the \"sky\" are.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where; größer is fine"},
            "days": {"type": "integer", "default": 3},
            "unit": {"type": "string", "enum": ["C", "F"]},
        },
        "required": ["city"],
    },
}
TIME = {"name": "get_time", "description": "Tells the time.", "parameters": {"type": "object", "properties": {}}}


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def call(number, name, arguments):
    return {"id": f"call{number:05}", "name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


def calls(*made, content="", **more):
    return says("assistant", content, tool_calls=list(made), **more)


def result(number, name, content):
    return says("tool", content, tool_call_id=f"call{number:05}", name=name)


def text_parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def joined(content):
    """The text of a content, as the server's APIs read it: parts are one text, refusals are what was said."""
    if isinstance(content, str):
        return content
    return "".join(part[part["type"]] for part in content)


USER = says("user", "  What's <b>up</b> in Zürich & Łódź?\n")
OSLO = call(1, "get_weather", {"city": "Oslo", "days": 2})
LATE = call(2, "get_time", {})
ASKED = [says("system", "Be kind."), says("user", "Weather?")]

# name: (messages, tools, variables)
CONVERSATIONS = {
    "plain": ([USER], [], {}),
    "system": ([says("system", "Be \"kind\".\n"), USER], [], {}),
    "turns": ([USER, says("assistant", "Sunny."), says("user", "And then?")], [], {}),
    "answered": ([USER, says("assistant", "Sunny.")], [], {}),
    "tools": (ASKED, [WEATHER, TIME], {}),
    "call": ([*ASKED, calls(OSLO), result(1, "get_weather", "{\"sky\": \"<blue>\"}")], [WEATHER, TIME], {}),
    "parallel": (
        [*ASKED, calls(OSLO, LATE), result(1, "get_weather", "blue"), result(2, "get_time", "12:00")],
        [WEATHER, TIME],
        {},
    ),
    "call and answer": (
        [*ASKED, calls(OSLO), result(1, "get_weather", "blue"), says("assistant", "Blue."), says("user", "Thanks.")],
        [WEATHER, TIME],
        {},
    ),
    "nested arguments": (
        [*ASKED, calls(call(1, "get_weather", {"city": "a\n\"b\"", "x": [1, True, None, {"y": "<&>"}]})),
         result(1, "get_weather", "blue")],
        [WEATHER],
        {},
    ),
    "reasoning": (
        [USER, says("assistant", "Sunny.", reasoning_content="It is\nsummer."), says("user", "And then?")],
        [],
        {},
    ),
    "reasoning and call": (
        [*ASKED, calls(OSLO, reasoning_content="I look."), result(1, "get_weather", "blue")],
        [WEATHER, TIME],
        {},
    ),
    "thinking on": ([USER], [], {"enable_thinking": True, "thinking": True}),
    "thinking off": ([USER], [], {"enable_thinking": False, "thinking": False}),
    "effort": ([USER], [], {"reasoning_effort": "high"}),
    "parts": (
        [says("system", text_parts("Be ", "kind.\n")), says("user", text_parts("  What's", " up?\n", "")),
         says("assistant", text_parts("Sunny", ".")), says("user", text_parts("And then?"))],
        [],
        {},
    ),
    "refusal": (
        [USER, says("assistant", [{"type": "refusal", "refusal": "I won't."}]), says("user", "Why?")],
        [],
        {},
    ),
    "parts of a result": (
        [*ASKED, calls(OSLO), result(1, "get_weather", text_parts("{\"sky\": ", "\"blue\"}"))],
        [WEATHER, TIME],
        {},
    ),
}


class Generation(Extension):
    """The tag around what an assistant says, which trainers look for."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment():
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def refuse(words):
        raise jinja2.exceptions.TemplateError(words)

    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = NOW.strftime
    return made


def shapes(messages):
    """The conversation in every shape that a template may want."""
    contents = ("text", "none", "parts")
    thoughts = ("reasoning_content", "reasoning", "thinking", "parts", "content", "list")
    found = []
    for said, arguments, content, thought in itertools.product(
        (messages, with_named_ids(messages)), (json.loads, str), contents, thoughts
    ):
        shaped = [shape(message, arguments, content, thought) for message in said]
        if shaped not in found:
            found.append(shaped)
    return found


def with_named_ids(messages):
    """The ids of calls as Kimi K2 writes them: the function's name and the call's place among all."""
    made = [one for message in messages for one in message.get("tool_calls", [])]
    ids = {one["id"]: f"functions.{one['name']}:{place}" for place, one in enumerate(made)}
    named = []
    for message in messages:
        message = dict(message)
        if "tool_calls" in message:
            message["tool_calls"] = [{**one, "id": ids[one["id"]]} for one in message["tool_calls"]]
        if "tool_call_id" in message:
            message["tool_call_id"] = ids[message["tool_call_id"]]
        named.append(message)
    return named


def shape(message, arguments, content, thought):
    message = dict(message)
    reasoning = message.pop("reasoning_content", None)
    made = message.get("tool_calls", [])
    if made:
        function = lambda one: {"name": one["name"], "arguments": arguments(one["arguments"])}
        message["tool_calls"] = [{"id": one["id"], "type": "function", "function": function(one)} for one in made]
    parts = message["content"] if isinstance(message["content"], list) else text_parts(message["content"])
    said = message["content"] = joined(message["content"])
    if content == "none" and made and not said:
        message["content"] = None
    if content == "parts":
        # No template knows refusals.
        message["content"] = text_parts(*(joined([part]) for part in parts))
    if reasoning is not None:
        if thought == "parts":
            parts = [{"type": "text", "text": said}] if said else []
            message["content"] = [{"type": "thinking", "thinking": reasoning}, *parts]
        elif thought == "content":
            # As midstream writes it where a template knows no reasoning: that of calls only.
            message["content"] = f"<think>\n{reasoning}\n</think>\n\n{said}" if made else said
        else:
            message[thought if thought != "list" else "reasoning_content"] = (
                [reasoning, *[""] * len(made)] if thought == "list" else reasoning
            )
    return message


def texts(template, conversation):
    messages, tools, variables = conversation
    tools = [{"type": "function", "function": tool} for tool in tools] or None
    found, refused = [], ""
    for shaped in shapes(messages):
        try:
            text = template.render(
                messages=shaped, tools=tools, documents=None, add_generation_prompt=ends_open(messages),
                bos_token="<s>", eos_token="</s>", **variables,
            )
            if text not in found:
                found.append(text)
        except Exception as error:  # a template fails with any
            refused = refused or str(error)
    return found, refused


def ends_open(messages):
    return messages[-1]["role"] != "assistant"


def outcomes(program, names):
    """What midstream makes of each conversation: its text or its error, and what the template is said to know."""
    requests = []
    for path, (messages, tools, variables) in itertools.product(names, CONVERSATIONS.values()):
        messages = [{**message, "content": joined(message["content"])} for message in messages]
        requests.append(json.dumps({
            "template": str(path), "messages": messages, "tools": tools, "variables": variables,
            "answer": ends_open(messages), "now_ms": int(NOW.timestamp() * 1000),
        }))
    done = subprocess.run([program], input="\n".join(requests), text=True, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def is_adapted(conversation, unknown):
    """Whether the conversation has something that the template does not know."""
    messages, tools, _ = conversation
    has = {
        "tools": bool(tools),
        "tool_calls": any("tool_calls" in message for message in messages),
        "tool_results": any(message["role"] == "tool" for message in messages),
        "system": any(message["role"] == "system" for message in messages),
    }
    return any(has[what] for what in unknown)


def main(folder, program):
    paths = sorted(pathlib.Path(folder).glob("*.jinja"))
    results = iter(outcomes(program, paths))
    counts, failed = {}, []
    made = environment()
    for path in paths:
        try:
            template = made.from_string(path.read_text())
        except jinja2.exceptions.TemplateSyntaxError as error:
            template, failure = None, error
        for name, conversation in CONVERSATIONS.items():
            ours = next(results)
            found, refused = texts(template, conversation) if template else ([], str(failure))
            if "text" not in ours:
                kind = "only midstream refuses" if found else "both refuse"
            elif ours["text"] in found:
                kind = "same"
            elif is_adapted(conversation, ours["unknown"]):
                kind = "adapted"
            elif not found:
                kind = "only Jinja2 refuses"
            else:
                kind = "different"
            if kind in ("different", "only midstream refuses"):
                known = KNOWN.get((path.stem, name)) or KNOWN.get((path.stem, ""))
                if known:
                    kind = "different, known"
                else:
                    failed.append((path.stem, name, kind, ours, found))
            counts[kind] = counts.get(kind, 0) + 1
    for stem, name, kind, ours, found in failed:
        print(f"\n## {stem}, {name}: {kind}")
        if "text" not in ours:
            print(ours["error"])
            continue
        near = max(found, key=lambda text: difflib.SequenceMatcher(None, text, ours["text"]).quick_ratio())
        lines = difflib.unified_diff(
            near.splitlines(keepends=True), ours["text"].splitlines(keepends=True), "Jinja2", "midstream", n=1
        )
        for line in itertools.islice(lines, 2, 30):
            print(repr(line))
    print(f"\n{len(paths)} templates, {len(CONVERSATIONS)} conversations: " +
          ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    sys.exit(1 if failed or not paths else 0)


main(*sys.argv[1:])
