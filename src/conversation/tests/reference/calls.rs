//! The reference: results of calls, and the turn that goes on with them.

use super::*;

impl Reference {
    pub(super) fn inject(&mut self, turn: usize, output: u8) -> Result<(), Code> {
        if self.turns[turn].deleted {
            return Err(Code::ResponseNotFound);
        }
        let all: Vec<usize> = (0..self.calls.len()).filter(|call| self.calls[*call].turn == turn).collect();
        let is = |call: &usize| self.calls[*call].is;
        if all.iter().any(|call| is(call) == Is::Answered && self.calls[*call].given != Some(output)) {
            return Err(Code::ToolResultConflict);
        }
        if all.iter().any(|call| is(call) == Is::Closed) {
            return Err(Code::ToolCallClosed);
        }
        if all.is_empty() {
            return Err(Code::InvalidInput);
        }
        let open: Vec<usize> = all.into_iter().filter(|call| self.is_open(*call)).collect();
        for call in &open {
            self.take_result(*call, output);
        }
        if !open.is_empty() {
            self.continue_turn();
            self.next_turn();
        }
        Ok(())
    }

    pub(super) fn take_result(&mut self, call: usize, output: u8) {
        let answered = &mut self.calls[call];
        (answered.is, answered.given, answered.goes_on) = (Is::Answered, Some(output), true);
        answered.result = Some(output.to_string());
    }

    /// Once every call has its result, and one came by itself, the server goes on.
    pub(super) fn continue_turn(&mut self) {
        let has_open = (0..self.calls.len()).any(|call| self.is_open(call));
        let last = self.calls.iter().rev().find(|call| call.goes_on && call.result.is_some()).map(|call| call.turn);
        let by_itself = |turn: &usize| matches!(self.turns[*turn].status, Status::Completed | Status::Incomplete);
        // A call that was closed from outside says that nobody is to go on.
        let ended =
            |turn: &usize| self.calls.iter().any(|call| call.turn == *turn && call.result.is_some() && !call.goes_on);
        let Some(like) = last.filter(by_itself).filter(|turn| !ended(turn)) else { return };
        if self.active().is_none() && !has_open {
            let next = self.turns.len();
            self.commit_pending(next);
            self.push_like(like);
            self.begin(next);
        }
    }
}
