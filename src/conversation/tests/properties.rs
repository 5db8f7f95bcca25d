//! Properties over random histories, and a model whose answer survives a crash anywhere.

use proptest::prelude::*;

use super::*;

/// What may happen next; which response or generation is meant is chosen among the known ones.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Create,
    Steer(usize),
    Cancel(usize),
    SteerLater(usize, u8),
    Withdraw(usize),
    Interrupt(usize),
    Enqueue(bool),
    Claim(usize),
    Answer(usize),
    Read(bool),
    Wait(u16),
    DeleteItem(usize),
    Started(usize),
    Text(usize, u8),
    Call(usize),
    End(usize, u8),
    Stop,
    Restart,
    Silence,
}

pub(super) fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Create),
        1 => (0..4_usize).prop_map(Act::Steer),
        1 => (0..4_usize).prop_map(Act::Cancel),
        3 => ((0..3_usize), any::<u8>()).prop_map(|(which, how)| Act::SteerLater(which, how)),
        1 => (0..4_usize).prop_map(Act::Withdraw),
        1 => (0..2_usize).prop_map(Act::Interrupt),
        2 => any::<bool>().prop_map(Act::Enqueue),
        2 => (0..4_usize).prop_map(Act::Claim),
        3 => (0..4_usize).prop_map(Act::Answer),
        2 => any::<bool>().prop_map(Act::Read),
        1 => any::<u16>().prop_map(Act::Wait),
        1 => (0..6_usize).prop_map(Act::DeleteItem),
        2 => (0..3_usize).prop_map(Act::Started),
        6 => ((0..3_usize), any::<u8>()).prop_map(|(which, word)| Act::Text(which, word)),
        2 => (0..3_usize).prop_map(Act::Call),
        2 => ((0..3_usize), 0..4_u8).prop_map(|(which, end)| Act::End(which, end)),
        1 => Just(Act::Stop),
        1 => Just(Act::Restart),
        1 => Just(Act::Silence),
    ]
}

/// Plays an act; a refusal is an outcome like any other.
pub(super) fn play(talk: &mut Talk, act: &Act) -> Result<Vec<Event>, Reject> {
    let responses: Vec<_> = talk.state.responses.iter().rev().map(|response| response.id).collect();
    let generations: Vec<_> = talk
        .effects
        .iter()
        .rev()
        .filter_map(|effect| match effect {
            Effect::StartGeneration { generation, .. } => Some(*generation),
            Effect::AbortGeneration { .. } | Effect::LimitThinking { .. } | Effect::Foresee { .. } => None,
        })
        .collect();
    let response = |which: usize| responses.get(which).copied();
    let generation = |which: usize| generations.get(which).copied().unwrap_or(0);
    match *act {
        Act::Create => talk.create("go").map(|_| vec![]),
        Act::Steer(which) => response(which).map_or(Ok(vec![]), |id| talk.steer(id, "steer")),
        Act::Cancel(which) => talk.say(Input::Cancel { response_id: response(which), cascade: which % 2 == 1 }),
        Act::Started(which) => {
            let tokens = [which as u32, 8, 9].into();
            let prompt = (which % 3 > 0).then_some(RecordedPrompt { kept: 0, tokens, fingerprint: None, left_out: 0 });
            let generation = generation(which);
            talk.say(Input::GenerationStarted { generation, prompt_tokens: 3, cached_tokens: 1, prompt })
        }
        Act::Text(which, word) => {
            let piece = if word % 5 == 0 { Piece::Reasoning(word.to_string()) } else { Piece::Text(word.to_string()) };
            talk.say(Input::Generated { generation: generation(which), outputs: vec![output(u32::from(word), piece)] })
        }
        Act::Call(which) => talk.say(Input::Generated { generation: generation(which), outputs: call(1, "f", "{}") }),
        Act::End(which, end) => {
            let end = match end {
                0 => GenerationEnd::Stop,
                1 => GenerationEnd::Length,
                2 => GenerationEnd::Aborted,
                _ => GenerationEnd::Failed { code: crate::error::Code::EngineFailed, message: "x".to_owned() },
            };
            let generation = generation(which);
            talk.say(Input::GenerationEnded { generation, outputs: vec![], tail_tokens: vec![2], usage: None, end })
        }
        Act::Stop => talk.say(Input::Stopping),
        Act::Restart => talk.say(Input::Restarted { fingerprint: None }),
        Act::Silence => talk.say(Input::Silence),
        _ => play_request(talk, act, response),
    }
}

/// What clients, workers and readers may do besides.
fn play_request(
    talk: &mut Talk,
    act: &Act,
    response: impl Fn(usize) -> Option<ResponseId>,
) -> Result<Vec<Event>, Reject> {
    match *act {
        Act::SteerLater(which, how) => response(which).map_or(Ok(vec![]), |id| {
            talk.steer_as(id, "later", |steer| {
                steer.when = [When::Now, When::Item, When::After][usize::from(how % 3)];
                steer.tools = if how & 4 == 0 { ToolsOnSteer::Cancel } else { ToolsOnSteer::Await };
                steer.on_late = if how & 8 == 0 { OnLate::Fail } else { OnLate::Enqueue };
                steer.on_multiple = if how & 16 == 0 { OnMultiple::Merge } else { OnMultiple::Replace };
            })
        }),
        Act::Withdraw(which) => match talk.state.interventions.keys().nth(which) {
            Some(id) => talk.say(Input::Withdraw { intervention_id: *id }),
            None => Ok(vec![]),
        },
        Act::Interrupt(which) => {
            response(which).map_or(Ok(vec![]), |response_id| talk.say(Input::Interrupt { response_id }))
        }
        Act::Enqueue(steer) => {
            let if_busy = Some(if steer { IfBusy::Steer } else { IfBusy::Enqueue });
            talk.create_as("queued", |create| create.policies.if_busy = if_busy).map(|_| vec![])
        }
        Act::Claim(which) => match nth_call(talk, which) {
            Some(call) => talk.say(Input::ClaimCall { call, lease_ms: 50 }),
            None => Ok(vec![]),
        },
        Act::Answer(which) => match nth_call(talk, which) {
            Some(call) => talk.say(Input::AnswerCall { call, output: "ok".to_owned(), is_error: which == 2 }),
            None => Ok(vec![]),
        },
        Act::Read(present) => talk.say(Input::Attendance { present, fingerprint: None }),
        Act::Wait(ms) => {
            talk.now_ms += u64::from(ms % 200);
            talk.say(Input::Tick)
        }
        Act::DeleteItem(which) => {
            let given = talk.state.responses.iter().flat_map(|response| &response.input);
            let made = talk.state.responses.iter().flat_map(|response| &response.output).map(|output| &output.item);
            match given.chain(made).map(|item| item.id).nth(which * 2) {
                Some(item_id) => talk.say(Input::DeleteItem { item_id }),
                None => Ok(vec![]),
            }
        }
        _ => Ok(vec![]),
    }
}

/// A call as a worker names it, among those that the model made last.
fn nth_call(talk: &Talk, which: usize) -> Option<CallRef> {
    let call = talk.state.calls.iter().rev().nth(which)?;
    Some(CallRef { response_id: None, call_id: call.call_id.clone(), attempt: None })
}

/// What must hold of every journal, read without the code that wrote it.
fn audit(log: &[Recorded]) {
    let mut ended: Vec<ResponseId> = Vec::new();
    let mut numbers = std::collections::HashMap::<ResponseId, u64>::new();
    let mut accepted = Vec::new();
    for (place, recorded) in log.iter().enumerate() {
        assert_eq!(recorded.seq, place as u64 + 1, "seq is contiguous from 1");
        if let (Some(number), Some(id)) = (recorded.number, recorded.event.response_id()) {
            let next = numbers.entry(id).or_default();
            assert_eq!(number, *next, "sequence_number is contiguous from 0");
            *next += 1;
            assert!(!ended.contains(&id), "nothing of a response's stream follows its terminal: {recorded:?}");
        }
        match &recorded.event {
            Event::ResponseEnded { response_id, .. } => ended.push(*response_id),
            Event::InterventionAccepted { intervention_id, .. } => accepted.push(*intervention_id),
            Event::InterventionCommitted { intervention_id, .. }
            | Event::InterventionFailed { intervention_id, .. }
            | Event::InterventionSuperseded { intervention_id, .. }
            | Event::InterventionWithdrawn { intervention_id, .. } => {
                let place = accepted.iter().position(|id| id == intervention_id);
                accepted.remove(place.expect("decided once, after it was accepted"));
            }
            _ => {}
        }
    }
}

/// What the model of each response sees: every call has one result, right behind it.
fn check_inputs(state: &State) {
    for response in &state.responses {
        let mut open: Vec<String> = Vec::new();
        for message in messages(state, response) {
            if message.role == Role::Tool {
                let id = message.tool_call_id.unwrap();
                let place = open.iter().position(|open| *open == id);
                open.remove(place.unwrap_or_else(|| panic!("{id} is answered once, behind its call")));
            } else if message.role != Role::Assistant {
                assert!(open.is_empty(), "a call is answered before anything else is said: {open:?}");
            }
            open.extend(message.tool_calls.into_iter().map(|call| call.id));
        }
        assert!(open.is_empty(), "no call is unanswered: {open:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_replay_equals_the_live_state_and_the_journal_is_sound(acts in prop::collection::vec(act(), 0..80)) {
        let mut talk = Talk::new(11);
        for act in &acts {
            let (state, length) = (talk.state.clone(), talk.log.len());
            if play(&mut talk, act).is_err() {
                prop_assert_eq!(&state, &talk.state, "a refusal changes nothing");
                prop_assert_eq!(length, talk.log.len());
            }
            let active = talk.state.responses.iter().filter(|response| !response.status.is_terminal()).count();
            prop_assert!(active <= 1, "one response at a time");
        }
        let mut replayed = State::default();
        for recorded in &talk.log {
            // Through the stored form and back, as after a restart.
            let stored = serde_json::to_string(recorded).unwrap();
            replayed.apply(&serde_json::from_str(&stored).unwrap());
        }
        prop_assert_eq!(&replayed, &talk.state);
        audit(&talk.log);
        check_inputs(&talk.state);
        let idle = talk.state.active().is_none() && talk.state.open_calls().next().is_none();
        if idle {
            prop_assert!(talk.state.undecided().is_empty(), "nothing waits in an idle conversation");
            prop_assert!(talk.state.queue.is_empty());
        }
    }

    #[test]
    fn an_answer_cut_anywhere_and_resumed_is_the_answer_of_an_undisturbed_run(
        crashes in prop::collection::vec(0..12_u32, 0..6),
    ) {
        const ANSWER: u32 = 24;
        let mut talk = Talk::new(13);
        let id = talk.create("count").unwrap();
        let mut crashes = crashes.into_iter();
        let mut until = crashes.next();
        while talk.state.active().is_some() {
            let durable = talk.state.response(id).unwrap().tokens().len() as u32;
            if until == Some(0) && durable < ANSWER {
                until = crashes.next();
                let log = std::mem::take(&mut talk.log);
                talk.state = State::default();
                for recorded in &log {
                    talk.state.apply(recorded);
                }
                talk.log = log;
                talk.say(Input::Restarted { fingerprint: Some("f1".to_owned()) }).unwrap();
            }
            until = until.map(|steps| steps.saturating_sub(1));
            // The model: its next token follows from how many there are.
            if durable == ANSWER {
                talk.ended(GenerationEnd::Stop);
            } else {
                let word = format!(" {durable}");
                let piece = if durable < 4 { Piece::Reasoning(word) } else { Piece::Text(word) };
                talk.generated(vec![output(durable, piece)]);
            }
        }
        let response = talk.state.response(id).unwrap();
        prop_assert_eq!(response.tokens(), (0..ANSWER).collect::<Vec<_>>());
        let text: String = response.output.iter().map(|output| output.item.text()).collect();
        prop_assert_eq!(text, (0..ANSWER).map(|index| format!(" {index}")).collect::<Vec<_>>().concat());
        audit(&talk.log);
    }
}
