//! One response as the auditor folds it: its input, its output with token counts, and how the model sees both.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{list, text};

/// A response.
#[allow(clippy::struct_excessive_bools)] // facts that are recorded independently of each other
pub(super) struct Turn {
    pub(super) id: String,
    pub(super) previous: Option<String>,
    /// Once its turn has come: results of calls, what was staged, its own.
    pub(super) input: Vec<Value>,
    pub(super) output: Vec<Made>,
    pub(super) instructions: Option<String>,
    pub(super) tool_policies: Value,
    /// What is recorded of its prompt; null where nothing is.
    pub(super) prompt: Value,
    /// All of its prompt, where that is known.
    pub(super) whole_prompt: Option<Vec<u64>>,
    /// What its tokens follow from besides the prompt.
    pub(super) choosing: Value,
    /// A text may end it, behind which tokens may have been sampled that count for nothing.
    pub(super) stops: bool,
    /// A restart went on with it under another model or build.
    pub(super) inexact: bool,
    /// Its tokens so far, in order.
    pub(super) tokens: Vec<u64>,
    /// It is another conversation's, and was copied.
    pub(super) copied: bool,
    /// How long it may think was limited, or changed.
    pub(super) limited: bool,
    /// How it ended, once it has.
    pub(super) ended: Option<String>,
    pub(super) cancelled_at: Option<u64>,
    /// The next number of its own stream.
    pub(super) next_number: u64,
}

/// An output item and the tokens it was made from.
pub(super) struct Made {
    pub(super) item: Value,
    pub(super) first_token: u64,
    pub(super) tokens: u64,
    /// An interrupt threw it away.
    pub(super) discarded: bool,
}

impl Made {
    /// A call that was cut never runs and is never seen by the model, nor what was thrown away.
    fn is_kept(&self) -> bool {
        !self.discarded && (self.item["body"]["kind"] != "function_call" || self.item["status"] == "completed")
    }
}

impl Turn {
    /// A response as it is created, with its own input only.
    pub(super) fn new(event: &Value) -> Self {
        let config = &event["config"];
        Self {
            id: text(event, "id").to_owned(),
            previous: event["previous"].as_str().map(str::to_owned),
            input: list(event, "input").to_vec(),
            output: Vec::new(),
            instructions: config["instructions"].as_str().map(str::to_owned),
            tool_policies: config["tool_policies"].clone(),
            prompt: Value::Null,
            whole_prompt: None,
            choosing: choosing(config),
            stops: !config["stop"].is_null(),
            inexact: false,
            tokens: Vec::new(),
            copied: false,
            limited: !config["thinking"].is_null(),
            ended: None,
            cancelled_at: None,
            next_number: 0,
        }
    }

    /// A whole item with its tokens.
    pub(super) fn add(&mut self, item: Value, tokens: &[Value]) {
        let (first_token, count) = (self.tokens.len() as u64, tokens.len() as u64);
        self.tokens.extend(tokens.iter().filter_map(Value::as_u64));
        self.output.push(Made { item, first_token, tokens: count, discarded: false });
    }

    /// Its tokens, up to the first that left the transcript.
    pub(super) fn kept_tokens(&self) -> &[u64] {
        match self.output.iter().find(|made| !made.is_kept()) {
            Some(cut) => &self.tokens[..cut.first_token as usize],
            None => &self.tokens,
        }
    }

    /// Its prompt, behind what was held before it; none where that has less than it keeps.
    pub(super) fn prompt_on(&self, held: Option<Vec<u64>>) -> Option<Vec<u64>> {
        let (kept, mut tokens) = (self.prompt["kept"].as_u64().unwrap_or_default() as usize, held.unwrap_or_default());
        tokens.len().checked_sub(kept)?;
        tokens.truncate(kept);
        tokens.extend(numbers(&self.prompt, "tokens"));
        Some(tokens)
    }

    pub(super) fn made(&mut self, item_id: &str) -> Option<&mut Made> {
        self.output.iter_mut().rev().find(|made| made.item["id"] == item_id)
    }

    /// Whether its own stream shows how the item grows.
    pub(super) fn streams(&mut self, item_id: &str) -> bool {
        self.made(item_id).is_none_or(|made| {
            let body = &made.item["body"];
            body["kind"] != "compaction" && body["call_kind"] != "tool_search" && body["call_kind"] != "local_shell"
        })
    }

    /// Grows an item by a delta.
    pub(super) fn grow(&mut self, event: &Value) {
        let (delta, tokens) = (text(event, "text").to_owned(), list(event, "tokens").len() as u64);
        self.tokens.extend(numbers(event, "tokens"));
        let Some(made) = self.made(text(event, "item_id")) else { return };
        made.tokens += tokens;
        let body = &mut made.item["body"];
        let grown = |old: &Value| json!(format!("{}{delta}", old.as_str().unwrap_or_default()));
        match body["kind"].as_str() {
            Some("message") => {
                let old = body["content"][0]["text"].clone();
                body["content"] = json!([{"kind": "text", "text": grown(&old)}]);
            }
            Some("reasoning" | "compaction") => body["text"] = grown(&body["text"]),
            _ => body["arguments"] = grown(&body["arguments"]),
        }
    }

    /// Where a cut may lie: behind the last token, or in front of an unfinished call.
    pub(super) fn cut_at(&self) -> u64 {
        match self.output.last() {
            Some(made) if !made.is_kept() => made.first_token,
            _ => self.output.iter().map(|made| made.tokens).sum(),
        }
    }

    /// What of it stays in the transcript once it has ended.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Value> {
        self.output.iter().filter(|made| made.is_kept()).map(|made| &made.item)
    }

    /// A whole call that it made.
    pub(super) fn call(&self, call_id: &str) -> Option<&Value> {
        self.kept().find(|item| item["body"]["kind"] == "function_call" && item["body"]["call_id"] == call_id)
    }
}

/// What tokens follow from besides the prompt.
fn choosing(config: &Value) -> Value {
    let mut sampling = config["sampling"].clone();
    if sampling["temperature"] == 0.0 && sampling["shaping"].is_null() {
        // The most likely token is always taken: nothing is drawn.
        sampling["seed"] = Value::Null;
    }
    let others = ["model", "fingerprint", "tools", "formats", "constraint", "stop"].map(|field| &config[field]);
    json!([others, sampling, config["choice"]["index"]])
}

/// A list of numbers.
pub(super) fn numbers<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = u64> + use<'a> {
    list(value, field).iter().filter_map(Value::as_u64)
}

/// The text of an item.
pub(super) fn item_text(item: &Value) -> String {
    let body = &item["body"];
    match text(body, "kind") {
        "message" => list(body, "content").iter().map(|part| text(part, "text")).collect(),
        "reasoning" => text(body, "text").to_owned(),
        "function_call" => text(body, "arguments").to_owned(),
        _ if body["is_error"] == true => format!("The tool failed:\n{}", text(body, "output")),
        _ => text(body, "output").to_owned(),
    }
}

/// What the model reads, entry by entry: `[who, what, which call]`. Neighbouring texts of one kind are one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ModelInput(Vec<Arc<[String; 3]>>);

impl ModelInput {
    fn push(&mut self, who: &str, what: &str, call: &str) {
        let joins = matches!(who, "assistant" | "reasoning");
        if joins && what.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(last) if joins && last[0] == who => Arc::make_mut(last)[1].push_str(what),
            _ => self.0.push(Arc::new([who.to_owned(), what.to_owned(), call.to_owned()])),
        }
    }

    /// What joins it in front of the next turn.
    pub(super) fn extend<'a>(&mut self, items: impl IntoIterator<Item = &'a Value>) {
        items.into_iter().for_each(|item| self.push_item(item));
    }

    /// With the system text of the response that reads it in front.
    pub(super) fn instructed(&self, instructions: Option<&str>) -> Self {
        let mut input = Self::default();
        if let Some(instructions) = instructions {
            input.push("system", instructions, "");
        }
        input.0.extend(self.0.iter().cloned());
        input
    }

    fn push_item(&mut self, item: &Value) {
        let (body, what) = (&item["body"], item_text(item));
        let call = text(body, "call_id");
        match text(body, "kind") {
            "message" => self.push(text(body, "role"), &what, ""),
            "reasoning" => self.push("reasoning", &what, ""),
            "function_call" => self.push("call", &what, call),
            _ => self.push("result", &what, call),
        }
    }

    /// What an engine was given: messages with `role`, `content`, `reasoning_content`, `tool_calls`, `tool_call_id`.
    pub(super) fn of_messages(messages: &[Value]) -> Self {
        let mut input = Self::default();
        for message in messages {
            match text(message, "role") {
                "assistant" => {
                    input.push("reasoning", text(message, "reasoning_content"), "");
                    input.push("assistant", text(message, "content"), "");
                    for call in list(message, "tool_calls") {
                        input.push("call", text(call, "arguments"), text(call, "id"));
                    }
                }
                "tool" => input.push("result", text(message, "content"), text(message, "tool_call_id")),
                role => input.push(role, text(message, "content"), ""),
            }
        }
        input
    }

    /// What was said to the model last, by a user or a tool.
    pub(super) fn last_said(&self) -> &str {
        let said = self.0.iter().rev().find(|entry| matches!(entry[0].as_str(), "user" | "result"));
        said.map_or("", |entry| &entry[1])
    }

    /// The calls that have no answer, and the results that answer no open call.
    pub(super) fn unbalanced(&self) -> (Vec<&str>, Vec<&str>) {
        let (mut open, mut stray): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        for entry in &self.0 {
            let [who, _, call] = &**entry;
            match who.as_str() {
                "call" => open.push(call),
                "result" => match open.iter().position(|id| id == call) {
                    Some(place) => drop(open.remove(place)),
                    None => stray.push(call),
                },
                _ => {}
            }
        }
        (open, stray)
    }
}
