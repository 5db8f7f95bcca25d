//! The prompt of a successor: what its predecessor said before it was cut, as far as the transcript keeps it, and
//! nothing else.

use std::sync::Arc;

use serde_json::json;

use super::teller::{Teller, tokenizer};
use super::tests::{create, parts, soon};
use super::{Open, start};
use crate::config::Config;
use crate::conversation::{Intervene, Item, ItemBody, Response};
use crate::engine::{Engine, ModelInfo};
use crate::ids::{FreshIds, InterventionId, ItemId};
use crate::prompt::{ChatTemplate, Role};
use crate::store::MemoryJournal;

const END: u32 = 257;
/// Shows earlier reasoning between its tags.
const KEEPS: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}\
    {{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant{{ '\n' }}";
/// Shows no reasoning.
const DROPS: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
    {% endfor %}<|im_start|>assistant{{ '\n' }}";

/// A letter each.
fn letters(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// What a model with this template is given, first and behind a steer that cuts its answer once `until` holds.
struct Steered {
    first: Vec<u32>,
    second: Vec<u32>,
    /// What the second has in place of the first, in letters.
    text: String,
}

async fn steered(template: &str, said: &str, until: impl Fn(&Response) -> bool) -> Steered {
    let journal = Arc::new(MemoryJournal::new());
    let mut parts = parts(&journal, &json!([{"deltas": ["unused"]}]), Config::default());
    let model = parts.catalog.get(None).unwrap().model().clone();
    let template = Arc::new(ChatTemplate::new(template, "", "<|im_end|>").unwrap());
    let tokenizer = Arc::new(tokenizer(&["<|im_start|>", "<|im_end|>"], &[]));
    let (tool_format, reasoning) = ("hermes".parse().unwrap(), "qwen3".parse().unwrap());
    let model = ModelInfo { tokenizer, template, tool_format, reasoning, ..model };
    let answers = vec![letters(said), [letters("Yes."), vec![END]].concat()];
    let teller = Teller::serve_halting(&mut parts, model, answers);
    let directory = start(parts.clone()).await.unwrap().directory();
    let create = create(&parts, &[]);
    let id = create.response_id;
    let (handle, mut reader) = directory.create_in_new(Open::default(), create, None).await.unwrap();
    while !reader.state().response(id).is_some_and(&until) {
        soon(reader.next()).await.expect("it goes on");
    }
    let fresh = &mut FreshIds::random();
    let items = vec![Item::message(ItemId::draw(fresh), Role::User, "And?")];
    let steer = Intervene::now(InterventionId::draw(fresh), id, items);
    let successor = handle.intervene(steer, None).await.unwrap().successor_id.unwrap();
    let state = soon(handle.ended(successor)).await.unwrap();
    assert_eq!(state.response(successor).unwrap().status.as_str(), "completed");
    let prompts = teller.prompts();
    let [first, second] = &prompts[..] else { panic!("two prompts were run") };
    let behind = first.iter().zip(second).take_while(|(one, other)| one == other).count();
    let text = teller.model().tokenizer.spell(&second[behind..]);
    Steered { first: first.clone(), second: second.clone(), text }
}

/// Whether the response's open item is of this kind and ends with this text.
fn says(response: &Response, text: &str, is_kind: impl Fn(&ItemBody) -> bool) -> bool {
    response.open_item().is_some_and(|open| is_kind(&open.item.body) && open.item.text().ends_with(text))
}

#[tokio::test]
async fn an_answer_that_is_cut_begins_the_successors_prompt_token_for_token() {
    let is_text = |body: &ItemBody| matches!(body, ItemBody::Message { .. });
    let Steered { first, second, text } = steered(KEEPS, "The sea is", |response| says(response, "is", is_text)).await;
    assert!(second.starts_with(&[first, letters("The sea is"), vec![END]].concat()), "{text}");
    assert_eq!(text, "The sea is<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n");
}

#[tokio::test]
async fn a_call_that_is_cut_is_not_in_the_successors_prompt() {
    let is_call = |body: &ItemBody| matches!(body, ItemBody::FunctionCall { .. });
    let said = "Well<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x";
    let until = |response: &Response| says(response, "", is_call);
    let Steered { first, second, text } = steered(KEEPS, said, until).await;
    assert!(second.starts_with(&[first, letters("Well"), vec![END]].concat()), "{text}");
    assert!(!text.contains("tool_call"), "{text}");
}

#[tokio::test]
async fn reasoning_that_is_cut_is_closed_where_the_template_keeps_it_and_dropped_where_it_does_not() {
    let is_thought = |body: &ItemBody| matches!(body, ItemBody::Reasoning { .. });
    let until = |response: &Response| says(response, "deep", is_thought);
    let kept = steered(KEEPS, "<think>It is deep", until).await;
    let thought = [kept.first, letters("<think>It is deep</think>"), vec![END]].concat();
    assert!(kept.second.starts_with(&thought), "{}", kept.text);
    let dropped = steered(DROPS, "<think>It is deep", until).await;
    assert!(!dropped.text.contains("think") && !dropped.text.contains("deep"), "{}", dropped.text);
    assert!(dropped.text.contains("And?"), "{}", dropped.text);
}
