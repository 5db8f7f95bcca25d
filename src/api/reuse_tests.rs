//! What of an answer's prompt a client that keeps its conversation itself finds computed when it comes back, counted in
//! the tokens of an engine: what it sealed, and what was foreseen.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::object;
use super::replay_tests::{BLOCK, answered, answered_within, app, parts};
use crate::conversation::Response;
use crate::engine::LoadOptions;
use crate::prompt::{Effort, builtin_template};

/// A model that thinks in front of each answer, and is shown what it thought before.
const THINKING: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}</think>{% endif %}\
    {{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

/// Forbids all tokens but small letters, as far as an answer's form does not ask for others: half of the bytes are no
/// text by themselves.
fn letters_only(vocabulary: usize) -> Value {
    let letters = usize::from(b'a')..=usize::from(b'z');
    let others = (0..vocabulary).filter(|token| !letters.contains(token));
    Value::Object(others.map(|token| (token.to_string(), json!(-100))).collect())
}

/// What the client of a response has of its output.
fn shown(response: &Response) -> Vec<Value> {
    response.output.iter().map(|output| serde_json::to_value(object::output(response, output)).unwrap()).collect()
}

#[tokio::test]
async fn sealed_reasoning_that_comes_back_has_its_tokens_found_to_the_last_one() {
    let folder = TempDir::new().unwrap();
    let effort = Effort { budget_tokens: Some(40), ..Effort::default() };
    let efforts = [("low".to_owned(), effort)].into();
    let app =
        app(&folder, LoadOptions { template: Some(THINKING.to_owned()), efforts, ..LoadOptions::default() }).await;
    let vocabulary = app.engine(None).unwrap().model().tokenizer.vocab_size();
    // The answer behind the thought is text that is encoded as it was sampled.
    let schema = json!({"enum": ["a-sentence-that-is-long-enough-to-fill-some-blocks-of-the-cache"]});
    let question = [json!({"role": "user", "content": "Think-and-say-it."})];
    let ask = |input: Vec<Value>| {
        json!({
            "input": input,
            "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "low"},
            "logit_bias": letters_only(vocabulary),
            "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}},
            "store": false,
        })
    };
    let (first, response) = answered_within(&app, "/v1/responses", &ask(question.to_vec()), 400).await;
    let answer = shown(&response);
    let kinds: Vec<&Value> = answer.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message"], "{answer:?}");
    let sealed = answer[0]["encrypted_content"].as_str().unwrap();
    assert!(response.output[0].tokens.len() >= 40 && !sealed.is_empty(), "{answer:?}");
    let held = [first, response.tokens()].concat();
    let again = |answer: &[Value]| ask([&question, answer, &question].concat());

    let (prompt, next) = answered(&app, "/v1/responses", &again(&answer)).await;
    // Which of its ends a model writes is its own choice, and nothing that is computed: a template has but one.
    let said = &held[..held.len() - 1];
    assert!(prompt.starts_with(said), "the prompt goes on behind the tokens of the answer");
    // The last token of an answer is sampled and not run.
    assert_eq!(next.usage.cached_tokens as usize, said.len() / BLOCK * BLOCK);
    // As text it is other tokens, or some that are left out.
    let (prompt, _) = answered(&app, "/v1/responses", &again(&answer[1..])).await;
    assert!(!prompt.starts_with(said), "else nothing is proven");
}

/// What a client asks for: a call that is certain, and then what comes of its result.
struct Client {
    path: &'static str,
    tools: Value,
}

const RESULT: &str = "the-result-of-the-call";

impl Client {
    fn all() -> [Self; 2] {
        let parameters = json!({"type": "object", "properties": {"at": {"enum": ["sea"]}}, "required": ["at"],
            "additionalProperties": false});
        let look = json!({"name": "look", "parameters": parameters, "strict": true});
        let mut flat = look.clone();
        flat["type"] = "function".into();
        let nested = json!({"type": "function", "function": look});
        [
            Self { path: "/v1/responses", tools: json!([flat]) },
            Self { path: "/v1/chat/completions", tools: json!([nested]) },
        ]
    }

    fn ask(&self, transcript: Vec<Value>, foresees: bool) -> Value {
        let field = if self.path.ends_with("responses") { "input" } else { "messages" };
        let mut body = json!({
            "tools": self.tools,
            "parallel_tool_calls": false,
            "store": false,
            "temperature": 0,
            "nvext": {"agent_hints": {"speculative_prefill": foresees}},
        });
        body[field] = [vec![json!({"role": "user", "content": "Look-where-the-ship-is."})], transcript].concat().into();
        body
    }

    /// The call and its result, as the client repeats them.
    fn transcript(&self, response: &Response) -> Vec<Value> {
        let call = shown(response).pop().unwrap();
        let id = call["call_id"].clone();
        if self.path.ends_with("responses") {
            return vec![call, json!({"type": "function_call_output", "call_id": id, "output": RESULT})];
        }
        let function = json!({"name": call["name"], "arguments": call["arguments"]});
        let calls = json!([{"id": id, "type": "function", "function": function}]);
        vec![
            json!({"role": "assistant", "content": null, "tool_calls": calls}),
            json!({"role": "tool", "tool_call_id": id, "content": RESULT}),
        ]
    }
}

#[tokio::test]
async fn what_was_computed_while_a_call_was_made_is_not_run_again_with_its_result() {
    for client in Client::all() {
        let mut seen = Vec::new();
        for foresees in [false, true] {
            let folder = TempDir::new().unwrap();
            let template = builtin_template("hermes").map(str::to_owned);
            let (app, engine, foresight) = parts(&folder, LoadOptions { template, ..LoadOptions::default() }).await;
            let mut ask = client.ask(Vec::new(), foresees);
            ask["tool_choice"] = "required".into();
            let (_, response) = answered_within(&app, client.path, &ask, 400).await;
            let answered_at = engine.stats().tokens_run;
            foresight.idle().await;
            let run_before = engine.stats().tokens_run;
            // What comes behind this one is of no interest.
            let ask = client.ask(client.transcript(&response), false);
            let (prompt, next) = answered(&app, client.path, &ask).await;
            let (run, usage) = (engine.stats().tokens_run - run_before, next.usage);
            let new = prompt.len() as u64 - u64::from(usage.cached_tokens);
            assert_eq!(run, new + u64::from(usage.output_tokens) - 1, "{}: what is not cached is run", client.path);
            seen.push((prompt, usage.cached_tokens as usize, run, run_before - answered_at));
        }
        let [(prompt, plain, plain_run, _), (again, foreseen, run, ahead)] = &seen[..] else { unreachable!() };
        assert_eq!(prompt, again);
        // All that is certain is there: everything in front of the result, in whole blocks.
        let result: Vec<u32> = RESULT.bytes().map(u32::from).collect();
        let certain = prompt.windows(result.len()).position(|tokens| tokens == result).unwrap();
        assert_eq!(*foreseen, certain / BLOCK * BLOCK, "{}", client.path);
        assert!(plain < foreseen, "{}: else nothing is proven", client.path);
        assert_eq!((plain_run - run) as usize, foreseen - plain, "{}: it is not run again", client.path);
        // Some of it may be run before anybody could look.
        assert!(*ahead as usize <= foreseen - plain + 1, "{}: and nothing besides", client.path);
    }
}
