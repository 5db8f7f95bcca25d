//! OpenAI's `response.steer` and Codex's `response.interrupt`: how they are read, and what one socket is told of them.
//!
//! A socket hears of its own steers only. What it hears follows from the conversation's events, beside whatever
//! frames the socket has for them; a steer itself is an intervention like any other, and as durable.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::App;
use super::body::decode;
use super::conversations::interventions;
use super::create::{Key, response_id};
use super::errors::{self, invalid};
use super::idempotency::echo;
use super::inject::Injections;
use super::input::{self, Known};
use crate::actors::ConversationHandle;
use crate::conversation::{
    CallKind, Ending, Event, Input, Intervene, Intervention, InterventionStatus, OnLate, OnMultiple, Recorded, Reject,
    State, ToolsOnSteer, When,
};
use crate::error::Code;
use crate::ids::{FreshIds, InterventionId, ResponseId};
use crate::protocol::TextOr;
use crate::protocol::items::{ContentPart, InputItem};
use crate::protocol::responses as wire;

/// The one way of interrupting.
const DISCARD: &str = "discard_partial_items";

/// OpenAI's code for a steer that is refused or fails with one of ours. `None`: the fault is not the steer's, and an
/// `error` frame says it.
fn steer_code(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::ResponseNotFound | Code::ConversationNotFound => "response_not_found",
        Code::InvalidInput => "invalid_input",
        Code::TooManyPendingSteers => "too_many_pending_steers",
        Code::ResponseAlreadyCompleted => "response_already_completed",
        Code::ResponseNotActive => "response_not_active",
        // It was accepted, and its response ended in a way that nothing follows.
        Code::ResponseCancelled | Code::ResponseFailed | Code::Disconnected | Code::ConversationDeleted => {
            "successor_creation_failed"
        }
        _ => return None,
    })
}

/// What one socket asked for in the dialect and is still to hear of.
#[derive(Default)]
pub(crate) struct Dialect {
    asked: Mutex<Asked>,
    injections: Mutex<Injections>,
}

#[derive(Default)]
struct Asked {
    steers: HashMap<InterventionId, Steer>,
    interrupts: Vec<Interrupt>,
    /// Counts interrupts.
    interrupt_number: u64,
}

struct Steer {
    /// As it came, to be given back.
    input: Value,
    event_id: Option<String>,
    accepted_told: bool,
    pending_told: bool,
}

struct Interrupt {
    number: u64,
    response_id: ResponseId,
    event_id: Option<String>,
    told: bool,
}

/// A request of the dialect: its frame, and what it is answered with.
pub(crate) struct Request<'a> {
    pub(crate) frame: &'a Value,
    pub(crate) event_id: Option<&'a str>,
    /// The key that its `event_id` is.
    pub(crate) key: Option<&'a Key>,
}

/// Whether a socket gets a conversation's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hears {
    /// It does.
    Now,
    /// It has asked for them.
    Soon,
    /// It has not.
    Never,
}

/// What a `response.steer` frame asks for: cut behind the open item, join others, wait for calls, fail if late.
pub(crate) fn read_steer(frame: &Value) -> Result<Intervene, Reject> {
    let request: wire::Steer = decode(frame)?;
    if frame.get("stream_id").is_some_and(|id| !id.is_null()) {
        return Err(invalid("stream_id", "a steer names its response and never a stream; leave stream_id out"));
    }
    let previous = request.previous_response_id.as_deref().ok_or_else(|| {
        invalid("previous_response_id", "previous_response_id is missing; it says which response is steered")
    })?;
    let fresh = &mut FreshIds::random();
    check_steer_input(request.input.as_ref())?;
    let items = input::items(request.input.as_ref(), "input", Known::default(), fresh)?;
    Ok(Intervene {
        intervention_id: InterventionId::draw(fresh),
        response_id: response_id(previous)?,
        items,
        when: When::Item,
        on_multiple: OnMultiple::Merge,
        on_late: OnLate::Fail,
        tools: ToolsOnSteer::Await,
        thinking: None,
    })
}

/// A steer is what a user says, and nothing else.
fn check_steer_input(input: Option<&TextOr<InputItem>>) -> Result<(), Reject> {
    let list = match input {
        Some(TextOr::Text(text)) if !text.trim().is_empty() => return Ok(()),
        Some(TextOr::List(list)) if !list.is_empty() => list,
        _ => return Err(invalid("input", "the input is empty; say what the model should do instead")),
    };
    let says = |text: &str| !text.trim().is_empty();
    for (place, item) in list.iter().enumerate() {
        if item.kind.as_deref().is_some_and(|kind| kind != "message") {
            return Err(invalid(
                format!("input[{place}].type"),
                "a steer takes messages only; send other items with response.create",
            ));
        }
        if item.role.as_deref() != Some("user") {
            return Err(invalid(
                format!("input[{place}].role"),
                "a steer takes messages only of the role user; set it",
            ));
        }
        let is_said = match &item.content {
            None => false,
            Some(TextOr::Text(text)) => says(text),
            Some(TextOr::List(parts)) => {
                let text = |part: &ContentPart| part.text.as_deref().is_some_and(says);
                parts.iter().all(|part| part.kind == "input_text") && parts.iter().any(text)
            }
        };
        if !is_said {
            let text = "a message of a steer has text: give a string, or parts of the type input_text";
            return Err(invalid(format!("input[{place}].content"), text));
        }
    }
    Ok(())
}

/// The answer to a steer that is refused, with its input back.
pub(crate) fn steer_refused(request: &Request<'_>, reject: Reject) -> Value {
    let Some(code) = steer_code(reject.code) else { return errors::frame(reject, request.event_id) };
    let steer = json!({"previous_response_id": request.frame["previous_response_id"], "input": request.frame["input"]});
    // It never was part of a stream.
    let mut failed = steer_failed(&steer, 0, code, &reject.message);
    echo(&mut failed, request.event_id, false);
    failed
}

fn steer_failed(steer: &Value, number: u64, code: &str, message: &str) -> Value {
    let error = error(code, message);
    json!({"type": "response.steer.failed", "sequence_number": number, "steer": steer, "error": error})
}

fn error(code: &str, message: &str) -> Value {
    json!({"type": "invalid_request_error", "code": code, "message": message})
}

/// The response that a `response.interrupt` frame names.
pub(crate) fn read_interrupt(frame: &Value) -> Result<ResponseId, Reject> {
    let request: wire::Interrupt = decode(frame)?;
    if request.mode.as_deref() != Some(DISCARD) {
        return Err(invalid("mode", format!("mode must be {DISCARD}; there is no other way of interrupting")));
    }
    let id = request.response_id.as_deref();
    response_id(id.ok_or_else(|| invalid("response_id", "response_id is missing; it says which response ends"))?)
}

/// The answer to an interrupt that is refused: the response goes on to its own end.
pub(crate) fn interrupt_refused(request: &Request<'_>, reject: Reject) -> Value {
    if !matches!(reject.code, Code::InvalidInput | Code::ResponseNotFound | Code::ResponseAlreadyCompleted) {
        return errors::frame(reject, request.event_id);
    }
    let mut failed = json!({
        "type": "response.interrupt.failed",
        "response_id": request.frame["response_id"],
        "error": error(reject.code.as_str(), &reject.message),
    });
    echo(&mut failed, request.event_id, false);
    failed
}

/// The number of the last event of a response's stream: what the dialect says has no number of its own.
pub(crate) fn last_number(state: &State, id: ResponseId) -> u64 {
    state.response(id).map_or(0, |response| response.next_number.saturating_sub(1))
}

fn accepted(state: &State, id: InterventionId, previous: ResponseId, event_id: Option<&str>) -> Value {
    let mut frame = json!({
        "type": "response.steer.accepted",
        "sequence_number": last_number(state, previous),
        "steer": {"id": id, "previous_response_id": previous},
    });
    if state.response(previous).is_some_and(|response| !response.config.store) {
        frame["durable"] = false.into();
    }
    echo(&mut frame, event_id, false);
    frame
}

fn pending(state: &State, id: InterventionId, previous: ResponseId) -> Value {
    let required = state.open_calls().map(|call| match state.call_kind(&call.call_id) {
        CallKind::Function => json!({"type": "function_call_output", "call_id": call.call_id, "name": call.name}),
        CallKind::Custom => json!({"type": "custom_tool_call_output", "call_id": call.call_id}),
        CallKind::ToolSearch => {
            json!({"type": "tool_search_output", "call_id": call.call_id, "execution": "client"})
        }
        CallKind::LocalShell => json!({"type": "local_shell_call_output", "call_id": call.call_id}),
    });
    json!({
        "type": "response.steer.pending",
        "sequence_number": last_number(state, previous),
        "steer": {"id": id, "previous_response_id": previous},
        "reason": "waiting_for_required_input",
        "required_input": required.collect::<Vec<_>>(),
    })
}

fn interrupt_accepted(id: ResponseId, sequence_number: u64, event_id: Option<&str>) -> Value {
    let kind = "response.interrupt.accepted";
    let mut frame = json!({"type": kind, "response_id": id, "sequence_number": sequence_number});
    echo(&mut frame, event_id, false);
    frame
}

impl Asked {
    /// What the state says about this socket's steers and the socket was not told yet, in the order of acceptance.
    fn due(&mut self, state: &State) -> Vec<Value> {
        let known = |id: &InterventionId| Some((*id, state.interventions.get(id)?.as_ref()));
        let mut all: Vec<(InterventionId, &Intervention)> = self.steers.keys().filter_map(known).collect();
        all.sort_by_key(|(_, intervention)| intervention.accepted_seq);
        let mut frames = Vec::new();
        for (id, intervention) in all {
            let Some(steer) = self.steers.get_mut(&id) else { continue };
            let (previous, event_id) = (intervention.response_id, steer.event_id.clone());
            if !std::mem::replace(&mut steer.accepted_told, true) {
                frames.push(accepted(state, id, previous, event_id.as_deref()));
            }
            // What a steer waits for is known when its response has ended, and told behind that end.
            let has_ended = state.response(previous).is_none_or(|response| response.status.is_terminal());
            let (code, message) = match &intervention.status {
                InterventionStatus::Pending if has_ended && !steer.pending_told => {
                    steer.pending_told = true;
                    frames.push(pending(state, id, previous));
                    continue;
                }
                InterventionStatus::Accepted | InterventionStatus::Pending => continue,
                InterventionStatus::Committed { .. } => {
                    self.steers.remove(&id);
                    continue;
                }
                InterventionStatus::Failed { error } => (steer_code(error.code), error.message.clone()),
                InterventionStatus::Superseded { by } => (None, format!("the later instruction {by} took its place")),
                InterventionStatus::Withdrawn => (None, "it was taken back".to_owned()),
            };
            let steer = json!({"id": id, "previous_response_id": previous, "input": steer.input});
            let code = code.unwrap_or("successor_creation_failed");
            let mut failed = steer_failed(&steer, last_number(state, previous), code, &message);
            echo(&mut failed, event_id.as_deref(), false);
            frames.push(failed);
            self.steers.remove(&id);
        }
        frames
    }

    /// What is said before an event: that each interrupt, whose effect it is, was accepted.
    fn before(&mut self, state: &State, recorded: &Recorded) -> Vec<Value> {
        let interrupted = Self::interrupted_by(state, recorded);
        let Some((id, number)) = interrupted else { return Vec::new() };
        let untold = self.interrupts.iter_mut().filter(|interrupt| interrupt.response_id == id && !interrupt.told);
        untold
            .map(|interrupt| {
                interrupt.told = true;
                interrupt_accepted(id, number, interrupt.event_id.as_deref())
            })
            .collect()
    }

    /// The response that the event is an interrupt's effect on, and the number of its event before.
    fn interrupted_by(state: &State, recorded: &Recorded) -> Option<(ResponseId, u64)> {
        let (id, number) = match &recorded.event {
            Event::OutputItemDiscarded { response_id, .. } => (*response_id, last_number(state, *response_id)),
            Event::ResponseEnded { response_id, ending, .. } => {
                let interrupted = matches!(ending, Ending::Incomplete { reason } if reason == "interrupted");
                let number = recorded.number.filter(|_| interrupted)?;
                (*response_id, number.saturating_sub(1))
            }
            _ => return None,
        };
        Some((id, number))
    }
}

impl Dialect {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is to be heard of any more.
    pub(crate) fn is_idle(&self) -> bool {
        let asked = self.asked();
        asked.steers.is_empty() && asked.interrupts.is_empty() && self.injections().is_empty()
    }

    pub(super) fn injections(&self) -> MutexGuard<'_, Injections> {
        self.injections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this socket sent the steer and does not know its outcome yet.
    pub(crate) fn steered(&self, id: InterventionId) -> bool {
        self.asked().steers.contains_key(&id)
    }

    /// Whether this socket interrupted the response, and it has not ended yet.
    pub(crate) fn interrupted(&self, id: ResponseId) -> bool {
        self.asked().interrupts.iter().any(|interrupt| interrupt.response_id == id)
    }

    /// The event's own frame, if it has one here, with what the dialect says before and behind it.
    pub(crate) fn frames(&self, state: &State, recorded: &Recorded, own: Option<Value>) -> Vec<Value> {
        let mut asked = self.asked();
        let mut frames: Vec<Value> = asked.before(state, recorded).into_iter().chain(own).collect();
        match &recorded.event {
            Event::ResponseEnded { response_id, .. } => {
                // One that is not told of yet is answered by its own request.
                asked.interrupts.retain(|interrupt| interrupt.response_id != *response_id || !interrupt.told);
                frames.extend(asked.due(state));
            }
            Event::InterventionAccepted { .. }
            | Event::InterventionPending { .. }
            | Event::InterventionFailed { .. }
            | Event::InterventionSuperseded { .. }
            | Event::InterventionWithdrawn { .. }
            | Event::InterventionCommitted { .. } => frames.extend(asked.due(state)),
            _ => {}
        }
        frames.extend(self.injections().behind(state, recorded));
        frames
    }

    /// A stream of events begins where the conversation stands so: what happened before it is told now. Steers of
    /// another conversation are heard of no more.
    pub(crate) fn catch_up(&self, state: &State) -> Vec<Value> {
        let mut asked = self.asked();
        asked.steers.retain(|id, steer| !steer.accepted_told || state.interventions.contains_key(id));
        self.injections().forget_settled(state);
        asked.due(state)
    }

    /// Steers. The frame that answers it, unless events do.
    pub(crate) async fn steer(
        &self,
        app: &App,
        handle: &ConversationHandle,
        intervene: Result<Intervene, Reject>,
        request: &Request<'_>,
        hears: impl Fn() -> Hears,
    ) -> Result<Option<Value>, Reject> {
        let id = intervene.as_ref().ok().map(|intervene| intervene.intervention_id);
        if let Some(id) = id {
            let (input, event_id) = (request.frame["input"].clone(), request.event_id.map(str::to_owned));
            let steer = Steer { input, event_id, accepted_told: false, pending_told: false };
            self.asked().steers.insert(id, steer);
        }
        let done = interventions::perform(app, handle, intervene, request.key, request.frame).await;
        if let Some(id) = id
            && !matches!(done, Ok((_, false)))
        {
            self.asked().steers.remove(&id);
        }
        let (receipt, replayed) = done?;
        if !replayed && self.is_told(receipt.intervention_id, hears()) {
            return Ok(None);
        }
        let state = handle.state().await?;
        let mut answer = accepted(&state, receipt.intervention_id, receipt.response_id, request.event_id);
        echo(&mut answer, None, replayed);
        Ok(Some(answer))
    }

    /// Whether events told of this steer's acceptance, or will; else it is to be told now.
    fn is_told(&self, id: InterventionId, hears: Hears) -> bool {
        let mut asked = self.asked();
        // One that is not noted any more was told of to its end.
        let Some(steer) = asked.steers.get_mut(&id) else { return true };
        if steer.accepted_told || hears == Hears::Now {
            return true;
        }
        steer.accepted_told = true;
        if hears == Hears::Never {
            asked.steers.remove(&id);
        }
        false
    }

    fn note_interrupt(&self, response_id: ResponseId, event_id: Option<&str>) -> u64 {
        let mut asked = self.asked();
        asked.interrupt_number += 1;
        let (number, event_id) = (asked.interrupt_number, event_id.map(str::to_owned));
        asked.interrupts.push(Interrupt { number, response_id, event_id, told: false });
        number
    }

    /// Interrupts. The frame that answers it, unless events do.
    pub(crate) async fn interrupt(
        &self,
        handle: &ConversationHandle,
        id: ResponseId,
        request: &Request<'_>,
        hears: impl Fn() -> Hears,
    ) -> Result<Option<Value>, Reject> {
        let number = self.note_interrupt(id, request.event_id);
        let before = handle.state().await;
        let done = handle.change(Input::Interrupt { response_id: id }).await;
        let hears = hears();
        let mut asked = self.asked();
        let own = asked.interrupts.iter().find(|interrupt| interrupt.number == number);
        let is_told = own.is_none_or(|interrupt| interrupt.told);
        match done {
            Ok(()) if is_told || hears == Hears::Now => return Ok(None),
            // Another interrupt was faster, and this one joined it.
            Err(_) if is_told => return Ok(None),
            _ => asked.interrupts.retain(|interrupt| interrupt.number != number),
        }
        drop(asked);
        done?;
        Ok(Some(interrupt_accepted(id, last_number(&*before?, id), request.event_id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::frame_tests::Play;
    use crate::parse::Piece;
    use crate::prompt::Role;

    const CODES: [&str; 7] = [
        "response_not_found",
        "invalid_input",
        "steering_not_supported",
        "too_many_pending_steers",
        "response_already_completed",
        "response_not_active",
        "successor_creation_failed",
    ];

    /// A dialect whose socket has sent this steer.
    fn noted(play: &mut Play, previous: ResponseId, text: &str) -> (Dialect, Input) {
        let frame = json!({"previous_response_id": previous, "input": text});
        let intervene = read_steer(&frame).unwrap();
        let dialect = Dialect::default();
        let input = frame["input"].clone();
        let steer = Steer { input, event_id: None, accepted_told: false, pending_told: false };
        dialect.asked().steers.insert(intervene.intervention_id, steer);
        play.log.clear();
        (dialect, Input::Intervene(intervene))
    }

    fn answering(play: &mut Play) -> ResponseId {
        let said = play.message(Role::User, "hi");
        let id = play.create(1, vec![said]);
        play.say(&[1], vec![Piece::Text("so".to_owned())]);
        id
    }

    fn call() -> Vec<Piece> {
        vec![
            Piece::ToolCallStarted { index: 0, id: None, name: "weather".to_owned() },
            Piece::ToolCallArguments { index: 0, fragment: "{}".to_owned() },
        ]
    }

    fn types(frames: &[Value]) -> Vec<&str> {
        frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect()
    }

    fn told(dialect: &Dialect, play: &Play) -> Vec<Value> {
        let log = play.log.iter();
        log.flat_map(|(state, recorded)| {
            let ends = matches!(recorded.event, Event::ResponseEnded { .. });
            dialect.frames(state, recorded, ends.then(|| json!({"type": "end"})))
        })
        .collect()
    }

    #[test]
    fn a_steer_fails_with_a_code_of_openais_or_not_as_a_steer() {
        let codes = Code::ALL.iter().filter_map(|code| steer_code(*code));
        assert!(codes.into_iter().all(|code| CODES.contains(&code)));
        let frame = json!({"previous_response_id": "resp_1", "input": "a"});
        let request = Request { frame: &frame, event_id: Some("e"), key: None };
        let full = steer_refused(&request, Reject::new(Code::StorageUnavailable, "the disk is full"));
        assert_eq!((&full["type"], &full["status"], &full["event_id"]), (&json!("error"), &json!(503), &json!("e")));
    }

    #[test]
    fn a_socket_that_missed_events_is_told_the_outcome_once() {
        let mut play = Play::begin();
        let id = answering(&mut play);
        let (dialect, steer) = noted(&mut play, id, "shorter");
        play.input(steer);
        play.input(Input::Cancel { response_id: Some(id), cascade: false });
        let frames = dialect.catch_up(&play.state);
        assert_eq!(types(&frames), ["response.steer.accepted", "response.steer.failed"]);
        assert_eq!(
            (&frames[1]["steer"]["id"], &frames[1]["steer"]["input"]),
            (&frames[0]["steer"]["id"], &json!("shorter"))
        );
        assert!(dialect.catch_up(&play.state).is_empty() && dialect.is_idle());
        assert!(told(&dialect, &play).iter().all(|frame| frame["type"] == "end"), "events that come late say nothing");
    }

    #[test]
    fn what_a_steer_waits_for_is_told_behind_the_end_and_once() {
        let mut play = Play::begin();
        let id = answering(&mut play);
        play.say(&[2], call());
        let (dialect, steer) = noted(&mut play, id, "shorter");
        play.input(steer);
        let arguments = "{}".to_owned();
        play.say(&[3], vec![Piece::ToolCallDone { index: 0, id: None, arguments, complete: true }]);
        let frames = told(&dialect, &play);
        assert_eq!(types(&frames), ["response.steer.accepted", "end", "response.steer.pending"]);
        assert_eq!(frames[2]["required_input"][0]["name"], "weather");
        assert!(dialect.catch_up(&play.state).is_empty() && !dialect.is_idle());
    }

    #[test]
    fn steers_of_a_conversation_that_is_left_are_heard_of_no_more() {
        let mut play = Play::begin();
        let id = answering(&mut play);
        let (dialect, steer) = noted(&mut play, id, "shorter");
        play.input(steer);
        assert!(dialect.catch_up(&State::default()).is_empty() && !dialect.is_idle(), "its acceptance is to come");
        told(&dialect, &play);
        assert!(dialect.catch_up(&State::default()).is_empty() && dialect.is_idle());
    }
}
