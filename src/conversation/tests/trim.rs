//! Trimming changes no state: at every border, what is kept of the events in front folds to what they fold to.

use proptest::prelude::*;

use super::forks::{forked, said};
use super::properties::{act, play};
use super::*;

fn fold(events: &[Recorded]) -> State {
    let mut state = State::default();
    for recorded in events {
        state.apply(recorded);
    }
    state
}

fn started(talk: &mut Talk) {
    let generation = talk.generation();
    let prompt = Some(RecordedPrompt { kept: 2, tokens: [7, 8, 9].into(), fingerprint: None, left_out: 0 });
    talk.say(Input::GenerationStarted { generation, prompt_tokens: 5, cached_tokens: 0, prompt }).unwrap();
}

fn borders(log: &[Recorded]) -> Vec<u64> {
    let mut survey = Survey::default();
    for recorded in log {
        survey.observe(recorded);
    }
    survey.borders().into_iter().map(|border| border.seq).collect()
}

/// A conversation with turns that have ended, each with some deltas.
fn turns_of(count: usize) -> Talk {
    let mut talk = Talk::new(5);
    for turn in 0..count {
        talk.create(&format!("question {turn}")).unwrap();
        started(&mut talk);
        for index in 0..20 {
            talk.generated(vec![output(index, Piece::Text(format!("{index} ")))]);
        }
        talk.ended(GenerationEnd::Stop);
    }
    talk
}

#[test]
fn the_deltas_of_an_item_become_one_and_what_leaves_no_trace_goes() {
    let talk = turns_of(1);
    let kept = reduce(&talk.log);
    let events: Vec<Event> = kept.iter().map(|recorded| recorded.event.clone()).collect();
    let expected = [
        "conversation_created",
        "response_created",
        "response_in_progress",
        "output_item_added",
        "output_delta",
        "output_item_done",
        "response_ended",
    ];
    assert_eq!(names(&events), expected);
    assert_eq!(fold(&kept), talk.state);
    let last = talk.log.iter().rfind(|recorded| matches!(recorded.event, Event::OutputDelta { .. }));
    assert_eq!(kept[4].seq, last.unwrap().seq, "at the place of its last part");
}

#[test]
fn a_conversation_can_begin_with_every_turn_behind_the_first() {
    let talk = turns_of(3);
    let begun: Vec<u64> = talk.state.responses.iter().map(|response| response.created_seq).collect();
    assert_eq!(borders(&talk.log), begun[1..]);
    assert!(borders(&turns_of(1).log).is_empty(), "the last turn stays");
}

#[test]
fn a_fork_can_begin_with_its_first_own_turn_and_what_was_copied_is_kept() {
    let parent = turns_of(2);
    let from = parent.state.responses[1].id;
    let input = vec![said(&mut FreshIds::from_seed(5), "elsewhere")];
    let fork = forked(&parent, from, input).unwrap();
    let own = fork.state.responses[2].created_seq;
    assert_eq!(borders(&fork.log), [own]);
    let (before, _) = fork.log.split_at(usize::try_from(own).unwrap() - 1);
    let kept = reduce(before);
    assert_eq!(fold(&kept), fold(before));
    assert!(kept.iter().any(|recorded| matches!(recorded.event, Event::TurnsCopied { .. })));
}

#[test]
fn nothing_that_is_not_finished_lies_in_front_of_a_border() {
    let mut talk = turns_of(1);
    // A call is open, and the steer of its response waits for it.
    let second = talk.create("look").unwrap();
    started(&mut talk);
    talk.generated(call(1, "look", "{}"));
    talk.ended(GenerationEnd::Stop);
    assert_eq!(talk.state.status(), "requires_action");
    assert_eq!(borders(&talk.log), [talk.state.response(second).unwrap().created_seq]);
    talk.steer_as(second, "then", |steer| steer.tools = ToolsOnSteer::Await).unwrap();
    let third = talk.create("no, this").unwrap();
    let begun = |talk: &Talk, id| talk.state.response(id).unwrap().created_seq;
    // The call was closed by what came, and the steer was committed to it: all in front is finished.
    assert_eq!(borders(&talk.log), [begun(&talk, second), begun(&talk, third)]);
    // A turn that waits is not finished, and it was created in front of the turns that come.
    let waiting = enqueued(&mut talk, "later");
    talk.ended(GenerationEnd::Stop);
    assert_eq!(borders(&talk.log), [begun(&talk, second), begun(&talk, third)]);
    talk.ended(GenerationEnd::Stop);
    let come = dequeued(&talk, waiting).unwrap();
    let fifth = talk.create("and now").unwrap();
    assert_eq!(borders(&talk.log), [begun(&talk, second), begun(&talk, third), come, begun(&talk, fifth)]);
}

fn enqueued(talk: &mut Talk, input: &str) -> ResponseId {
    talk.create_as(input, |create| create.policies.if_busy = Some(IfBusy::Enqueue)).unwrap()
}

/// The seq at which the turn of a response came that had waited.
fn dequeued(talk: &Talk, id: ResponseId) -> Option<u64> {
    let is_it = |recorded: &&Recorded| recorded.event == Event::ResponseDequeued { response_id: id };
    talk.log.iter().find(is_it).map(|recorded| recorded.seq)
}

#[test]
fn turns_that_always_wait_for_each_other_have_borders_behind_which_nothing_old_is_unfinished() {
    let mut talk = Talk::new(5);
    talk.create("question 0").unwrap();
    // While one runs two others wait, as responses or as instructions for the turn that runs.
    let mut waiting = vec![enqueued(&mut talk, "question 1")];
    for number in 2..8 {
        let active = talk.state.active().unwrap().id;
        if number % 3 == 0 {
            talk.steer_as(active, "and", |steer| steer.when = When::After).unwrap();
        } else {
            waiting.push(enqueued(&mut talk, &format!("question {number}")));
        }
        started(&mut talk);
        talk.generated(vec![output(0, Piece::Text("so ".into())), output(1, Piece::Text("it is".into()))]);
        talk.ended(GenerationEnd::Stop);
    }
    let seqs = borders(&talk.log);
    let begun: Vec<u64> =
        talk.log.iter().filter(|recorded| begins_turn(&recorded.event)).map(|recorded| recorded.seq).collect();
    // The first turn has none in front of it, and what waits now was asked for while the last but one ran.
    assert_eq!(seqs, begun[1..begun.len() - 1]);
    assert!(waiting.iter().any(|id| dequeued(&talk, *id).is_some_and(|seq| seqs.contains(&seq))));
    for border in seqs {
        let (before, _) = talk.log.split_at(usize::try_from(border).unwrap() - 1);
        assert_eq!(fold(&reduce(before)), fold(before), "in front of {border}");
    }
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "none is left out")]
fn whoever_reads_a_conversation_whole_notices_a_gap() {
    let talk = turns_of(1);
    let mut state = State::default();
    for recorded in &reduce(&talk.log) {
        state.apply_next(recorded);
    }
}

#[test]
fn a_border_knows_the_youngest_event_in_front_of_it() {
    let talk = turns_of(2);
    let mut survey = Survey::default();
    talk.log.iter().for_each(|recorded| survey.observe(recorded));
    let border = survey.borders()[0];
    let before = &talk.log[usize::try_from(border.seq).unwrap() - 2];
    assert_eq!(border.newest_ms, before.at_ms);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_is_kept_folds_to_the_same_state_at_every_border_however_it_was_parted(
        acts in prop::collection::vec(act(), 0..100),
        part in 1..40_usize,
        fork in (any::<bool>(), any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let mut talk = Talk::new(17);
        let (forks, at, from) = fork;
        let at = if forks { at.index(acts.len() + 1) } else { acts.len() };
        for act in &acts[..at] {
            let _ = play(&mut talk, act);
        }
        // The rest happens in a fork of it.
        if forks && !talk.state.responses.is_empty() {
            let from = from.get(&talk.state.responses).id;
            let input = vec![said(&mut talk.fresh, "elsewhere")];
            talk = forked(&talk, from, input).unwrap_or(talk);
        }
        for act in &acts[at..] {
            let _ = play(&mut talk, act);
        }
        for border in borders(&talk.log) {
            let (before, behind) = talk.log.split_at(usize::try_from(border).unwrap() - 1);
            let mut kept: Vec<Recorded> = before.chunks(part).flat_map(reduce).collect();
            prop_assert!(kept.windows(2).all(|pair| pair[0].seq < pair[1].seq));
            prop_assert_eq!(kept.last().map(|recorded| recorded.seq), Some(border - 1));
            prop_assert_eq!(&fold(&kept), &fold(before));
            // Parts that went further than the border lend it what lies in front of it.
            let whole = reduce(&talk.log);
            let lent: Vec<Recorded> = whole.into_iter().filter(|recorded| recorded.seq < border).collect();
            prop_assert_eq!(&fold(&lent), &fold(before));
            kept.extend_from_slice(behind);
            let state = fold(&kept);
            prop_assert_eq!(&state, &talk.state);
            let now = || Now { unix_ms: talk.now_ms, fresh: FreshIds::from_seed(3) };
            let restarted = || Input::Restarted { fingerprint: None };
            prop_assert_eq!(decide(&state, restarted(), now()), decide(&talk.state, restarted(), now()));
        }
    }
}
