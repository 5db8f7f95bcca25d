//! API keys with the real binary: the command beside a running server, tenants on a real model, and that no secret is
//! written anywhere.

use std::path::Path;

use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

use crate::support::{Server, Site};

/// Creates a key with these arguments, and gives its secret.
pub(crate) fn create(site: &Site, arguments: &[&str]) -> String {
    let output = site.run(&[&["keys", "create"], arguments].concat(), b"");
    String::from_utf8(output).unwrap().trim().to_owned()
}

/// Sends a body, or asks without one.
pub(crate) async fn ask(server: &Server, key: &str, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
    let client = Client::builder().no_proxy().build().unwrap();
    let url = format!("{}{path}", server.base);
    let request = body.map_or_else(|| client.get(&url), |body| client.post(&url).json(body));
    let answer = request.bearer_auth(key).send().await.unwrap();
    (answer.status(), serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default())
}

pub(crate) fn hang_up(server: &Server) {
    let told = std::process::Command::new("kill").args(["-HUP", &server.process().to_string()]).status().unwrap();
    assert!(told.success());
}

#[tokio::test]
async fn keys_are_created_listed_and_revoked_while_a_server_runs() {
    let site = Site::scripted(&json!([{"deltas": ["hello"]}]));
    let server = site.start().await;
    assert_eq!(ask(&server, "anything", "/v1/models", None).await.0, 200);

    let limits = ["--requests-per-minute", "5", "--tokens-per-minute", "900", "--concurrent-responses", "2"];
    let ann = create(&site, &["ann"]);
    let made = site.run(&[&["keys", "create", "ci", "--tenant", "builds", "--json"], &limits[..]].concat(), b"");
    let made: Value = serde_json::from_slice(&made).unwrap();
    let ci = made["key"].as_str().unwrap();
    assert!(ann.starts_with("ms_") && ci.starts_with("ms_"));
    let listed: Value = serde_json::from_slice(&site.run(&["keys", "list", "--json"], b"")).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["tenant"]), (&json!("ann"), &json!("default")));
    assert_eq!((&listed[1]["id"], &listed[1]["limits"]["tokens_per_minute"]), (&made["id"], &json!(900)));
    let text = String::from_utf8(site.run(&["keys", "list"], b"")).unwrap();
    assert!(text.contains("tenant builds  5 requests/min  900 tokens/min  2 at once"), "{text}");
    assert!(!text.contains(ci) && !listed.to_string().contains(ci), "a secret is shown once");

    assert_eq!(ask(&server, "anything", "/v1/models", None).await.0, 401);
    assert_eq!(ask(&server, &ann, "/v1/models", None).await.0, 200);
    let conversation = ask(&server, &ann, "/v1/conversations", Some(&json!({}))).await.1["id"].clone();
    let events = format!("{}/v1/conversations/{}/events", server.base, conversation.as_str().unwrap());
    let client = Client::builder().no_proxy().build().unwrap();
    let stream = client.get(events).bearer_auth(&ann).send().await.unwrap();
    site.run(&["keys", "revoke", "ann"], b"");
    // Nobody asks anything: the signal alone ends what the key had opened.
    hang_up(&server);
    stream.bytes().await.unwrap();
    assert_eq!(ask(&server, &ann, "/v1/models", None).await.0, 401);
    assert_eq!(ask(&server, ci, "/v1/models", None).await.0, 200);

    assert!(site.refused(&["keys", "revoke", "ann"]).contains("no key has the name or id ann"));
    assert!(site.refused(&["keys", "create", "ci"]).contains("a key named ci already"));
    assert!(site.refused(&["keys", "create", "x", "--requests-per-minute", "0"]).contains("0 is not in 1.."));
    assert_eq!(server.terminate().await, Some(0));
}

#[test]
fn a_creation_that_dies_leaves_the_keys_as_they_were() {
    let site = Site::scripted(&json!([]));
    create(&site, &["ann"]);
    let before = site.run(&["keys", "list", "--json"], b"");
    assert!(site.dies_at(&["keys", "create", "bob"], "keys_written:1"));
    assert_eq!(site.run(&["keys", "list", "--json"], b""), before);
    create(&site, &["bob"]);
}

#[test]
fn the_network_is_listened_to_only_where_clients_are_asked_for_a_key() {
    let site = Site::scripted(&json!([]));
    let script = site.path().join("script.json").display().to_string();
    let refused = site.refused(&["serve", "--listen", "0.0.0.0:0", "--scripted", &script]);
    assert!(refused.contains("0.0.0.0:0 is refused") && refused.contains("midstream keys create NAME"), "{refused}");
    std::fs::create_dir_all(site.path().join("data")).unwrap();
    std::fs::write(site.path().join("data/keys.json"), "{").unwrap();
    let refused = site.refused(&["serve", "--listen", "127.0.0.1:0", "--scripted", &script]);
    assert!(refused.contains("keys.json holds no API keys"), "{refused}");
}

/// What the prompt of a first turn found in the cache, and the conversation.
async fn first_turn(server: &Server, key: &str, salt: Option<&str>) -> (u64, String) {
    let input = "A lighthouse keeper lives alone on a small island. Every evening he climbs the stairs and lights the \
                 lamp. One night the lamp does not burn. What can he do? Tell me in a few sentences.";
    let mut body = json!({"input": input, "max_output_tokens": 4, "temperature": 0});
    body["cache_salt"] = salt.into();
    let (status, answer) = ask(server, key, "/v1/responses", Some(&body)).await;
    assert_eq!(status, 200, "{answer}");
    let cached = answer["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (cached, answer["id"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_prompt_of_one_tenant_finds_nothing_of_another_in_the_cache_or_on_disk() {
    let site = Site::real_model();
    let (ann, amy) = (create(&site, &["ann", "--tenant", "red"]), create(&site, &["amy", "--tenant", "red"]));
    let (eve, bob) = (create(&site, &["eve", "--tenant", "blue"]), create(&site, &["bob"]));
    let server = site.start().await;
    let (cached, hers) = first_turn(&server, &ann, None).await;
    assert_eq!(cached, 0);
    for stranger in [&eve, &bob] {
        assert_eq!(first_turn(&server, stranger, None).await.0, 0, "no cached tokens");
    }
    let (shared, _) = first_turn(&server, &amy, None).await;
    assert!(shared >= 32, "another key of the tenant has them: {shared}");
    assert_eq!(first_turn(&server, &ann, Some("mine")).await.0, 0, "a cache with a name is its own");
    assert_eq!(first_turn(&server, &amy, Some("mine")).await.0, shared);
    assert_eq!(first_turn(&server, &bob, Some("mine")).await.0, 0, "in each tenant");
    assert_eq!(server.terminate().await, Some(0));

    let server = site.start().await;
    let next = json!({"input": "And then?", "max_output_tokens": 4, "previous_response_id": hers});
    let (_, answer) = ask(&server, &ann, "/v1/responses", Some(&next)).await;
    let restored = answer["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(restored >= shared, "her own file is read back: {answer}");
    let fresh = create(&site, &["zoe", "--tenant", "green"]);
    assert_eq!(first_turn(&server, &fresh, None).await.0, 0, "and gives a new tenant nothing");
    assert_eq!(first_turn(&server, &amy, None).await.0, shared);
    assert_eq!(server.terminate().await, Some(0));
}

/// Every file below the folder, with its text.
pub(crate) fn texts(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(texts(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    found
}

#[tokio::test]
async fn no_key_is_written_anywhere_and_no_prompt_is_logged() {
    const PROMPT: &str = "prompt-that-is-secret";
    const WRONG: &str = "ms_wrong-key-that-is-secret";
    let script = json!([{"match": "break", "deltas": [], "finish": "error"}, {"deltas": ["said"]}]);
    let log = tempfile::NamedTempFile::new().unwrap();
    let redirect = format!("exec \"$0\" \"$@\" 2>>{}", log.path().display());
    let site = Site::scripted(&script).under(&["sh", "-c", &redirect]);
    let key = create(&site, &["ann"]);
    let server = site.try_start(&[("MIDSTREAM_LOG", "midstream=trace,info")]).await.unwrap();
    let mut errors = Vec::new();
    let prompt = |text: &str| format!("{text} {PROMPT}");
    for body in [
        json!({"input": prompt("hi"), "instructions": PROMPT, "metadata": {"note": PROMPT}}),
        json!({"input": prompt("break")}),
        json!({"input": prompt("hi"), "temperature": {"a": PROMPT}}),
        json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": 7, "more": PROMPT}]}]}),
        json!({"input": prompt("hi"), "tools": [{"type": "function", "name": 3, "description": PROMPT}]}),
        json!({"input": prompt("hi"), "stop": [PROMPT], "text": {"format": {"type": "json_schema", "schema": PROMPT}}}),
    ] {
        for path in ["/v1/responses", "/v1/chat/completions", "/v1/messages", "/v1/conversations"] {
            for shown in [key.as_str(), WRONG] {
                let (status, answer) = ask(&server, shown, path, Some(&body)).await;
                if status != 200 {
                    errors.push(answer.to_string());
                }
            }
        }
    }
    let broken =
        Client::builder().no_proxy().build().unwrap().post(format!("{}/v1/responses?key={WRONG}", server.base));
    let broken = broken.header("x-api-key", &key).body(format!("{{\"input\": \"{PROMPT}")).send().await.unwrap();
    errors.push(broken.text().await.unwrap());
    site.run(&["keys", "revoke", "ann"], b"");
    hang_up(&server);
    errors.push(ask(&server, &key, "/v1/models", None).await.1.to_string());
    assert_eq!(server.terminate().await, Some(0));

    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("reading the API keys again"), "there is a log: {log}");
    assert!(errors.len() > 30);
    for secret in [&key, WRONG] {
        assert!(!log.contains(secret), "logged: {log}");
        for (file, text) in texts(site.path()) {
            assert!(!text.contains(secret), "written to {file}");
        }
    }
    assert!(!log.contains(PROMPT), "logged: {log}");
    for error in &errors {
        assert!(!error.contains(&key) && !error.contains(WRONG) && !error.contains("secret"), "{error}");
        assert!(!error.contains("src/") && !error.contains(&site.path().display().to_string()), "{error}");
    }
}
