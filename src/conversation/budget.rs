//! How many tokens the answers of a conversation may have together: a warning before they are spent, and an end that
//! says that they are.
//!
//! The engine is given what is left as the bound of an answer, so that no token is beyond it, whenever the process
//! dies.

use super::decide::Draft;
use super::event::{Ending, Event, Usage};
use super::item::ItemStatus;
use super::purpose::Purpose;
use super::state::{Response, State};
use crate::ids::ResponseId;

/// The warning comes when one part in so many is left.
const WARNED_PART: u64 = 10;

impl State {
    /// The most tokens that an answer may have: by its own bound, and by what the others have left of the
    /// conversation's. A prompt that is only run in advance has no answer.
    pub fn tokens_max(&self, response: &Response) -> Option<u32> {
        if response.config.purpose == Purpose::Prefill {
            return Some(0);
        }
        let left = response.config.policy.max_conversation_tokens.map(|most| {
            let others = self.generated_tokens.saturating_sub(u64::from(response.usage.output_tokens));
            u32::try_from(most.saturating_sub(others)).unwrap_or(u32::MAX)
        });
        response.config.max_output_tokens.into_iter().chain(left).min()
    }

    /// What is left for an answer, of how much, where there is a bound; `more` tokens are not recorded yet.
    fn budget(&self, id: ResponseId, more: i64) -> Option<Budget> {
        let most = self.response_even_deleted(id)?.config.policy.max_conversation_tokens?;
        Some(Budget { most, left: most.saturating_sub(self.generated_tokens.saturating_add_signed(more)) })
    }

    /// Tokens of an answer at its end that are not recorded yet: its tail, or what the engine counted beyond what was
    /// counted here; below zero where that was too much.
    pub(super) fn unrecorded(&self, id: ResponseId, tail_tokens: &[u32], counted: Option<&Usage>) -> i64 {
        let recorded = self.response_even_deleted(id).map_or(0, |response| response.usage.output_tokens);
        counted.map_or(tail_tokens.len() as i64, |counted| i64::from(counted.output_tokens) - i64::from(recorded))
    }
}

#[derive(Clone, Copy)]
struct Budget {
    most: u64,
    left: u64,
}

impl Draft {
    /// Says once that little is left. `more` tokens are not recorded yet.
    pub(super) fn warn_of_budget(&mut self, response_id: ResponseId, more: i64) {
        let Some(Budget { most, left }) = self.state.budget(response_id, more) else { return };
        if left.saturating_mul(WARNED_PART) <= most && self.state.warned_of_budget != Some(most) {
            self.push(Event::ConversationBudgetLow { response_id, max_conversation_tokens: most, left_tokens: left });
        }
    }

    /// How an answer ends that has as many tokens as it may.
    pub(super) fn length_reached(&self, response_id: ResponseId, more: i64) -> Ending {
        let is_spent = self.state.budget(response_id, more).is_some_and(|budget| budget.left == 0);
        let reason = if is_spent { "max_conversation_tokens" } else { "max_output_tokens" };
        Ending::Incomplete { reason: reason.to_owned() }
    }

    /// Ends an answer that has not begun and for which nothing is left; whether it did.
    pub(super) fn ends_unbegun(&mut self, response_id: ResponseId) -> bool {
        // A prompt that is only computed spends nothing.
        let begun = self
            .state
            .response(response_id)
            .is_some_and(|response| response.usage.output_tokens > 0 || response.config.purpose == Purpose::Prefill);
        if begun || self.state.budget(response_id, 0).is_none_or(|budget| budget.left > 0) {
            return false;
        }
        self.warn_of_budget(response_id, 0);
        let ending = self.length_reached(response_id, 0);
        self.end_naturally(response_id, ItemStatus::Incomplete, ending.into());
        true
    }
}
