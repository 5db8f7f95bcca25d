//! What a response's terminal event says, until it is known which response's it is.

use super::event::{Ending, Event, Usage};
use crate::ids::ResponseId;

/// The end of a response.
pub(super) struct Terminal {
    pub(super) ending: Ending,
    /// Tokens behind the last shown text.
    pub(super) tail_tokens: Vec<u32>,
    /// The stop string that ended it, where one did.
    pub(super) stop_string: Option<String>,
    /// What the engine counted, where nobody else can.
    pub(super) usage: Option<Usage>,
}

impl From<Ending> for Terminal {
    fn from(ending: Ending) -> Self {
        Self { ending, tail_tokens: Vec::new(), stop_string: None, usage: None }
    }
}

impl Terminal {
    /// The event.
    pub(super) fn of(self, response_id: ResponseId) -> Event {
        let Self { ending, tail_tokens, stop_string, usage } = self;
        Event::ResponseEnded { response_id, ending, tail_tokens, stop_string, usage }
    }
}
