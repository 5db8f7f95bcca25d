//! The writings that upstreams speak: how each is asked, and how its answers are read. Pure.

use std::collections::{BTreeMap, BTreeSet};

use hyper::header::{self, HeaderName, HeaderValue};
use serde_json::Value;

use super::key::ApiKey;
use super::kind::Manners;
use super::{chat, messages, responses};
use crate::engine::{Counted, FinishReason, GenerationRequest, Refusal};
use crate::parse::Piece;
use crate::prompt::{Message, ToolCall};

/// The version of Anthropic's API that is spoken.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// What a model is told that has to go on with its answer, and whose upstream has no way to let it.
pub(super) const GO_ON: &str = "Your last message was cut off by a broken connection. Go on exactly where it ends, \
    inside its last word if need be. Repeat nothing of it, and say nothing of this message.";

/// A writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    /// OpenAI's Chat Completions.
    Chat(Manners),
    /// Anthropic's Messages.
    Messages(messages::Manners),
    /// OpenAI's Responses.
    Responses,
}

/// One request to an upstream.
pub(super) struct Asked<'a> {
    /// The model, by the upstream's name.
    pub(super) model: &'a str,
    /// Who answers: what it gave for itself to read again goes back to it.
    pub(super) maker: &'a str,
    /// The request of the engine.
    pub(super) request: &'a GenerationRequest,
    /// The messages in front of the answer.
    pub(super) messages: &'a [Message],
    /// The answer so far; empty where none was begun.
    pub(super) answer: &'a str,
    /// The most tokens that the rest may have; none is no bound.
    pub(super) max_tokens: Option<u32>,
    /// Whether it is to come as a stream.
    pub(super) stream: bool,
}

/// How an answer ended, as the upstream says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// By itself, or with calls; the stop string that ended it, where it says.
    Stop(Option<String>),
    /// As long as it may be.
    Length,
    /// A filter of the provider ended it.
    Filtered,
    /// It broke off, for this reason.
    Broken(String),
}

/// Reads one answer. It never fails on what it does not know: that is left out.
pub(super) trait Decode: Send {
    /// Takes an event of a stream, or a whole answer. Behind the end only what it says of tokens is taken.
    fn read(&mut self, chunk: &Value, pieces: &mut Vec<Piece>);

    /// How the answer ended, once that is known.
    fn finish(&self) -> Option<&Finish>;

    /// Whether nothing more is to come.
    fn is_over(&self) -> bool;

    /// What the upstream counted, once it is told.
    fn counted(&self) -> Option<Counted>;

    /// The answer is at its end: what is open ends with it.
    fn end(&mut self, pieces: &mut Vec<Piece>);

    /// The stream broke off: the call that was shown ends here, whole or not, and what was not shown is forgotten.
    fn break_off(&mut self, pieces: &mut Vec<Piece>);
}

impl Wire {
    /// Where answers are asked for, behind the address.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat(_) => "/chat/completions",
            Self::Messages(_) => "/messages",
            Self::Responses => "/responses",
        }
    }

    /// The headers that belong to it, the key's among them.
    pub(super) fn headers(self, key: Option<&ApiKey>) -> Vec<(HeaderName, HeaderValue)> {
        let version = (HeaderName::from_static("anthropic-version"), HeaderValue::from_static(ANTHROPIC_VERSION));
        let (name, value, more) = match self {
            Self::Chat(_) | Self::Responses => (header::AUTHORIZATION, key.and_then(ApiKey::bearer), None),
            Self::Messages(_) => (HeaderName::from_static("x-api-key"), key.and_then(ApiKey::bare), Some(version)),
        };
        value.map(|value| (name, value)).into_iter().chain(more).collect()
    }

    /// The body of a request.
    pub(super) fn body(self, asked: &Asked<'_>) -> Result<Value, FinishReason> {
        match self {
            Self::Chat(manners) => chat::body(asked, &manners),
            Self::Messages(manners) => messages::body(asked, manners),
            Self::Responses => responses::body(asked),
        }
    }

    /// Reads an answer of this maker.
    pub(super) fn decoder(self, maker: &str) -> Box<dyn Decode> {
        match self {
            Self::Chat(_) => Box::new(chat::Decoder::default()),
            Self::Messages(_) => Box::new(messages::Decoder::of(maker)),
            Self::Responses => Box::new(responses::Decoder::of(maker)),
        }
    }
}

/// What a client is told that asks for something that an upstream has no words for.
pub(super) fn refused(what: impl std::fmt::Display) -> FinishReason {
    FinishReason::Refused(Refusal::Input, format!("the model's upstream cannot be asked for {what}; leave it out"))
}

/// The ids that the upstream itself gave to calls, by ours. Where it gave one twice, ours stand.
pub(super) fn wire_ids(messages: &[Message]) -> BTreeMap<&str, &str> {
    let calls = || messages.iter().flat_map(|message| &message.tool_calls);
    let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for native in calls().filter_map(|call| call.native_id.as_deref()) {
        if !seen.insert(native) {
            twice.insert(native);
        }
    }
    let of = |call: &'_ ToolCall| call.native_id.as_deref().is_some_and(|native| !twice.contains(native));
    calls().filter(|call| of(call)).filter_map(|call| Some((call.id.as_str(), call.native_id.as_deref()?))).collect()
}
