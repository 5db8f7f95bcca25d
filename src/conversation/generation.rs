//! News of the engine: a sequence began, grew, ended. News of a generation that is not outstanding is dropped.

use std::ops::ControlFlow;

use super::decide::{Draft, failed};
use super::event::{Ending, Event, Usage};
use super::input::{GenerationEnd, Output};
use super::item::ItemStatus;
use super::output::Halt;
use super::prompts::RecordedPrompt;
use super::purpose::Purpose;
use super::state::ResponseStatus;
use super::terminal::Terminal;
use crate::error::Code;
use crate::ids::ResponseId;

impl Draft {
    pub(super) fn generation_started(
        &mut self,
        generation: u64,
        prompt_tokens: u32,
        cached_tokens: u32,
        prompt: Option<RecordedPrompt>,
    ) {
        if let Some(active) = self.generating(generation)
            && active.status == ResponseStatus::Queued
            && !active.cancel_requested
        {
            let response_id = active.id;
            self.push(Event::ResponseInProgress { response_id, prompt_tokens, cached_tokens, prompt });
        }
    }

    pub(super) fn generated(&mut self, generation: u64, outputs: Vec<Output>) {
        let Some(active) = self.generating(generation).filter(|active| !active.cancel_requested) else { return };
        let response_id = active.id;
        // An engine samples behind the prompt before it sees that nothing is to be.
        if active.config.purpose == Purpose::Prefill {
            return;
        }
        if let ControlFlow::Break(halt) = self.record_outputs(response_id, outputs) {
            return self.halt(response_id, halt);
        }
        self.warn_of_budget(response_id, 0);
        self.unattended_limit(response_id);
    }

    pub(super) fn generation_ended(
        &mut self,
        generation: u64,
        outputs: Vec<Output>,
        (tail_tokens, usage): (Vec<u32>, Option<Usage>),
        end: GenerationEnd,
    ) {
        let Some(active) = self.generating(generation) else { return };
        let response_id = active.id;
        if active.cancel_requested {
            return self.end(response_id, Ending::Cancelled);
        }
        // An abort that nobody asked for is the server draining: the response goes on after the restart.
        if end == GenerationEnd::Aborted {
            return;
        }
        if active.config.purpose == Purpose::Prefill {
            return self.prefilled(response_id, end);
        }
        if let ControlFlow::Break(halt) = self.record_outputs(response_id, outputs) {
            return self.halt(response_id, halt);
        }
        let more = self.state.unrecorded(response_id, &tail_tokens, usage.as_ref());
        self.warn_of_budget(response_id, more);
        match end {
            GenerationEnd::Aborted => {}
            GenerationEnd::Stop | GenerationEnd::StopString(_) => {
                if self.lacks_summary(response_id) {
                    let text = "the model wrote no summary; try again, or keep the transcript as it is";
                    return self.end(response_id, failed(Code::EngineFailed, text));
                }
                let stop_string = if let GenerationEnd::StopString(stop) = end { Some(stop) } else { None };
                let terminal = Terminal { ending: Ending::Completed, tail_tokens, stop_string, usage };
                self.end_naturally(response_id, ItemStatus::Completed, terminal);
                self.foresee(response_id);
            }
            GenerationEnd::Length => {
                let ending = self.length_reached(response_id, more);
                let terminal = Terminal { ending, tail_tokens, stop_string: None, usage };
                self.end_naturally(response_id, ItemStatus::Incomplete, terminal);
                self.foresee(response_id);
            }
            GenerationEnd::Filtered => {
                let ending = Ending::Incomplete { reason: "content_filter".to_owned() };
                let terminal = Terminal { ending, tail_tokens, stop_string: None, usage };
                self.end_naturally(response_id, ItemStatus::Incomplete, terminal);
            }
            GenerationEnd::Failed { code, message } => self.end(response_id, failed(code, message)),
        }
    }

    /// Ends a response of which nothing more is recorded.
    fn halt(&mut self, response_id: ResponseId, halt: Halt) {
        match halt {
            Halt::Steered => self.cut(response_id),
            Halt::CallsSpent => {
                let generation = self.state.response(response_id).and_then(|response| response.generation);
                self.abort(generation);
                self.end_naturally(response_id, ItemStatus::Completed, Ending::Completed.into());
                self.foresee(response_id);
            }
        }
    }

    /// A prompt was computed in front of its answer. One that the template does not take as it stands, without what is
    /// still to come, has nothing to be computed.
    fn prefilled(&mut self, response_id: ResponseId, end: GenerationEnd) {
        match end {
            GenerationEnd::Failed { code, message } if code != Code::InvalidInput => {
                self.end(response_id, failed(code, message));
            }
            _ => self.end_naturally(response_id, ItemStatus::Completed, Ending::Completed.into()),
        }
    }

    pub(super) fn silence(&mut self) {
        let Some(active) = self.state.active().filter(|active| !active.cancel_requested) else { return };
        let response_id = active.id;
        let (prompt_tokens, cached_tokens) = (active.usage.input_tokens, active.usage.cached_tokens);
        self.push(if active.status == ResponseStatus::Queued {
            Event::ResponseQueued { response_id }
        } else {
            Event::ResponseInProgress { response_id, prompt_tokens, cached_tokens, prompt: None }
        });
    }
}
