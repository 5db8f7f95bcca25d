//! The order of the real binary's system calls: the journal is on disk before a client sees anything of it.

use std::collections::HashMap;

use serde_json::json;

use crate::support::{Site, journaled};

/// A call in the trace: where it began and where it ended, as line numbers.
struct Call {
    name: String,
    text: String,
    began: usize,
    ended: usize,
}

#[tokio::test]
async fn every_event_is_synced_to_disk_before_it_is_written_to_a_socket() {
    let site = Site::scripted(&json!([{"deltas": ["one ", "two ", "three ", "four ", "five"], "delay_ms": 30}]));
    let trace = site.path().join("trace");
    let trace_text = trace.display().to_string();
    let calls = "trace=pwrite64,write,writev,sendto,sendmsg,fdatasync,fsync";
    let site = site.under(&["strace", "-f", "-y", "-s", "65536", "-e", calls, "-o", &trace_text]);
    let server = site.start().await;
    let (response, conversation) = server.begin("one", json!({"input": "tell"})).await;
    let frames = journaled(&server.until_ended(&conversation, &response, 0).await);
    assert_eq!(server.terminate().await, Some(0));
    assert!(frames.len() > 10, "the answer came in pieces: {frames:?}");
    let calls = parse(&std::fs::read_to_string(&trace).unwrap());
    for frame in frames {
        // The stored record begins with its seq; on the wire it stands among other fields. strace escapes quotes.
        let seq = &frame["seq"];
        let (record, field) = (format!(r#"{{\"seq\":{seq},"#), format!(r#"\"seq\":{seq},"#));
        let stored = calls.iter().find(|call| call.name == "pwrite64" && call.text.contains(&record));
        let stored = stored.unwrap_or_else(|| panic!("{frame} was never written to the journal"));
        let sent = calls.iter().find(|call| is_socket_write(call) && call.text.contains(&field));
        let sent = sent.unwrap_or_else(|| panic!("{frame} was never sent"));
        let is_sync = |call: &&Call| call.name == "fdatasync" || call.name == "fsync";
        let synced = calls.iter().filter(is_sync).find(|call| call.began > stored.ended && call.ended < sent.began);
        assert!(synced.is_some(), "no sync between the write and the send of {frame}");
    }
}

fn is_socket_write(call: &Call) -> bool {
    let to_socket =
        call.text.split(',').next().is_some_and(|first| first.contains("TCP:") || first.contains("socket:"));
    to_socket && matches!(call.name.as_str(), "write" | "writev" | "sendto" | "sendmsg")
}

/// Reads strace's output: calls of several threads, some of them in two halves.
fn parse(trace: &str) -> Vec<Call> {
    let mut open: HashMap<&str, Call> = HashMap::new();
    let mut calls = Vec::new();
    for (place, line) in trace.lines().enumerate() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if rest.starts_with("<... ") {
            if let Some(mut call) = open.remove(thread) {
                call.ended = place;
                calls.push(call);
            }
        } else if let Some((name, arguments)) = rest.split_once('(') {
            let call = Call { name: name.to_owned(), text: arguments.to_owned(), began: place, ended: place };
            if rest.ends_with("<unfinished ...>") {
                open.insert(thread, call);
            } else {
                calls.push(call);
            }
        }
    }
    calls.sort_by_key(|call| call.began);
    calls
}
