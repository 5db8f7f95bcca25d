//! OpenAI's `response.inject`: results of a response's calls, committed together or not at all.
//!
//! `response.inject.created` says that they are in, in front of whatever goes on with them; `response.inject.failed`
//! that they came too late. A frame that means nothing is an `error`. A socket hears of its own results only.

use serde_json::{Value, json};

use super::App;
use super::body::decode;
use super::create::{self, Claimed, response_id};
use super::dialect::{Dialect, Hears, Request, last_number};
use super::errors::{self, invalid, wrong_operation};
use super::idempotency::echo;
use super::input::{self, Known};
use crate::actors::ConversationHandle;
use crate::conversation::{Event, Item, ItemBody, NewResponse, Recorded, Reject, State};
use crate::error::Code;
use crate::ids::{FreshIds, ItemId, ResponseId};
use crate::protocol::responses as wire;
use crate::store::KeyedAnswer;

/// What a `response.inject` frame asks for.
pub(crate) struct Inject {
    pub(crate) response_id: ResponseId,
    results: Vec<Item>,
}

pub(crate) fn read(frame: &Value) -> Result<Inject, Reject> {
    let request: wire::Inject = decode(frame)?;
    let id = request.response_id.as_deref();
    let id = id.ok_or_else(|| invalid("response_id", "response_id is missing; it says which response waits"))?;
    let list = request.input.unwrap_or_default();
    if list.is_empty() {
        return Err(invalid("input", "the input is empty; give the results of the response's calls"));
    }
    let mut results = Vec::with_capacity(list.len());
    for (place, item) in list.iter().enumerate() {
        if item.kind.as_deref() == Some("tool_search_output") {
            let text = "a tool_search_output brings tools, which only a new request can take; send it as its input";
            return Err(invalid(format!("input[{place}].type"), text));
        }
        let read = input::item_list(std::slice::from_ref(item), "input", Known::default(), &mut FreshIds::random())?;
        if !matches!(read.first().map(|item| &item.body), Some(ItemBody::FunctionCallOutput { .. })) {
            let text = "only results of calls can be injected: items of the types function_call_output, \
                        custom_tool_call_output and local_shell_call_output";
            return Err(invalid(format!("input[{place}].type"), text));
        }
        results.extend(read);
    }
    Ok(Inject { response_id: response_id(id)?, results })
}

/// What one socket injected and is still to hear of.
#[derive(Default)]
pub(crate) struct Injections(Vec<Injection>);

struct Injection {
    response_id: ResponseId,
    /// The results, under the ids that they are accepted with.
    items: Vec<ItemId>,
    event_id: Option<String>,
    told: bool,
}

impl Injections {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is said behind an event: that the results, whose acceptance it is, are in.
    pub(crate) fn behind(&mut self, state: &State, recorded: &Recorded) -> Option<Value> {
        if self.0.is_empty() {
            return None;
        }
        let accepted = match &recorded.event {
            Event::ToolResultAccepted { output, .. } => Some(output.id),
            _ => None,
        };
        let told = accepted.and_then(|item| self.0.iter_mut().find(|it| !it.told && it.items.contains(&item)));
        let frame = told.map(|injection| {
            injection.told = true;
            created(state, injection.response_id, injection.event_id.as_deref(), false)
        });
        self.forget_settled(state);
        frame
    }

    /// Whether the server made this response to go on with results that this socket gave.
    pub(crate) fn continued_by(&self, new: &NewResponse) -> bool {
        // A client's own request brings input, and is shown where it was made.
        new.input.is_empty() && self.0.iter().any(|it| it.told && Some(it.response_id) == new.previous)
    }

    /// Nothing is heard any more of results that were gone on with, or never will be.
    pub(crate) fn forget_settled(&mut self, state: &State) {
        self.0.retain(|it| !it.told || state.goes_on_with_results(it.response_id));
    }
}

/// What came of an injection.
pub(crate) struct Injected {
    /// The frame that answers it, unless events do.
    pub(crate) answer: Option<Value>,
    /// The seq of the last acceptance; none where the results had been given before.
    pub(crate) accepted_seq: Option<u64>,
}

impl Dialect {
    /// Gives the results. A key is looked up before anything else is, also before the socket refuses them.
    pub(crate) async fn inject(
        &self,
        app: &App,
        handle: &ConversationHandle,
        inject: Inject,
        allowed: Result<(), Reject>,
        request: &Request<'_>,
        hears: impl Fn() -> Hears,
    ) -> Result<Injected, Reject> {
        let Inject { response_id, results } = inject;
        let claim = match create::claim(app, request.key)? {
            Claimed::Fresh(claim) => claim,
            Claimed::Replay(KeyedAnswer::Answered { .. }) => {
                let answer = Some(created(&*handle.state().await?, response_id, request.event_id, true));
                return Ok(Injected { answer, accepted_seq: None });
            }
            Claimed::Replay(_) => return Err(wrong_operation()),
        };
        allowed?;
        let items: Vec<ItemId> = results.iter().map(|item| item.id).collect();
        let first = items.first().copied();
        let event_id = request.event_id.map(str::to_owned);
        self.injections().0.push(Injection { response_id, items, event_id, told: false });
        let done = handle.answer_calls(response_id, results, claim).await;
        let is_fresh = matches!(&done, Ok(done) if !done.replayed);
        let state = handle.state().await;
        let mut injections = self.injections();
        let own = injections.0.iter().position(|it| it.items.first().copied() == first);
        let is_told = is_fresh && (hears() == Hears::Now || own.is_none_or(|own| injections.0[own].told));
        match own {
            Some(own) if !is_fresh => drop(injections.0.remove(own)),
            Some(own) if !is_told => injections.0[own].told = true,
            _ => {}
        }
        drop(injections);
        let done = done?;
        let answer = (!is_told).then(|| state.map(|it| created(&it, response_id, request.event_id, !is_fresh)));
        Ok(Injected { answer: answer.transpose()?, accepted_seq: is_fresh.then_some(done.accepted_seq) })
    }
}

/// It has no number of its own: the one of the last event before it.
fn created(state: &State, id: ResponseId, event_id: Option<&str>, replayed: bool) -> Value {
    let kind = "response.inject.created";
    let mut frame = json!({"type": kind, "response_id": id, "sequence_number": last_number(state, id)});
    echo(&mut frame, event_id, replayed);
    frame
}

/// The answer to results that are not taken. OpenAI has two codes for results that come too late, with which they
/// are given back; any other fault is the frame's. `state` is the conversation's, if there is one.
pub(crate) fn refused(request: &Request<'_>, reject: Reject, state: Option<&State>) -> Value {
    let code = match reject.code {
        Code::ResponseNotFound | Code::ConversationNotFound => "response_not_found",
        Code::ToolCallClosed | Code::ToolResultConflict => "response_already_completed",
        _ => return errors::frame(reject, request.event_id),
    };
    let id = request.frame["response_id"].as_str().and_then(|id| id.parse().ok());
    let mut failed = json!({
        "type": "response.inject.failed",
        "response_id": request.frame["response_id"],
        "input": request.frame["input"],
        "error": {"code": code, "message": reject.message},
        "sequence_number": state.zip(id).map_or(0, |(state, id)| last_number(state, id)),
    });
    echo(&mut failed, request.event_id, false);
    failed
}
