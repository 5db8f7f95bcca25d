//! Every family's wire form, written from the description of the models' formats and from nothing in the parsers.

#![allow(clippy::format_push_string, reason = "a form is easier to see in one piece")]

use serde_json::{Map, Value, json};

use super::generate::{Call, Part};

/// How a family separates and marks things.
pub(super) struct Form {
    pub(super) name: &'static str,
    /// All calls that stand together.
    calls: fn(&[Call], bool) -> String,
    /// Calls are told by standing at the beginning: there is one group of them and no text before it.
    pub(super) only_first: bool,
    /// How reasoning and text are written where they are messages or sections of their own.
    sections: Option<Sections>,
}

struct Sections {
    reasoning: &'static str,
    thinks: fn(&str) -> String,
    says: fn(&str) -> String,
}

const fn form(name: &'static str, calls: fn(&[Call], bool) -> String) -> Form {
    Form { name, calls, only_first: false, sections: None }
}

const fn first(name: &'static str, calls: fn(&[Call], bool) -> String) -> Form {
    Form { only_first: true, ..form(name, calls) }
}

const fn sections(name: &'static str, calls: fn(&[Call], bool) -> String, sections: Sections) -> Form {
    Form { sections: Some(sections), ..form(name, calls) }
}

/// The flag asks for the form's other spelling, where it has one: without line ends, or with the other order of keys.
pub(super) static FORMS: &[Form] = &[
    form("hermes", |calls, other| {
        each(calls, "\n", |call| {
            let space = if other { "" } else { "\n" };
            format!("<tool_call>{space}{}{space}</tool_call>", object(call, "arguments", other))
        })
    }),
    form("qwen3_coder", |calls, other| each(calls, "\n", |call| qwen3_coder(call, other))),
    form("nemotron_deci", |calls, other| format!("<TOOLCALL>{}</TOOLCALL>", array(calls, "arguments", other))),
    first("llama3_json", |calls, other| each(calls, ";", |call| object(call, "parameters", other))),
    form("mistral", |calls, other| {
        if other {
            return each(calls, "", |call| format!("[TOOL_CALLS]{}[ARGS]{}", call.name, arguments(call)));
        }
        format!("[TOOL_CALLS]{}", array(calls, "arguments", false))
    }),
    form("phi4", |calls, other| format!("functools{}", array(calls, "arguments", other))),
    first("pythonic", python),
    form("lfm2", |calls, other| format!("<|tool_call_start|>{}<|tool_call_end|>", python(calls, other))),
    form("jamba", |calls, other| format!("<tool_calls>{}</tool_calls>", array(calls, "arguments", other))),
    form("deepseek_v3", |calls, _| {
        deepseek(calls, |call| format!("function<｜tool▁sep｜>{}\n```json\n{}\n```", call.name, arguments(call)))
    }),
    form("deepseek_v3_1", |calls, _| deepseek(calls, |call| format!("{}<｜tool▁sep｜>{}", call.name, arguments(call)))),
    form("deepseek_v3_2", |calls, other| dsml(calls, "function_calls", other)),
    form("deepseek_v4", |calls, other| dsml(calls, "tool_calls", other)),
    form("glm47", |calls, other| each(calls, "\n", |call| glm47(call, other))),
    form("kimi_k2", |calls, _| {
        let calls: Vec<String> = calls
            .iter()
            .enumerate()
            .map(|(at, call)| {
                let head = format!("<|tool_call_begin|>functions.{}:{at}<|tool_call_argument_begin|>", call.name);
                format!("{head}{}<|tool_call_end|>", arguments(call))
            })
            .collect();
        format!("<|tool_calls_section_begin|>{}<|tool_calls_section_end|>", calls.concat())
    }),
    sections(
        "kimi_k3",
        |calls, _| kimi_k3(calls),
        Sections {
            reasoning: "kimi_k3",
            thinks: |text| format!("<|open|>think<|sep|>{text}<|close|>think<|sep|>"),
            says: |text| format!("<|open|>response<|sep|>{text}<|close|>response<|sep|>"),
        },
    ),
    form("minimax_m2", minimax_m2),
    form("minimax_m3", minimax_m3),
    form("gemma4", |calls, _| {
        each(calls, "", |call| {
            let fields = call.arguments.iter().map(|(key, value)| format!("{key}:{}", gemma4(value)));
            format!("<|tool_call>call:{}{{{}}}<tool_call|>", call.name, fields.collect::<Vec<_>>().join(","))
        })
    }),
    sections(
        "inkling",
        |calls, _| {
            each(calls, "", |call| {
                let body = json!({"name": call.name, "args": call.arguments});
                format!("<|message_model|>{}<|content_invoke_tool_json|>{body}<|end_message|>", call.name)
            })
        },
        Sections {
            reasoning: "inkling",
            thinks: |text| format!("<|message_model|><|content_thinking|>{text}<|end_message|>"),
            says: |text| format!("<|message_model|><|content_text|>{text}<|end_message|>"),
        },
    ),
    sections(
        "harmony",
        |calls, in_analysis| {
            let channel = if in_analysis { "analysis" } else { "commentary" };
            each(calls, "", |call| {
                let head = format!("<|start|>assistant<|channel|>{channel} to=functions.{}", call.name);
                format!("{head} <|constrain|>json<|message|>{}<|call|>", arguments(call))
            })
        },
        Sections {
            reasoning: "gpt_oss",
            thinks: |text| format!("<|start|>assistant<|channel|>analysis<|message|>{text}<|end|>"),
            says: |text| format!("<|start|>assistant<|channel|>final<|message|>{text}<|end|>"),
        },
    ),
];

impl Form {
    /// How this family's models mark reasoning.
    pub(super) fn reasoning(&self) -> &'static str {
        self.sections.as_ref().map_or("qwen3", |sections| sections.reasoning)
    }

    /// Whether text is a message or section of its own, in which the form's own marks mean what they do outside.
    pub(super) fn has_sections(&self) -> bool {
        self.sections.is_some()
    }

    /// The answer as the model writes it.
    pub(super) fn answer(&self, parts: &[Part], other: bool) -> String {
        let mut output = String::new();
        for part in parts {
            match (part, &self.sections) {
                (Part::Reasoning(text), Some(sections)) => output.push_str(&(sections.thinks)(text)),
                (Part::Text(text), Some(sections)) => output.push_str(&(sections.says)(text)),
                (Part::Calls(calls), Some(_)) => output.push_str(&(self.calls)(calls, other)),
                (Part::Reasoning(text), None) => output.push_str(&format!("<think>\n{text}\n</think>\n\n")),
                (Part::Text(text), None) => output.push_str(text),
                (Part::Calls(calls), None) => {
                    if matches!(output.chars().last(), Some(last) if last != '\n') {
                        output.push('\n');
                    }
                    output.push_str(&(self.calls)(calls, other));
                    output.push('\n');
                }
            }
        }
        output
    }
}

fn each(calls: &[Call], between: &str, write: impl Fn(&Call) -> String) -> String {
    calls.iter().map(write).collect::<Vec<_>>().join(between)
}

fn arguments(call: &Call) -> String {
    Value::Object(call.arguments.clone()).to_string()
}

fn object(call: &Call, key: &str, name_last: bool) -> String {
    let arguments = arguments(call);
    let name = json!(call.name);
    if name_last {
        format!("{{\"{key}\":{arguments},\"name\":{name}}}")
    } else {
        format!("{{\"name\": {name}, \"{key}\": {arguments}}}")
    }
}

fn array(calls: &[Call], key: &str, name_last: bool) -> String {
    format!("[{}]", each(calls, ", ", |call| object(call, key, name_last)))
}

/// A value as templates put it between tags: strings as they are, everything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn qwen3_coder(call: &Call, bare: bool) -> String {
    let mut call_text = format!("<function={}>\n", call.name);
    for (key, value) in &call.arguments {
        call_text.push_str(&format!("<parameter={key}>\n{}\n</parameter>\n", plain(value)));
    }
    call_text.push_str("</function>");
    if bare { call_text } else { format!("<tool_call>\n{call_text}\n</tool_call>") }
}

fn glm47(call: &Call, dense: bool) -> String {
    let space = if dense { "" } else { "\n" };
    let fields = call
        .arguments
        .iter()
        .map(|(key, value)| format!("<arg_key>{key}</arg_key>{space}<arg_value>{}</arg_value>{space}", plain(value)));
    format!("<tool_call>{}{space}{}</tool_call>", call.name, fields.collect::<String>())
}

fn dsml(calls: &[Call], block: &str, dense: bool) -> String {
    let space = if dense { "" } else { "\n" };
    let mut text = format!("\n<｜DSML｜{block}>{space}");
    for call in calls {
        text.push_str(&format!("<｜DSML｜invoke name=\"{}\">{space}", call.name));
        for (key, value) in &call.arguments {
            let string = value.is_string();
            let open = format!("<｜DSML｜parameter name=\"{key}\" string=\"{string}\">");
            text.push_str(&format!("{open}{}</｜DSML｜parameter>{space}", plain(value)));
        }
        text.push_str(&format!("</｜DSML｜invoke>{space}"));
    }
    format!("{text}</｜DSML｜{block}>")
}

fn minimax_m2(calls: &[Call], dense: bool) -> String {
    let space = if dense { "" } else { "\n" };
    let mut text = format!("<minimax:tool_call>{space}");
    for call in calls {
        text.push_str(&format!("<invoke name=\"{}\">{space}", call.name));
        for (key, value) in &call.arguments {
            text.push_str(&format!("<parameter name=\"{key}\">{}</parameter>{space}", plain(value)));
        }
        text.push_str(&format!("</invoke>{space}"));
    }
    format!("{text}</minimax:tool_call>")
}

const MARK: &str = "]<]minimax[>[";

fn minimax_m3(calls: &[Call], dense: bool) -> String {
    let space = if dense { "" } else { "\n" };
    let mut text = format!("{MARK}<tool_call>{space}");
    for call in calls {
        text.push_str(&format!("{MARK}<invoke name=\"{}\">{space}", call.name));
        for (key, value) in &call.arguments {
            text.push_str(&element(key, value));
            text.push_str(space);
        }
        text.push_str(&format!("{MARK}</invoke>{space}"));
    }
    format!("{text}{MARK}</tool_call>")
}

/// Values that elements can say are elements inside; others are JSON.
fn element(key: &str, value: &Value) -> String {
    let scalars =
        |mut values: Box<dyn Iterator<Item = &Value> + '_>| values.all(|value| !value.is_object() && !value.is_array());
    let alike = |values: &[Value]| values.iter().all(Value::is_string) || values.iter().all(Value::is_i64);
    let inside = match value {
        Value::Array(values) if !values.is_empty() && alike(values) => {
            values.iter().map(|value| element("item", value)).collect()
        }
        Value::Object(fields) if !fields.is_empty() && scalars(Box::new(fields.values())) => {
            fields.iter().map(|(key, value)| element(key, value)).collect()
        }
        other => plain(other),
    };
    format!("{MARK}<{key}>{inside}{MARK}</{key}>")
}

fn kimi_k3(calls: &[Call]) -> String {
    let mut text = "<|open|>tools<|sep|>".to_owned();
    for (at, call) in calls.iter().enumerate() {
        text.push_str(&format!("<|open|>call tool=\"{}\" index=\"{}\"<|sep|>", call.name, at + 1));
        for (key, value) in &call.arguments {
            let kind = match value {
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            };
            let open = format!("<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>");
            text.push_str(&format!("{open}{}<|close|>argument<|sep|>", plain(value)));
        }
        text.push_str("<|close|>call<|sep|>");
    }
    text + "<|close|>tools<|sep|>"
}

fn deepseek(calls: &[Call], write: impl Fn(&Call) -> String) -> String {
    let calls = each(calls, "\n", |call| format!("<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>", write(call)));
    format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
}

fn gemma4(value: &Value) -> String {
    let fields = |fields: &Map<String, Value>| {
        fields.iter().map(|(key, value)| format!("{key}:{}", gemma4(value))).collect::<Vec<_>>().join(",")
    };
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(values) => format!("[{}]", values.iter().map(gemma4).collect::<Vec<_>>().join(",")),
        Value::Object(object) => format!("{{{}}}", fields(object)),
        other => other.to_string(),
    }
}

fn python(calls: &[Call], single: bool) -> String {
    let call = |call: &Call| {
        let keywords = call.arguments.iter().map(|(key, value)| format!("{key}={}", python_value(value, single)));
        format!("{}({})", call.name, keywords.collect::<Vec<_>>().join(", "))
    };
    format!("[{}]", each(calls, ", ", call))
}

fn python_value(value: &Value, single: bool) -> String {
    let text = |text: &str| {
        let quote = if single { '\'' } else { '"' };
        let escaped = text.replace('\\', "\\\\").replace(quote, &format!("\\{quote}")).replace('\n', "\\n");
        format!("{quote}{escaped}{quote}")
    };
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(string) => text(string),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(|value| python_value(value, single)).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| format!("{}: {}", text(key), python_value(value, single));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
    }
}
