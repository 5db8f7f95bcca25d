//! What an upstream's chunks say, as pieces of an answer: in their order, one call at a time, ids kept. Pure.
//!
//! It never fails on what it does not know: that is left out. Calls whose parts come mixed are shown one after the
//! other; one whose arguments are no whole JSON object, when the answer ends, is marked as incomplete.

use std::collections::VecDeque;

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::engine::Counted;
use crate::parse::Piece;
use crate::upstream::wire::{Decode, Finish};

/// Reads the chunks of one answer.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Decoder {
    /// The call that is shown, then those whose parts came before it had ended.
    calls: VecDeque<Call>,
    /// How many calls were shown to their end.
    done: u32,
    /// What was said between the parts of a call.
    held: Vec<Piece>,
    finish: Option<Finish>,
    counted: Option<Counted>,
}

/// A call as far as it has come.
#[derive(Debug, Default)]
struct Call {
    /// Its place among the calls, as the upstream counts them.
    place: u64,
    id: Option<String>,
    name: String,
    arguments: String,
    /// Whether its beginning was shown, and how many bytes of its arguments.
    shown: Option<usize>,
}

impl Call {
    fn is_whole(&self) -> bool {
        let text = self.arguments.trim_start();
        text.starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
    }
}

impl Decode for Decoder {
    fn read(&mut self, chunk: &Value, pieces: &mut Vec<Piece>) {
        // It is told last, or again and again: the last one holds.
        self.counted = counted(&chunk["usage"]).or(self.counted);
        if self.finish.is_some() {
            return;
        }
        // One answer was asked for.
        let is_ours = |choice: &&Value| choice["index"].as_u64().is_none_or(|index| index == 0);
        let Some(choice) = chunk["choices"].as_array().into_iter().flatten().find(is_ours) else { return };
        let said = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        self.read_said(said, pieces);
        let reason = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty());
        self.finish = reason.map(|reason| finish(reason, choice["stop_reason"].as_str()));
    }

    fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    fn is_over(&self) -> bool {
        // Usage comes behind the end.
        false
    }

    fn counted(&self) -> Option<Counted> {
        self.counted
    }

    fn end(&mut self, pieces: &mut Vec<Piece>) {
        while !self.calls.is_empty() {
            self.show(pieces);
            self.end_call(pieces, self.finish != Some(Finish::Length));
        }
        pieces.append(&mut self.held);
    }

    fn break_off(&mut self, pieces: &mut Vec<Piece>) {
        self.calls.truncate(1);
        if self.calls.front().is_some_and(|call| call.shown.is_some()) {
            self.end_call(pieces, false);
        }
        self.calls.clear();
        self.held.clear();
    }
}

/// What a word for an end means. One that nobody knows may be a fault's: it is no good end.
fn finish(reason: &str, stop: Option<&str>) -> Finish {
    match reason {
        "stop" | "eos" | "end_turn" | "stop_sequence" | "tool_calls" | "tool_use" | "function_call" => {
            Finish::Stop(stop.map(str::to_owned))
        }
        "length" | "max_tokens" | "model_length" => Finish::Length,
        "content_filter" => Finish::Filtered,
        reason => Finish::Broken(format!("it ended its answer with {reason:?}")),
    }
}

impl Decoder {
    /// Says something beside calls. What comes between the parts of a call stands behind it.
    fn say(&mut self, piece: Piece, pieces: &mut Vec<Piece>) {
        if self.calls.iter().all(Call::is_whole) {
            self.end(pieces);
            pieces.push(piece);
        } else {
            self.held.push(piece);
        }
    }

    fn read_said(&mut self, said: &Value, pieces: &mut Vec<Piece>) {
        let reasoning = [&said["reasoning_content"], &said["reasoning"]];
        // Some tell it in both fields.
        let reasoning = reasoning.into_iter().filter_map(Value::as_str).find(|text| !text.is_empty());
        if let Some(text) = reasoning {
            self.say(Piece::Reasoning(text.to_owned()), pieces);
        }
        self.read_content(&said["content"], pieces);
        // A refusal in a field of its own is what the reader is told.
        self.read_content(&said["refusal"], pieces);
        for (place, part) in said["tool_calls"].as_array().into_iter().flatten().enumerate() {
            self.read_call(place as u64, part, pieces);
        }
    }

    /// Text, or a list of parts.
    fn read_content(&mut self, content: &Value, pieces: &mut Vec<Piece>) {
        let mut say = |text: &str, piece: fn(String) -> Piece, pieces: &mut Vec<Piece>| {
            if !text.is_empty() {
                self.say(piece(text.to_owned()), pieces);
            }
        };
        match content {
            Value::String(text) => say(text, Piece::Text, pieces),
            Value::Array(parts) => {
                for part in parts {
                    let inner = part["thinking"].as_array().into_iter().flatten();
                    for text in inner.filter_map(|inner| inner["text"].as_str()) {
                        say(text, Piece::Reasoning, pieces);
                    }
                    say(part["text"].as_str().unwrap_or_default(), Piece::Text, pieces);
                }
            }
            _ => {}
        }
    }

    fn read_call(&mut self, place: u64, part: &Value, pieces: &mut Vec<Piece>) {
        let place = part["index"].as_u64().unwrap_or(place);
        let id = part["id"].as_str().filter(|id| !id.is_empty());
        let name = part["function"]["name"].as_str().unwrap_or_default();
        let is_same = |call: &Call| {
            // Some count every call from the same place, and only the id tells them apart.
            call.place == place && (id.is_none() || call.id.is_none() || call.id.as_deref() == id)
        };
        let call = match self.calls.iter().rposition(is_same) {
            Some(at) => &mut self.calls[at],
            // What comes for a call that has ended is too late.
            None if name.is_empty() => return,
            None => {
                self.calls.push_back(Call { place, ..Call::default() });
                let last = self.calls.len() - 1;
                &mut self.calls[last]
            }
        };
        if call.shown.is_none() {
            call.id = id.map(str::to_owned).or(call.id.take());
            // Some repeat the name in every part.
            if call.name.is_empty() {
                name.clone_into(&mut call.name);
            }
        }
        match &part["function"]["arguments"] {
            Value::String(text) => call.arguments.push_str(text),
            Value::Null => {}
            // Whole, and not as text.
            arguments => call.arguments.push_str(&arguments.to_string()),
        }
        self.show(pieces);
        while self.calls.len() > 1 && self.calls[0].is_whole() {
            self.end_call(pieces, true);
            self.show(pieces);
        }
    }

    /// Shows what has come of the first call.
    fn show(&mut self, pieces: &mut Vec<Piece>) {
        let index = self.done;
        let Some(call) = self.calls.front_mut().filter(|call| !call.name.is_empty()) else { return };
        if call.shown.is_none() {
            pieces.push(Piece::ToolCallStarted { index, id: call.id.clone(), name: call.name.clone() });
        }
        let shown = call.shown.replace(call.arguments.len()).unwrap_or(0);
        if shown < call.arguments.len() {
            pieces.push(Piece::ToolCallArguments { index, fragment: call.arguments[shown..].to_owned() });
        }
    }

    /// `may_be_bare` says that nothing cut it off: then no arguments at all are a call without any, as some write it.
    fn end_call(&mut self, pieces: &mut Vec<Piece>, may_be_bare: bool) {
        let Some(mut call) = self.calls.pop_front() else { return };
        let index = self.done;
        self.done += 1;
        if call.arguments.trim().is_empty() && may_be_bare {
            "{}".clone_into(&mut call.arguments);
            pieces.push(Piece::ToolCallArguments { index, fragment: call.arguments.clone() });
        }
        let complete = call.is_whole();
        pieces.push(Piece::ToolCallDone { index, id: call.id, arguments: call.arguments, complete });
    }
}

/// Usage as OpenAI tells it.
fn counted(usage: &Value) -> Option<Counted> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    Some(Counted {
        input_tokens: number(&usage["prompt_tokens"])?,
        cached_tokens: number(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0),
        output_tokens: number(&usage["completion_tokens"]).unwrap_or(0),
        reasoning_tokens: number(&usage["completion_tokens_details"]["reasoning_tokens"]).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn delta(delta: &Value) -> Value {
        json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
    }

    fn finish(reason: &str) -> Value {
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    }

    fn calls(parts: &[(u64, &str, &str, &str)]) -> Value {
        let part = |(index, id, name, arguments): &(u64, &str, &str, &str)| {
            let mut part = json!({"index": index, "function": {"arguments": arguments}});
            if !id.is_empty() {
                part["id"] = json!(id);
            }
            if !name.is_empty() {
                part["function"]["name"] = json!(name);
            }
            part
        };
        delta(&json!({"tool_calls": parts.iter().map(part).collect::<Vec<_>>()}))
    }

    fn read(chunks: &[Value]) -> (Vec<Piece>, Decoder) {
        let (mut decoder, mut pieces) = (Decoder::default(), Vec::new());
        for chunk in chunks {
            decoder.read(chunk, &mut pieces);
        }
        decoder.end(&mut pieces);
        (pieces, decoder)
    }

    fn text(text: &str) -> Piece {
        Piece::Text(text.to_owned())
    }

    fn started(index: u32, id: &str, name: &str) -> Piece {
        Piece::ToolCallStarted { index, id: Some(id.to_owned()), name: name.to_owned() }
    }

    fn arguments(index: u32, fragment: &str) -> Piece {
        Piece::ToolCallArguments { index, fragment: fragment.to_owned() }
    }

    fn done(index: u32, id: &str, arguments: &str, complete: bool) -> Piece {
        Piece::ToolCallDone { index, id: Some(id.to_owned()), arguments: arguments.to_owned(), complete }
    }

    #[test]
    fn reasoning_text_calls_the_end_and_usage_come_in_their_order() {
        let usage = json!({"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2}});
        let (pieces, decoder) = read(&[
            delta(&json!({"role": "assistant", "content": ""})),
            delta(&json!({"reasoning_content": "hm", "reasoning": "hm"})),
            delta(&json!({"reasoning": ", well", "content": null})),
            delta(&json!({"content": "So"})),
            calls(&[(0, "c1", "f", "")]),
            calls(&[(0, "", "", "{\"a\"")]),
            calls(&[(0, "c1", "f", ": 1}")]),
            calls(&[(1, "c2", "g", "{}")]),
            finish("tool_calls"),
            json!({"choices": [], "usage": usage}),
        ]);
        let expected = [
            Piece::Reasoning("hm".to_owned()),
            Piece::Reasoning(", well".to_owned()),
            text("So"),
            started(0, "c1", "f"),
            arguments(0, "{\"a\""),
            arguments(0, ": 1}"),
            done(0, "c1", "{\"a\": 1}", true),
            started(1, "c2", "g"),
            arguments(1, "{}"),
            done(1, "c2", "{}", true),
        ];
        assert_eq!(pieces, expected);
        assert_eq!(decoder.finish(), Some(&Finish::Stop(None)));
        let counted = Counted { input_tokens: 9, cached_tokens: 4, output_tokens: 7, reasoning_tokens: 2 };
        assert_eq!(decoder.counted(), Some(counted));
    }

    #[test]
    fn a_whole_answer_reads_like_its_stream() {
        let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
        let again = json!({"id": "c2", "type": "function", "function": {"name": "f", "arguments": ""}});
        let message = json!({"role": "assistant", "reasoning": "hm", "content": "So", "tool_calls": [call, again]});
        let (pieces, decoder) = read(&[json!({"choices": [{"message": message, "finish_reason": "tool_calls"}]})]);
        let expected = [
            Piece::Reasoning("hm".to_owned()),
            text("So"),
            started(0, "c1", "f"),
            arguments(0, "{\"a\":1}"),
            done(0, "c1", "{\"a\":1}", true),
            started(1, "c2", "f"),
            arguments(1, "{}"),
            done(1, "c2", "{}", true),
        ];
        assert_eq!(pieces, expected);
        assert!(decoder.finish().is_some() && decoder.counted().is_none());
    }

    #[test]
    fn calls_whose_parts_are_mixed_are_shown_one_after_the_other() {
        let (pieces, _) = read(&[
            calls(&[(0, "c1", "f", "{\"a\"")]),
            calls(&[(1, "c2", "g", "{\"b\": ")]),
            calls(&[(0, "", "", ": 1}"), (1, "", "", "2}")]),
            finish("tool_calls"),
        ]);
        let expected = [
            started(0, "c1", "f"),
            arguments(0, "{\"a\""),
            arguments(0, ": 1}"),
            done(0, "c1", "{\"a\": 1}", true),
            started(1, "c2", "g"),
            arguments(1, "{\"b\": "),
            arguments(1, "2}"),
            done(1, "c2", "{\"b\": 2}", true),
        ];
        assert_eq!(pieces, expected);
        // All at the same place, told apart by their ids.
        let (pieces, _) = read(&[calls(&[(0, "c1", "f", "{}")]), calls(&[(0, "c2", "f", "{}")])]);
        assert_eq!(pieces[2..4], [done(0, "c1", "{}", true), started(1, "c2", "f")]);
    }

    #[test]
    fn arguments_that_are_no_json_are_given_as_they_are_and_marked() {
        for (given, reason) in [("{\"a\": ", "length"), ("{a: 1}", "tool_calls"), ("[1]", "stop"), ("", "length")] {
            let (pieces, _) = read(&[calls(&[(0, "c1", "f", given)]), finish(reason)]);
            assert_eq!(pieces.last(), Some(&done(0, "c1", given, false)), "{given}");
        }
    }

    #[test]
    fn a_stream_that_breaks_off_ends_its_call_and_forgets_what_was_not_shown() {
        let (mut decoder, mut pieces) = (Decoder::default(), Vec::new());
        decoder.read(&calls(&[(0, "c1", "f", "{\"a\""), (1, "c2", "g", "{")]), &mut pieces);
        pieces.clear();
        decoder.break_off(&mut pieces);
        assert_eq!(pieces, [done(0, "c1", "{\"a\"", false)]);
        decoder.break_off(&mut pieces);
        assert_eq!(pieces.len(), 1);
    }

    #[test]
    fn text_between_the_parts_of_a_call_stands_behind_it() {
        let (pieces, _) = read(&[
            calls(&[(0, "c1", "f", "{\"a\"")]),
            delta(&json!({"content": "\n"})),
            calls(&[(0, "", "", ": 1}")]),
            finish("tool_calls"),
        ]);
        let call = [started(0, "c1", "f"), arguments(0, "{\"a\""), arguments(0, ": 1}")];
        assert_eq!(pieces, [&call[..], &[done(0, "c1", "{\"a\": 1}", true), text("\n")]].concat());
    }

    #[test]
    fn an_end_that_is_a_fault_is_told_apart_and_one_that_says_nothing_is_none() {
        let ended = |reason: &str| read(&[delta(&json!({"content": "a"})), finish(reason)]).1.finish().cloned();
        for fault in ["abort", "error", "insufficient_system_resource"] {
            assert!(matches!(ended(fault), Some(Finish::Broken(reason)) if reason.contains(fault)));
        }
        assert_eq!((ended(""), ended("content_filter")), (None, Some(Finish::Filtered)));
    }

    #[test]
    fn other_choices_and_what_comes_behind_the_end_say_nothing() {
        let other = json!({"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]});
        let both = json!({"choices": [
            {"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "b"}},
        ]});
        let late = json!({"choices": [{"index": 0, "delta": {"content": "late"}}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 2}});
        let said = delta(&json!({"content": "a"}));
        let (pieces, decoder) = read(&[other, said, both, finish("length"), late, finish("stop")]);
        assert_eq!((pieces, decoder.finish()), (vec![text("a"), text("b")], Some(&Finish::Length)));
        assert_eq!(decoder.counted().unwrap().output_tokens, 2);
    }

    #[test]
    fn nonsense_says_nothing() {
        let nonsense = [
            json!(null),
            json!([]),
            json!({"choices": {}}),
            json!({"choices": [7]}),
            delta(&json!({"content": 7, "tool_calls": [7, {"function": 7}]})),
            delta(&json!({"tool_calls": [{"index": 3, "function": {"arguments": "x"}}]})),
            json!({"choices": [], "usage": {"prompt_tokens": -1}}),
        ];
        let (pieces, decoder) = read(&nonsense);
        assert_eq!((pieces, decoder.finish(), decoder.counted()), (vec![], None, None));
        let (pieces, _) = read(&[delta(&json!({"content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "So"},
        ]}))]);
        assert_eq!(pieces, [Piece::Reasoning("hm".to_owned()), text("So")]);
    }
}
