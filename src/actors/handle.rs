//! The one way to talk to a conversation from outside.

use std::sync::Arc;

use ractor::{ActorRef, MessagingErr};
use tokio::sync::oneshot;

use super::conversation::{Answered, ConversationMsg};
use super::directory::DirectoryHandle;
use super::keys::KeyClaim;
use super::reader::{Reader, Tail};
use crate::conversation::{Answer, CancelOutcome, Create, Input, Intervene, Receipt, Reject, State};
use crate::error::Code;
use crate::ids::{ConversationId, ResponseId};

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

    /// Records a cancel of this response, or of the active one. [`Self::ended`] waits for its effect.
    pub async fn cancel(
        &self,
        response_id: Option<ResponseId>,
        key: Option<KeyClaim>,
    ) -> Result<(ResponseId, CancelOutcome), Reject> {
        match self.request(vec![Input::Cancel { response_id }], key, false).await?.answer {
            Answer::Cancel { response_id, outcome } => Ok((response_id, outcome)),
            other => Err(unexpected(&other)),
        }
    }

    /// The state now.
    pub async fn state(&self) -> Result<Arc<State>, Reject> {
        self.ask(|reply| ConversationMsg::Look { reply }).await?.map(Arc::new)
    }

    /// Waits until the response has ended, and gives the state then.
    pub async fn ended(&self, response_id: ResponseId) -> Result<Arc<State>, Reject> {
        self.ask(|reply| ConversationMsg::WaitEnd { response_id, reply }).await?.map(Arc::new)
    }

    /// The events behind `after`, then what happens.
    pub async fn attach(&self, after: u64) -> Result<Reader, Reject> {
        self.tail().await?.replay(self.directory.parts.journal.clone(), after).await
    }

    /// The events from this response's creation, then what happens.
    pub async fn attach_response(&self, response_id: ResponseId) -> Result<Reader, Reject> {
        let tail = self.tail().await?;
        let Some(response) = tail.state.response(response_id) else {
            return Err(Reject::new(Code::ResponseNotFound, format!("no response {response_id}")));
        };
        let after = response.created_seq - 1;
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
            if !self.stored {
                return Err(Reject::new(Code::ConversationNotFound, "the conversation was not stored and is over"));
            }
            let actor = self.directory.wake(self.id).await?;
            actor.cast(message).map_err(|_| gone())?;
        }
        answer.await.map_err(|_| gone())
    }
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
