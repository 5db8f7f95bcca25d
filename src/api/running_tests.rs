//! OpenAI's routes on a model that runs, as their clients see them: what a scripted one cannot show.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::replay_tests::{BLOCK, parts};
use super::{Doors, router, serve};
use crate::config::Config;
use crate::engine::{Engine, LoadOptions, LocalEngine};
use crate::prompt::builtin_template;

/// Nothing here takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_mins(1);

/// A server of the tiny model, to which a byte is a token.
struct Served {
    address: String,
    client: reqwest::Client,
    engine: Arc<LocalEngine>,
    _folder: TempDir,
}

impl Served {
    async fn start(options: LoadOptions) -> Self {
        let folder = TempDir::new().unwrap();
        let (app, engine, _) = parts(&folder, options).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(serve(listener, router(app), Doors::new(&Config::default()), std::future::pending()));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { address, client, engine, _folder: folder }
    }

    fn request(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.client.post(format!("{}{path}", self.address)).json(body)
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        self.request(path, body).send().await.unwrap().json().await.unwrap()
    }

    /// Waits until the engine has so much to do.
    async fn has(&self, running: usize, waiting: usize) {
        let is_so = || {
            let load = self.engine.load();
            load.running == running && load.waiting >= waiting
        };
        let soon = timeout(PATIENCE, async {
            while !is_so() {
                yield_now().await;
            }
        });
        soon.await.expect("this happens, or never will");
    }
}

fn with(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_refused_unless_its_oldest_turns_may_go() {
    let served = Served::start(LoadOptions { context_length: Some(512), ..LoadOptions::default() }).await;
    let old = |_| [user(&"old ".repeat(30)), json!({"role": "assistant", "content": "so"})];
    let input: Vec<Value> = (0..6).flat_map(old).chain([user("new")]).collect();
    let ask = json!({"input": input, "instructions": "Be brief.", "max_output_tokens": 2, "store": false});
    for fields in [json!({}), json!({"truncation": "disabled"}), json!({"truncation": null})] {
        let refused = served.post("/v1/responses", &with(ask.clone(), &fields)).await;
        assert_eq!(refused["error"]["code"], "context_length_exceeded", "{refused}");
    }
    let auto = json!({"truncation": "auto"});
    let answer = served.post("/v1/responses", &with(ask.clone(), &auto)).await;
    assert_eq!((&answer["truncation"], &answer["error"]), (&json!("auto"), &Value::Null), "{answer}");
    let tokens = answer["usage"]["input_tokens"].as_u64().unwrap();
    // A turn has about 150 tokens.
    assert!((350..=510).contains(&tokens), "{tokens} tokens: as many turns as fit");
    let counted = served.post("/v1/responses/input_tokens", &with(ask.clone(), &auto)).await;
    assert_eq!(counted["input_tokens"], tokens, "what is counted is what is run");

    let long = json!({"input": "new ".repeat(200), "truncation": "auto"});
    let refused = served.post("/v1/responses", &with(ask.clone(), &long)).await;
    assert_eq!(refused["error"]["code"], "context_length_exceeded", "the newest turn stays: {refused}");
    let refused = served.post("/v1/responses", &with(ask, &json!({"truncation": "sometimes"}))).await;
    assert_eq!(
        (&refused["error"]["param"], &refused["error"]["code"]),
        (&json!("truncation"), &json!("invalid_input"))
    );
}

#[tokio::test]
async fn a_conversation_that_is_kept_goes_on_behind_its_models_context() {
    let served = Served::start(LoadOptions { context_length: Some(512), ..LoadOptions::default() }).await;
    let mut previous = Value::Null;
    for number in 0..6 {
        let text = format!("question {number} {}", "and ".repeat(30));
        let body =
            json!({"input": text, "previous_response_id": previous, "max_output_tokens": 2, "truncation": "auto"});
        let answer = served.post("/v1/responses", &body).await;
        assert!(answer["usage"]["input_tokens"].as_u64() <= Some(510), "{answer}");
        previous = answer["id"].clone();
    }
    let body = json!({"input": "and?", "previous_response_id": previous, "max_output_tokens": 2});
    let refused = served.post("/v1/responses", &body).await;
    assert_eq!(refused["error"]["code"], "context_length_exceeded", "else nothing is proven: {refused}");
}

#[tokio::test]
async fn what_a_closed_connection_has_run_of_its_prompt_is_not_run_again() {
    let served = Served::start(LoadOptions::default()).await;
    // It does not end by itself.
    let asked = json!({"input": "sea,".repeat(100), "store": false, "seed": 7, "logit_bias": {"257": -100}});
    let streamed = with(asked.clone(), &json!({"stream": true, "max_output_tokens": 10_000}));
    let mut stream = served.request("/v1/responses", &streamed).send().await.unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("response.output_text.delta") {
        seen.extend_from_slice(&stream.chunk().await.unwrap().expect("it says something"));
    }
    drop(stream);
    served.has(0, 0).await;
    let again = served.post("/v1/responses", &with(asked, &json!({"max_output_tokens": 1}))).await;
    let prompt = again["usage"]["input_tokens"].as_u64().unwrap() as usize;
    let cached = again["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize;
    // The last token is always run.
    assert_eq!(cached, (prompt - 1) / BLOCK * BLOCK, "{again}");
}

#[tokio::test]
async fn what_is_more_urgent_starts_first_where_all_must_wait() {
    let served = Served::start(LoadOptions { step_sequences: 1, ..LoadOptions::default() }).await;
    let ask = |words: usize, tokens: u32, fields: &Value| {
        let body = json!({"messages": [user(&"sea,".repeat(words))], "max_tokens": tokens, "temperature": 0});
        with(body, fields)
    };
    // It does not end by itself, nobody is more urgent, and it is left once the others wait.
    let first_of_all = json!({"nvext": {"agent_hints": {"strict_priority": 5}}, "logit_bias": {"257": -100}});
    let endless = with(ask(1, 16_000, &first_of_all), &json!({"stream": true}));
    let running = served.request("/v1/chat/completions", &endless).send().await.unwrap();
    // From the least urgent on, each one with a longer beginning of one text than what is more urgent.
    let hinted = |priority: i64| json!({"nvext": {"agent_hints": {"priority": priority}}});
    let fields =
        [hinted(-10), json!({"service_tier": "flex"}), json!({}), json!({"service_tier": "priority"}), hinted(10)];
    let words = |place: usize| 100 - 20 * place;
    let mut asked = Vec::new();
    for (place, fields) in fields.iter().enumerate() {
        let request = served.request("/v1/chat/completions", &ask(words(place), 1, fields));
        asked.push(tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() }));
        served.has(1, place + 1).await;
    }
    drop(running);
    let mut cached = Vec::new();
    for answer in asked {
        let usage = answer.await.unwrap()["usage"].clone();
        cached.push(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize);
    }
    // Who starts finds what was run before him: of the next more urgent one all that they have in common, and no more.
    // The head of the message is common to all, and is no whole block.
    let head = "|user\n".len();
    let found = |place: usize| fields.get(place + 1).map_or(0, |_| (head + 4 * words(place + 1)) / BLOCK * BLOCK);
    assert_eq!(cached, (0..fields.len()).map(found).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_chat_holds_the_call_of_a_custom_tool_to_its_grammar() {
    let template = builtin_template("hermes").map(str::to_owned);
    let served = Served::start(LoadOptions { template, ..LoadOptions::default() }).await;
    let format = json!({"type": "grammar", "grammar": {"syntax": "regex", "definition": "[ab]{3}"}});
    let tools = json!([{"type": "custom", "custom": {"name": "say", "format": format}}]);
    for choice in [json!({"type": "custom", "custom": {"name": "say"}}), json!("required")] {
        let body =
            json!({"messages": [user("hi")], "tools": tools, "tool_choice": choice, "parallel_tool_calls": false});
        let answer = served.post("/v1/chat/completions", &body).await;
        let call = &answer["choices"][0]["message"]["tool_calls"][0];
        assert_eq!((&call["type"], &call["custom"]["name"]), (&json!("custom"), &json!("say")), "{answer}");
        let input = call["custom"]["input"].as_str().unwrap();
        assert!(input.len() == 3 && input.chars().all(|letter| "ab".contains(letter)), "{input}");
    }
}

#[tokio::test]
async fn the_best_of_several_completions_are_those_whose_tokens_were_likeliest() {
    let served = Served::start(LoadOptions::default()).await;
    let ask = |fields: &Value| {
        let body = json!({"prompt": "once", "max_tokens": 6, "temperature": 1.5, "seed": 7, "logprobs": 0});
        with(body, fields)
    };
    let all = served.post("/v1/completions", &ask(&json!({"n": 5}))).await;
    let mut all: Vec<(f64, Value)> = all["choices"].as_array().unwrap().iter().map(rated).collect();
    all.sort_by(|one, other| other.0.total_cmp(&one.0));
    let best = served.post("/v1/completions", &ask(&json!({"n": 2, "best_of": 5}))).await;
    let best: Vec<(f64, Value)> = best["choices"].as_array().unwrap().iter().map(rated).collect();
    assert_eq!(best, all[..2]);
    assert!(all[0].0 > all[4].0, "else nothing is proven");
}

/// How likely a choice's tokens were on average, and its text.
fn rated(choice: &Value) -> (f64, Value) {
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    let sum: f64 = logprobs.iter().map(|one| one.as_f64().unwrap()).sum();
    (sum / logprobs.len() as f64, choice["text"].clone())
}
