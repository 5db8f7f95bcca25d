//! Outputs that consist of messages, each with a header that says what it is: reasoning, text or a call.
//!
//! A header that breaks is text, and so is a message that should be a call and is none, and so is a marker in a
//! quotation that opens directly in front of it, up to the quotation's end or the line's.

use super::message_call::MessageCall;
use super::{CallParser as _, Setup, Step, StreamParser};
use crate::parse::prose::Prose;
use crate::parse::reread::{self, Budget, Reader, Taken};
use crate::parse::sink::Sink;

/// Longer headers are none.
const HEADER_BYTES_MAX: usize = 512;

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Text,
    Reasoning,
    Call {
        /// Its name; `None`: its text has one.
        name: Option<String>,
        /// Whether it is reasoning if it turns out to be no call.
        reasoning: bool,
    },
}

/// How a family's messages look.
#[derive(Debug)]
pub(super) struct Form {
    /// What a header begins with.
    pub(super) opens: &'static [&'static str],
    /// What a header ends with, and the message's text begins behind.
    pub(super) bodies: &'static [&'static str],
    /// What closes a message, and then what opens the next.
    pub(super) ends: &'static [&'static str],
    /// What the message is, by its header, the last marker included.
    pub(super) message: fn(&str) -> Message,
    /// Whether this may be the beginning of the header behind what the prompt ends with.
    pub(super) begins: fn(&str) -> bool,
}

#[derive(Debug)]
enum State {
    /// In a header.
    Header(String),
    /// In a message that is shown.
    Body {
        reasoning: bool,
        partial: String,
        /// Whether its closing marker is shown as well.
        raw: bool,
    },
    Call {
        call: Box<MessageCall>,
        /// Its header and what is held of it.
        raw: String,
        reasoning: bool,
    },
}

/// Reads messages.
#[derive(Debug)]
pub(super) struct Channels {
    form: &'static Form,
    setup: Setup,
    state: State,
    /// Whether anything but white space was read.
    begun: bool,
    prose: Prose,
    /// What closes the quotation in which a marker was spoken of.
    quotation: Option<u8>,
    budget: Budget,
}

impl Channels {
    pub(super) fn new(form: &'static Form, setup: Setup) -> Self {
        let state = match setup.starts_in_reasoning {
            Some(true) if setup.reasoning => State::Body { reasoning: true, partial: String::new(), raw: false },
            _ => State::Header(String::new()),
        };
        Self { form, setup, state, begun: false, prose: Prose::new(), quotation: None, budget: Budget::default() }
    }

    fn header(&mut self, character: char, sink: &mut Sink<'_>) -> Taken {
        let State::Header(header) = &mut self.state else {
            return Taken::Again(String::new());
        };
        header.push(character);
        if self.form.bodies.iter().any(|body| header.ends_with(body)) {
            let header = std::mem::take(header);
            self.begin(&header, sink);
            return Taken::Bytes(character.len_utf8());
        }
        let start = header.trim_start();
        let marked = |marker: &str| start.starts_with(marker) || marker.starts_with(start);
        let goes_on =
            self.form.opens.iter().chain(self.form.bodies).any(|marker| marked(marker)) || (self.form.begins)(start);
        let line_goes_on = start.is_empty() || character != '\n';
        if goes_on && line_goes_on && header.len() <= HEADER_BYTES_MAX {
            return Taken::Bytes(character.len_utf8());
        }
        header.pop();
        let header = std::mem::take(header);
        self.text(&header, sink)
    }

    /// What is held is text. Its first character begins no marker; what is behind it is read again.
    fn text(&mut self, held: &str, sink: &mut Sink<'_>) -> Taken {
        self.state = State::Body { reasoning: false, partial: String::new(), raw: false };
        let first = held.chars().next().map_or(0, char::len_utf8);
        (self.prose, self.quotation) = (Prose::new(), None);
        self.prose.push(&held[..first]);
        sink.text(&held[..first]);
        Taken::Again(self.again(held[first..].to_owned(), sink))
    }

    /// This, if it may be read again; else it is shown.
    fn again(&mut self, held: String, sink: &mut Sink<'_>) -> String {
        if self.budget.allows(held.len()) {
            return held;
        }
        sink.text(&held);
        String::new()
    }

    fn begin(&mut self, header: &str, sink: &mut Sink<'_>) {
        (self.prose, self.quotation) = (Prose::new(), None);
        let body = |reasoning, raw| State::Body { reasoning, partial: String::new(), raw };
        self.state = match (self.form.message)(header) {
            Message::Text => body(false, false),
            Message::Reasoning if self.setup.reasoning => body(true, false),
            Message::Call { name, reasoning } if self.setup.calls => {
                let call = Box::new(MessageCall::new(name, self.form));
                State::Call { call, raw: header.to_owned(), reasoning: reasoning && self.setup.reasoning }
            }
            // What is not looked for stays as it is.
            Message::Reasoning | Message::Call { .. } => {
                sink.text(header);
                body(false, true)
            }
        };
    }

    fn body(&mut self, rest: &str, sink: &mut Sink<'_>) -> Taken {
        let State::Body { reasoning, partial, raw } = &mut self.state else {
            return Taken::Again(String::new());
        };
        let (prose, quotation) = (&mut self.prose, &mut self.quotation);
        let opened = prose.opened();
        let mut show = |text: &str, sink: &mut Sink<'_>| {
            prose.push(text);
            if *reasoning { sink.reasoning(text) } else { sink.text(text) }
        };
        let Some(character) = rest.chars().next() else {
            return Taken::Bytes(0);
        };
        if partial.is_empty() && character != '<' {
            let plain = rest.find('<').unwrap_or(rest.len());
            let ends = |close: &u8| rest.as_bytes()[..plain].iter().any(|byte| byte == close || *byte == b'\n');
            if quotation.as_ref().is_some_and(ends) {
                *quotation = None;
            }
            show(&rest[..plain], sink);
            return Taken::Bytes(plain);
        }
        if partial.is_empty() {
            *quotation = quotation.or(opened);
            if quotation.is_some() {
                show("<", sink);
                return Taken::Bytes(character.len_utf8());
            }
        }
        partial.push(character);
        if let Some(end) = self.form.ends.iter().find(|end| **end == partial.as_str()) {
            let opens = self.form.opens.contains(end);
            if *raw && !opens {
                show(end, sink);
            }
            self.state = State::Header(if opens { (*end).to_owned() } else { String::new() });
            return Taken::Bytes(character.len_utf8());
        }
        if self.form.ends.iter().any(|end| end.starts_with(partial.as_str())) {
            return Taken::Bytes(character.len_utf8());
        }
        // Markers begin with their only `<`, so none began inside.
        partial.pop();
        show(partial, sink);
        if partial.is_empty() {
            show("<", sink);
            return Taken::Bytes(character.len_utf8());
        }
        partial.clear();
        Taken::Again(String::new())
    }

    fn call(&mut self, character: char, sink: &mut Sink<'_>) -> Taken {
        let State::Call { call, raw, reasoning } = &mut self.state else {
            return Taken::Again(String::new());
        };
        let mut held = false;
        for &byte in character.encode_utf8(&mut [0; 4]).as_bytes() {
            match call.push(byte, sink.calls) {
                Step::Held => held = true,
                Step::Taken => {
                    raw.clear();
                    held = false;
                }
                Step::Ended => {
                    self.state = State::Header(String::new());
                    return Taken::Bytes(character.len_utf8());
                }
                // No message is a section of calls.
                Step::NotACall | Step::Framed => {
                    let (raw, reasoning) = (std::mem::take(raw), *reasoning);
                    return self.no_call(raw, reasoning, sink);
                }
            }
        }
        if held {
            raw.push(character);
        }
        Taken::Bytes(character.len_utf8())
    }

    /// The message is no call, or what is held comes behind one.
    fn no_call(&mut self, raw: String, reasoning: bool, sink: &mut Sink<'_>) -> Taken {
        let State::Call { call, .. } = &self.state else {
            return Taken::Again(String::new());
        };
        if call.is_announced() {
            self.state = State::Header(String::new());
            return Taken::Again(self.again(raw, sink));
        }
        // The header is shown too: it says to whom the text was meant.
        let end = self.form.bodies.iter().filter_map(|body| raw.find(body).map(|at| at + body.len())).min();
        let (header, text) = raw.split_at(end.unwrap_or(0));
        self.state = State::Body { reasoning, partial: String::new(), raw: true };
        if reasoning {
            sink.reasoning(header);
        } else {
            sink.text(header);
        }
        Taken::Again(self.again(text.to_owned(), sink))
    }
}

impl Reader for Channels {
    fn take(&mut self, rest: &str, sink: &mut Sink<'_>) -> Taken {
        let Some(character) = rest.chars().next() else {
            return Taken::Bytes(0);
        };
        self.begun |= !character.is_ascii_whitespace();
        match self.state {
            State::Header(_) => self.header(character, sink),
            State::Body { .. } => self.body(rest, sink),
            State::Call { .. } => self.call(character, sink),
        }
    }

    fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }
}

impl StreamParser for Channels {
    fn push(&mut self, text: &str, sink: &mut Sink<'_>) {
        reread::read(self, String::new(), text, sink);
        sink.drain_calls();
    }

    fn finish(&mut self, cut: bool, sink: &mut Sink<'_>) {
        loop {
            match &mut self.state {
                State::Call { call, raw, reasoning } => {
                    if call.finish(cut, sink.calls) {
                        break;
                    }
                    let (raw, reasoning) = (std::mem::take(raw), *reasoning);
                    if let Taken::Again(held) = self.no_call(raw, reasoning, sink) {
                        reread::read(self, held, "", sink);
                    }
                }
                State::Header(header) => {
                    // White space behind a message is framing.
                    let held = std::mem::take(header);
                    if !held.trim().is_empty() || !self.begun {
                        sink.text(&held);
                    }
                    break;
                }
                State::Body { reasoning, partial, .. } => {
                    let held = std::mem::take(partial);
                    if *reasoning {
                        sink.reasoning(&held);
                    } else {
                        sink.text(&held);
                    }
                    break;
                }
            }
        }
        sink.drain_calls();
    }

    fn held(&self) -> bool {
        match &self.state {
            State::Header(header) => !header.is_empty(),
            State::Body { partial, .. } => !partial.is_empty(),
            State::Call { raw, .. } => !raw.is_empty(),
        }
    }

    fn in_reasoning(&self) -> bool {
        matches!(self.state, State::Body { reasoning: true, .. })
    }

    fn in_call(&self) -> bool {
        matches!(self.state, State::Call { .. })
    }

    #[cfg(any(test, fuzzing))]
    fn work(&self) -> usize {
        self.budget.work
    }
}
