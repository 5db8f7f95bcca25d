//! The one way to talk to a conversation from outside.

use std::sync::Arc;

use ractor::{ActorRef, MessagingErr};
use tokio::sync::oneshot;

use super::conversation::{Answered, ConversationMsg};
use super::directory::DirectoryHandle;
use super::keys::KeyClaim;
use super::offload::offload;
use super::reader::{Cursor, PAGE_EVENTS, Reader, Tail, kept_at, store_reject};
use crate::conversation::{
    Answer, CallRef, CancelOutcome, Create, Input, Intervene, Item, Receipt, Recorded, Reject, State,
};
use crate::error::Code;
use crate::ids::{CallId, ConversationId, ResponseId};
use crate::store;

/// A conversation. Cheap to clone; stays good when the conversation goes to sleep.
#[derive(Clone)]
pub struct ConversationHandle {
    pub(super) id: ConversationId,
    pub(super) actor: ActorRef<ConversationMsg>,
    pub(super) directory: DirectoryHandle,
    /// False for one that dies with its readers, and cannot be woken again.
    pub(super) stored: bool,
}

impl ConversationHandle {
    /// Its id.
    pub fn id(&self) -> ConversationId {
        self.id
    }

    /// Whether a journal has it; else it dies with its readers.
    pub fn is_stored(&self) -> bool {
        self.stored
    }

    /// Asks for a response. The reader stands in front of its `ResponseCreated`.
    pub async fn create(&self, create: Create, key: Option<KeyClaim>) -> Result<Reader, Reject> {
        self.follow(vec![Input::Create(Box::new(create))], key).await
    }

    /// Instructs a running response.
    pub async fn intervene(&self, intervene: Intervene, key: Option<KeyClaim>) -> Result<Receipt, Reject> {
        match self.request(vec![Input::Intervene(intervene)], key, false).await?.answer {
            Answer::Intervened(receipt) => Ok(receipt),
            other => Err(unexpected(&other)),
        }
    }

    /// Records a cancel of this response, or of the active one; with `cascade`, of the one that took its place.
    /// [`Self::ended`] waits for its effect.
    pub async fn cancel(
        &self,
        response_id: Option<ResponseId>,
        cascade: bool,
        key: Option<KeyClaim>,
    ) -> Result<Cancelled, Reject> {
        match self.request(vec![Input::Cancel { response_id, cascade }], key, false).await?.answer {
            Answer::Cancel { response_id, outcome, cascaded } => Ok(Cancelled { response_id, outcome, cascaded }),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes a tool call for a worker.
    pub async fn claim_call(&self, call: CallRef, lease_ms: u64, key: Option<KeyClaim>) -> Result<Claimed, Reject> {
        match self.request(vec![Input::ClaimCall { call, lease_ms }], key, false).await?.answer {
            Answer::Claimed { response_id, attempt, lease_until_ms } => {
                Ok(Claimed { response_id, attempt, lease_until_ms })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Gives a tool call's result.
    pub async fn answer_call(
        &self,
        call: CallRef,
        output: String,
        is_error: bool,
        key: Option<KeyClaim>,
    ) -> Result<AnsweredCall, Reject> {
        self.answer(Input::AnswerCall { call, output, is_error }, key).await
    }

    /// Gives the results of several calls of one response, all or none.
    pub async fn answer_calls(
        &self,
        response_id: ResponseId,
        results: Vec<Item>,
        key: Option<KeyClaim>,
    ) -> Result<AnsweredCall, Reject> {
        self.answer(Input::AnswerCalls { response_id, results }, key).await
    }

    async fn answer(&self, input: Input, key: Option<KeyClaim>) -> Result<AnsweredCall, Reject> {
        match self.request(vec![input], key, false).await?.answer {
            Answer::Answered { accepted_seq, open_calls, successor_id, replayed } => {
                Ok(AnsweredCall { accepted_seq, open_calls, successor_id, replayed })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// A change that answers nothing but that it is done.
    pub async fn change(&self, input: Input) -> Result<(), Reject> {
        match self.request(vec![input], None, false).await?.answer {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The state now.
    pub async fn state(&self) -> Result<Arc<State>, Reject> {
        self.ask(|reply| ConversationMsg::Look { reply }).await?.map(Arc::new)
    }

    /// The state up to and including this event, as far as a journal has it still.
    pub async fn state_at(&self, seq: u64) -> Result<Option<State>, Reject> {
        if !self.stored {
            return Ok(None);
        }
        let (journal, id) = (self.directory.parts.journal.clone(), self.id);
        let folded = offload(move || {
            let mut state = State::default();
            while state.last_seq < seq {
                let limit = PAGE_EVENTS.min((seq - state.last_seq) as usize);
                let page = match journal.read(id, state.last_seq, limit) {
                    Err(store::Error::Expired { .. }) => journal.kept(id, state.last_seq, limit)?,
                    page => page?,
                };
                // Of what was trimmed an event may be merged into a later one.
                let page: Vec<_> = page.into_iter().take_while(|recorded| recorded.seq <= seq).collect();
                if page.is_empty() {
                    return Ok(None);
                }
                for recorded in &page {
                    state.apply(recorded);
                }
            }
            Ok(Some(state))
        });
        folded.await.map_err(|_| gone())?.map_err(|error| store_reject(&error))
    }

    /// Waits until the response has ended, and gives the state then.
    pub async fn ended(&self, response_id: ResponseId) -> Result<Arc<State>, Reject> {
        self.ask(|reply| ConversationMsg::WaitEnd { response_id, reply }).await?.map(Arc::new)
    }

    /// The events behind `after`, then what happens.
    pub async fn attach(&self, after: Cursor) -> Result<Reader, Reject> {
        self.tail().await?.replay(self.directory.parts.journal.clone(), after).await
    }

    /// All events that can be read, then what happens.
    pub async fn attach_all(&self) -> Result<Reader, Reject> {
        loop {
            let tail = self.tail().await?;
            let oldest = Cursor { epoch: None, seq: tail.oldest_seq - 1 };
            match tail.replay(self.directory.parts.journal.clone(), oldest).await {
                // Trimmed just now.
                Err(reject) if reject.code == Code::CursorExpired => {}
                reader => return reader,
            }
        }
    }

    /// An event in which a response was created or has ended, and the state behind it: of trimmed ones those are kept.
    pub async fn kept_event(&self, seq: u64) -> Result<(Arc<State>, Recorded), Reject> {
        let (state, recorded) = kept_at(self.directory.parts.journal.clone(), self.id, seq).await?;
        Ok((Arc::new(state), recorded))
    }

    /// The events from this response's creation, then what happens. Refused where they are no longer kept.
    pub async fn attach_response(&self, response_id: ResponseId) -> Result<Reader, Reject> {
        let tail = self.tail().await?;
        let Some(response) = tail.state.response(response_id) else {
            return Err(Reject::no_response(response_id));
        };
        if response.created_seq < tail.oldest_seq {
            let text =
                format!("the events of {response_id} are no longer kept; ask for the response without its stream");
            return Err(Reject::new(Code::CursorExpired, text).detail("oldest_seq", tail.oldest_seq));
        }
        let after = Cursor { epoch: None, seq: response.created_seq - 1 };
        tail.replay(self.directory.parts.journal.clone(), after).await
    }

    /// Requests that come with a reader in front of their events.
    pub(super) async fn follow(&self, inputs: Vec<Input>, key: Option<KeyClaim>) -> Result<Reader, Reject> {
        let Answered { answer, tail } = self.request(inputs, key, true).await?;
        tail.map(Tail::follow).ok_or_else(|| unexpected(&answer))
    }

    pub(super) async fn request(
        &self,
        inputs: Vec<Input>,
        key: Option<KeyClaim>,
        follow: bool,
    ) -> Result<Answered, Reject> {
        self.ask(|reply| ConversationMsg::Request { inputs, key, follow, reply }).await?
    }

    async fn tail(&self) -> Result<Tail, Reject> {
        self.ask(|reply| ConversationMsg::Attach { reply }).await?
    }

    /// Sends a message and waits for its reply. One that fell asleep in the meantime is woken.
    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> ConversationMsg) -> Result<T, Reject> {
        let (reply, answer) = oneshot::channel();
        if let Err(MessagingErr::SendErr(message)) = self.actor.cast(message(reply)) {
            if !self.stored && self.directory.parts.running.is_stopping() {
                return Err(stopped());
            }
            if !self.stored {
                return Err(Reject::new(
                    Code::ConversationNotFound,
                    "the conversation was not stored and is over; begin another",
                ));
            }
            let actor = self.directory.wake(self.id).await?;
            actor.cast(message).map_err(|_| gone())?;
        }
        let is_lost = !self.stored && self.directory.parts.running.is_stopping();
        answer.await.map_err(|_| if is_lost { stopped() } else { gone() })
    }
}

/// What came of a cancel.
#[derive(Clone, Debug)]
pub struct Cancelled {
    /// Which response was named.
    pub response_id: ResponseId,
    /// What came of it.
    pub outcome: CancelOutcome,
    /// The response that was cancelled in its place.
    pub cascaded: Option<ResponseId>,
}

/// A tool call is a worker's.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    /// The response that made the call.
    pub response_id: ResponseId,
    /// From 1.
    pub attempt: u32,
    /// When the lease ends, in milliseconds since the Unix epoch.
    pub lease_until_ms: u64,
}

/// A tool call has its result.
#[derive(Clone, Debug)]
pub struct AnsweredCall {
    /// The seq of its acceptance.
    pub accepted_seq: u64,
    /// Calls that still wait.
    pub open_calls: Vec<CallId>,
    /// The response that goes on with the results, if all are there.
    pub successor_id: Option<ResponseId>,
    /// The result had been given before.
    pub replayed: bool,
}

/// What is not stored ends with the server.
fn stopped() -> Reject {
    let text = "the server stopped before the answer was whole; send the request again when it is back";
    Reject::new(Code::Draining, text)
}

fn gone() -> Reject {
    Reject::new(
        Code::Recovering,
        "the conversation is being restarted; repeat the request with the same idempotency key",
    )
}

fn unexpected(answer: &Answer) -> Reject {
    Reject::new(Code::Internal, format!("the conversation answered something else: {answer:?}"))
}
