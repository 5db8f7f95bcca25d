//! What readers saw against what is journaled: slices of it, byte for byte, the same for all.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{History, Journal, Violation, text};

/// A reader's view of one conversation.
struct Stream<'a> {
    conversation: &'a str,
    principal: &'a str,
    last_seq: u64,
    /// The first event that could be read when it began.
    oldest_seq: u64,
}

/// Checks every reader.
pub(super) fn check(journal: &Journal, history: &History, found: &mut Vec<Violation>) {
    let mut streams: BTreeMap<u64, Stream<'_>> = BTreeMap::new();
    let deleted = history.deleted();
    let mut first_seen: BTreeMap<(&str, u64), &Value> = BTreeMap::new();
    let mut oldest: BTreeMap<&str, u64> = BTreeMap::new();
    for observation in &history.observations {
        let number = observation["stream"].as_u64().unwrap_or_default();
        let kind = text(observation, "kind");
        let seen = match kind {
            "attach" => {
                let (conversation, principal) = (text(observation, "conversation"), text(observation, "principal"));
                let last_seq = observation["after"].as_u64().unwrap_or_default();
                let oldest_seq = observation["oldest_seq"].as_u64();
                let oldest_seq = oldest_seq.or_else(|| oldest.get(conversation).copied()).unwrap_or(1);
                streams.insert(number, Stream { conversation, principal, last_seq, oldest_seq });
                continue;
            }
            "trimmed" => {
                let oldest_seq = observation["oldest_seq"].as_u64().unwrap_or_default();
                oldest.insert(text(observation, "conversation"), oldest_seq);
                continue;
            }
            "event" => observation,
            "frame" if observation["frame"].get("seq").is_some() => &observation["frame"],
            _ => continue,
        };
        let Some(stream) = streams.get_mut(&number) else { continue };
        let (conversation, seq) = (stream.conversation, seen["seq"].as_u64().unwrap_or_default());
        // What was deleted is gone; the order of what was seen of it is still checked.
        let is_gone = deleted.contains(conversation) && !journal.conversations.contains_key(conversation);
        let mut broken = |invariant, what| {
            found.push(Violation { invariant, conversation: conversation.to_owned(), seq, what });
        };
        if seq != stream.last_seq + 1 {
            broken("I1", format!("a reader saw {seq} behind {}", stream.last_seq));
        }
        if seq < stream.oldest_seq {
            broken("I1", format!("a reader saw {seq}, which was trimmed before it began"));
        }
        stream.last_seq = seq;
        if let Some(why) = differs(journal, stream, seen, kind).filter(|_| !is_gone)
            && !is_rewound(journal, conversation, seen)
        {
            broken("I2", why);
        }
        if kind == "frame" {
            let first = *first_seen.entry((conversation, seq)).or_insert(seen);
            if bytes(first) != bytes(seen) {
                broken("I2", format!("one reader saw {first}, another {seen}"));
            }
        }
        let owner = journal.event(conversation, 1).map_or("", |created| text(&created["event"], "principal"));
        if owner != stream.principal && !is_gone {
            broken("I13", format!("{:?} read what belongs to {owner:?}", stream.principal));
        }
    }
}

/// Equal values may still be written in another order.
fn bytes(value: &Value) -> String {
    value.to_string()
}

/// What a relaxed response shows before it is flushed.
const GROWTH: [&str; 7] = [
    "response_in_progress",
    "output_item_added",
    "content_part_added",
    "output_delta",
    "output_done",
    "content_part_done",
    "output_item_done",
];

/// Whether a crash may have taken back what was seen: growth of a response that asked for that, and the journal says
/// from where on.
fn is_rewound(journal: &Journal, conversation: &str, seen: &Value) -> bool {
    let Ok(seen) = serde_json::from_str::<Value>(text(seen, "text")) else { return false };
    let event = &seen["event"];
    let Some(events) = journal.conversations.get(conversation).filter(|_| GROWTH.contains(&text(event, "type"))) else {
        return false;
    };
    let asked = |stored: &Value| {
        let created = &stored["event"];
        created["type"] == "response_created"
            && created["id"] == event["response_id"]
            && created["config"]["policy"]["durability"] == "relaxed"
    };
    let rewound = |stored: &Value| {
        stored["event"]["type"] == "conversation_rewound" && stored["event"]["seq"].as_u64() < seen["seq"].as_u64()
    };
    events.iter().any(asked) && events.iter().any(rewound)
}

/// How what was seen differs from what is stored.
fn differs(journal: &Journal, stream: &Stream<'_>, seen: &Value, kind: &str) -> Option<String> {
    let seq = seen["seq"].as_u64()?;
    if seq < journal.oldest_seq(stream.conversation) {
        // What is kept is not what was shown.
        return None;
    }
    let Some(stored) = journal.event(stream.conversation, seq) else {
        return Some(format!("a reader saw what is not journaled: {seen}"));
    };
    let same = match kind {
        "event" => journal.event_text(stream.conversation, seq) == seen["text"].as_str(),
        _ => shows(seen, stored),
    };
    (!same).then(|| format!("a reader saw {seen}, the journal has {stored}"))
}

/// Whether a frame shows a stored event.
fn shows(frame: &Value, stored: &Value) -> bool {
    let event = &stored["event"];
    let (shown, kind) = (text(frame, "type"), text(event, "type"));
    let is_delta = shown.rsplit('.').next() == Some("delta");
    let fits = match kind {
        "output_delta" => is_delta && frame["delta"] == event["text"],
        "response_ended" => matches!(
            (shown, text(&event["ending"], "status")),
            ("response.completed", "completed")
                | ("response.failed", "failed")
                | ("response.incomplete", "incomplete" | "cancelled")
        ),
        "response_created" => shown == "response.created" && frame["response"]["id"] == event["id"],
        _ if kind.starts_with("intervention_") => {
            shown == kind.replacen('_', ".", 1) && frame["intervention_id"] == event["intervention_id"]
        }
        _ => !is_delta,
    };
    let numbered = stored.get("number").is_none_or(|number| frame["sequence_number"] == *number);
    fits && numbered && event.get("response_id").is_none_or(|id| frame["response_id"] == *id)
}
