//! A fork's prompt: the tokens that the parent has, whatever a tokeniser would make of their text, and what of it is
//! run forward.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use super::teller::{Teller, tokenizer};
use super::tests::{create, parts, soon};
use super::{ConversationHandle, DirectoryHandle, Open, Parts, start};
use crate::clock::Clock;
use crate::config::Config;
use crate::conversation::{Create, Input, State};
use crate::engine::{Catalog, Engine, LoadOptions, LocalEngine, ModelInfo, tiny::Tiny};
use crate::ids::ResponseId;
use crate::prompt::ChatTemplate;
use crate::store::MemoryJournal;

/// The day and the second stand in front, as some models' templates have them.
pub(super) const TEMPLATE: &str = "{{ strftime_now('%Y-%m-%dT%H:%M:%S') }}\
    {% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
    <|im_start|>assistant{{ '\n' }}";
const END: u32 = 257;
/// "hihi", a letter each.
pub(super) const SAID: [u32; 5] = [258, 259, 258, 259, END];

/// A conversation and the ids of its responses.
pub(super) struct Parent {
    directory: DirectoryHandle,
    pub(super) parts: Parts,
    pub(super) handle: ConversationHandle,
    pub(super) responses: Vec<ResponseId>,
}

impl Parent {
    async fn new(parts: Parts, turns: usize) -> Self {
        let directory = start(parts.clone()).await.unwrap().directory();
        let first = turn(&parts, true);
        let mut responses = vec![first.response_id];
        let (handle, _reader) = directory.create_in_new(Open::default(), first, None).await.unwrap();
        soon(handle.ended(responses[0])).await.unwrap();
        for _ in 1..turns {
            let next = turn(&parts, true);
            responses.push(next.response_id);
            ended(&handle, next).await;
        }
        Self { directory, parts, handle, responses }
    }

    /// A fork behind the response of this number: its conversation and what it came to.
    pub(super) async fn fork(&self, number: usize, store: bool) -> (ConversationHandle, Arc<State>, ResponseId) {
        let create = turn(&self.parts, store);
        let id = create.response_id;
        let (handle, _reader) = self.directory.fork("", self.responses[number], create, None).await.unwrap();
        let state = soon(handle.ended(id)).await.unwrap();
        (handle, state, id)
    }
}

pub(super) fn turn(parts: &Parts, store: bool) -> Create {
    let mut create = create(parts, &[]);
    create.config.store = store;
    create.config.max_output_tokens = Some(40);
    create
}

pub(super) async fn ended(handle: &ConversationHandle, create: Create) -> Arc<State> {
    let id = create.response_id;
    drop(handle.create(create, None).await.unwrap());
    soon(handle.ended(id)).await.unwrap()
}

/// A server with the engine that spells, whose context has so many tokens.
pub(super) fn spelling(context_length: u32) -> (Parts, Arc<Teller>) {
    let journal = Arc::new(MemoryJournal::new());
    let mut parts = parts(&journal, &json!([{"deltas": ["unused"]}]), Config::default());
    let model = parts.catalog.get(None).unwrap().model().clone();
    let template = Arc::new(ChatTemplate::new(TEMPLATE, "", "<|im_end|>").unwrap());
    // Bytes, `ChatML`'s tokens, and a syllable with its letters: a tokeniser takes the syllable.
    let tokenizer = Arc::new(tokenizer(&["<|im_start|>", "<|im_end|>"], &["h", "i", "hi"]));
    let model = ModelInfo { context_length, tokenizer, template, ..model };
    let teller = Teller::serve(&mut parts, model, vec![SAID.to_vec()]);
    (parts, teller)
}

/// A conversation of three turns with the engine that spells, and the time.
pub(super) async fn spelled() -> (Parent, Arc<Teller>, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(1_764_000_000_000));
    let (mut parts, teller) = spelling(1 << 20);
    parts.clock = Clock::Manual(now.clone());
    (Parent::new(parts, 3).await, teller, now)
}

/// What the transcript would be if its text were tokenised.
fn tokenised_anew(teller: &Teller, number: usize) -> Vec<u32> {
    let tokenizer = &teller.model().tokenizer;
    tokenizer.encode(&tokenizer.decode(&teller.prompts()[number]), true)
}

#[tokio::test]
async fn a_fork_has_its_parents_tokens_as_they_were_sampled_whenever_and_however_it_is_kept() {
    let (parent, teller, now) = spelled().await;
    assert_ne!(teller.prompts()[2], tokenised_anew(&teller, 2), "else nothing is proven");
    now.fetch_add(100_000_000, Ordering::SeqCst);
    for (place, store) in [(3, true), (4, false)] {
        parent.fork(1, store).await;
        assert_eq!(teller.prompts()[place], teller.prompts()[2], "as the parent's next turn had it: stored {store}");
    }
    let held: Vec<u32> = teller.prompts()[1].iter().copied().chain(SAID).collect();
    assert!(teller.prompts()[3].starts_with(&held), "the parent's prompt, and its answer behind it");
}

#[tokio::test]
async fn a_fork_keeps_its_parents_tokens_behind_the_parents_deletion_a_restart_and_a_fork_of_its_own() {
    let (parent, teller, _) = spelled().await;
    let (fork, ..) = parent.fork(1, true).await;
    ended(&parent.handle, turn(&parent.parts, true)).await;
    parent.handle.change(Input::Delete).await.unwrap();
    let again = start(parent.parts.clone()).await.unwrap().directory();
    let fork = again.conversation(fork.id(), "").await.unwrap();
    let next = turn(&parent.parts, true);
    let last = next.response_id;
    ended(&fork, next).await;
    assert_eq!(teller.prompts()[5], teller.prompts()[4], "as the parent's own turn had it");
    let create = turn(&parent.parts, true);
    let id = create.response_id;
    let (second, _reader) = again.fork("", last, create, None).await.unwrap();
    soon(second.ended(id)).await.unwrap();
    let held: Vec<u32> = teller.prompts()[5].iter().copied().chain(SAID).collect();
    assert!(teller.prompts()[6].starts_with(&held), "a fork of the fork");
}

#[tokio::test]
async fn a_fork_runs_only_what_lies_behind_the_full_blocks_of_its_parent() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("tiny.gguf");
    fs::write(&path, Tiny::default().file()).unwrap();
    let options = LoadOptions { threads: Some(1), ..LoadOptions::default() };
    let engine = Arc::new(LocalEngine::load(&path, &options).unwrap());
    let journal = Arc::new(MemoryJournal::new());
    let mut parts = parts(&journal, &json!([{"deltas": ["unused"]}]), Config::default());
    parts.catalog = Arc::new(Catalog::new(vec![engine.clone() as Arc<dyn Engine>]));
    let parent = Parent::new(parts, 2).await;
    let usage = |state: &State, id| state.response(id).unwrap().usage;
    let forked_at = usage(&parent.handle.state().await.unwrap(), parent.responses[1]);
    let before = engine.stats().tokens_run;
    let (_, state, id) = parent.fork(1, true).await;
    let run = engine.stats().tokens_run - before;
    let fork = usage(&state, id);
    // The last token of an answer is not run, and the parent held the rest.
    let held = (forked_at.input_tokens + forked_at.output_tokens - 1) / 16 * 16;
    assert!(held > 100);
    assert_eq!(fork.cached_tokens, held, "{fork:?} behind {forked_at:?}");
    assert_eq!(run, u64::from(fork.input_tokens - fork.cached_tokens + fork.output_tokens - 1));
}
