//! `truncation: "auto"` in a conversation that outgrows its model: what stays of each prompt, that its answer has room,
//! and that a restart and a fork have the same tokens.

use std::sync::Arc;

use super::fork_tests::{SAID, TEMPLATE, ended, spelling, turn};
use super::native_id_tests::user;
use super::prompt_tests::{refusing_below, restarted, without_prompts};
use super::teller::Teller;
use super::tests::soon;
use super::{ConversationHandle, DirectoryHandle, Open, Parts, start};
use crate::conversation::{Create, Event, Recorded};
use crate::engine::Engine;
use crate::ids::ResponseId;

const CONTEXT: u32 = 400;
/// Tokens of a prompt that leaves room for an answer of 40 tokens, as each turn asks for.
const PROMPT_MAX: usize = 360;
const TURNS: usize = 12;

/// A question of this number. This tokenizer has no token for a space, so there is none in it.
fn question(parts: &Parts, number: usize, truncates: bool) -> Create {
    let mut create = Create { input: vec![user(&format!("question-{number:02}"))], ..turn(parts, true) };
    create.config.instructions = Some("Brief.".to_owned());
    create.config.extras.truncates = truncates;
    create
}

/// A conversation that is too long for its model.
struct Talk {
    parts: Parts,
    directory: DirectoryHandle,
    handle: ConversationHandle,
    teller: Arc<Teller>,
    responses: Vec<ResponseId>,
}

impl Talk {
    async fn held() -> Self {
        let (parts, teller) = spelling(CONTEXT);
        let directory = start(parts.clone()).await.unwrap().directory();
        let first = question(&parts, 0, true);
        let mut responses = vec![first.response_id];
        let (handle, _reader) = directory.create_in_new(Open::default(), first, None).await.unwrap();
        soon(handle.ended(responses[0])).await.unwrap();
        for number in 1..TURNS {
            let next = question(&parts, number, true);
            responses.push(next.response_id);
            ended(&handle, next).await;
        }
        Self { parts, directory, handle, teller, responses }
    }

    fn events(&self) -> Vec<Recorded> {
        self.parts.journal.read(self.handle.id(), 0, usize::MAX).unwrap()
    }

    fn text(&self, prompt: &[u32]) -> String {
        self.teller.model().tokenizer.decode(prompt)
    }

    /// The questions that a prompt has.
    fn questions(&self, prompt: &[u32]) -> Vec<usize> {
        let text = self.text(prompt);
        (0..TURNS).filter(|number| text.contains(&format!("question-{number:02}"))).collect()
    }
}

#[tokio::test]
async fn a_prompt_has_the_newest_turns_that_fit_with_their_answer_and_the_instructions() {
    let talk = Talk::held().await;
    let (prompts, mut begun) = (talk.teller.prompts(), vec![0]);
    for (number, prompt) in prompts.iter().enumerate() {
        let text = talk.text(prompt);
        assert!(text.contains("Brief."), "{text}");
        assert!(prompt.len() <= PROMPT_MAX, "{} tokens", prompt.len());
        let asked = talk.questions(prompt);
        assert_eq!(asked, (asked[0]..=number).collect::<Vec<_>>(), "whole turns, and none between");
        if number > 0 && begun.last() == Some(&asked[0]) {
            let held = [&prompts[number - 1][..], &SAID].concat();
            assert!(prompt.starts_with(&held), "what begins at the same place goes on behind what was run");
        }
        begun.push(asked[0]);
    }
    begun.dedup();
    // A turn has 15 bytes of text, and 90 are left out at once.
    assert_eq!(begun, [0, 6]);
}

#[tokio::test]
async fn a_restart_leaves_out_what_the_process_before_it_did() {
    let talk = Talk::held().await;
    let (id, events) = (talk.handle.id(), talk.events());
    let (prompt, request) = (talk.teller.prompts().pop().unwrap(), talk.teller.requests().pop().unwrap());
    let began = events.iter().rposition(|it| matches!(it.event, Event::ResponseInProgress { .. })).unwrap();
    let older = without_prompts(&events[..began]);
    for (events, template) in [
        // Killed behind the prompt, in front of it, and with a journal that has no prompts.
        (&events[..=began], &*refusing_below(usize::MAX)),
        (&events[..began], TEMPLATE),
        (&older[..], TEMPLATE),
    ] {
        let (_, handle, teller) = restarted(&talk.parts, id, events, template).await;
        soon(handle.ended(talk.responses[TURNS - 1])).await.unwrap();
        assert_eq!(teller.prompts()[0], prompt, "behind {} events", events.len());
        assert_eq!(teller.requests()[0].messages, request.messages, "behind {} events", events.len());
    }
}

#[tokio::test]
async fn a_fork_leaves_out_what_its_parent_did_and_asks_for_itself_whether_it_does() {
    let talk = Talk::held().await;
    for truncates in [true, false] {
        let create = question(&talk.parts, TURNS - 1, truncates);
        let id = create.response_id;
        let (fork, _reader) = talk.directory.fork("", talk.responses[TURNS - 2], create, None).await.unwrap();
        let state = soon(fork.ended(id)).await.unwrap();
        let copied = state.responses.iter().filter(|turn| turn.id != id);
        assert!(copied.clone().count() == TURNS - 1 && copied.clone().all(|turn| turn.config.extras.truncates));
    }
    let prompts = talk.teller.prompts();
    assert_eq!(prompts[TURNS], prompts[TURNS - 1], "as the parent's own turn had it");
    assert_eq!(talk.questions(&prompts[TURNS + 1]), (0..TURNS).collect::<Vec<_>>());
}
