//! What the engine is told of whose a generation is and how urgent; and several choices of one request.

use std::fs;
use std::sync::Arc;

use serde_json::json;

use super::teller::Teller;
use super::tests::{create, parts, soon};
use super::{DirectoryHandle, Open, Parts, start};
use crate::access::LOCAL;
use crate::config::Config;
use crate::conversation::{ChoiceOf, Create};
use crate::engine::{Catalog, Engine, GenerationRequest, LoadOptions, LocalEngine, tiny::Tiny};
use crate::ids::{FreshIds, ResponseId};
use crate::store::MemoryJournal;

fn scripted() -> Parts {
    parts(&Arc::new(MemoryJournal::new()), &json!([{"deltas": ["unused"]}]), Config::default())
}

fn local() -> Open {
    Open { principal: LOCAL.to_owned(), ..Open::default() }
}

/// The choices of one request, each in a conversation of its own, and the tokens that they ended with.
async fn answers(directory: &DirectoryHandle, request: &Create, count: u32) -> Vec<Vec<u32>> {
    let mut asked = Vec::new();
    for index in 0..count {
        let mut choice = request.clone();
        choice.config.store = false;
        choice.config.choice = Some(ChoiceOf { first: request.response_id, index });
        choice.response_id = ResponseId::draw(&mut FreshIds::random());
        let id = choice.response_id;
        asked.push((id, directory.ephemeral(local(), choice, None).await.unwrap()));
    }
    let mut answers = Vec::new();
    for (id, (handle, _reader)) in &asked {
        answers.push(soon(handle.ended(*id)).await.unwrap().response(*id).unwrap().tokens());
    }
    answers
}

#[tokio::test]
async fn choices_draw_tokens_of_their_own_and_the_same_ones_again() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("tiny.gguf");
    fs::write(&path, Tiny::default().file()).unwrap();
    let options = LoadOptions { threads: Some(1), ..LoadOptions::default() };
    let mut parts = scripted();
    let engine: Arc<dyn Engine> = Arc::new(LocalEngine::load(&path, &options).unwrap());
    parts.catalog = Arc::new(Catalog::new(vec![engine]));
    let directory = start(parts.clone()).await.unwrap().directory();
    let mut request = create(&parts, &[]);
    request.config.sampling.temperature = 1.5;
    request.config.max_output_tokens = Some(20);
    let first = answers(&directory, &request, 4).await;
    for (place, answer) in first.iter().enumerate() {
        assert!(!answer.is_empty() && !first[..place].contains(answer), "{first:?}");
    }
    assert_eq!(answers(&directory, &request, 4).await, first);
}

#[tokio::test]
async fn choices_of_one_request_have_one_owner_and_conversations_have_their_own() {
    let mut parts = scripted();
    let model = parts.catalog.get(None).unwrap().model().clone();
    let teller = Teller::serve(&mut parts, model, vec![vec![1, 2]]);
    let directory = start(parts.clone()).await.unwrap().directory();
    let mut request = create(&parts, &[]);
    request.config.priority = Some(-5);
    answers(&directory, &request, 2).await;
    for _ in 0..2 {
        let plain = create(&parts, &[]);
        let id = plain.response_id;
        let (handle, _reader) = directory.create_in_new(local(), plain, None).await.unwrap();
        soon(handle.ended(id)).await.unwrap();
    }
    let standing = |request: &GenerationRequest| (request.standing.owner, request.standing.priority);
    let told: Vec<_> = teller.requests().iter().map(standing).collect();
    assert_eq!((told[0], told[0].1, told[2].1), (told[1], -5, 0));
    assert!(told[2].0 != told[0].0 && told[3].0 != told[2].0, "{told:?}");
    let choices: Vec<_> = teller.requests().iter().map(|request| request.sampling.choice).collect();
    assert_eq!(choices, [0, 1, 0, 0]);
}
