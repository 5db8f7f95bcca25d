//! The second request of each real client's recording, on a model that runs: it reuses what the first one left in the
//! KV cache, to the last token that the template allows.

use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use super::anthropic::request;
use super::body::decode;
use super::create::{self, Done};
use super::frame::is_end_of;
use super::input::Known;
use super::openai::chat;
use super::stream::finish;
use super::{App, Limits, Phase, Seal};
use crate::access::Identity;
use crate::actors::{self, Foresight, Keys, KvKeeper, Parts, Running, Unstored};
use crate::clock::Clock;
use crate::config::Config;
use crate::conversation::{Create, Response, Toolbox};
use crate::engine::tiny::Tiny;
use crate::engine::{Catalog, Engine, LoadOptions, LocalEngine};
use crate::prompt::builtin_template;
use crate::store::{Journal, MemoryJournal, Writer};

/// Tokens of a KV block.
pub(super) const BLOCK: usize = 16;

/// A server of the tiny model.
pub(super) async fn app(folder: &TempDir, options: LoadOptions) -> App {
    parts(folder, options).await.0
}

/// The same, with its engine, and with what tells when nothing is computed ahead.
pub(super) async fn parts(folder: &TempDir, options: LoadOptions) -> (App, Arc<LocalEngine>, Foresight) {
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, Tiny { context: 1 << 14, ..Tiny::default() }.file()).unwrap();
    let options = LoadOptions { id: Some("scripted".into()), threads: Some(1), ..options };
    let engine = Arc::new(LocalEngine::load(&path, &options).unwrap());
    let foresight = Foresight::default();
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::new());
    let config = Config::default();
    let parts = Parts {
        writer: Writer::start(journal.clone(), config.journal_queue_batches).unwrap(),
        journal: journal.clone(),
        catalog: Arc::new(Catalog::new(vec![engine.clone() as Arc<dyn Engine>])),
        clock: Clock::System,
        kv: KvKeeper::default(),
        config: Arc::new(config),
        running: Running::default(),
        unstored: Unstored::default(),
        foresight: foresight.clone(),
    };
    let catalog = parts.catalog.clone();
    let root = actors::start(parts).await.unwrap();
    let limits = Limits {
        body_bytes_max: 1 << 20,
        body_timeout: std::time::Duration::from_mins(1),
        ws_frame_bytes_max: 1 << 20,
        responses_ws: true,
        responses_ws_life: None,
        control_body_bytes_max: 1 << 20,
        requests_in_flight_max: 8,
        readers_max: 4,
        silence: std::time::Duration::from_secs(15),
        tool_lease_ms: 1,
        tool_lease_ms_max: 1,
    };
    let phases = watch::channel(Phase::Ready).1;
    let surroundings = (limits, (&Config::default()).into());
    let app = App::new(root.directory(), catalog, Keys::new(journal), Seal::new([1; 32]), surroundings, phases);
    (app, engine, foresight)
}

/// The prompt of a request, and the response to it. What it says means nothing, and the next request says something
/// else in its place.
pub(super) async fn answered(app: &App, path: &str, body: &Value) -> (Vec<u32>, Response) {
    answered_within(app, path, body, 2).await
}

/// As [`answered`], with an answer of so many tokens at most. Whatever its end asked for has begun.
pub(super) async fn answered_within(app: &App, path: &str, body: &Value, most: u32) -> (Vec<u32>, Response) {
    let engine = app.engine(None).unwrap().clone();
    let mut body = body.clone();
    let limits = ["max_output_tokens", "max_completion_tokens", "max_tokens"];
    let place = ["responses", "completions", "messages"].iter().position(|name| path.ends_with(name)).unwrap();
    body.as_object_mut().unwrap().retain(|field, _| !limits.contains(&field.as_str()));
    body[limits[place]] = most.into();
    // An answer has more tokens than its thoughts, and these have so many at least.
    if body.pointer("/thinking/budget_tokens").is_some() {
        (body["thinking"]["budget_tokens"], body["max_tokens"]) = (1024.into(), (1024 + most).into());
    }
    let create: Create = match place {
        0 => create::to_render(engine.model(), Some(&app.seal), &body).unwrap(),
        1 => chat::core_request(engine.model(), &serde_json::from_value(body.clone()).unwrap(), &body).unwrap(),
        _ => request::prepare(engine.model(), Some(&app.seal), &decode(&body).unwrap(), &body, false).unwrap().create,
    };
    let prompt = app.directory.preview(None, create.clone(), &engine).await.unwrap().tokens;
    let id = create.response_id;
    let (handle, reader) =
        app.directory.ephemeral(create::open(&Identity::local(), Vec::new()), create, None).await.unwrap();
    let state = finish(reader, &handle, id).await.unwrap();
    // It answers behind that; or is gone, and had begun it.
    let _ = handle.state().await;
    (prompt, state.response(id).unwrap().clone())
}

#[tokio::test]
async fn the_next_request_of_a_client_reuses_the_prompt_of_the_one_before() {
    let folder = TempDir::new().unwrap();
    let app = app(&folder, LoadOptions::default()).await;
    let recordings = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/clients")).unwrap();
    let mut count = 0;
    for recording in recordings.map(|entry| entry.unwrap().path()) {
        let recorded: Value = serde_json::from_str(&std::fs::read_to_string(&recording).unwrap()).unwrap();
        let path = recorded["path"].as_str().unwrap();
        if recorded["socket"] == true || path.ends_with("count_tokens") {
            continue;
        }
        let (first, _) = answered(&app, path, &recorded["requests"][0]).await;
        let (second, response) = answered(&app, path, &recorded["requests"][1]).await;
        // The last token is always run: the answer's first one follows from it.
        let ahead = &second[..second.len() - 1];
        let common = first.iter().zip(ahead).take_while(|(one, other)| one == other).count();
        assert!(common > BLOCK, "{}", recording.display());
        let reused = response.usage.cached_tokens as usize;
        assert!(reused >= common / BLOCK * BLOCK, "{}: {reused} of {common} tokens", recording.display());
        if recorded["form"] == true {
            assert_ne!(response.status.as_str(), "failed", "{}: it is held to its form", recording.display());
        }
        count += 1;
    }
    assert_eq!(count, 22, "recordings");
}

#[tokio::test]
async fn what_was_only_prefilled_is_not_run_again() {
    let folder = TempDir::new().unwrap();
    let app = app(&folder, LoadOptions::default()).await;
    let recorded = include_str!("../../tests/golden/clients/codex_ws.json");
    let recorded: Value = serde_json::from_str(recorded).unwrap();
    let requests = recorded["requests"].as_array().unwrap();
    let warm = requests[0].clone();
    let request = serde_json::from_value(warm.clone()).unwrap();
    let Done::Created { id, handle, reader } =
        create::perform(&app, &Identity::local(), &request, &warm, None).await.unwrap()
    else {
        panic!("it has no key");
    };
    // Whoever reads on keeps the conversation, as its socket does.
    let mut reader = *reader;
    while !is_end_of(&reader.next().await.unwrap(), id) {}
    let prefilled = reader.state().response(id).unwrap().usage;
    assert_eq!((prefilled.cached_tokens, prefilled.output_tokens), (0, 0));
    assert!(prefilled.input_tokens as usize > BLOCK, "else nothing is proven: {prefilled:?}");
    let mut turn = requests[1].clone();
    turn.as_object_mut().unwrap().shift_remove("previous_response_id");
    turn["max_output_tokens"] = 2.into();
    let request = serde_json::from_value(turn.clone()).unwrap();
    let mut create =
        create::create(app.engine(None).unwrap().model(), Known::default(), &request, &turn, &Toolbox::default())
            .unwrap();
    (create.previous, create.config.store) = (Some(id), false);
    let next = create.response_id;
    handle.create(create, None).await.unwrap();
    while !is_end_of(&reader.next().await.unwrap(), next) {}
    let usage = reader.state().response(next).unwrap().usage;
    let whole = prefilled.input_tokens as usize / BLOCK * BLOCK;
    assert!(usage.cached_tokens as usize >= whole, "{usage:?} behind {prefilled:?}");
}

#[tokio::test]
async fn keys_and_values_are_shared_by_those_who_name_one_cache_only() {
    let folder = TempDir::new().unwrap();
    let app = app(&folder, LoadOptions::default()).await;
    let text = "the quick brown fox jumps over the lazy dog ".repeat(8);
    let cached = async |salt: serde_json::Value| {
        let messages = json!([{"role": "user", "content": text}]);
        let body = json!({"messages": messages, "cache_salt": salt});
        answered(&app, "/v1/chat/completions", &body).await.1.usage.cached_tokens as usize
    };
    for salt in ["one".into(), Value::Null, "other".into()] {
        assert_eq!(cached(salt).await, 0);
    }
    for salt in ["one".into(), Value::Null, "other".into()] {
        assert!(cached(salt).await >= BLOCK);
    }
}

#[tokio::test]
async fn what_changes_in_the_middle_of_messages_leaves_the_tokens_in_front_of_it() {
    let folder = TempDir::new().unwrap();
    let template = builtin_template("hermes").map(str::to_owned);
    let app = app(&folder, LoadOptions { template, ..LoadOptions::default() }).await;
    let tool = |name: &str, is_put_off: bool| {
        let schema = json!({"type": "object"});
        json!({"name": name, "input_schema": schema, "defer_loading": is_put_off})
    };
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let begin = [said("user", "one"), said("assistant", "two"), said("user", "three")];
    let body = |more: &[Value]| {
        let messages = [&begin, more].concat();
        json!({"tools": [tool("look", false), tool("weather", true)], "messages": messages})
    };
    let (before, _) = answered(&app, "/v1/messages", &body(&[])).await;
    // A byte is a token. Behind what was said last there is the head of the answer.
    let head: Vec<u32> = "assistant".bytes().map(u32::from).collect();
    let front = &before[..before.windows(head.len()).rposition(|tokens| tokens == head).unwrap()];
    let change = |kind: &str, name: &str| {
        let tool = json!({"type": "tool_reference", "name": name});
        json!({"role": "system", "content": [{"type": kind, "tool": tool}]})
    };
    for more in [
        said("system", "Be brief."),
        json!({"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}),
        json!({"role": "system", "content": [], "output_config": {"effort": "high"}}),
        change("tool_addition", "weather"),
        change("tool_removal", "look"),
    ] {
        let (changed, response) = answered(&app, "/v1/messages", &body(std::slice::from_ref(&more))).await;
        assert!(changed.starts_with(front) && changed.len() > before.len(), "{more}");
        assert!(response.usage.cached_tokens as usize >= front.len() / BLOCK * BLOCK, "{more}");
    }
}

#[tokio::test]
async fn a_billing_line_that_varies_and_a_mark_that_moves_cost_nothing() {
    let folder = TempDir::new().unwrap();
    let app = app(&folder, LoadOptions::default()).await;
    let recorded = include_str!("../../tests/golden/clients/claude_code_tool.json");
    let mut body = serde_json::from_str::<Value>(recorded).unwrap()["requests"][0].clone();
    let (first, _) = answered(&app, "/v1/messages", &body).await;
    body["system"][0]["text"] = "x-anthropic-billing-header: cc_version=2.1.180.fff; cch=0a1b2;".into();
    let last = &mut body["messages"][1]["content"];
    *last = last[0]["text"].clone();
    let (second, response) = answered(&app, "/v1/messages", &body).await;
    assert_eq!(first, second);
    // The last token is always run: the answer's first one follows from it.
    assert_eq!(response.usage.cached_tokens as usize, (second.len() - 1) / BLOCK * BLOCK);
}
