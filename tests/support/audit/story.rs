//! One conversation, folded from its stored events. Finds what breaks a promise inside the journal.

use std::collections::BTreeMap;

use serde_json::Value;

use super::turn::{Made, ModelInput, Turn, item_text, numbers};
use super::{Answers, Violation, list, text};

/// Events that a response's own stream shows, or that only a response that runs has.
const ONLY_BEFORE_THE_END: [&str; 18] = [
    "conversation_budget_low",
    "response_dequeued",
    "response_queued",
    "response_paused",
    "response_in_progress",
    "response_suspended",
    "response_resumed",
    "output_item_added",
    "content_part_added",
    "output_delta",
    "output_done",
    "content_part_done",
    "output_item_done",
    "output_item_discarded",
    "tool_call_requested",
    "cancel_requested",
    "response_ended",
    "response_created",
];

/// Events that change nothing that is checked here.
const WITHOUT_CONSEQUENCE: [&str; 16] = [
    "conversation_budget_low",
    "conversation_updated",
    "conversation_rewound",
    "conversation_suspended",
    "conversation_resumed",
    "response_deleted",
    "response_queued",
    "response_unattended",
    "response_attended",
    "response_paused",
    "response_suspended",
    "content_part_added",
    "content_part_done",
    "output_done",
    "tool_result_discarded",
    "intervention_pending",
];

/// A conversation.
#[derive(Default)]
pub(super) struct Story {
    pub(super) id: String,
    /// The first event that can be read.
    oldest_seq: u64,
    /// The response that its transcript was copied up to.
    pub(super) forked_from: Option<String>,
    pub(super) turns: Vec<Turn>,
    /// Enqueued behind the turn that runs.
    waiting: Vec<Turn>,
    /// Ended before their turn came.
    unbegun: Vec<Turn>,
    staged: Vec<Value>,
    pub(super) steers: BTreeMap<String, Steer>,
    /// Calls that the model made, in order.
    calls: Vec<Call>,
    /// Committed steers whose successor comes next.
    due: Vec<(u64, String, String)>,
    /// What the model reads in front of the next turn, up to the input of the last one.
    transcript: ModelInput,
    /// Whether nothing was taken out since then.
    transcript_holds: bool,
    /// What the model was to read for each response.
    pub(super) inputs: BTreeMap<String, ModelInput>,
    pub(super) deleted: bool,
    /// Items were taken out.
    pub(super) lost_items: bool,
    /// Results that calls of copied turns came with.
    pub(super) copied_results: Vec<(String, String)>,
}

/// A call that the model made for the client.
struct Call {
    id: String,
    /// It takes a result.
    open: bool,
    claims: u64,
    /// The item that answers it.
    answer: Option<String>,
    /// Its result, until the next turn takes it.
    output: Option<Value>,
}

/// An instruction.
pub(super) struct Steer {
    pub(super) response_id: String,
    pub(super) items: Vec<Value>,
    /// What became of it.
    pub(super) outcome: Option<&'static str>,
    /// It was cut into its response: the successor follows that one.
    cut_in: bool,
    seq: u64,
}

/// Where a finding belongs.
struct At<'a> {
    conversation: &'a str,
    seq: u64,
    found: &'a mut Vec<Violation>,
}

impl At<'_> {
    fn broken(&mut self, invariant: &'static str, what: impl Into<String>) {
        let (conversation, what) = (self.conversation.to_owned(), what.into());
        self.found.push(Violation { invariant, conversation, seq: self.seq, what });
    }
}

impl Story {
    /// Folds a conversation's events and names what they break. Those in front of `oldest_seq` were trimmed, and this
    /// is what is kept of them.
    pub(super) fn of(id: &str, events: &[Value], oldest_seq: u64, settled: bool, found: &mut Vec<Violation>) -> Self {
        let mut story = Self { id: id.to_owned(), oldest_seq, ..Self::default() };
        let mut at = At { conversation: id, seq: 0, found };
        for recorded in events {
            at.seq = recorded["seq"].as_u64().unwrap_or_default();
            story.fold(recorded, &mut at);
        }
        story.check_end(settled, &mut at);
        story
    }

    fn fold(&mut self, recorded: &Value, at: &mut At<'_>) {
        let event = &recorded["event"];
        let kind = text(event, "type");
        if self.deleted {
            at.broken("I3", format!("{kind} behind the conversation's deletion"));
        }
        self.check_place(kind, event, at);
        match kind {
            "conversation_created" if at.seq != 1 => at.broken("form", "the conversation was created twice"),
            "conversation_created" => self.forked_from = event["forked_from"].as_str().map(str::to_owned),
            "turns_copied" => self.copy(event, at),
            "conversation_deleted" => self.deleted = true,
            "items_added" => {
                self.check_results(list(event, "items"), at);
                self.staged.extend_from_slice(list(event, "items"));
            }
            "item_deleted" => self.delete_item(text(event, "item_id")),
            "response_created" => self.create(event, at),
            "response_dequeued" => self.dequeue(text(event, "response_id"), at),
            "output_item_added" | "output_delta" | "output_item_done" | "output_item_discarded" => {
                self.output(kind, event, at);
            }
            "tool_call_requested" | "tool_call_claimed" | "tool_call_closed" | "tool_result_accepted" => {
                self.call(kind, event, at);
            }
            "cancel_requested" | "response_ended" => self.end(kind, event, at),
            "response_in_progress" => self.record_prompt(event, at),
            "response_resumed" => {
                if let Some(turn) = self.turn_mut(text(event, "response_id")) {
                    turn.inexact |= event["exact"] == false;
                }
            }
            "intervention_accepted" => self.accept(event, at),
            "intervention_committed" => self.commit(event, at),
            "intervention_failed" => self.decide(event, "failed", at),
            "intervention_superseded" => self.decide(event, "superseded", at),
            "intervention_withdrawn" => self.decide(event, "withdrawn", at),
            other if WITHOUT_CONSEQUENCE.contains(&other) => {}
            other => at.broken("form", format!("the auditor does not know the event {other:?}")),
        }
        self.number(recorded, at);
    }

    /// Nothing of a response follows its terminal, and nothing comes before its creation.
    fn check_place(&self, kind: &str, event: &Value, at: &mut At<'_>) {
        // A call that lost its worker is offered again.
        let is_offered_again = kind == "tool_call_requested" && event["attempt"].as_u64() > Some(1);
        if kind == "response_created" || is_offered_again || !ONLY_BEFORE_THE_END.contains(&kind) {
            return;
        }
        let id = text(event, "response_id");
        match self.turn(id) {
            None => at.broken("form", format!("{kind} of {id}, which was never created")),
            Some(turn) if turn.ended.is_some() => at.broken("I3", format!("{kind} behind the terminal of {id}")),
            Some(turn) if turn.cancelled_at.is_some() && kind == "output_delta" => {
                at.broken("I4", format!("a token of {id} behind its recorded cancel"));
            }
            Some(_) => {}
        }
    }

    /// The numbers of a response's own stream have no gap, but where events were trimmed.
    fn number(&mut self, recorded: &Value, at: &mut At<'_>) {
        let event = &recorded["event"];
        let id = if text(event, "type") == "response_created" { "id" } else { "response_id" };
        let is_trimmed = at.seq < self.oldest_seq;
        let Some(turn) = self.turn_mut(text(event, id)) else { return };
        match recorded["number"].as_u64() {
            Some(number) if number < turn.next_number || number > turn.next_number && !is_trimmed => {
                let what = format!("sequence_number {number} of {} where {} belongs", turn.id, turn.next_number);
                at.broken("number", what);
            }
            Some(number) => turn.next_number = number + 1,
            None if matches!(text(event, "type"), "response_created" | "response_ended")
                || text(event, "type") == "output_delta" && turn.streams(text(event, "item_id")) =>
            {
                at.broken("number", format!("an event of {}'s stream has no sequence_number", turn.id));
            }
            None => {}
        }
    }

    fn create(&mut self, event: &Value, at: &mut At<'_>) {
        let id = text(event, "id");
        if self.turn(id).is_some() {
            return at.broken("I6", format!("{id} was created twice"));
        }
        self.check_results(list(event, "input"), at);
        let turn = Turn::new(event);
        if event["enqueued"] == true {
            return self.waiting.push(turn);
        }
        if let Some(running) = self.turns.iter().find(|turn| turn.ended.is_none()) {
            at.broken("I3", format!("{id} began while {} ran", running.id));
        }
        self.begin(turn, at);
    }

    /// Turns of another conversation come first of all. Results of calls that a later one of them took are there.
    fn copy(&mut self, event: &Value, at: &mut At<'_>) {
        if self.forked_from.is_none() || self.turns.iter().any(|turn| !turn.copied) {
            at.broken("form", "turns were copied into a conversation that is no fork, or has begun");
        }
        for copied in list(event, "turns") {
            let turn = Turn::copied(copied, self.turns.last());
            for item in turn.input.iter().filter(|item| is_result(item)) {
                if let Some(call) = self.find_call(text(&item["body"], "call_id")) {
                    call.answer = item["id"].as_str().map(str::to_owned);
                }
            }
            for call in list(copied, "calls") {
                let (id, status) = (text(call, "call_id").to_owned(), &call["status"]);
                let output = call.get("output").filter(|output| !output.is_null()).cloned();
                self.copied_results.extend(output.as_ref().map(|output| (id.clone(), item_text(output))));
                let answer = output.as_ref().and_then(|output| output["id"].as_str()).map(str::to_owned);
                let open = *status == "requested" || status.get("claimed").is_some();
                self.calls.push(Call { id, open, claims: 0, answer, output });
            }
            self.turns.push(turn);
        }
    }

    /// Results of a call, whether a turn has taken them or not.
    pub(super) fn results_of(&self, call: &str) -> impl Iterator<Item = &Value> {
        let waiting = self.calls.iter().filter_map(|call| call.output.as_ref());
        let taken = self.turns.iter().flat_map(|turn| &turn.input);
        taken.chain(waiting).filter(move |item| is_result(item) && item["body"]["call_id"] == call)
    }

    fn dequeue(&mut self, id: &str, at: &mut At<'_>) {
        match self.waiting.iter().position(|turn| turn.id == id) {
            Some(place) => {
                let turn = self.waiting.remove(place);
                self.begin(turn, at);
            }
            None => at.broken("form", format!("{id} was not waiting")),
        }
    }

    /// A turn has come: it reads the results of calls in the order of the calls, what was staged, and its own input.
    /// No call in front of it may be open, or answered twice.
    fn begin(&mut self, mut turn: Turn, at: &mut At<'_>) {
        let staged = std::mem::take(&mut self.staged);
        self.check_successor(&turn, &staged, at);
        let mut own = std::mem::take(&mut turn.input);
        for call in &mut self.calls {
            let answers = |item: &Value| is_result(item) && item["body"]["call_id"] == call.id.as_str();
            if call.open
                && let Some(place) = own.iter().position(answers)
            {
                call.open = false;
                turn.input.push(own.remove(place));
            }
            turn.input.extend(call.output.take());
        }
        turn.input.extend(staged.into_iter().chain(own));
        match self.turns.last() {
            Some(last) if self.transcript_holds => self.transcript.extend(last.kept()),
            _ => self.rebuild(),
        }
        self.transcript.extend(&turn.input);
        self.transcript_holds = true;
        let input = self.transcript.instructed(turn.instructions.as_deref());
        let (unanswered, stray) = input.unbalanced();
        for call in unanswered {
            at.broken("I7", format!("the model reads the call {call} for {} without a result", turn.id));
        }
        for call in stray {
            at.broken("I7", format!("the model reads a result for {} that answers no call: {call}", turn.id));
        }
        self.inputs.insert(turn.id.clone(), input);
        self.turns.push(turn);
    }

    /// A committed steer's successor comes next, and what was staged for it ends with the steers in the order of
    /// acceptance.
    fn check_successor(&mut self, turn: &Turn, staged: &[Value], at: &mut At<'_>) {
        let due = std::mem::take(&mut self.due);
        for (_, steer, successor) in &due {
            if *successor != turn.id {
                at.broken("I5", format!("{steer} was committed to {successor}, but {} came next", turn.id));
            }
            let named = &self.steers[steer];
            if named.cut_in && turn.previous.as_deref() != Some(&named.response_id) {
                at.broken("I9", format!("the successor {} does not follow {}", turn.id, named.response_id));
            }
        }
        let mut steers: Vec<&Steer> = due.iter().map(|(_, steer, _)| &self.steers[steer]).collect();
        steers.sort_by_key(|steer| steer.seq);
        let said: Vec<&Value> = steers.iter().flat_map(|steer| &steer.items).collect();
        let tail = &staged[staged.len().saturating_sub(said.len())..];
        if !said.iter().copied().eq(tail) {
            at.broken("I9", format!("the input of {} does not hold the steers it answers, in order", turn.id));
        }
    }

    /// What the model read so far, from the beginning: something was taken out of it.
    fn rebuild(&mut self) {
        self.transcript = ModelInput::default();
        for turn in &self.turns {
            self.transcript.extend(&turn.input);
            self.transcript.extend(turn.kept());
        }
    }

    fn output(&mut self, kind: &str, event: &Value, at: &mut At<'_>) {
        let id = text(event, "response_id");
        let Some(turn) = self.turn_mut(id) else { return };
        match kind {
            "output_item_added" => {
                let (item, first_token) = (event["item"].clone(), event["first_token"].as_u64().unwrap_or_default());
                let before: u64 = turn.output.iter().map(|made| made.tokens).sum();
                if first_token != before {
                    at.broken("I2", format!("an item of {id} begins at token {first_token}, behind {before} tokens"));
                }
                turn.output.push(Made { item, first_token, tokens: 0, discarded: false });
            }
            "output_delta" => turn.grow(event),
            "output_item_discarded" => {
                if let Some(made) = turn.made(text(event, "item_id")) {
                    made.discarded = true;
                }
            }
            _ => {
                if let Some(made) = turn.made(text(event, "item_id")) {
                    made.item["status"] = event["status"].clone();
                }
            }
        }
    }

    fn call(&mut self, kind: &str, event: &Value, at: &mut At<'_>) {
        let (id, response_id) = (text(event, "call_id"), text(event, "response_id"));
        if kind == "tool_call_requested" && self.find_call(id).is_none() {
            if self.turn(response_id).is_some_and(|turn| turn.call(id).is_none()) {
                at.broken("I7", format!("{id} is asked for, but no whole call of that id was made"));
            }
            self.calls.push(Call { id: id.to_owned(), open: true, claims: 0, answer: None, output: None });
            return;
        }
        let is_idempotent = self.is_idempotent(response_id, id);
        let Some(call) = self.find_call(id) else {
            return at.broken("form", format!("{kind} of {id}, which was never asked for"));
        };
        if !call.open {
            at.broken("I8", format!("{kind} of {id}, which is not open"));
        }
        match kind {
            "tool_call_requested" => {}
            "tool_call_claimed" => {
                call.claims += 1;
                if call.claims > 1 && !is_idempotent {
                    at.broken("I12", format!("{id} may have run already and was claimed again"));
                }
            }
            _ => {
                call.open = false;
                call.answer = event["output"]["id"].as_str().map(str::to_owned);
                call.output = Some(event["output"].clone());
            }
        }
    }

    fn find_call(&mut self, id: &str) -> Option<&mut Call> {
        self.calls.iter_mut().rev().find(|call| call.id == id)
    }

    fn is_idempotent(&self, response_id: &str, call: &str) -> bool {
        let Some(turn) = self.turn(response_id) else { return false };
        let name = turn.call(call).map_or("", |item| text(&item["body"], "name"));
        turn.tool_policies[name]["idempotent"] == true
    }

    /// A result for a call that was closed or answered never reaches the model.
    fn check_results(&mut self, items: &[Value], at: &mut At<'_>) {
        for item in items.iter().filter(|item| is_result(item)) {
            let Some(call) = self.find_call(text(&item["body"], "call_id")) else { continue };
            if call.answer.as_deref().is_some_and(|by| item["id"] != by) {
                let what = format!("another result of {} enters the transcript: {}", call.id, item_text(item));
                at.broken("I8", what);
            } else {
                call.answer = item["id"].as_str().map(str::to_owned);
            }
        }
    }

    fn end(&mut self, kind: &str, event: &Value, at: &mut At<'_>) {
        let Some(turn) = self.turn_mut(text(event, "response_id")) else { return };
        if kind == "cancel_requested" {
            turn.cancelled_at = Some(at.seq);
            return;
        }
        let id = turn.id.clone();
        let status = text(&event["ending"], "status");
        if turn.cancelled_at.is_some() && status != "cancelled" {
            at.broken("I4", format!("{} was cancelled and ended {status}", turn.id));
        }
        turn.tokens.extend(numbers(event, "tail_tokens"));
        turn.ended.get_or_insert(status.to_owned());
        if let Some(place) = self.waiting.iter().position(|turn| turn.id == id) {
            self.unbegun.push(self.waiting.remove(place));
        }
    }

    fn accept(&mut self, event: &Value, at: &mut At<'_>) {
        let steer = Steer {
            response_id: text(event, "response_id").to_owned(),
            items: list(event, "items").to_vec(),
            outcome: None,
            cut_in: false,
            seq: at.seq,
        };
        if self.steers.insert(text(event, "intervention_id").to_owned(), steer).is_some() {
            at.broken("I6", "an instruction was accepted twice");
        }
    }

    /// Gives an instruction its outcome: exactly one.
    fn decide(&mut self, event: &Value, outcome: &'static str, at: &mut At<'_>) {
        let id = text(event, "intervention_id");
        match self.steers.get_mut(id) {
            None => at.broken("I5", format!("{id} was never accepted and is {outcome}")),
            Some(Steer { outcome: Some(before), .. }) => {
                at.broken("I5", format!("{id} was {before} and is {outcome} as well"));
            }
            Some(steer) => steer.outcome = Some(outcome),
        }
    }

    fn commit(&mut self, event: &Value, at: &mut At<'_>) {
        self.decide(event, "committed", at);
        let (id, response_id) = (text(event, "intervention_id"), text(event, "response_id"));
        if let (Some(cut), Some(turn)) = (event["cut"]["token_index"].as_u64(), self.turn(response_id))
            && cut != turn.cut_at()
        {
            at.broken("I9", format!("{response_id} was cut at token {cut}, but {} are durable", turn.cut_at()));
        }
        // One that says nothing changes its own response in place.
        let in_place = text(event, "successor_id") == response_id;
        if let Some(turn) = self.turn_mut(response_id).filter(|_| in_place) {
            turn.limited = true;
        }
        if let Some(steer) = self.steers.get_mut(id).filter(|_| !in_place) {
            steer.cut_in = !event["cut"].is_null();
            self.staged.extend_from_slice(&steer.items);
            self.due.push((at.seq, id.to_owned(), text(event, "successor_id").to_owned()));
        }
    }

    /// A response begins: its prompt, where it is recorded, is as long as it says, and keeps no more than was held.
    fn record_prompt(&mut self, event: &Value, at: &mut At<'_>) {
        let Some(prompt) = event.get("prompt") else { return };
        let Some(place) = self.turns.iter().position(|turn| turn.id == text(event, "response_id")) else { return };
        let lost_items = self.lost_items;
        self.turns[place].prompt = prompt.clone();
        let mut held: Option<Vec<u64>> = None;
        for turn in self.turns[..place].iter().filter(|turn| !turn.prompt.is_null()) {
            held = turn.prompt_on(held).map(|tokens| [&tokens, turn.kept_tokens()].concat());
        }
        let whole = self.turns[place].prompt_on(held);
        let length = whole.as_ref().map(|tokens| tokens.len() as u64);
        // With a deleted item go tokens that were held.
        if length != event["prompt_tokens"].as_u64() && !lost_items {
            at.broken("I9", format!("the prompt of {} is recorded with {length:?} tokens", self.turns[place].id));
        }
        self.turns[place].whole_prompt = whole.filter(|_| !lost_items);
    }

    /// An item leaves the transcript; a call takes its result along, and a result its call.
    fn delete_item(&mut self, id: &str) {
        (self.transcript_holds, self.lost_items) = (false, true);
        let given = self.turns.iter().flat_map(|turn| &turn.input).chain(&self.staged);
        let made = self.turns.iter().flat_map(|turn| &turn.output).map(|made| &made.item);
        let found = given.chain(made).find(|item| item["id"] == id);
        let call = found.and_then(|item| item["body"]["call_id"].as_str()).map(str::to_owned);
        let goes =
            |item: &Value| item["id"] == id || call.is_some() && item["body"]["call_id"].as_str() == call.as_deref();
        self.staged.retain(|item| !goes(item));
        for turn in &mut self.turns {
            turn.input.retain(|item| !goes(item));
            turn.output.retain(|made| !goes(&made.item));
        }
        self.calls.retain(|known| Some(&known.id) != call.as_ref());
    }

    fn check_end(&self, settled: bool, at: &mut At<'_>) {
        for (seq, steer, successor) in &self.due {
            at.seq = *seq;
            at.broken("I5", format!("{steer} was committed, but its successor {successor} was never created"));
        }
        if !settled {
            return;
        }
        // What waits for the results of open calls may wait as long as the client does.
        let waits = self.calls.iter().any(|call| call.open);
        let waiting = self.waiting.iter().filter(|_| !waits);
        for turn in self.turns.iter().chain(waiting).filter(|turn| turn.ended.is_none()) {
            at.broken("I11", format!("{} has no terminal", turn.id));
        }
        for (id, steer) in &self.steers {
            if steer.outcome.is_none() && !waits {
                at.seq = steer.seq;
                at.broken("I5", format!("{id} has no outcome"));
            }
        }
    }

    /// Whether a model that says `expected` to what was said last said that, whatever disturbed it.
    pub(super) fn check_answers(&self, expected: &Answers, found: &mut Vec<Violation>) {
        for turn in self.turns.iter().filter(|turn| !turn.limited && !turn.copied) {
            let said = self.inputs.get(&turn.id).map_or("", ModelInput::last_said);
            let whole = expected(said);
            let right = match turn.ended.as_deref() {
                Some("completed") => turn.tokens == whole,
                _ => whole.starts_with(&turn.tokens),
            };
            if !right {
                let what = format!("{} said {:?} to {said:?}, and not {whole:?}", turn.id, turn.tokens);
                found.push(Violation { invariant: "I14", conversation: self.id.clone(), seq: 0, what });
            }
        }
    }

    /// What was acknowledged about a call and is not here.
    pub(super) fn missing_of_call(&self, operation: &str, answer: &Value) -> Option<String> {
        let id = text(answer, "call");
        let call = self.calls.iter().rev().find(|call| call.id == id)?;
        let there = if operation == "claim_call" { call.claims > 0 } else { call.answer.is_some() };
        (!there).then(|| format!("the {operation} of {id} was acknowledged"))
    }

    pub(super) fn turn(&self, id: &str) -> Option<&Turn> {
        self.turns.iter().rev().chain(&self.waiting).chain(&self.unbegun).find(|turn| turn.id == id)
    }

    fn turn_mut(&mut self, id: &str) -> Option<&mut Turn> {
        self.turns.iter_mut().rev().chain(&mut self.waiting).chain(&mut self.unbegun).find(|turn| turn.id == id)
    }
}

/// Whether an item is the result of a call.
fn is_result(item: &Value) -> bool {
    item["body"]["kind"] == "function_call_output"
}
