//! What the events of a message say, as pieces of an answer: blocks in their order, ids and signatures kept. Pure.

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::engine::Counted;
use crate::parse::Piece;
use crate::upstream::wire::{Decode, Finish};

/// Reads the events of one message.
#[derive(Debug)]
pub(in crate::upstream) struct Decoder {
    /// Who makes it: what it gives for itself to read again is marked so.
    maker: String,
    open: Option<Block>,
    /// How many calls were told.
    calls: u32,
    finish: Option<Finish>,
    is_over: bool,
    usage: Usage,
}

/// A block that has not ended. What is no text, thought or call is left out.
#[derive(Debug)]
enum Block {
    Text,
    Thinking { text: String, signature: String },
    Redacted { data: String },
    Call { id: String, arguments: String },
}

#[derive(Debug, Default)]
struct Usage {
    input: Option<u32>,
    created: u32,
    read: u32,
    output: u32,
}

impl Decode for Decoder {
    fn read(&mut self, chunk: &Value, pieces: &mut Vec<Piece>) {
        let has_ended = self.finish.is_some();
        match chunk["type"].as_str().unwrap_or_default() {
            "message_start" => self.count(&chunk["message"]["usage"]),
            "content_block_start" if !has_ended => self.begin(&chunk["content_block"], pieces),
            "content_block_delta" if !has_ended => self.grow(&chunk["delta"], pieces),
            "content_block_stop" if !has_ended => self.close(true, pieces),
            "message_delta" => {
                self.count(&chunk["usage"]);
                self.stop(&chunk["delta"]);
            }
            "message_stop" => self.is_over = true,
            "message" => {
                for block in chunk["content"].as_array().into_iter().flatten() {
                    self.begin(block, pieces);
                    self.close(true, pieces);
                }
                self.count(&chunk["usage"]);
                self.stop(chunk);
            }
            _ => {}
        }
    }

    fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn counted(&self) -> Option<Counted> {
        let Usage { input, created, read, output } = self.usage;
        Some(Counted {
            // Its own count leaves out what has to do with its cache.
            input_tokens: input?.saturating_add(created).saturating_add(read),
            cached_tokens: read,
            output_tokens: output,
            reasoning_tokens: 0,
        })
    }

    fn end(&mut self, pieces: &mut Vec<Piece>) {
        self.close(self.finish != Some(Finish::Length), pieces);
    }

    fn break_off(&mut self, pieces: &mut Vec<Piece>) {
        match self.open.take() {
            Some(Block::Call { id, arguments }) => {
                let index = self.calls;
                self.calls += 1;
                pieces.push(Piece::ToolCallDone { index, id: Some(id), arguments, complete: false });
            }
            // A thought without its signature is no whole one.
            Some(Block::Text | Block::Thinking { .. } | Block::Redacted { .. }) | None => {}
        }
    }
}

impl Decoder {
    /// Reads a message of this maker.
    pub(in crate::upstream) fn of(maker: &str) -> Self {
        let usage = Usage::default();
        Self { maker: maker.to_owned(), open: None, calls: 0, finish: None, is_over: false, usage }
    }

    /// A block begins; one that is still open has ended with that. A block that comes whole has all in its beginning.
    fn begin(&mut self, block: &Value, pieces: &mut Vec<Piece>) {
        self.close(true, pieces);
        let text = |name: &str| block[name].as_str().unwrap_or_default();
        let kind = block["type"].as_str().unwrap_or_default();
        self.open = match kind {
            "text" => Some(Block::Text),
            "thinking" => Some(Block::Thinking { text: String::new(), signature: text("signature").to_owned() }),
            "redacted_thinking" => Some(Block::Redacted { data: text("data").to_owned() }),
            "tool_use" => {
                let (id, name) = (text("id").to_owned(), text("name").to_owned());
                pieces.push(Piece::ToolCallStarted { index: self.calls, id: Some(id.clone()), name });
                Some(Block::Call { id, arguments: String::new() })
            }
            _ => None,
        };
        match kind {
            "text" => say(Piece::Text, text("text"), pieces),
            "thinking" => self.think(text("thinking"), pieces),
            "tool_use" => {
                let input = block["input"].as_object().filter(|input| !input.is_empty());
                self.argue(&input.map(|_| block["input"].to_string()).unwrap_or_default(), pieces);
            }
            _ => {}
        }
    }

    fn grow(&mut self, delta: &Value, pieces: &mut Vec<Piece>) {
        let text = |name: &str| delta[name].as_str().unwrap_or_default();
        match (delta["type"].as_str().unwrap_or_default(), &mut self.open) {
            ("text_delta", Some(Block::Text)) => say(Piece::Text, text("text"), pieces),
            ("thinking_delta", _) => self.think(text("thinking"), pieces),
            ("signature_delta", Some(Block::Thinking { signature, .. })) => signature.push_str(text("signature")),
            ("input_json_delta", Some(Block::Call { .. })) => self.argue(text("partial_json"), pieces),
            _ => {}
        }
    }

    /// More of what is thought.
    fn think(&mut self, more: &str, pieces: &mut Vec<Piece>) {
        if let Some(Block::Thinking { text, .. }) = &mut self.open {
            text.push_str(more);
            say(Piece::Reasoning, more, pieces);
        }
    }

    /// More of a call's arguments.
    fn argue(&mut self, fragment: &str, pieces: &mut Vec<Piece>) {
        if let Some(Block::Call { arguments, .. }) = &mut self.open
            && !fragment.is_empty()
        {
            arguments.push_str(fragment);
            pieces.push(Piece::ToolCallArguments { index: self.calls, fragment: fragment.to_owned() });
        }
    }

    /// The open block ends. `may_be_bare` says that nothing cut it off: then no arguments at all are a call without
    /// any.
    fn close(&mut self, may_be_bare: bool, pieces: &mut Vec<Piece>) {
        if may_be_bare && matches!(&self.open, Some(Block::Call { arguments, .. }) if arguments.trim().is_empty()) {
            self.argue("{}", pieces);
        }
        let (text, native) = match self.open.take() {
            Some(Block::Call { id, arguments }) => {
                let index = self.calls;
                self.calls += 1;
                let is_object = arguments.trim_start().starts_with('{');
                let complete = is_object && serde_json::from_str::<IgnoredAny>(&arguments).is_ok();
                pieces.push(Piece::ToolCallDone { index, id: Some(id), arguments, complete });
                return;
            }
            Some(Block::Thinking { text, signature }) if !signature.is_empty() => {
                (text, json!({"type": "thinking", "signature": signature}))
            }
            Some(Block::Redacted { data }) => (String::new(), json!({"type": "redacted_thinking", "data": data})),
            Some(Block::Text | Block::Thinking { .. }) | None => return,
        };
        pieces.push(Piece::Thought { maker: self.maker.clone(), text, native });
    }

    fn count(&mut self, usage: &Value) {
        let number = |name: &str| usage[name].as_u64().and_then(|number| u32::try_from(number).ok());
        let Usage { input, created, read, output } = &mut self.usage;
        *input = number("input_tokens").or(*input);
        *created = number("cache_creation_input_tokens").unwrap_or(*created);
        *read = number("cache_read_input_tokens").unwrap_or(*read);
        *output = number("output_tokens").unwrap_or(*output);
    }

    fn stop(&mut self, said: &Value) {
        let stop = said["stop_sequence"].as_str().map(str::to_owned);
        let finish = said["stop_reason"].as_str().map(|reason| match reason {
            "end_turn" | "tool_use" => Finish::Stop(None),
            "stop_sequence" => Finish::Stop(stop),
            "max_tokens" | "model_context_window_exceeded" => Finish::Length,
            "refusal" => Finish::Filtered,
            reason => Finish::Broken(format!("it ended its answer with {reason:?}")),
        });
        self.finish = self.finish.take().or(finish);
    }
}

fn say(piece: fn(String) -> Piece, text: &str, pieces: &mut Vec<Piece>) {
    if !text.is_empty() {
        pieces.push(piece(text.to_owned()));
    }
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

    fn starts(block: &Value) -> Value {
        json!({"type": "content_block_start", "index": 0, "content_block": block})
    }

    fn grows(kind: &str, name: &str, text: &str) -> Value {
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": kind, name: text}})
    }

    fn stops() -> Value {
        json!({"type": "content_block_stop", "index": 0})
    }

    fn ends(reason: &str, output_tokens: u32) -> Value {
        json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null},
            "usage": {"output_tokens": output_tokens}})
    }

    fn thought(text: &str, native: Value) -> Piece {
        Piece::Thought { maker: MAKER.to_owned(), text: text.to_owned(), native }
    }

    fn called(arguments: &[&str], complete: bool) -> Vec<Piece> {
        let (index, id) = (0, Some("toolu_1".to_owned()));
        let started = Piece::ToolCallStarted { index, id: id.clone(), name: "f".to_owned() };
        let part = |part: &&str| Piece::ToolCallArguments { index, fragment: (*part).to_owned() };
        let done = Piece::ToolCallDone { index, id, arguments: arguments.concat(), complete };
        std::iter::once(started).chain(arguments.iter().map(part)).chain([done]).collect()
    }

    #[test]
    fn blocks_come_in_their_order_with_signatures_ids_and_the_count() {
        let (pieces, decoder) = read(&[
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 20,
                "cache_creation_input_tokens": 5, "output_tokens": 1}}}),
            json!({"type": "ping"}),
            starts(&json!({"type": "thinking", "thinking": "", "signature": ""})),
            grows("thinking_delta", "thinking", "hm"),
            grows("signature_delta", "signature", "si"),
            grows("signature_delta", "signature", "gn"),
            stops(),
            starts(&json!({"type": "redacted_thinking", "data": "xyz"})),
            stops(),
            starts(&json!({"type": "text", "text": ""})),
            grows("text_delta", "text", "So"),
            stops(),
            starts(&json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}})),
            grows("input_json_delta", "partial_json", ""),
            grows("input_json_delta", "partial_json", "{\"a\""),
            grows("input_json_delta", "partial_json", ": 1}"),
            stops(),
            ends("tool_use", 40),
            json!({"type": "message_stop"}),
        ]);
        let expected = [
            Piece::Reasoning("hm".to_owned()),
            thought("hm", json!({"type": "thinking", "signature": "sign"})),
            thought("", json!({"type": "redacted_thinking", "data": "xyz"})),
            Piece::Text("So".to_owned()),
        ];
        assert_eq!(pieces, [&expected[..], &called(&["{\"a\"", ": 1}"], true)].concat());
        assert_eq!((decoder.finish(), decoder.is_over()), (Some(&Finish::Stop(None)), true));
        let counted = Counted { input_tokens: 28, cached_tokens: 20, output_tokens: 40, reasoning_tokens: 0 };
        assert_eq!(decoder.counted(), Some(counted));
    }

    #[test]
    fn a_whole_message_reads_like_its_stream() {
        let content = json!([
            {"type": "thinking", "thinking": "hm", "signature": "sign"},
            {"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}},
            {"type": "text", "text": "So"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
        ]);
        let usage = json!({"input_tokens": 9, "output_tokens": 7});
        let message = json!({"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage});
        let (pieces, decoder) = read(&[message]);
        let expected = [
            Piece::Reasoning("hm".to_owned()),
            thought("hm", json!({"type": "thinking", "signature": "sign"})),
            Piece::Text("So".to_owned()),
        ];
        assert_eq!(pieces, [&expected[..], &called(&["{\"a\":1}"], true)].concat());
        assert_eq!(decoder.counted().map(|counted| counted.input_tokens), Some(9));
    }

    #[test]
    fn a_call_without_arguments_is_one_and_one_that_was_cut_off_is_not() {
        let call = || starts(&json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}));
        assert_eq!(read(&[call(), stops()]).0, called(&["{}"], true));
        let (mut pieces, mut decoder) = read(&[call(), ends("max_tokens", 1)]);
        decoder.end(&mut pieces);
        assert_eq!((pieces, decoder.finish()), (called(&[], false), Some(&Finish::Length)));
        let (mut pieces, mut decoder) = read(&[call(), grows("input_json_delta", "partial_json", "{")]);
        decoder.break_off(&mut pieces);
        decoder.break_off(&mut pieces);
        assert_eq!(pieces, called(&["{"], false));
    }

    #[test]
    fn ends_mean_what_they_say_and_nothing_is_said_behind_one() {
        for (reason, finish) in [
            ("end_turn", Some(Finish::Stop(None))),
            ("max_tokens", Some(Finish::Length)),
            ("model_context_window_exceeded", Some(Finish::Length)),
            ("refusal", Some(Finish::Filtered)),
        ] {
            let late = starts(&json!({"type": "text", "text": "late"}));
            let (pieces, decoder) = read(&[ends(reason, 1), late, grows("text_delta", "text", "later")]);
            assert_eq!((pieces, decoder.finish()), (vec![], finish.as_ref()), "{reason}");
        }
        let sequence =
            json!({"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "X"}});
        assert_eq!(read(&[sequence]).1.finish(), Some(&Finish::Stop(Some("X".to_owned()))));
        assert!(matches!(read(&[ends("pause_turn", 1)]).1.finish(), Some(Finish::Broken(_))));
        let nonsense = [json!(null), json!([]), stops(), grows("text_delta", "text", "a"), starts(&json!(7))];
        let (pieces, decoder) = read(&nonsense);
        assert_eq!((pieces, decoder.finish(), decoder.counted()), (vec![], None, None));
    }
}
