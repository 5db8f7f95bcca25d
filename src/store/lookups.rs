//! What of an event can be looked up besides what its records say. It follows from the events alone, so that no dump
//! has it: whatever is written or loaded anew has it again.
//!
//! Its rows are not counted by the tally, and are no promise: whoever follows one looks into the conversation itself,
//! and where that does not have what was looked for, there is nothing.

use super::keys;
use crate::conversation::{Event, Item};

/// The keys under which the event's conversation is found.
pub(super) fn keys_of(event: &Event) -> Vec<Vec<u8>> {
    let items = |items: &[Item]| items.iter().map(|item| keys::item(item.id)).collect::<Vec<_>>();
    match event {
        Event::ItemsAdded { items: added } | Event::InterventionAccepted { items: added, .. } => items(added),
        Event::OutputItemAdded { item, .. }
        | Event::ToolResultAccepted { output: item, .. }
        | Event::ToolCallClosed { output: item, .. } => vec![keys::item(item.id)],
        Event::TurnsCopied { turns } => {
            let copied = turns.iter().flat_map(|turn| {
                let output = turn.output.iter().map(|output| output.item.id);
                turn.input.iter().map(|item| item.id).chain(output)
            });
            copied.map(keys::item).collect()
        }
        Event::ResponseCreated(new) => {
            let mut found = items(&new.input);
            found.extend(new.config.extras.chat_of.as_deref().map(|owner| keys::chat(owner, new.id)));
            found
        }
        _ => Vec::new(),
    }
}
