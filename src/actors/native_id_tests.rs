//! The ids that a model gave its calls: its template shows it these again, on calls and on results, in the next turn,
//! after a restart, in a fork and behind trimmed events; and what was in the prompt stays in front of what is new.

use std::sync::Arc;

use serde_json::json;

use super::teller::Teller;
use super::tests::{create, parts, soon};
use super::{ConversationHandle, DirectoryHandle, Open, Parts, start};
use crate::config::Config;
use crate::conversation::{CallKind, Create, Item, ItemBody, ItemStatus, State};
use crate::engine::ModelInfo;
use crate::ids::{CallId, FreshIds, ItemId, ResponseId};
use crate::prompt::{ChatTemplate, Role, builtin_template};
use crate::store::MemoryJournal;

/// `<|im_end|>` of the tokenizer whose tokens are bytes.
const END: u32 = 257;

/// A server with a model of this template that gives these answers.
pub(super) struct Served {
    pub(super) parts: Parts,
    teller: Arc<Teller>,
    pub(super) directory: DirectoryHandle,
}

impl Served {
    pub(super) async fn new(format: &str, template: &str, answers: &[&'static str]) -> Self {
        let journal = Arc::new(MemoryJournal::new());
        let mut parts = parts(&journal, &json!([{"deltas": ["unused"]}]), Config::default());
        let model = parts.catalog.get(None).unwrap().model().clone();
        let template = Arc::new(ChatTemplate::new(template, "", "<|im_end|>").unwrap());
        let model = ModelInfo { template, tool_format: format.parse().unwrap(), ..model };
        let teller = Teller::serve(&mut parts, model, answers.iter().map(|answer| tokens(answer)).collect());
        let directory = start(parts.clone()).await.unwrap().directory();
        Self { parts, teller, directory }
    }

    pub(super) fn create(&self, input: Vec<Item>) -> Create {
        Create { input, ..create(&self.parts, &[]) }
    }

    /// Begins a conversation with this input, and waits for the answer.
    pub(super) async fn begin(&self, input: Vec<Item>) -> (ConversationHandle, Arc<State>) {
        let create = self.create(input);
        let id = create.response_id;
        let (handle, _reader) = self.directory.create_in_new(Open::default(), create, None).await.unwrap();
        let state = soon(handle.ended(id)).await.unwrap();
        (handle, state)
    }

    pub(super) async fn go_on(&self, handle: &ConversationHandle, input: Vec<Item>) -> Arc<State> {
        let create = self.create(input);
        let id = create.response_id;
        drop(handle.create(create, None).await.unwrap());
        soon(handle.ended(id)).await.unwrap()
    }

    async fn fork(&self, from: ResponseId, input: Vec<Item>) {
        let create = self.create(input);
        let id = create.response_id;
        let (handle, _reader) = self.directory.fork("", from, create, None).await.unwrap();
        soon(handle.ended(id)).await.unwrap();
    }

    pub(super) fn last_prompt(&self) -> Vec<u32> {
        self.teller.prompts().pop().unwrap()
    }

    /// The text of the last prompt, with a bar for each control token.
    fn text(&self) -> String {
        let bytes = self.last_prompt().into_iter().map(|token| u8::try_from(token).unwrap_or(b'|'));
        String::from_utf8(bytes.collect()).unwrap()
    }

    /// The last prompt begins with the one before it and the answer to that.
    fn assert_only_grown(&self, answer: &str) {
        let prompts = self.teller.prompts();
        let [.., before, last] = &prompts[..] else { panic!("there was one prompt only") };
        assert!(last.starts_with(&[&before[..], &tokens(answer)].concat()), "{}", self.text());
    }
}

/// An answer's tokens: its bytes, and the end.
pub(super) fn tokens(answer: &str) -> Vec<u32> {
    answer.bytes().map(u32::from).chain([END]).collect()
}

pub(super) fn item(body: ItemBody) -> Item {
    Item { id: ItemId::draw(&mut FreshIds::random()), status: ItemStatus::Completed, body }
}

pub(super) fn user(text: &str) -> Item {
    Item::message(ItemId::draw(&mut FreshIds::random()), Role::User, text)
}

pub(super) fn result(call_id: &CallId, output: &str) -> Item {
    let (call_id, output) = (call_id.clone(), output.to_owned());
    item(ItemBody::FunctionCallOutput {
        call_id,
        output,
        synthetic: false,
        is_error: false,
        call_kind: CallKind::Function,
    })
}

/// Results of all open calls.
pub(super) fn results(state: &State) -> Vec<Item> {
    state.open_calls().map(|call| result(&call.call_id, &format!("told {}", call.name))).collect()
}

const KIMI: &str = include_str!("../prompt/fixtures/ids_name_tools.jinja");

const KIMI_CALLS: &str = "<|tool_calls_section_begin|>\
    <|tool_call_begin|>functions.look:7<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>\
    <|tool_call_begin|>functions.read:8<|tool_call_argument_begin|>{\"b\": 2}<|tool_call_end|>\
    <|tool_calls_section_end|>";

const MISTRAL_CALLS: &str = "[TOOL_CALLS] [{\"name\": \"look\", \"arguments\": {\"a\": 1}, \"id\": \"aB3dE6gH9\"}, \
    {\"name\": \"read\", \"arguments\": {\"b\": 2}, \"id\": \"Zy8Xw6Vu4\"}]";

/// What the template shows of the calls and their results.
const KIMI_SHOWN: [&str; 4] = [
    "begin|>functions.look:7<|tool_call_arg",
    "begin|>functions.read:8<|tool_call_arg",
    "## Return of functions.look:7\ntold look",
    "## Return of functions.read:8\ntold read",
];
const MISTRAL_SHOWN: [&str; 4] = [
    "{\"a\": 1}, \"id\": \"aB3dE6gH9\"}",
    "{\"b\": 2}, \"id\": \"Zy8Xw6Vu4\"}",
    "\"told look\", \"call_id\": \"aB3dE6gH9\"}",
    "\"told read\", \"call_id\": \"Zy8Xw6Vu4\"}",
];

/// A model's format, its template, a text in which it calls, one that answers, and what its template shows.
pub(super) fn models() -> [(&'static str, &'static str, &'static str, &'static str, [&'static str; 4]); 2] {
    // The template puts a space in front of an answer, and so does the model.
    let mistral = builtin_template("mistral").unwrap();
    [("kimi_k2", KIMI, KIMI_CALLS, "Done.", KIMI_SHOWN), ("mistral", mistral, MISTRAL_CALLS, " Done.", MISTRAL_SHOWN)]
}

#[tokio::test]
async fn the_next_turn_a_restart_a_fork_and_trimming_keep_the_ids_that_the_model_wrote() {
    for (format, template, called, said, shown) in models() {
        let served = Served::new(format, template, &[called, said]).await;
        let (handle, state) = served.begin(vec![user("go")]).await;
        let ours: Vec<String> = state.open_calls().map(|call| call.call_id.0.clone()).collect();
        assert_eq!(ours.len(), 2, "{format}");
        let assert_shown = |when: &str| {
            let text = served.text();
            assert!(shown.iter().all(|part| text.contains(part)), "{format}, {when}: {text}");
            assert!(!ours.iter().any(|id| text.contains(id)), "{format}, {when}: {text}");
        };
        let first = state.responses[0].id;
        let results = results(&state);
        let state = served.go_on(&handle, results.clone()).await;
        assert_shown("next turn");
        served.assert_only_grown(called);
        let turn = served.last_prompt();

        let restarted = start(served.parts.clone()).await.unwrap().directory();
        let handle = restarted.conversation(handle.id(), "").await.unwrap();
        served.go_on(&handle, vec![user("and now?")]).await;
        assert_shown("restart");
        served.assert_only_grown(said);

        served.fork(first, results).await;
        assert_shown("fork");
        assert_eq!(served.last_prompt(), turn, "{format}: a fork has its parent's tokens");

        served.parts.writer.trim(handle.id(), state.responses[1].created_seq).await.unwrap();
        let restarted = start(served.parts.clone()).await.unwrap().directory();
        let handle = restarted.conversation(handle.id(), "").await.unwrap();
        served.go_on(&handle, vec![user("still?")]).await;
        assert_shown("trimmed");
    }
}

#[tokio::test]
async fn calls_that_a_client_brings_get_ids_in_the_models_form_and_the_models_own_come_behind_them() {
    let call = |id: &str| {
        let (call_id, name) = (CallId(id.to_owned()), "look".to_owned());
        item(ItemBody::FunctionCall {
            call_id,
            native_id: None,
            name,
            arguments: "{\"a\": 0}".to_owned(),
            call_kind: CallKind::Function,
            namespace: None,
        })
    };
    let history = || {
        let results = ["toolu_1", "toolu_2"].map(|id| result(&CallId(id.to_owned()), "seen"));
        [&[user("go"), call("toolu_1"), call("toolu_2")][..], &results[..]].concat()
    };
    for (format, template, called, _, shown) in models() {
        let served = Served::new(format, template, &[called]).await;
        let (handle, state) = served.begin(history()).await;
        let brought = served.text();
        served.go_on(&handle, results(&state)).await;
        let text = served.text();
        served.assert_only_grown(called);
        assert!(shown.iter().all(|part| text.contains(part)), "{format}: {text}");
        assert!(!text.contains("toolu"), "{format}: {text}");
        if format == "kimi_k2" {
            for id in ["functions.look:0", "functions.look:1"] {
                let [made, answered] = [format!("begin|>{id}<"), format!("## Return of {id}\nseen")];
                assert!(brought.contains(&made) && brought.contains(&answered), "{brought}");
            }
        }
    }
}
