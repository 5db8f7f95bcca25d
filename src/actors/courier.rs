//! The way of a generation's news to its conversation.

use ractor::ActorRef;
use tokio::sync::oneshot;

use super::conversation::ConversationMsg;
use super::shared::RunningGuard;
use crate::conversation::Input;

/// Brings news to the conversation, one at a time.
pub(super) struct Courier {
    pub(super) generation: u64,
    to: ActorRef<ConversationMsg>,
    /// The last news, until it is taken.
    pub(super) outstanding: Option<oneshot::Receiver<()>>,
    /// The conversation takes no news any more.
    pub(super) gone: bool,
}

impl Courier {
    pub(super) fn new(generation: u64, to: ActorRef<ConversationMsg>) -> Self {
        Self { generation, to, outstanding: None, gone: false }
    }

    pub(super) async fn send(&mut self, input: Input) {
        self.send_with(input, None).await;
    }

    pub(super) async fn send_with(&mut self, input: Input, running: Option<RunningGuard>) {
        self.taken().await;
        if self.gone {
            return;
        }
        let (taken, outstanding) = oneshot::channel();
        let message = ConversationMsg::Generation { generation: self.generation, input, running, taken };
        // A conversation that is gone drops the message, and its receipt says so.
        let _ = self.to.cast(message);
        self.outstanding = Some(outstanding);
    }

    /// Waits until the last news was taken, or never will be.
    pub(super) async fn taken(&mut self) {
        if let Some(outstanding) = &mut self.outstanding {
            self.gone = outstanding.await.is_err();
            self.outstanding = None;
        }
    }
}
