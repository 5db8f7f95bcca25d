//! The reference: what ends a response from outside, who reads it, and what a restart makes of it.

use super::*;

impl Reference {
    pub(super) fn cancel(&mut self, target: usize, cascade: bool) {
        match self.turns[target].status {
            Status::Running => self.cancel_running(target),
            Status::Cancelled => {}
            _ => {
                // A turn that the closed calls let begin was none yet when the cancel came.
                let mut last = self.turns[target].successor;
                let has_open = (0..self.calls.len()).any(|call| self.is_open(call) && self.calls[call].turn == target);
                if has_open {
                    self.fail_steers(target);
                    self.close_calls(Some(target), false);
                    self.next_turn();
                }
                while let Some(next) = last.and_then(|turn| self.turns[turn].successor) {
                    last = Some(next);
                }
                if let Some(last) = last.filter(|last| cascade && self.turns[*last].status == Status::Running) {
                    self.cancel_running(last);
                }
            }
        }
    }

    pub(super) fn cancel_running(&mut self, turn: usize) {
        if std::mem::replace(&mut self.turns[turn].cancelled, true) {
            return;
        }
        if let Some(place) = self.queue.iter().position(|waiting| *waiting == turn) {
            self.queue.remove(place);
            return self.end_outside(turn, Status::Cancelled);
        }
        if self.is_paused(turn) {
            return self.end_outside(turn, Status::Cancelled);
        }
        self.fail_steers(turn);
        self.close_calls(Some(turn), false);
    }

    /// The item that is open is nothing, finished calls stay the client's.
    pub(super) fn interrupt(&mut self, turn: usize) -> Result<(), Code> {
        if self.turns[turn].cancelled || self.turns[turn].status != Status::Running {
            return Err(Code::ResponseAlreadyCompleted);
        }
        self.queue.retain(|waiting| *waiting != turn);
        let ended = &mut self.turns[turn];
        if std::mem::take(&mut ended.open) {
            ended.output.pop();
        }
        ended.status = Status::GivenUp;
        self.fail_steers(turn);
        self.next_turn();
        Ok(())
    }

    pub(super) fn attend(&mut self, present: bool) {
        let Some(active) = self.generating().or(self.paused()) else { return };
        let turn = &mut self.turns[active];
        if present {
            turn.readers = Readers::There;
        } else if turn.unread != OnDisconnect::Continue && turn.readers == Readers::There {
            turn.readers = Readers::Gone;
        }
    }

    pub(super) fn is_paused(&self, turn: usize) -> bool {
        self.turns[turn].readers == Readers::Awaited
    }

    pub(super) fn paused(&self) -> Option<usize> {
        self.active().filter(|active| self.is_paused(*active))
    }

    pub(super) fn time_passes(&mut self) {
        if let Some(active) = self.generating().filter(|active| self.turns[*active].readers == Readers::Gone) {
            match self.turns[active].unread {
                OnDisconnect::Continue => {}
                OnDisconnect::Pause if !self.at_boundary(active).is_empty() => {
                    self.commit(active, Some(Status::Incomplete));
                }
                OnDisconnect::Pause => self.turns[active].readers = Readers::Awaited,
                OnDisconnect::Cancel => self.end_outside(active, Status::GivenUp),
            }
        }
        self.lose_claims();
        self.continue_turn();
        self.next_turn();
    }

    pub(super) fn fail_steers(&mut self, turn: usize) {
        self.meant_for(turn).into_iter().for_each(|steer| self.steers[steer].outcome = Outcome::Failed);
    }

    pub(super) fn end_outside(&mut self, turn: usize, status: Status) {
        self.fail_steers(turn);
        self.close_calls(Some(turn), false);
        self.turns[turn].status = status;
        self.next_turn();
    }

    pub(super) fn answer_call(&mut self, call: usize, output: u8) -> Result<(), Code> {
        match self.calls[call].is {
            Is::Answered if self.calls[call].given == Some(output) => Ok(()),
            Is::Answered => Err(Code::ToolResultConflict),
            Is::Closed => Err(Code::ToolCallClosed),
            Is::Open | Is::Claimed => {
                self.take_result(call, output);
                self.continue_turn();
                self.next_turn();
                Ok(())
            }
        }
    }

    pub(super) fn lose_claims(&mut self) {
        for call in self.calls.iter_mut().filter(|call| call.is == Is::Claimed) {
            let text = "outcome unknown, may have run".to_owned();
            (call.is, call.result, call.goes_on) = (Is::Closed, Some(text), true);
        }
    }

    pub(super) fn restart(&mut self) {
        // Nobody knows whether the workers of claimed calls still live.
        self.lose_claims();
        if let Some(active) = self.active().filter(|active| !self.is_paused(*active)) {
            let attempts = self.turns[active].attempts + 1;
            if self.turns[active].cancelled {
                self.end_outside(active, Status::Cancelled);
            } else if attempts > ATTEMPTS_MAX {
                self.end_outside(active, Status::Failed);
            } else if self.at_boundary(active).is_empty() {
                self.turns[active].attempts = attempts;
            } else {
                self.commit(active, Some(Status::Incomplete));
            }
        }
        self.continue_turn();
        self.next_turn();
    }
}
