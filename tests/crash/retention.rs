//! Ten thousand finished conversations, with their index and keys: what is kept stays within what the settings say, in
//! memory and on disk.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::points::trimmed;
use crate::support::Site;

const CONVERSATIONS: usize = 10_000;
/// Bytes of events that are kept.
const KEPT_BYTES: u64 = 4 << 20;
/// Conversations in memory at once.
const LIVE: usize = 64;
/// What the process may take for conversations that sleep again.
const GROWTH_KIB: u64 = 16 << 10;
/// The bytes of a compacted journal for each byte of events.
const JOURNAL_OVERHEAD: u64 = 4;

/// The lines of one conversation with the ids and the keys of another.
fn renamed(lines: &str, number: usize) -> String {
    let mut text = lines.to_owned();
    for key in ["first", "second"] {
        text = text.replace(&format!("\"key\":\"{key}\""), &format!("\"key\":\"{key} {number}\""));
    }
    for kind in ["conv_", "resp_", "item_"] {
        let mut parts = text.split(kind);
        let mut with = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            with.push_str(kind);
            match part.split_at_checked(32) {
                // The last digits of an id; its time and some of its chance stay.
                Some((id, behind)) if id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                    write!(with, "{}{number:08x}{behind}", &id[..24]).unwrap();
                }
                _ => with.push_str(part),
            }
        }
        text = with;
    }
    text
}

fn bytes_below(path: &Path) -> u64 {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { bytes_below(&path) } else { path.metadata().unwrap().len() }).sum()
}

fn listed(site: &Site) -> Vec<Value> {
    let output = String::from_utf8(site.run(&["conversations", "list"], b"")).unwrap();
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The bytes of a conversation's events, and of what is kept of those that were trimmed.
fn bytes_of(line: &Value) -> u64 {
    line["event_bytes"].as_u64().unwrap() + line["kept_bytes"].as_u64().unwrap()
}

fn resident_kib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// What the clients of each conversation asked for, in order.
const QUESTIONS: [&str; 2] = ["how are you?", "and how is the weather?"];

/// The dump of a finished conversation: its header and its lines.
async fn template() -> (String, String) {
    let site = Site::scripted(&json!([{"deltas": ["fine"]}]));
    let server = site.start().await;
    let (response, conversation) = server.begin("first", json!({"input": QUESTIONS[0]})).await;
    server.until_ended(&conversation, &response, 0).await;
    let (response, _) = server.begin("second", json!({"input": QUESTIONS[1], "conversation": conversation})).await;
    server.until_ended(&conversation, &response, 0).await;
    server.terminate().await;
    let dump = String::from_utf8(site.run(&["conversations", "dump"], b"")).unwrap();
    let (head, rest) = dump.split_once('\n').unwrap();
    (head.to_owned(), rest.to_owned())
}

/// The place of a conversation among all, from its id.
fn number(id: &str) -> usize {
    usize::from_str_radix(&id[id.len() - 8..], 16).unwrap()
}

fn lines_with(dump: &str, field: &str) -> usize {
    dump.lines().filter(|line| line.contains(field)).count()
}

#[tokio::test]
async fn ten_thousand_finished_conversations_stay_within_what_is_kept() {
    stay_within("").await;
}

#[tokio::test]
async fn ten_thousand_finished_conversations_stay_within_what_is_kept_without_their_old_events() {
    stay_within("conversation_events_bytes_max = 1\n").await;
}

async fn stay_within(trimming: &str) {
    let (head, lines) = template().await;
    let records = lines_with(&lines, "\"record\":");
    assert_eq!((records, lines_with(&lines, "\"scope\":")), (4, 2), "two responses and their keys");
    let (events, records) =
        lines.split_at(lines.find("\"record\":").map_or(0, |at| lines[..at].rfind('\n').unwrap() + 1));
    let all =
        [events, records].map(|lines| (0..CONVERSATIONS).map(|number| renamed(lines, number)).collect::<String>());

    let site = Site::scripted(&json!([{"deltas": ["fine"]}]));
    let settings = site.path().join("settings.toml");
    let bounds = format!("retention_bytes = {KEPT_BYTES}\nconversations_live_max = {LIVE}\n{trimming}");
    fs::write(&settings, bounds).unwrap();
    let settings = settings.display().to_string();
    let site = site.with(&["--config", &settings]);
    site.run(&["conversations", "load"], format!("{head}\n{}", all.concat()).as_bytes());
    let before = listed(&site);
    assert_eq!(before.len(), CONVERSATIONS);
    let size = bytes_of(&before[0]);
    let kept = usize::try_from(KEPT_BYTES / size).unwrap();
    assert!(kept > 10 * LIVE && kept < CONVERSATIONS / 2, "{kept} of {size} bytes are kept");
    let mut ids: Vec<&str> = before.iter().map(|line| line["conversation"].as_str().unwrap()).collect();
    ids.sort_unstable();
    let (gone, left) = ids.split_at(CONVERSATIONS - kept);

    let server = site.start_until_logged("conversations were deleted").await;
    let found = server.get(&format!("/v1/conversations/{}", gone.last().unwrap())).await;
    assert_eq!(found["error"]["code"], "conversation_not_found", "the oldest go first");
    if !trimming.is_empty() {
        // The last one is trimmed last.
        trimmed(&server, left.last().unwrap()).await;
    }
    server.terminate().await;
    // What was deleted takes memory while it is removed; here only what conversations take counts.
    site.run(&["conversations", "compact"], b"");
    let server = site.start().await;
    let mut first = 0;
    for (place, id) in left.iter().enumerate() {
        assert_eq!(server.get(&format!("/v1/conversations/{id}")).await["id"], *id);
        if place == LIVE {
            first = resident_kib(server.process());
        }
    }
    let last = resident_kib(server.process());
    assert!(last < first + GROWTH_KIB, "{first} KiB with {LIVE} conversations read, {last} KiB with {}", left.len());
    for id in left.iter().step_by(kept / 8) {
        let key = format!("first {}", number(id));
        assert_eq!(server.begin(&key, json!({"input": QUESTIONS[0]})).await.1, *id, "its key is known");
    }
    server.terminate().await;
    left_behind(&site, kept, !trimming.is_empty());
}

/// What is on disk when the server has stopped.
fn left_behind(site: &Site, kept: usize, is_trimmed: bool) {
    let after = listed(site);
    let bytes: u64 = after.iter().map(bytes_of).sum();
    assert!(after.iter().all(|line| (line["kept_bytes"].as_u64() > Some(0)) == is_trimmed), "{:?}", after[0]);
    assert!(bytes <= KEPT_BYTES && after.len() == kept, "{} conversations with {bytes} bytes", after.len());
    let shown = site.run(&["conversations", "show", after[0]["conversation"].as_str().unwrap()], b"");
    let shown: Vec<Value> =
        String::from_utf8(shown).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let oldest_seq = after[0]["oldest_seq"].as_u64();
    assert!(shown.iter().all(|line| (line["kept"] == true) == (line["seq"].as_u64() < oldest_seq)), "{shown:?}");
    let dump = String::from_utf8(site.run(&["conversations", "dump"], b"")).unwrap();
    assert_eq!([lines_with(&dump, "\"record\":"), lines_with(&dump, "\"scope\":")], [4 * kept, 2 * kept]);
    assert_eq!(lines_with(&dump, "\"kept\":{\"seq\":1,"), if is_trimmed { kept } else { 0 });
    site.run(&["conversations", "compact"], b"");
    let on_disk = bytes_below(&site.path().join("data/journal"));
    assert!(on_disk < JOURNAL_OVERHEAD * KEPT_BYTES, "{on_disk} bytes on disk for {bytes}");
}
