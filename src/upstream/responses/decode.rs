//! What the events of a response say, as pieces of an answer: items in their order, ids and seals kept. Pure.

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::engine::Counted;
use crate::parse::Piece;
use crate::upstream::wire::{Decode, Finish};

/// Reads the events of one response.
#[derive(Debug)]
pub(in crate::upstream) struct Decoder {
    /// Who makes it: what it gives for itself to read again is marked so.
    maker: String,
    open: Option<Item>,
    /// How many calls were told.
    calls: u32,
    finish: Option<Finish>,
    counted: Option<Counted>,
}

/// An item that has not ended. What is no text, thought or call is left out.
#[derive(Debug)]
enum Item {
    /// Whether any of it was said.
    Message {
        said: bool,
    },
    /// What was shown of it.
    Reasoning {
        text: String,
    },
    Call {
        id: String,
        arguments: String,
    },
}

impl Decode for Decoder {
    fn read(&mut self, chunk: &Value, pieces: &mut Vec<Piece>) {
        if self.finish.is_some() {
            return;
        }
        let delta = chunk["delta"].as_str().unwrap_or_default();
        match chunk["type"].as_str().unwrap_or_default() {
            "response.output_item.added" => self.begin(&chunk["item"], pieces),
            "response.output_item.done" => self.done(&chunk["item"], pieces),
            "response.output_text.delta" | "response.refusal.delta" => self.say(delta, pieces),
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => self.think(delta, pieces),
            // Parts of a summary are paragraphs.
            "response.reasoning_summary_part.added" => {
                if matches!(&self.open, Some(Item::Reasoning { text }) if !text.is_empty()) {
                    self.think("\n\n", pieces);
                }
            }
            "response.function_call_arguments.delta" => self.argue(delta, pieces),
            "response.completed" | "response.incomplete" => self.end_with(&chunk["response"]),
            // Whole, in the place of a stream.
            "" if chunk["object"] == "response" => {
                for item in chunk["output"].as_array().into_iter().flatten() {
                    self.begin(item, pieces);
                    self.done(item, pieces);
                }
                self.end_with(chunk);
            }
            _ => {}
        }
    }

    fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    fn is_over(&self) -> bool {
        // The end has all in it.
        self.finish.is_some()
    }

    fn counted(&self) -> Option<Counted> {
        self.counted
    }

    fn end(&mut self, pieces: &mut Vec<Piece>) {
        self.close(None, pieces);
    }

    fn break_off(&mut self, pieces: &mut Vec<Piece>) {
        // A thought without its seal is no whole one.
        if let Some(Item::Call { id, arguments }) = self.open.take() {
            let index = self.calls;
            self.calls += 1;
            pieces.push(Piece::ToolCallDone { index, id: Some(id), arguments, complete: false });
        }
    }
}

impl Decoder {
    /// Reads a response of this maker.
    pub(in crate::upstream) fn of(maker: &str) -> Self {
        Self { maker: maker.to_owned(), open: None, calls: 0, finish: None, counted: None }
    }

    /// An item begins; one that is still open has ended with that.
    fn begin(&mut self, item: &Value, pieces: &mut Vec<Piece>) {
        self.close(None, pieces);
        let text = |name: &str| item[name].as_str().unwrap_or_default();
        self.open = match text("type") {
            "message" => Some(Item::Message { said: false }),
            "reasoning" => Some(Item::Reasoning { text: String::new() }),
            "function_call" => {
                let (id, name) = (text("call_id").to_owned(), text("name").to_owned());
                pieces.push(Piece::ToolCallStarted { index: self.calls, id: Some(id.clone()), name });
                Some(Item::Call { id, arguments: String::new() })
            }
            _ => None,
        };
    }

    /// An item has ended, and is here whole: what was not told of it is told now.
    fn done(&mut self, item: &Value, pieces: &mut Vec<Piece>) {
        match &self.open {
            Some(Item::Message { said: false }) => {
                let text: String = texts(&item["content"], &["text", "refusal"]).concat();
                self.say(&text, pieces);
            }
            Some(Item::Reasoning { text }) if text.is_empty() => {
                let mut said = texts(&item["content"], &["text"]);
                if said.is_empty() {
                    said = texts(&item["summary"], &["text"]);
                }
                self.think(&said.join("\n\n"), pieces);
            }
            Some(Item::Call { arguments, .. }) if arguments.is_empty() => {
                self.argue(item["arguments"].as_str().unwrap_or_default(), pieces);
            }
            _ => {}
        }
        self.close(Some(item), pieces);
    }

    fn say(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        if let Some(Item::Message { said }) = &mut self.open
            && !text.is_empty()
        {
            *said = true;
            pieces.push(Piece::Text(text.to_owned()));
        }
    }

    fn think(&mut self, more: &str, pieces: &mut Vec<Piece>) {
        if let Some(Item::Reasoning { text }) = &mut self.open
            && !more.is_empty()
        {
            text.push_str(more);
            pieces.push(Piece::Reasoning(more.to_owned()));
        }
    }

    fn argue(&mut self, fragment: &str, pieces: &mut Vec<Piece>) {
        if let Some(Item::Call { arguments, .. }) = &mut self.open
            && !fragment.is_empty()
        {
            arguments.push_str(fragment);
            pieces.push(Piece::ToolCallArguments { index: self.calls, fragment: fragment.to_owned() });
        }
    }

    /// The open item ends. `whole` is what the upstream says of it at its end.
    fn close(&mut self, whole: Option<&Value>, pieces: &mut Vec<Piece>) {
        match self.open.take() {
            Some(Item::Call { id, arguments }) => {
                let index = self.calls;
                self.calls += 1;
                let was_cut = whole.is_none_or(|item| item["status"] == "incomplete");
                let is_object = arguments.trim_start().starts_with('{');
                let complete = !was_cut && is_object && serde_json::from_str::<IgnoredAny>(&arguments).is_ok();
                pieces.push(Piece::ToolCallDone { index, id: Some(id), arguments, complete });
            }
            Some(Item::Reasoning { text }) => {
                let sealed = whole.and_then(|item| item["encrypted_content"].as_str()).filter(|it| !it.is_empty());
                if let Some(sealed) = sealed {
                    let native = json!({"encrypted_content": sealed});
                    pieces.push(Piece::Thought { maker: self.maker.clone(), text, native });
                }
            }
            Some(Item::Message { .. }) | None => {}
        }
    }

    fn end_with(&mut self, response: &Value) {
        self.counted = counted(&response["usage"]);
        let reason = response["incomplete_details"]["reason"].as_str();
        self.finish = Some(match (response["status"].as_str(), reason) {
            (Some("completed") | None, _) => Finish::Stop(None),
            (Some("incomplete"), Some("max_output_tokens" | "max_tokens")) => Finish::Length,
            (Some("incomplete"), Some("content_filter")) => Finish::Filtered,
            (Some(status), _) => {
                let why = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
                Finish::Broken(format!("it ended its answer as {status}{why}"))
            }
        });
    }
}

/// The texts of parts, by the names of their fields.
fn texts(parts: &Value, names: &[&str]) -> Vec<String> {
    let parts = parts.as_array().into_iter().flatten();
    let text = |part: &Value| names.iter().find_map(|name| part[*name].as_str()).map(str::to_owned);
    parts.filter_map(text).filter(|text| !text.is_empty()).collect()
}

fn counted(usage: &Value) -> Option<Counted> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    Some(Counted {
        input_tokens: number(&usage["input_tokens"])?,
        cached_tokens: number(&usage["input_tokens_details"]["cached_tokens"]).unwrap_or(0),
        output_tokens: number(&usage["output_tokens"]).unwrap_or(0),
        reasoning_tokens: number(&usage["output_tokens_details"]["reasoning_tokens"]).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKER: &str = "upstream-a-m";

    fn read(events: &[Value]) -> (Vec<Piece>, Decoder) {
        let (mut decoder, mut pieces) = (Decoder::of(MAKER), Vec::new());
        for event in events {
            decoder.read(event, &mut pieces);
        }
        (pieces, decoder)
    }

    fn added(item: &Value) -> Value {
        json!({"type": "response.output_item.added", "output_index": 0, "item": item})
    }

    fn done(item: &Value) -> Value {
        json!({"type": "response.output_item.done", "output_index": 0, "item": item})
    }

    fn delta(kind: &str, text: &str) -> Value {
        json!({"type": format!("response.{kind}.delta"), "output_index": 0, "delta": text})
    }

    fn ends(status: &str, reason: Option<&str>) -> Value {
        let usage = json!({
            "input_tokens": 7, "input_tokens_details": {"cached_tokens": 3},
            "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2},
        });
        let details = reason.map(|reason| json!({"reason": reason}));
        json!({"type": format!("response.{status}"), "response": {"object": "response", "status": status,
            "incomplete_details": details, "usage": usage}})
    }

    fn started(index: u32) -> Piece {
        Piece::ToolCallStarted { index, id: Some("call_x".to_owned()), name: "weather".to_owned() }
    }

    fn arguments(index: u32, fragment: &str) -> Piece {
        Piece::ToolCallArguments { index, fragment: fragment.to_owned() }
    }

    fn ended(index: u32, arguments: &str, complete: bool) -> Piece {
        let (id, arguments) = (Some("call_x".to_owned()), arguments.to_owned());
        Piece::ToolCallDone { index, id, arguments, complete }
    }

    fn call() -> Value {
        json!({"type": "function_call", "call_id": "call_x", "name": "weather", "arguments": ""})
    }

    fn sealed(text: &str) -> Piece {
        Piece::Thought {
            maker: MAKER.to_owned(),
            text: text.to_owned(),
            native: json!({"encrypted_content": "c2VhbGVk"}),
        }
    }

    #[test]
    fn items_come_in_their_order_with_ids_seals_and_the_count() {
        let part = json!({"type": "response.reasoning_summary_part.added", "output_index": 0});
        let (pieces, decoder) = read(&[
            json!({"type": "response.created", "response": {"status": "in_progress"}}),
            added(&json!({"type": "reasoning", "summary": []})),
            part.clone(),
            delta("reasoning_summary_text", "Rain"),
            part,
            delta("reasoning_summary_text", "or sun?"),
            done(&json!({"type": "reasoning", "encrypted_content": "c2VhbGVk", "summary": [{"text": "Rain"}]})),
            added(&json!({"type": "message", "role": "assistant"})),
            delta("output_text", "Let me "),
            delta("output_text", "see."),
            done(&json!({"type": "message", "content": [{"type": "output_text", "text": "Let me see."}]})),
            added(&json!({"type": "web_search_call"})),
            done(&json!({"type": "web_search_call"})),
            added(&call()),
            delta("function_call_arguments", "{\"city\":"),
            delta("function_call_arguments", "\"Oslo\"}"),
            done(&json!({"type": "function_call", "arguments": "{\"city\":\"Oslo\"}", "status": "completed"})),
            ends("completed", None),
        ]);
        let expected = [
            Piece::Reasoning("Rain".to_owned()),
            Piece::Reasoning("\n\n".to_owned()),
            Piece::Reasoning("or sun?".to_owned()),
            sealed("Rain\n\nor sun?"),
            Piece::Text("Let me ".to_owned()),
            Piece::Text("see.".to_owned()),
            started(0),
            arguments(0, "{\"city\":"),
            arguments(0, "\"Oslo\"}"),
            ended(0, "{\"city\":\"Oslo\"}", true),
        ];
        assert_eq!(pieces, expected);
        assert_eq!(decoder.finish(), Some(&Finish::Stop(None)));
        let count = Counted { input_tokens: 7, cached_tokens: 3, output_tokens: 5, reasoning_tokens: 2 };
        assert_eq!(decoder.counted(), Some(count));
    }

    #[test]
    fn a_whole_answer_says_what_its_stream_would_have() {
        let response = json!({
            "object": "response", "status": "completed", "error": null,
            "output": [
                {"type": "reasoning", "encrypted_content": "c2VhbGVk", "summary": [{"text": "a"}, {"text": "b"}]},
                {"type": "message",
                    "content": [{"type": "output_text", "text": "No"}, {"type": "refusal", "refusal": "."}]},
                {"type": "function_call", "call_id": "call_x", "name": "weather", "arguments": "{}"},
            ],
        });
        let expected = [
            Piece::Reasoning("a\n\nb".to_owned()),
            sealed("a\n\nb"),
            Piece::Text("No.".to_owned()),
            started(0),
            arguments(0, "{}"),
            ended(0, "{}", true),
        ];
        let (pieces, decoder) = read(&[response]);
        assert_eq!((&pieces[..], decoder.finish()), (&expected[..], Some(&Finish::Stop(None))));
    }

    #[test]
    fn what_is_cut_or_broken_is_not_whole() {
        let (mut pieces, mut decoder) = read(&[
            added(&call()),
            delta("function_call_arguments", "{\"c\""),
            ends("incomplete", Some("max_output_tokens")),
        ]);
        decoder.end(&mut pieces);
        assert_eq!(pieces.last(), Some(&ended(0, "{\"c\"", false)));
        assert_eq!(decoder.finish(), Some(&Finish::Length));
        // Arguments that happen to be whole where the answer was cut may have had more behind them.
        let (mut pieces, mut decoder) = read(&[added(&call()), delta("function_call_arguments", "{}")]);
        decoder.break_off(&mut pieces);
        assert_eq!(pieces.last(), Some(&ended(0, "{}", false)));
        let (mut pieces, mut decoder) = read(&[added(&json!({"type": "reasoning"})), delta("reasoning_text", "hm")]);
        decoder.break_off(&mut pieces);
        assert_eq!(pieces, [Piece::Reasoning("hm".to_owned())]);
        assert_eq!(read(&[ends("incomplete", Some("content_filter"))]).1.finish(), Some(&Finish::Filtered));
        let cancelled = json!({"type": "response.incomplete", "response": {"status": "cancelled"}});
        assert!(matches!(read(&[cancelled]).1.finish(), Some(Finish::Broken(why)) if why.contains("cancelled")));
    }
}
