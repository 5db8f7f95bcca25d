//! Forks against their parents: the copied turns are the parent's, to the token, and so are the results of calls.

use std::collections::BTreeMap;

use serde_json::Value;

use super::story::Story;
use super::turn::{ModelInput, Turn, item_text};
use super::{Violation, list, text};

/// Checks every fork whose parent is there and has lost no item since.
pub(super) fn check(stories: &[Story], found: &mut Vec<Violation>) {
    let mut homes: BTreeMap<&str, &Story> = BTreeMap::new();
    for story in stories {
        homes.extend(story.turns.iter().filter(|turn| !turn.copied).map(|turn| (turn.id.as_str(), story)));
    }
    for fork in stories {
        let Some(from) = fork.forked_from.as_deref() else { continue };
        let Some(parent) = homes.get(from).filter(|parent| !parent.lost_items && !fork.lost_items) else { continue };
        let mut broken = |what: String| {
            found.push(Violation { invariant: "I9", conversation: fork.id.clone(), seq: 0, what });
        };
        let copied: Vec<&Turn> = fork.turns.iter().filter(|turn| turn.copied).collect();
        let upto = parent.turns.iter().position(|turn| turn.id == from).map_or(0, |place| place + 1);
        if copied.len() != upto {
            broken(format!("{} turns were copied up to {from}, and there are {upto}", copied.len()));
        }
        for (copy, own) in copied.iter().zip(&parent.turns) {
            if !is_same(copy, own) {
                broken(format!("the copy of {} differs from it", own.id));
            }
        }
        for (call, output) in &fork.copied_results {
            if !parent.results_of(call).any(|result| item_text(result) == *output) {
                broken(format!("the copied result of {call} is none that it has: {output:?}"));
            }
        }
    }
}

/// Whether a copy has the same model input, output and tokens.
fn is_same(copy: &Turn, own: &Turn) -> bool {
    let read = |turn: &Turn| {
        let mut read = ModelInput::default();
        read.extend(&turn.input);
        read.extend(turn.kept());
        read.instructed(turn.instructions.as_deref())
    };
    copy.id == own.id && read(copy) == read(own) && copy.tokens == own.kept_tokens()
}

impl Turn {
    /// A turn of another conversation, as it was copied. Its settings are those of the turn before, unless it says.
    pub(super) fn copied(event: &Value, before: Option<&Self>) -> Self {
        let mut turn = Self::new(event);
        if event["config"].is_null()
            && let Some(before) = before
        {
            turn.instructions.clone_from(&before.instructions);
        }
        text(event, "response_id").clone_into(&mut turn.id);
        turn.prompt = event["prompt"].clone();
        for output in list(event, "output") {
            turn.add(output["item"].clone(), list(output, "tokens"));
        }
        turn.tokens.extend(list(event, "tail_tokens").iter().filter_map(Value::as_u64));
        (turn.ended, turn.copied) = (Some("copied".to_owned()), true);
        turn
    }
}
