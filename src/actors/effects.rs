//! Effects: work that a durable decision asked for. Its results come back as inputs.

use std::collections::BTreeMap;
use std::sync::Arc;

use ractor::ActorRef;

use super::conversation::ConversationMsg;
use super::foresight;
use super::kv::ConversationKv;
use super::prompt::HeldPrompt;
use super::pump::{self, Job, PumpControl};
use super::shared::Parts;
use crate::conversation::{Effect, State};
use crate::crash;

/// The generations that are under way, by their id, and the prompt and the KV that the last one left behind.
#[derive(Default)]
pub(super) struct Work {
    pumps: BTreeMap<u64, Arc<PumpControl>>,
    held: Arc<HeldPrompt>,
    kv: Arc<ConversationKv>,
    /// What is computed ahead of the next turn.
    ahead: Option<Arc<PumpControl>>,
}

impl Work {
    /// Starts what the effect asks for. It never waits.
    pub(super) fn perform(&mut self, effect: Effect, state: &State, parts: &Parts, to: &ActorRef<ConversationMsg>) {
        match effect {
            Effect::StartGeneration { generation, response_id } => {
                crash::point("generation_starting");
                if let Some(ahead) = self.ahead.take() {
                    ahead.abort();
                }
                let control = Arc::new(PumpControl::default());
                let thinking = state.response(response_id).and_then(|response| response.config.thinking.as_ref());
                control.limit_thinking(thinking.and_then(|thinking| thinking.budget_tokens));
                self.pumps.insert(generation, control.clone());
                let running = parts.running.enter(&state.principal);
                let (held, kv) = (self.held.clone(), self.kv.clone());
                let job = Job { generation, response_id, state: state.clone(), held, kv, control, running };
                pump::start(job, parts.clone(), to.clone());
            }
            Effect::Foresee { response_id } => {
                let control = Arc::new(PumpControl::default());
                self.ahead = Some(control.clone());
                foresight::start(parts, state.clone(), response_id, self.held.clone(), control);
            }
            Effect::LimitThinking { generation, budget_tokens } => {
                if let Some(control) = self.pumps.get(&generation) {
                    control.limit_thinking(budget_tokens);
                }
            }
            Effect::AbortGeneration { generation } => {
                crash::point("generation_aborting");
                if let Some(control) = self.pumps.get(&generation) {
                    control.abort();
                }
            }
        }
    }

    /// The generation is over.
    pub(super) fn ended(&mut self, generation: u64) {
        self.pumps.remove(&generation);
    }

    /// Has the KV of the last sequence written, unless it was. It never waits.
    pub(super) fn save_kv(&self) {
        self.kv.save();
    }

    /// Aborts whatever is under way.
    pub(super) fn abort_all(&self) {
        self.pumps.values().for_each(|control| control.abort());
    }
}

impl Drop for Work {
    /// An actor that dies takes its sequences along; a restart starts them again.
    fn drop(&mut self) {
        self.abort_all();
        self.save_kv();
    }
}
