//! What is taken for certain of the next prompt: the prompt begins with it, whatever the calls gave.

use super::native_id_tests::{Served, models, results, tokens, user};
use super::prompt::HeldPrompt;
use super::tests::soon;
use super::{Open, Parts};
use crate::config::Config;
use crate::conversation::{Create, Item, ItemBody, State};

/// What is certain of the prompt behind the state's last response.
fn certain(parts: &Parts, state: &State) -> Vec<u32> {
    let model = parts.catalog.get(None).unwrap().model();
    let id = state.responses.last().unwrap().id;
    HeldPrompt::default().certain(state, id, model, (&Config::default()).into()).unwrap()
}

#[tokio::test]
async fn a_stored_turns_prompt_begins_with_what_was_certain_and_that_is_more_than_was_run() {
    for (format, template, called, said, _) in models() {
        let served = Served::new(format, template, &[called, said]).await;
        let (handle, state) = served.begin(vec![user("go")]).await;
        let run = [served.last_prompt(), tokens(called)].concat();
        let foreseen = certain(&served.parts, &state);
        served.go_on(&handle, results(&state)).await;
        assert!(served.last_prompt().starts_with(&foreseen), "{format}");
        assert!(
            foreseen.starts_with(&run) && foreseen.len() > run.len(),
            "{format}: the head of the results is certain"
        );
    }
}

#[tokio::test]
async fn a_client_that_sends_its_conversation_again_finds_what_was_certain_of_it() {
    for (format, template, called, said, _) in models() {
        let served = Served::new(format, template, &[called, said]).await;
        let first = unstored(&served, vec![user("go")]);
        let id = first.response_id;
        let (handle, _reader) = served.directory.ephemeral(Open::default(), first, None).await.unwrap();
        let state = soon(handle.ended(id)).await.unwrap();
        let foreseen = certain(&served.parts, &state);
        // As text, with our ids.
        let answer = state.responses[0].output.iter().map(|output| match &output.item.body {
            ItemBody::FunctionCall { call_id, name, arguments, call_kind, .. } => Item {
                body: ItemBody::FunctionCall {
                    call_id: call_id.clone(),
                    native_id: None,
                    name: name.clone(),
                    arguments: arguments.clone(),
                    call_kind: *call_kind,
                    namespace: None,
                },
                ..output.item.clone()
            },
            _ => output.item.clone(),
        });
        let again = unstored(&served, [user("go")].into_iter().chain(answer).chain(results(&state)).collect());
        let id = again.response_id;
        let (handle, _reader) = served.directory.ephemeral(Open::default(), again, None).await.unwrap();
        soon(handle.ended(id)).await.unwrap();
        let prompt = served.last_prompt();
        assert!(prompt.starts_with(&foreseen), "{format}");
        let asked = prompt.len() - foreseen.len();
        assert!(asked < foreseen.len(), "{format}: it is more than the first question: {asked} tokens are not certain");
    }
}

fn unstored(served: &Served, input: Vec<Item>) -> Create {
    let mut create = served.create(input);
    (create.config.store, create.config.background) = (false, false);
    create
}
