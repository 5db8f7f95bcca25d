//! The reference's forks: the conversation gives way to one that goes on with a part of its turns.

use super::{Entry, Is, Reference, Status, Turn};
use crate::conversation::OnDisconnect;
use crate::error::Code;

impl Reference {
    /// The turns up to a place, none of which can be named any more, and a new one behind them. Calls of the last one
    /// take the request's result, else the one that they ever got.
    pub(super) fn fork(&mut self, place: usize, answers: bool, unread: OnDisconnect) -> Result<(), Code> {
        let kept = self.begun[..=place].to_vec();
        if self.turns[kept[place]].deleted {
            return Err(Code::ResponseNotFound);
        }
        if self.turns[kept[place]].status == Status::Running {
            return Err(Code::ConversationBusy);
        }
        let taken: Vec<Entry> = self.turns.iter().flat_map(|turn| turn.input.clone()).collect();
        let copied = |turn: &usize| Turn { status: Status::Completed, deleted: true, ..self.turns[*turn].clone() };
        let turns: Vec<Turn> = kept.iter().map(copied).collect();
        // Those that later turns made are the last ones.
        self.calls.retain(|call| kept.contains(&call.turn));
        for (number, call) in self.calls.iter_mut().enumerate() {
            call.turn = kept.iter().position(|turn| *turn == call.turn).unwrap_or_default();
            if call.turn != place {
                call.result = None;
            } else if answers {
                (call.is, call.given, call.result) = (Is::Answered, Some(0), Some("0".to_owned()));
            } else if call.result.is_none() {
                call.result = taken.iter().find_map(|entry| match entry {
                    Entry::Result(of, text) if *of == number => Some(text.clone()),
                    _ => None,
                });
            }
        }
        (self.turns, self.begun) = (turns, (0..=place).collect());
        (self.queue, self.steers, self.staged) = (Vec::new(), Vec::new(), Vec::new());
        self.close_calls(None, false);
        let own = vec![Entry::User(format!("create {}", self.clock))];
        self.turns.push(Turn { own, unread, came: self.clock, ..Turn::default() });
        self.begin(place + 1);
        Ok(())
    }
}
