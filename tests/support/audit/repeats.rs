//! The same prompt with the same settings gives the same tokens, whatever ran beside it, was cached, or was killed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::json;

use super::Violation;
use super::story::Story;
use super::turn::Turn;

/// Checks all responses whose prompts are known and whose tokens nobody meddled with.
pub(super) fn check(stories: &[Story], found: &mut Vec<Violation>) {
    let mut longest: BTreeMap<String, &Turn> = BTreeMap::new();
    for story in stories {
        for turn in story.turns.iter().filter(|turn| !turn.copied && !turn.limited && !turn.inexact) {
            let Some(prompt) = &turn.whole_prompt else { continue };
            let mut entry = match longest.entry(json!([prompt, turn.choosing]).to_string()) {
                Entry::Vacant(first) => {
                    first.insert(turn);
                    continue;
                }
                Entry::Occupied(entry) => entry,
            };
            let other = *entry.get();
            if !agree(turn, other) {
                let what = format!(
                    "{} said {:?} and {} said {:?} to one prompt with the same settings",
                    turn.id, turn.tokens, other.id, other.tokens
                );
                found.push(Violation { invariant: "I17", conversation: story.id.clone(), seq: 0, what });
            }
            if turn.tokens.len() > other.tokens.len() {
                entry.insert(turn);
            }
        }
    }
}

/// Whether one has the tokens with which the other begins, and no more where that one came to its end by itself.
fn agree(one: &Turn, other: &Turn) -> bool {
    let (short, long) = if one.tokens.len() < other.tokens.len() { (one, other) } else { (other, one) };
    let is_whole = short.ended.as_deref() == Some("completed") && !short.stops;
    long.tokens.starts_with(&short.tokens) && (!is_whole || short.tokens.len() == long.tokens.len())
}
