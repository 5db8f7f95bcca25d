//! One lane of OpenAI's socket: its responses, one after the other, and their events only.
//!
//! It follows the conversation of its last response, or of a response that it steers, and shows the responses that
//! were created on it and their successors. What is not stored lives as long as the lane follows it.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{StreamExt, future, stream};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::cancel::{self, Asked};
use super::responses::not_found;
use crate::access::Identity;
use crate::actors::{ConversationHandle, Cursor, Reader};
use crate::api::admission::Permit;
use crate::api::body::decode;
use crate::api::create::{self, Done, Key};
use crate::api::dialect::{self, Dialect, Hears, Request};
use crate::api::errors::{invalid, wrong_operation};
use crate::api::frame::{dispatch, frame, openai};
use crate::api::idempotency::{echo, fingerprint};
use crate::api::inject;
use crate::api::input::{self, Known};
use crate::api::socket::{Out, Outbox};
use crate::api::stream::follow;
use crate::api::{App, object, operations, references};
use crate::conversation::{Create, Event, Recorded, Reject, State as Conversation};
use crate::error::Code;
use crate::ids::{ConversationId, InterventionId, ResponseId};
use crate::protocol::conversations::Cancel;
use crate::protocol::responses::{CreateResponse, StreamBody, StreamEvent};
use crate::store::{KeyedAnswer, Operation};

/// What the requests of one lane share.
pub(super) struct Lane {
    app: App,
    principal: Identity,
    outbox: Outbox,
    /// Which of the socket's streams of events is its own.
    place_in_outbox: usize,
    /// Its name, which its frames carry; the first lane has none.
    stream_id: Option<String>,
    dialect: Dialect,
    place: Mutex<Place>,
    /// Told when the next request for a response may have its turn.
    free: Notify,
    /// Held by whoever decides what is followed next, from before the decision until it is.
    deciding: tokio::sync::Mutex<()>,
}

/// Where the lane stands.
#[derive(Default)]
struct Place {
    /// Requests for responses so far.
    asked_for: u64,
    /// Those of them that wait for their turn, by the numbers they were given when they were read, with the room that
    /// each was given.
    line: VecDeque<(u64, Permit)>,
    /// A request for a response is worked on.
    begins: bool,
    /// Responses that are shown and have not ended: one, and for a moment its successor.
    live: Vec<ResponseId>,
    /// The conversation whose events are read.
    followed: Option<ConversationId>,
    /// The one whose events were read last.
    last: Option<ConversationId>,
    /// That conversation, if it is not stored: it ends when nobody reads it.
    unstored: Option<ConversationHandle>,
    /// The response that was asked for last, and what its `response.created` echoes.
    asked: Option<(ResponseId, String)>,
    /// Whole calls and whole reasoning are shown beside the events.
    dispatches: bool,
    /// Room for the response that runs.
    permit: Option<Permit>,
}

impl Place {
    fn is_free(&self) -> bool {
        !self.begins && self.live.is_empty()
    }

    /// Gives this request its turn and its room, if it is the next.
    fn takes(&mut self, ticket: u64) -> Option<Permit> {
        let is_free = self.is_free();
        let (_, permit) = self.line.pop_front_if(|(next, _)| is_free && *next == ticket)?;
        self.begins = true;
        Some(permit)
    }
}

impl Lane {
    /// A lane that nothing was asked of yet.
    pub(super) fn new(
        app: App,
        principal: Identity,
        outbox: Outbox,
        place_in_outbox: usize,
        stream_id: Option<String>,
    ) -> Self {
        Self {
            app,
            principal,
            outbox,
            place_in_outbox,
            stream_id,
            dialect: Dialect::default(),
            place: Mutex::default(),
            free: Notify::new(),
            deciding: tokio::sync::Mutex::default(),
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request for a response in, behind those before it. It has its turn under the number that this gives.
    pub(super) fn line_up(&self, permit: Permit) -> u64 {
        let mut place = self.place();
        place.asked_for += 1;
        let ticket = place.asked_for;
        place.line.push_back((ticket, permit));
        ticket
    }

    /// Returns when the requests in front of it and their responses have ended.
    async fn turn(&self, ticket: u64) -> Permit {
        loop {
            // Registered before the place is looked at: an end in between is not missed.
            let free = self.free.notified();
            if let Some(permit) = self.place().takes(ticket) {
                return permit;
            }
            free.await;
        }
    }

    /// A request for a response is done with.
    fn give_back(&self) {
        self.place().begins = false;
        self.free.notify_waiters();
    }

    /// Whether nothing runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        let place = self.place();
        place.is_free() && place.line.is_empty()
    }

    /// Responses that run and requests for such.
    pub(super) fn in_flight(&self) -> usize {
        let place = self.place();
        place.line.len() + usize::from(!place.is_free())
    }

    /// Whether the response is shown here and has not ended.
    pub(super) fn shows(&self, id: ResponseId) -> bool {
        self.place().live.contains(&id)
    }

    /// Whether the events of this conversation are read here.
    pub(super) fn follows(&self, id: ConversationId) -> bool {
        self.place().followed == Some(id)
    }

    /// Whether the last response that was shown here is of this conversation.
    pub(super) fn was_last_in(&self, id: ConversationId) -> bool {
        self.place().last == Some(id)
    }

    /// Returns when what was asked for before runs or is refused.
    async fn settled(&self) {
        loop {
            let free = self.free.notified();
            {
                let place = self.place();
                if !place.begins && (place.line.is_empty() || !place.live.is_empty()) {
                    return;
                }
            }
            free.await;
        }
    }

    /// The conversation that it follows, if that is not stored.
    pub(super) fn unstored(&self) -> Option<ConversationHandle> {
        self.place().unstored.clone()
    }

    /// A frame of this lane says whose it is.
    pub(super) fn labelled(&self, mut frame: Value) -> Value {
        label(&mut frame, self.stream_id.as_deref());
        frame
    }

    /// Creates a response when its turn comes. What is not stored is continued where it lives, in one of `homes`.
    pub(super) async fn create(
        self: &Arc<Self>,
        frame: &Value,
        event_id: Option<&str>,
        ticket: u64,
        homes: impl FnOnce() -> Vec<ConversationHandle>,
    ) -> Result<(), Reject> {
        let permit = self.turn(ticket).await;
        let created = self.create_now(frame, event_id, permit, homes).await;
        self.give_back();
        created
    }

    async fn create_now(
        self: &Arc<Self>,
        frame: &Value,
        event_id: Option<&str>,
        permit: Permit,
        homes: impl FnOnce() -> Vec<ConversationHandle>,
    ) -> Result<(), Reject> {
        refuse_unserved(frame)?;
        if let Some(reject) = operations::refusal(self.app.phase()) {
            return Err(reject);
        }
        let request: CreateResponse = input::decode_with_items(frame, "input")?;
        let dispatches = request.stream_options.as_ref().and_then(|options| options.include_dispatch);
        let _deciding = self.deciding.lock().await;
        self.place().dispatches = dispatches.unwrap_or(self.app.surface.dispatch);
        if let Some((id, handle, reader)) = self.continue_unstored(&request, frame, homes()).await? {
            self.place().asked = event_id.map(|event_id| (id, event_id.to_owned()));
            self.follow(&handle, reader, Some(id), Some(permit), false).await;
            return Ok(());
        }
        let key = event_id.map(str::to_owned);
        let (id, handle, reader) = match create::perform(&self.app, &self.principal, &request, frame, key).await? {
            Done::Created { id, handle, reader } => (id, handle, *reader),
            Done::Replay(KeyedAnswer::Created { conversation, response }) => {
                let handle = self.app.directory.conversation(conversation, &self.principal).await?;
                let reader = handle.attach_response(response).await?;
                (response, handle, reader)
            }
            Done::Replay(_) => return Err(wrong_operation()),
        };
        self.place().asked = event_id.map(|event_id| (id, event_id.to_owned()));
        self.follow(&handle, reader, Some(id), Some(permit), request.store != Some(false)).await;
        Ok(())
    }

    /// What is not stored is continued only where it lives: on the socket that follows it. This lane goes on with its
    /// own; what was continued before, and what another lane follows, is forked.
    async fn continue_unstored(
        &self,
        request: &CreateResponse,
        frame: &Value,
        homes: Vec<ConversationHandle>,
    ) -> Result<Option<(ResponseId, ConversationHandle, Reader)>, Reject> {
        let Some(previous) = request.previous_response_id.as_ref().filter(|_| request.store == Some(false)) else {
            return Ok(None);
        };
        let Ok(previous) = previous.parse::<ResponseId>() else { return Ok(None) };
        let mut home = None;
        for handle in homes {
            if handle.state().await?.response(previous).is_some() {
                home = Some(handle);
                break;
            }
        }
        let Some(home) = home else { return Ok(None) };
        create::check(request, frame)?;
        let model = self.app.engine(request.model.as_deref())?.model();
        let behind = home.state().await?;
        let before = create::tools_before(Some(&behind));
        let (seal, input) = (self.app.seal.of(&self.principal), request.input.as_ref());
        let referred = references::of_input(&self.app, &self.principal, input, Some(&behind)).await?;
        let known = Known { seal: Some(&seal), referred: Some(&referred) };
        let create = create::create(model, known, request, frame, &before)?;
        create::check_constraint(&self.app, &create, frame, &before).await?;
        let id = create.response_id;
        if self.follows(home.id()) {
            match home.create(Create { previous: Some(previous), ..create.clone() }, None).await {
                Err(reject) if reject.code == Code::ResponseNotActive => {}
                created => return Ok(Some((id, home, created?))),
            }
        }
        let (fork, reader) = self.app.directory.fork(&self.principal, previous, create, None).await?;
        Ok(Some((id, fork, reader)))
    }

    /// From here on the events of this conversation, as far as they are shown here.
    async fn follow(
        self: &Arc<Self>,
        handle: &ConversationHandle,
        reader: Reader,
        created: Option<ResponseId>,
        permit: Option<Permit>,
        stored: bool,
    ) {
        let mut shown: Vec<ResponseId> = created.into_iter().collect();
        {
            let mut place = self.place();
            place.live.clone_from(&shown);
            place.followed = Some(handle.id());
            place.last = place.followed;
            place.unstored = (!stored).then(|| handle.clone());
            place.permit = permit;
        }
        let first = self.dialect.catch_up(reader.state());
        let (lane, ended) = (Arc::clone(self), Arc::clone(self));
        let events = follow(reader, move |state, recorded| lane.show(state, recorded, &mut shown)).map(Out::Frames);
        // One that was given up has said all; one that was cut has not.
        let cut = stream::once(async move { ended.place().followed.map(|_| Out::cut()) }).filter_map(future::ready);
        let first = first.into_iter().map(|frame| self.labelled(frame)).collect();
        self.outbox.send(Out::Events(self.place_in_outbox, first, events.chain(cut).boxed())).await;
    }

    /// The frames of an event; it breaks off when nothing more is to be shown.
    fn show(
        &self,
        state: &Conversation,
        recorded: &Recorded,
        shown: &mut Vec<ResponseId>,
    ) -> ControlFlow<Vec<Value>, Vec<Value>> {
        let event = &recorded.event;
        if let Event::ResponseCreated(new) = event
            && self.dialect.injections().continued_by(new)
        {
            shown.push(new.id);
            self.place().live.push(new.id);
        }
        if let Event::InterventionCommitted { intervention_id, response_id, successor_id, .. } = event
            && (shown.contains(response_id) || self.dialect.steered(*intervention_id))
            && !shown.contains(successor_id)
            // Else it joins the response that is asked for here now, which is shown from its own beginning.
            && !self.place().begins
        {
            shown.push(*successor_id);
            self.place().live.push(*successor_id);
        }
        let is_shown = event.response_id().is_some_and(|id| shown.contains(&id));
        let own = if is_shown { self.own_frame(state, recorded) } else { None };
        let mut frames = self.dialect.frames(state, recorded, own);
        let mut place = self.place();
        if is_shown && place.dispatches {
            frames.extend(dispatch(state, event));
        }
        let frames = frames.into_iter().map(|frame| self.labelled(frame)).collect();
        if let Event::ResponseEnded { response_id, .. } = event {
            place.live.retain(|id| id != response_id);
        }
        if !place.live.is_empty() && !state.deleted {
            return ControlFlow::Continue(frames);
        }
        place.live.clear();
        place.permit = None;
        self.free.notify_waiters();
        if state.deleted || place.unstored.is_none() && self.dialect.is_idle() {
            (place.followed, place.unstored) = (None, None);
            return ControlFlow::Break(frames);
        }
        ControlFlow::Continue(frames)
    }

    /// OpenAI's event, or the one of Codex's that a client gets who interrupted.
    fn own_frame(&self, state: &Conversation, recorded: &Recorded) -> Option<Value> {
        match &recorded.event {
            Event::OutputItemDiscarded { response_id, .. } if self.dialect.interrupted(*response_id) => {
                let mut own = frame(state, recorded);
                let fields = own.as_object_mut()?;
                fields.retain(|name, _| name != "seq" && name != "durable");
                Some(own)
            }
            Event::ResponseCreated(new) => {
                let mut own = serde_json::to_value(openai(state, recorded)?).ok()?;
                let asked = self.place().asked.take_if(|(id, _)| *id == new.id);
                echo(&mut own, asked.as_ref().map(|(_, event_id)| event_id.as_str()), false);
                Some(own)
            }
            _ => openai(state, recorded).and_then(|event| serde_json::to_value(event).ok()),
        }
    }

    /// Does what OpenAI's steer asks for.
    pub(super) async fn steer(self: &Arc<Self>, frame: &Value, event_id: Option<&str>) -> Option<Value> {
        let done = async {
            let intervene = dialect::read_steer(frame)?;
            let _deciding = self.deciding.lock().await;
            let handle = self.find(intervene.response_id).await?;
            let key = event_id.map(str::to_owned);
            let key = Key::new(&self.principal, Some(handle.id()), Operation::Intervene, key, fingerprint(frame, None));
            let request = Request { frame, event_id, key: key.as_ref() };
            let id = intervene.intervention_id;
            // A key is looked up before anything else is.
            let intervene = self.check_followed(&handle).map(|()| intervene);
            let told = self.dialect.steer(&self.app, &handle, intervene, &request, || Hears::Now).await?;
            if told.is_none() && self.place().followed.is_none() {
                self.follow_steer(&handle, id).await?;
            }
            Ok(told)
        };
        let request = Request { frame, event_id, key: None };
        done.await.unwrap_or_else(|reject| Some(dialect::steer_refused(&request, reject)))
    }

    /// The conversation of a response that this lane can go on with: what is not stored belongs to the lane that
    /// follows it, and elsewhere does not exist.
    async fn find(&self, id: ResponseId) -> Result<ConversationHandle, Reject> {
        let handle = self.app.directory.of_response(id, &self.principal).await?;
        if handle.is_stored() || self.place().followed == Some(handle.id()) { Ok(handle) } else { Err(not_found(id)) }
    }

    /// While another conversation is followed, what comes of a steer of this one would not be seen.
    fn check_followed(&self, handle: &ConversationHandle) -> Result<(), Reject> {
        if self.place().followed.is_some_and(|followed| followed != handle.id()) {
            let text = "another conversation is followed here; use another socket for this response";
            return Err(Reject::new(Code::ResponseNotActive, text));
        }
        Ok(())
    }

    /// Follows the conversation from where this steer was accepted.
    async fn follow_steer(self: &Arc<Self>, handle: &ConversationHandle, id: InterventionId) -> Result<(), Reject> {
        let state = handle.state().await?;
        let Some(steer) = state.interventions.get(&id) else { return Ok(()) };
        let stored = state.response(steer.response_id).is_none_or(|response| response.config.store);
        let before = Cursor { epoch: None, seq: steer.accepted_seq.saturating_sub(1) };
        let reader = match handle.attach(before).await {
            // What came of it is told from the state.
            Err(expired) if expired.code == Code::CursorExpired => handle.attach_all().await?,
            reader => reader?,
        };
        self.follow(handle, reader, None, None, stored).await;
        Ok(())
    }

    /// Does what Codex's interrupt asks for.
    pub(super) async fn interrupt(&self, frame: &Value, event_id: Option<&str>) -> Option<Value> {
        let request = Request { frame, event_id, key: None };
        let done = async {
            let id = dialect::read_interrupt(frame)?;
            let handle = self.find(id).await?;
            let hears = || match self.place().followed {
                Some(followed) if followed == handle.id() => Hears::Now,
                _ => Hears::Never,
            };
            self.dialect.interrupt(&handle, id, &request, hears).await
        };
        done.await.unwrap_or_else(|reject| Some(dialect::interrupt_refused(&request, reject)))
    }

    /// Gives results of calls, and shows the response that goes on with them.
    pub(super) async fn inject(self: &Arc<Self>, frame: &Value, event_id: Option<&str>) -> Option<Value> {
        let request = Request { frame, event_id, key: None };
        let inject = match inject::read(frame) {
            Ok(inject) => inject,
            Err(reject) => return Some(inject::refused(&request, reject, None)),
        };
        let id = inject.response_id;
        let _deciding = self.deciding.lock().await;
        let handle = match self.find(id).await {
            Ok(handle) => handle,
            Err(reject) => return Some(inject::refused(&request, reject, None)),
        };
        let done = async {
            let key = event_id.map(str::to_owned);
            let key =
                Key::new(&self.principal, Some(handle.id()), Operation::AnswerCall, key, fingerprint(frame, None));
            let request = Request { frame, event_id, key: key.as_ref() };
            let allowed = self.check_followed(&handle);
            let done = self.dialect.inject(&self.app, &handle, inject, allowed, &request, || Hears::Now).await?;
            if let Some(accepted_seq) = done.accepted_seq.filter(|_| self.place().followed.is_none()) {
                let stored = handle.state().await?.response(id).is_none_or(|response| response.config.store);
                let reader = handle.attach(Cursor { epoch: None, seq: accepted_seq - 1 }).await?;
                self.follow(&handle, reader, None, None, stored).await;
            }
            Ok(done.answer)
        };
        match done.await {
            Ok(answer) => answer,
            Err(reject) => Some(inject::refused(&request, reject, handle.state().await.ok().as_deref())),
        }
    }

    /// A cancel that ends its response is answered by the last event of the response.
    pub(super) async fn cancel(&self, frame: &Value, event_id: Option<&str>) -> Result<Option<Value>, Reject> {
        let request: Cancel = decode(frame)?;
        if request.response_id.is_none() {
            // It means what was asked for in front of it.
            self.settled().await;
        }
        let running = self.place().live.last().copied();
        let id = request.response_id.as_deref().map(create::response_id).transpose()?.or(running);
        let id = id.ok_or_else(|| {
            Reject::new(
                Code::ResponseNotActive,
                "no response is running here; nothing to cancel, or name one in response_id",
            )
        })?;
        let handle = self.app.directory.of_response(id, &self.principal).await?;
        let is_shown = self.place().live.contains(&id);
        let key = event_id.map(str::to_owned);
        let fingerprint = fingerprint(frame, Some(&id.to_string()));
        let key = Key::new(&self.principal, Some(handle.id()), Operation::Cancel, key, fingerprint);
        let asked = Asked { id: Some(id), cascade: request.cascade.unwrap_or(false), waits: true };
        let done = cancel::perform(&self.app, &handle, &asked, key.as_ref()).await?;
        let changed = |note: &Value| !note["cascaded_id"].is_null() || note["closed_calls"] != json!([]);
        if let Some(note) =
            done.object.get("cancel").filter(|note| note.get("closed_calls").is_none() || !changed(note))
        {
            let text = format!("{id} has ended; nothing is left to cancel");
            return Err(Reject::new(Code::ResponseAlreadyCompleted, text).detail("cancel", note.clone()));
        }
        if is_shown {
            return Ok(None);
        }
        let state = handle.state().await?;
        let response = state.response(id).ok_or_else(|| not_found(id))?;
        let body = StreamBody::Incomplete { response: Box::new(object::response(&state, response)) };
        let last = StreamEvent { body, sequence_number: response.next_number.saturating_sub(1) };
        let mut last = serde_json::to_value(last).unwrap_or_default();
        echo(&mut last, event_id, done.replayed);
        Ok(Some(last))
    }
}

/// What no socket of this kind does.
fn refuse_unserved(frame: &Value) -> Result<(), Reject> {
    let asks = |name: &str, value: Value| frame.get(name).is_some_and(|asked| *asked == value);
    if asks("stream", json!(false)) {
        return Err(invalid("stream", "a socket always streams; leave stream out, or use POST /v1/responses"));
    }
    if asks("background", json!(true)) {
        return Err(invalid("background", "a socket follows what it creates; use POST /v1/responses for background"));
    }
    Ok(())
}

/// Names the lane that a frame belongs to.
pub(super) fn label(frame: &mut Value, stream_id: Option<&str>) {
    if let (Some(stream_id), Some(fields)) = (stream_id, frame.as_object_mut()) {
        fields.insert("stream_id".to_owned(), stream_id.into());
    }
}
