//! Recorded prompts: what is new of each is enough to tell all of them again.

use proptest::prelude::*;

use super::*;

/// A turn that begins with this prompt, if it begins at all, and says one token.
fn turn(talk: &mut Talk, prompt: Option<&[u32]>, fingerprint: &str) -> ResponseId {
    let id = talk.create("go").unwrap();
    let Some(prompt) = prompt else {
        talk.cancel(id);
        talk.ended(GenerationEnd::Aborted);
        return id;
    };
    let all: Vec<&Response> = turns(&talk.state, id).collect();
    let (own, before) = all.split_last().unwrap();
    let record = RecordedPrompt::of(prompt, own, before, fingerprint);
    let (generation, prompt_tokens) = (talk.generation(), prompt.len() as u32);
    talk.say(Input::GenerationStarted { generation, prompt_tokens, cached_tokens: 0, prompt: Some(record) }).unwrap();
    // Signs of life say nothing of it.
    talk.say(Input::Silence).unwrap();
    talk.generated(vec![output(9, Piece::Text("so".into()))]);
    talk.ended(GenerationEnd::Stop);
    id
}

fn told(talk: &Talk, id: ResponseId, fingerprint: &str) -> Option<Vec<u32>> {
    recorded_prompt(&turns(&talk.state, id).collect::<Vec<_>>(), fingerprint)
}

#[test]
fn only_what_is_new_of_a_prompt_is_recorded() {
    let mut talk = Talk::new(3);
    let first = turn(&mut talk, Some(&[1, 2, 3]), "f1");
    let second = turn(&mut talk, Some(&[1, 2, 3, 9, 4]), "f1");
    // A template that forgets, and a turn in between that never began.
    turn(&mut talk, None, "f1");
    let third = turn(&mut talk, Some(&[1, 2, 5]), "f1");
    let records: Vec<_> = [first, second, third]
        .iter()
        .map(|id| talk.state.response(*id).unwrap().prompt.clone().unwrap())
        .map(|prompt| (prompt.kept, prompt.tokens.to_vec(), prompt.fingerprint))
        .collect();
    assert_eq!(records, [(0, vec![1, 2, 3], None), (4, vec![4], None), (2, vec![5], None)]);
    let all: Vec<&Response> = talk.state.responses.iter().map(AsRef::as_ref).collect();
    assert_eq!(held_tokens(&all, "f1"), Some(HeldTokens { place: 3, tokens: vec![1, 2, 5, 9] }));
}

#[test]
fn tokens_mean_nothing_to_another_model() {
    let mut talk = Talk::new(3);
    let own = turn(&mut talk, Some(&[1, 2]), "f1");
    // Created for the one and run by the other.
    let other = turn(&mut talk, Some(&[1, 2, 9, 3]), "f2");
    assert_eq!((told(&talk, own, "f1"), told(&talk, own, "f2")), (Some(vec![1, 2]), None));
    assert_eq!((told(&talk, other, "f1"), told(&talk, other, "f2")), (None, Some(vec![1, 2, 9, 3])));
    let all: Vec<&Response> = talk.state.responses.iter().map(AsRef::as_ref).collect();
    assert_eq!(held_tokens(&all, "f1"), None);
}

#[test]
fn a_prompt_whose_beginning_was_deleted_cannot_be_told_and_the_next_is_recorded_whole() {
    let mut talk = Talk::new(3);
    let first = turn(&mut talk, Some(&[1, 2]), "f1");
    let second = turn(&mut talk, Some(&[1, 2, 9, 3]), "f1");
    let item_id = talk.state.response(first).unwrap().output[0].item.id;
    talk.say(Input::DeleteItem { item_id }).unwrap();
    assert_eq!(told(&talk, second, "f1"), None);
    let third = turn(&mut talk, Some(&[1, 3, 9]), "f1");
    assert_eq!(told(&talk, third, "f1"), Some(vec![1, 3, 9]));
}

proptest! {
    #[test]
    fn every_prompt_can_be_told_from_the_records(
        prompts in prop::collection::vec(prop::option::of(prop::collection::vec(0..3_u32, 0..6)), 1..12),
    ) {
        let mut talk = Talk::new(3);
        let mut run = Vec::new();
        for prompt in &prompts {
            let id = turn(&mut talk, prompt.as_deref(), "f1");
            run.push((id, prompt.clone()));
        }
        for (id, prompt) in run {
            prop_assert_eq!(told(&talk, id, "f1"), prompt);
        }
    }
}
