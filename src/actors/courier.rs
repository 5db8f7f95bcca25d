//! The way of a generation's news to its conversation.

use std::sync::Arc;

use ractor::ActorRef;
use tokio::sync::oneshot;

use super::conversation::ConversationMsg;
use super::shared::RunningGuard;
use crate::access::Meter;
use crate::conversation::{Input, Output};

/// Brings news to the conversation, one at a time.
pub(super) struct Courier {
    pub(super) generation: u64,
    to: ActorRef<ConversationMsg>,
    /// Counts the tokens for whoever they are.
    meter: Arc<Meter>,
    /// The last news, until it is taken.
    pub(super) outstanding: Option<oneshot::Receiver<()>>,
    /// The conversation takes no news any more.
    pub(super) gone: bool,
}

impl Courier {
    pub(super) fn new(generation: u64, to: ActorRef<ConversationMsg>, meter: Arc<Meter>) -> Self {
        Self { generation, to, meter, outstanding: None, gone: false }
    }

    /// Counts what is not in the news: the tokens of the prompt.
    pub(super) fn spend(&self, tokens: u64) {
        self.meter.spend(tokens);
    }

    pub(super) async fn send(&mut self, input: Input) {
        self.send_with(input, None).await;
    }

    pub(super) async fn send_with(&mut self, input: Input, running: Option<RunningGuard>) {
        self.taken().await;
        if self.gone {
            return;
        }
        self.meter.spend(tokens_of(&input));
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

/// The tokens that an input brings of an answer.
fn tokens_of(input: &Input) -> u64 {
    let (outputs, tail): (&[Output], &[u32]) = match input {
        Input::Generated { outputs, .. } => (outputs, &[]),
        Input::GenerationEnded { outputs, tail_tokens, .. } => (outputs, tail_tokens),
        _ => (&[], &[]),
    };
    let shown: usize = outputs.iter().map(|output| output.tokens.len()).sum();
    (shown + tail.len()) as u64
}
