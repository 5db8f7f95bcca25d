//! Prompts after a restart: read back from the journal, not rendered again, and the same tokens as without it.

use std::sync::Arc;

use super::fork_tests::{SAID, TEMPLATE, ended, spelled, turn};
use super::teller::Teller;
use super::tests::soon;
use super::{ConversationHandle, Parts, start};
use crate::conversation::{Event, Recorded, ResponseStatus};
use crate::engine::ModelInfo;
use crate::ids::ConversationId;
use crate::prompt::ChatTemplate;
use crate::store::{Batch, Durability, Journal, MemoryJournal, Record, Writer};

/// The template, for conversations of so many messages or more; each other one it refuses.
pub(super) fn refusing_below(messages: usize) -> String {
    let refusal = "{{ raise_exception('an earlier turn is rendered again') }}";
    format!("{{% if messages|length < {messages} %}}{refusal}{{% endif %}}{TEMPLATE}")
}

/// A process that starts on a copy of the journal, with this template.
pub(super) async fn restarted(
    parts: &Parts,
    conversation: ConversationId,
    events: &[Recorded],
    template: &str,
) -> (Parts, ConversationHandle, Arc<Teller>) {
    let journal = Arc::new(MemoryJournal::new());
    let created = events.iter().filter_map(|recorded| match &recorded.event {
        Event::ResponseCreated(new) => Some(Record::Response(new.id)),
        _ => None,
    });
    let is_running = !matches!(events.last().unwrap().event, Event::ResponseEnded { .. });
    let records = created.chain([Record::Active(is_running)]).collect();
    journal.append(&[Batch { conversation, events: events.to_vec(), records, durability: Durability::Group }]).unwrap();
    let model = parts.catalog.get(None).unwrap().model().clone();
    let template = Arc::new(ChatTemplate::new(template, "", "<|im_end|>").unwrap());
    let mut parts = Parts { writer: Writer::start(journal.clone(), 8).unwrap(), journal, ..parts.clone() };
    let teller = Teller::serve(&mut parts, ModelInfo { template, ..model }, vec![SAID.to_vec()]);
    let root = start(parts.clone()).await.unwrap();
    root.recover().await.unwrap();
    let handle = root.directory().conversation(conversation, "").await.unwrap();
    (parts, handle, teller)
}

pub(super) fn without_prompts(events: &[Recorded]) -> Vec<Recorded> {
    let mut events = events.to_vec();
    for recorded in &mut events {
        if let Event::ResponseInProgress { prompt, .. } = &mut recorded.event {
            assert!(prompt.take().is_some(), "each response records its prompt");
        }
    }
    events
}

#[tokio::test]
async fn a_conversation_that_is_woken_renders_its_new_turn_and_no_other() {
    let (parent, live, _) = spelled().await;
    let id = parent.handle.id();
    let events = parent.parts.journal.read(id, 0, usize::MAX).unwrap();
    ended(&parent.handle, turn(&parent.parts, true)).await;
    // Its fourth question is the seventh message.
    for (template, events) in [
        (refusing_below(7), events.clone()),
        // As an older version wrote it.
        (TEMPLATE.to_owned(), without_prompts(&events)),
    ] {
        let (parts, handle, teller) = restarted(&parent.parts, id, &events, &template).await;
        let state = ended(&handle, turn(&parts, true)).await;
        assert_eq!(state.responses.last().unwrap().status.as_str(), "completed", "{template}");
        assert_eq!(teller.prompts()[0], live.prompts()[3], "the tokens of a process that went on: {template}");
    }
    let (parts, handle, _) = restarted(&parent.parts, id, &without_prompts(&events), &refusing_below(7)).await;
    let state = ended(&handle, turn(&parts, true)).await;
    assert_eq!(state.responses.last().unwrap().status.as_str(), "failed", "else nothing is proven");
}

#[tokio::test]
async fn a_response_that_goes_on_after_a_restart_has_the_prompt_that_it_began_with() {
    let (parent, live, _) = spelled().await;
    let id = parent.handle.id();
    let events = parent.parts.journal.read(id, 0, usize::MAX).unwrap();
    let last = parent.responses[2];
    let began = events.iter().rposition(|it| matches!(it.event, Event::ResponseInProgress { .. })).unwrap();
    let (_, handle, teller) = restarted(&parent.parts, id, &events[..=began], &refusing_below(usize::MAX)).await;
    let state = soon(handle.ended(last)).await.unwrap();
    assert!(matches!(state.response(last).unwrap().status, ResponseStatus::Ended(_)));
    assert_eq!(teller.prompts()[0], live.prompts()[2]);
}

#[tokio::test]
async fn a_fork_takes_its_parents_prompts_along() {
    let (parent, live, _) = spelled().await;
    let (fork, state, id) = parent.fork(2, true).await;
    let events = parent.parts.journal.read(fork.id(), 0, usize::MAX).unwrap();
    assert!(state.responses.iter().all(|response| response.prompt.is_some()));
    let (parts, handle, teller) = restarted(&parent.parts, fork.id(), &events, &refusing_below(9)).await;
    ended(&handle, turn(&parts, true)).await;
    let held: Vec<u32> = live.prompts()[3].iter().copied().chain(SAID).collect();
    assert!(teller.prompts()[0].starts_with(&held), "behind {id}");
}

#[tokio::test]
async fn what_is_not_stored_records_no_prompt() {
    let (parent, ..) = spelled().await;
    let (_, state, id) = parent.fork(2, false).await;
    assert_eq!(state.response(id).unwrap().prompt, None);
}
