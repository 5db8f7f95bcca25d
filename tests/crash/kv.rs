//! KV files of the real binary on a real model: what a turn after the restart reuses, and that a file that is gone or
//! spoilt costs time and nothing else.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{PATIENCE, Server, Site, shown_text};

/// Tokens of a KV block.
const BLOCK: u64 = 16;

/// Writes KV files after this many milliseconds of rest.
fn site(rest_ms: u64) -> Site {
    let site = Site::real_model();
    let settings = site.path().join("settings.toml");
    fs::write(&settings, format!("kv_file_idle_ms = {rest_ms}\n")).unwrap();
    let settings = settings.display().to_string();
    site.with(&["--config", &settings])
}

fn file(site: &Site, conversation: &str) -> PathBuf {
    site.path().join("data").join("kv").join(format!("{conversation}.kv"))
}

fn question() -> Value {
    let input = "A lighthouse keeper lives alone on a small island. Every evening he climbs the stairs and lights the \
                 lamp. One night the lamp does not burn. What can he do? Tell me in a few sentences.";
    json!({"input": input, "max_output_tokens": 40, "temperature": 0})
}

struct Turn {
    text: String,
    input: u64,
    cached: u64,
    output: u64,
}

async fn ended(server: &Server, response: &str, conversation: &str) -> Turn {
    let frames = server.until_ended(conversation, response, 0).await;
    let usage = &server.get(&format!("/v1/responses/{response}")).await["usage"];
    Turn {
        text: shown_text(&frames, response),
        input: usage["input_tokens"].as_u64().unwrap(),
        cached: usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap(),
        output: usage["output_tokens"].as_u64().unwrap(),
    }
}

/// A first turn: its conversation, and the tokens that lie in full blocks behind it.
async fn first_turn(server: &Server, key: &str) -> (String, u64) {
    let (response, conversation) = server.begin(key, question()).await;
    let turn = ended(server, &response, &conversation).await;
    // The last token of the answer was sampled and not run.
    let run = turn.input + turn.output - 1;
    assert!(run > 4 * BLOCK, "the turn is long enough to tell");
    (conversation, run / BLOCK * BLOCK)
}

async fn next_turn(server: &Server, conversation: &str) -> Turn {
    let body = json!({"input": "And then?", "max_output_tokens": 30, "temperature": 0, "conversation": conversation});
    let (response, _) = server.begin(&format!("next {conversation}"), body).await;
    ended(server, &response, conversation).await
}

/// Waits for a conversation's file.
async fn written(site: &Site, conversation: &str) {
    let written = async {
        while !file(site, conversation).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.expect("the file is written at rest");
}

#[tokio::test]
async fn the_next_turn_after_a_stop_reuses_every_full_block_and_a_spoilt_file_changes_no_word() {
    let site = site(3_600_000);
    let server = site.start().await;
    let (whole, blocks) = first_turn(&server, "whole").await;
    let mut spoilt = Vec::new();
    for key in ["flipped", "cut", "garbage", "gone"] {
        let (conversation, same) = first_turn(&server, key).await;
        assert_eq!(same, blocks, "greedy: every conversation has the same first turn");
        spoilt.push(conversation);
    }
    assert_eq!(server.terminate().await, Some(0));

    let path = |index: usize| file(&site, &spoilt[index]);
    let bytes = fs::read(path(0)).unwrap();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 4;
    fs::write(path(0), flipped).unwrap();
    fs::write(path(1), &bytes[..bytes.len() / 2]).unwrap();
    fs::write(path(2), vec![0x5a; 3 << 20]).unwrap();
    fs::remove_file(path(3)).unwrap();

    // Each in a process of its own, since all have the same tokens.
    let server = site.start().await;
    let expected = next_turn(&server, &whole).await;
    assert_eq!(expected.cached, blocks, "all that was run in full blocks");
    server.kill();
    for conversation in spoilt {
        let server = site.start().await;
        let turn = next_turn(&server, &conversation).await;
        assert_eq!((turn.cached, &turn.text), (0, &expected.text), "{conversation}");
        server.kill();
    }
}

#[tokio::test]
async fn the_next_turn_after_a_kill_reuses_what_was_written_when_the_conversation_rested() {
    let site = site(20);
    let server = site.start().await;
    let (conversation, blocks) = first_turn(&server, "one").await;
    written(&site, &conversation).await;
    server.kill();
    let server = site.start().await;
    assert_eq!(next_turn(&server, &conversation).await.cached, blocks);
}

#[tokio::test]
async fn a_fork_from_an_older_response_reuses_every_full_block_of_the_common_prefix() {
    let site = site(3_600_000);
    let server = site.start().await;
    let mut warm = question();
    // Far from greedy, words are spelled in tokens that no tokeniser would choose.
    (warm["temperature"], warm["seed"]) = (json!(1.6), json!(7));
    let (first, conversation) = server.begin("first", warm).await;
    let turn = ended(&server, &first, &conversation).await;
    next_turn(&server, &conversation).await;
    let body = json!({
        "input": "What does he see at dawn?", "max_output_tokens": 30, "temperature": 0, "previous_response_id": first,
    });
    let (response, fork) = server.begin("fork", body).await;
    assert_ne!(fork, conversation);
    let forked = ended(&server, &response, &fork).await;
    // The turns behind the common ones begin alike, with a mark or two of the template.
    let common = turn.input + turn.output - 1;
    assert!((common / BLOCK * BLOCK..common + BLOCK).contains(&forked.cached), "{} of {common}", forked.cached);
}

#[tokio::test]
async fn dead_at_any_point_of_writing_a_file_the_next_turn_says_the_same() {
    let quiet = 3_600_000;
    let reference = site(quiet);
    let server = reference.start().await;
    let (conversation, blocks) = first_turn(&server, "one").await;
    let expected = next_turn(&server, &conversation).await.text;
    server.kill();
    let writing = |nth: u64| (format!("kv_file_writing:{nth}"), 0);
    let placed = ("kv_file_placed:1".to_owned(), blocks);
    let cases = [writing(1), writing(2), writing(blocks / BLOCK), ("kv_file_synced:1".to_owned(), 0), placed];
    for (plan, cached) in cases {
        let site = site(quiet);
        let server = site.try_start(&[("MIDSTREAM_CRASH", &plan)]).await.unwrap();
        let (conversation, _) = first_turn(&server, "one").await;
        assert_eq!(server.terminate().await, None, "{plan}: it dies while it stops");
        let server = site.start().await;
        let left: Vec<_> = fs::read_dir(site.path().join("data").join("kv")).unwrap().collect();
        assert_eq!(left.len(), usize::from(cached > 0), "{plan}: no half file stays: {left:?}");
        let turn = next_turn(&server, &conversation).await;
        assert_eq!((turn.cached, &turn.text), (cached, &expected), "{plan}");
        server.kill();
    }
}

#[tokio::test]
async fn dead_in_front_of_removing_a_deleted_conversations_file_the_next_start_removes_it() {
    let site = site(20);
    let server = site.try_start(&[("MIDSTREAM_CRASH", "kv_removing:1")]).await.unwrap();
    let (conversation, _) = first_turn(&server, "one").await;
    written(&site, &conversation).await;
    // The deletion is durable before anything of it is removed, and the answer may come before the end.
    let _ = server.try_delete(&format!("/v1/conversations/{conversation}")).await;
    server.dead().await;
    assert!(file(&site, &conversation).exists());
    let server = site.start().await;
    let gone = server.get(&format!("/v1/conversations/{conversation}")).await;
    assert_eq!(gone["error"]["code"], "conversation_not_found");
    assert!(!file(&site, &conversation).exists());
}
