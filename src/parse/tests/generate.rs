//! A grammar of answers: prose, reasoning and calls with arguments of every kind, as they were meant before any model
//! wrote them down. Knows no wire form.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::parse::DeclaredTool;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

/// One stretch of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Reasoning(String),
    Text(String),
    Calls(Vec<Call>),
}

/// What a string may hold that means something somewhere.
const MARKERS: [&str; 30] = [
    "</tool_call>",
    "<tool_call>",
    "</parameter>",
    "</function>",
    "<function=f>",
    "<parameter=a>",
    "</arg_value>",
    "<arg_key>",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "</invoke>",
    "</minimax:tool_call>",
    "]<]minimax[>[</tool_call>",
    "]<]minimax[>[<x>",
    "<|close|>argument<|sep|>",
    "<|\"|>",
    "<tool_call|>",
    "<|tool_call_end|>",
    "<｜tool▁call▁end｜>",
    "[/TOOL_CALLS]",
    "[TOOL_CALLS]",
    "</TOOLCALL>",
    "<|call|>",
    "<|channel|>final<|message|>",
    "</think>",
    "<think>",
    "&amp;&lt;",
    "null",
    "```json\n{\"name\": \"f\"}\n```",
    "{\"a\": [1, 2}",
];

/// A string; a letter stands between any two markers, so that no two of them make a third.
pub(super) fn string() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        prop::sample::select(&MARKERS[..]).prop_map(str::to_owned),
        "[ -~]{0,8}",
        "[a-zé数🦀 \n\t\"'\\\\]{0,8}",
        Just("  \n    indented\n".to_owned()),
        Just("42".to_owned()),
    ];
    prop_oneof![
        8 => prop::collection::vec(part, 0..4).prop_map(|parts| parts.join("x")),
        1 => Just(String::new()),
        1 => (1000_usize..12_000).prop_map(|length| "long line\n".repeat(length / 10)),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["path", "content", "größe", "数量", "x_1", "n"]).prop_map(str::to_owned)
}

pub(super) fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => string().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => (-1_000_000..1_000_000).prop_map(|eighths| Value::from(f64::from(eighths) / 8.0)),
    ]
    .boxed();
    let nested = leaf.clone().prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key(), inner), 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    });
    prop_oneof![3 => string().prop_map(Value::from), 2 => leaf, 2 => nested]
}

fn call() -> impl Strategy<Value = Call> {
    let name = prop::sample::select(vec!["read", "get_weather", "läs_fil", "f2"]).prop_map(str::to_owned);
    (name, prop::collection::vec((key(), value()), 0..4))
        .prop_map(|(name, fields)| Call { name, arguments: fields.into_iter().collect() })
}

/// Words with nothing around them; a marker in prose has text behind it that no call goes on with.
fn prose() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-zé🦀][a-z,.é ]{0,12}[a-z.]",
        prop::sample::select(&MARKERS[..26]).prop_map(|marker| format!("`{marker}` ends it")),
        prop::sample::select(&MARKERS[..26]).prop_map(|marker| format!("{marker} is how it looks")),
        Just("if a < b && c[0] then {x}".to_owned()),
        Just("one\n\ntwo".to_owned()),
    ];
    prop::collection::vec(part, 1..4).prop_map(|parts| format!("So {}.", parts.join(" ")))
}

/// Thoughts hold no marker: what closes them does so wherever it stands.
fn thoughts() -> impl Strategy<Value = String> {
    "[a-zé🦀][a-z,.é\n ]{0,40}[a-z.]".prop_map(|text| format!("Hm, {text}"))
}

/// Reasoning stands at the beginning or behind calls; text behind either.
pub(super) fn answer() -> impl Strategy<Value = Vec<Part>> {
    let turn =
        (prop::option::of(thoughts()), prop::option::weighted(0.4, prose()), prop::collection::vec(call(), 0..4));
    (prop::collection::vec(turn, 1..4), prop::option::of(prose())).prop_map(|(turns, end)| {
        let mut parts: Vec<Part> = Vec::new();
        for (thoughts, prose, calls) in turns {
            let may_think = matches!(parts.last(), None | Some(Part::Calls(_)));
            parts.extend(thoughts.filter(|_| may_think).map(Part::Reasoning));
            if !matches!(parts.last(), Some(Part::Text(_))) {
                parts.extend(prose.map(Part::Text));
            }
            match parts.last_mut() {
                _ if calls.is_empty() => {}
                Some(Part::Calls(before)) => before.extend(calls),
                _ => parts.push(Part::Calls(calls)),
            }
        }
        if !matches!(parts.last(), Some(Part::Text(_))) {
            parts.extend(end.map(Part::Text));
        }
        parts
    })
}

/// What an answer is made of, for the table of what was tried.
pub(super) fn kinds(parts: &[Part]) -> Vec<&'static str> {
    let calls: Vec<&Call> = calls(parts).collect();
    let arguments = || calls.iter().flat_map(|call| call.arguments.values());
    let text = serde_json::to_string(&calls.iter().map(|call| &call.arguments).collect::<Vec<_>>()).unwrap();
    let behind = |window: &[Part]| matches!(window, [Part::Calls(_), Part::Text(_)]);
    let before = |window: &[Part]| matches!(window, [Part::Text(_), Part::Calls(_)]);
    let again = |window: &[Part]| matches!(window, [Part::Calls(_), Part::Reasoning(_)]);
    let every = [
        ("no call", calls.is_empty()),
        ("one call", calls.len() == 1),
        ("parallel", parts.iter().any(|part| matches!(part, Part::Calls(calls) if calls.len() > 1))),
        ("reasoning", parts.iter().any(|part| matches!(part, Part::Reasoning(_)))),
        ("interleaved", parts.windows(2).any(again)),
        ("text before", parts.windows(2).any(before)),
        ("text behind", parts.windows(2).any(behind)),
        ("no arguments", calls.iter().any(|call| call.arguments.is_empty())),
        ("nested", arguments().any(|value| value.is_object() || value.is_array())),
        ("scalars", arguments().any(|value| value.is_number() || value.is_boolean() || value.is_null())),
        ("markers", MARKERS[..26].iter().any(|marker| text.contains(&json!(marker).to_string()[1..marker.len()]))),
        ("unicode", !text.is_ascii() || calls.iter().any(|call| !call.name.is_ascii())),
        ("10 KB", text.len() > 10_000),
        (
            "repeated",
            calls.iter().enumerate().any(|(at, call)| calls[..at].iter().any(|other| other.name == call.name)),
        ),
    ];
    every.into_iter().filter_map(|(kind, is)| is.then_some(kind)).collect()
}

pub(super) const KINDS: [&str; 14] = [
    "no call",
    "one call",
    "parallel",
    "reasoning",
    "interleaved",
    "text before",
    "text behind",
    "no arguments",
    "nested",
    "scalars",
    "markers",
    "unicode",
    "10 KB",
    "repeated",
];

pub(super) fn calls(parts: &[Part]) -> impl Iterator<Item = &Call> {
    parts.iter().flat_map(|part| match part {
        Part::Calls(calls) => calls.as_slice(),
        _ => &[],
    })
}

/// The tools that the calls of an answer are made with. Arguments of one name may differ in type from call to call: a
/// tool takes what its first call gives, and `fit` leaves only calls that agree.
pub(super) fn tools(parts: &[Part]) -> Vec<DeclaredTool> {
    let mut tools: Vec<DeclaredTool> = Vec::new();
    for call in calls(parts) {
        let at = tools.iter().position(|tool| tool.name == call.name).unwrap_or_else(|| {
            let parameters = json!({"type": "object", "properties": {}});
            tools.push(DeclaredTool { name: call.name.clone(), parameters });
            tools.len() - 1
        });
        let properties = tools[at].parameters["properties"].as_object_mut().unwrap();
        for (key, value) in &call.arguments {
            properties.entry(key.clone()).or_insert_with(|| schema(value));
        }
    }
    tools
}

/// Leaves out the arguments whose type is not the one that the tool's first call gave.
pub(super) fn fit(mut parts: Vec<Part>) -> Vec<Part> {
    let tools = tools(&parts);
    for part in &mut parts {
        if let Part::Calls(calls) = part {
            for Call { name, arguments } in calls {
                let tool = tools.iter().find(|tool| tool.name == *name).unwrap();
                arguments.retain(|key, value| tool.parameters["properties"][key.as_str()] == schema(value));
            }
        }
    }
    parts
}

/// A schema that takes the value and says everything about its type.
fn schema(value: &Value) -> Value {
    match value {
        Value::Null => json!({"type": "null"}),
        Value::Bool(_) => json!({"type": "boolean"}),
        Value::Number(number) if number.is_f64() => json!({"type": "number"}),
        Value::Number(_) => json!({"type": "integer"}),
        Value::String(_) => json!({"type": "string"}),
        Value::Array(values) => match values.first() {
            Some(first) => json!({"type": "array", "items": schema(first)}),
            None => json!({"type": "array"}),
        },
        Value::Object(fields) => {
            let properties: Map<String, Value> =
                fields.iter().map(|(key, value)| (key.clone(), schema(value))).collect();
            json!({"type": "object", "properties": properties})
        }
    }
}
