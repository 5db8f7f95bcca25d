//! Requests against the journal: what was acknowledged is there, once; what was refused is not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::story::Story;
use super::turn::{ModelInput, item_text};
use super::{History, Journal, Violation, list, text};

/// All attempts with one key, or the one attempt without.
#[derive(Default)]
struct Group<'a> {
    requests: Vec<&'a Value>,
    answers: Vec<&'a Value>,
    /// Attempts of which it is certain that they did nothing.
    refusals: usize,
}

/// Checks every request, and every input that an engine was given.
pub(super) fn check(journal: &Journal, stories: &[Story], history: &History, found: &mut Vec<Violation>) {
    let groups = groups(history);
    let mut checked = Check { journal, stories, joined: joined(journal), deleted: history.deleted(), found };
    for group in groups.values() {
        checked.acknowledged(group);
        checked.equal_answers(group);
    }
    checked.effects(&groups);
    checked.keys(&groups);
    checked.model_inputs(history);
}

fn groups(history: &History) -> BTreeMap<String, Group<'_>> {
    let mut groups: BTreeMap<String, Group<'_>> = BTreeMap::new();
    let mut of_request: BTreeMap<u64, String> = BTreeMap::new();
    for observation in &history.observations {
        let number = observation["request"].as_u64().unwrap_or_default();
        let kind = text(observation, "kind");
        if kind == "request" {
            let name = match observation["key"].as_str() {
                Some(key) => {
                    let scope = ["principal", "operation", "conversation"].map(|field| text(observation, field));
                    json!([scope, key]).to_string()
                }
                None => number.to_string(),
            };
            of_request.insert(number, name.clone());
            groups.entry(name).or_default().requests.push(observation);
        }
        let Some(group) = of_request.get(&number).and_then(|name| groups.get_mut(name)) else { continue };
        match kind {
            "answer" => group.answers.push(&observation["answer"]),
            "refused" => {
                group.refusals += usize::from(observation["status"].as_u64().is_some_and(|status| status < 500));
            }
            _ => {}
        }
    }
    groups
}

fn joined(journal: &Journal) -> BTreeMap<String, Vec<(&str, u64)>> {
    let mut joined: BTreeMap<String, Vec<(&str, u64)>> = BTreeMap::new();
    let created = journal.of_kind("response_created").map(|it| (it, "input"));
    let accepted = journal.of_kind("intervention_accepted").map(|it| (it, "items"));
    for ((conversation, recorded), field) in created.chain(accepted) {
        let seq = recorded["seq"].as_u64().unwrap_or_default();
        for item in list(&recorded["event"], field) {
            joined.entry(item_text(item)).or_default().push((conversation, seq));
        }
    }
    joined
}

struct Check<'a> {
    journal: &'a Journal,
    stories: &'a [Story],
    /// Where each text joined a conversation by a request for a response or an instruction.
    joined: BTreeMap<String, Vec<(&'a str, u64)>>,
    /// Conversations whose deletion was acknowledged: nothing of them needs to be there.
    deleted: BTreeSet<String>,
    found: &'a mut Vec<Violation>,
}

impl Check<'_> {
    fn broken(&mut self, invariant: &'static str, conversation: &str, seq: u64, what: String) {
        self.found.push(Violation { invariant, conversation: conversation.to_owned(), seq, what });
    }

    /// What was acknowledged is in the journal.
    fn acknowledged(&mut self, group: &Group<'_>) {
        let Some(request) = group.requests.first() else { return };
        for answer in &group.answers {
            if let Some(what) = self.missing(request, answer) {
                let conversation = text(answer, "conversation").to_owned();
                self.broken("I10", &conversation, answer["seq"].as_u64().unwrap_or_default(), what);
            }
        }
    }

    /// What an answer names and the journal does not have.
    fn missing(&self, request: &Value, answer: &Value) -> Option<String> {
        let (conversation, response) = (text(answer, "conversation"), text(answer, "response"));
        let story = self.stories.iter().find(|story| story.id == conversation);
        let Some(story) = story else {
            if self.deleted.contains(conversation) {
                return None;
            }
            return Some(format!("the conversation {conversation} was acknowledged"));
        };
        let turn = story.turn(response);
        let said = text(request, "input");
        let is_here = |(place, _): &(&str, u64)| *place == conversation;
        let was_said = self.joined.get(said).is_some_and(|places| places.iter().any(is_here));
        match text(request, "operation") {
            "create" if turn.is_none() => Some(format!("the response {response} was acknowledged")),
            "create" => (!was_said).then(|| format!("{response} was acknowledged with the input {said:?}")),
            "claim_call" | "answer_call" => story.missing_of_call(text(request, "operation"), answer),
            "answer_calls" => list(answer, "calls")
                .iter()
                .find_map(|call| story.missing_of_call("answer_call", &json!({"call": call}))),
            "withdraw" => {
                let steer = story.steers.get(text(answer, "intervention"));
                let withdrawn = steer.is_some_and(|steer| steer.outcome == Some("withdrawn"));
                (!withdrawn).then(|| "the instruction was acknowledged to be withdrawn".to_owned())
            }
            "delete" => (!story.deleted).then(|| format!("{conversation} was acknowledged to be deleted")),
            "intervene" => {
                let id = text(answer, "intervention");
                let Some(steer) = story.steers.get(id) else {
                    return Some(format!("the instruction {id} was acknowledged"));
                };
                let other = !said.is_empty() && steer.items.iter().all(|item| item_text(item) != said);
                other.then(|| format!("{id} was acknowledged with the input {said:?}")).or_else(|| {
                    let successor = answer["successor"].as_str()?;
                    story.turn(successor).is_none().then(|| format!("{id}'s successor {successor} was acknowledged"))
                })
            }
            "cancel" => match text(answer, "outcome") {
                "requested" => turn.is_none_or(|turn| turn.cancelled_at.is_none()),
                _ => turn.is_none_or(|turn| turn.ended.is_none()),
            }
            .then(|| format!("the cancel of {response} was acknowledged")),
            _ => None,
        }
    }

    /// One key, one answer. With a conversation its keys are deleted: then it is a new request.
    fn equal_answers(&mut self, group: &Group<'_>) {
        if group.answers.iter().any(|answer| self.deleted.contains(text(answer, "conversation"))) {
            return;
        }
        for answer in group.answers.iter().skip(1).filter(|answer| **answer != group.answers[0]) {
            let what = format!("one key was answered {} and {answer}", group.answers[0]);
            self.broken("I6", text(answer, "conversation"), 0, what);
        }
    }

    /// A text that clients send joins the journal at most once for each key, and never when it was refused.
    fn effects(&mut self, groups: &BTreeMap<String, Group<'_>>) {
        let mut senders: BTreeMap<&str, Vec<&Group<'_>>> = BTreeMap::new();
        for group in groups.values() {
            let said = group.requests.first().map_or("", |request| text(request, "input"));
            senders.entry(said).or_default().push(group);
        }
        senders.remove("");
        for (said, groups) in senders {
            let Some(places) = self.joined.get(said).cloned() else { continue };
            let (conversation, seq) = places[places.len() - 1];
            let refused = groups.iter().all(|group| group.refusals == group.requests.len());
            if refused {
                self.broken("I16", conversation, seq, format!("{said:?} was refused and is in the journal"));
                continue;
            }
            // With a conversation its keys are deleted: a repeated request joins another one.
            let places: Vec<_> = places.into_iter().filter(|(home, _)| !self.deleted.contains(*home)).collect();
            if places.len() > groups.len() {
                let what = format!("{said:?} was sent with {} keys and joined {} times", groups.len(), places.len());
                self.broken("I6", conversation, seq, what);
            }
        }
    }

    /// A key has one record, and none when it was refused.
    fn keys(&mut self, groups: &BTreeMap<String, Group<'_>>) {
        let mut seen = BTreeSet::new();
        let journal = self.journal;
        for (conversation, record) in &journal.records {
            let scope = &record["key"]["scope"];
            if scope.is_null() {
                continue;
            }
            let parts = ["principal", "operation", "conversation"].map(|field| text(scope, field));
            let name = json!([parts, scope["key"]]).to_string();
            if !seen.insert(name.clone()) {
                self.broken("I6", conversation, 0, format!("the key {name} has two records"));
            }
            if groups.get(&name).is_some_and(|group| group.refusals == group.requests.len()) {
                self.broken("I16", conversation, 0, format!("the key {name} was refused and has a record"));
            }
        }
    }

    /// An engine was given what the journal says, and no call in it is open or answered twice.
    fn model_inputs(&mut self, history: &History) {
        let known: BTreeSet<&ModelInput> = self.stories.iter().flat_map(|story| story.inputs.values()).collect();
        let mut strange = Vec::new();
        for observation in history.of_kind("model_input") {
            let input = ModelInput::of_messages(list(observation, "messages"));
            let (unanswered, stray) = input.unbalanced();
            if !unanswered.is_empty() || !stray.is_empty() {
                strange.push(("I7", format!("an engine was given open calls {unanswered:?}, stray results {stray:?}")));
            }
            if !known.contains(&input) {
                strange.push(("I9", format!("an engine was given what no response's journal says: {input:?}")));
            }
        }
        for (invariant, what) in strange {
            self.broken(invariant, "", 0, what);
        }
    }
}
