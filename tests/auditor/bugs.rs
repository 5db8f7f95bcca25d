//! The seeded bugs: what a faulty server would have journaled, shown or answered, made from a good run.

use serde_json::{Value, json};

use crate::scene::Evidence;

/// A fault of the server.
pub(crate) struct Bug {
    pub(crate) name: &'static str,
    /// The invariant that it breaks.
    pub(crate) invariant: &'static str,
    pub(crate) plant: fn(&mut Evidence),
}

const fn bug(name: &'static str, invariant: &'static str, plant: fn(&mut Evidence)) -> Bug {
    Bug { name, invariant, plant }
}

pub(crate) const BUGS: &[Bug] = &[
    bug("an event is missing", "I1", |run| drop(run.lines.remove(run.find("output_delta", 1)))),
    bug("a seq is given twice", "I1", |run| {
        let place = run.find("output_delta", 1);
        let line = run.lines[place].clone();
        run.lines.insert(place, line);
    }),
    bug("a reader misses an event", "I1", |run| {
        let place = run.seen("output_delta");
        run.history.observations.remove(place);
    }),
    bug("a reader sees an event twice", "I1", |run| {
        let place = run.seen("output_delta");
        let again = run.history.observations[place].clone();
        run.history.observations.insert(place, again);
    }),
    bug("a replay shows another delta", "I2", |run| {
        let place = run.seen("output_delta");
        let mut event: Value = serde_json::from_str(run.history.observations[place]["text"].as_str().unwrap()).unwrap();
        event["event"]["text"] = json!("another");
        run.history.observations[place]["text"] = json!(event.to_string());
    }),
    bug("a trim takes an event too many", "I1", |run| {
        *run = crate::scene::trimmed();
        let kept = run.lines.iter().rposition(|line| line.get("kept").is_some()).unwrap();
        run.lines.remove(kept + 1);
    }),
    bug("a trim keeps too little of an answer", "I9", |run| {
        *run = crate::scene::trimmed();
        let is_delta = |line: &Value| line["kept"]["event"]["type"] == "output_delta";
        let place = run.lines.iter().position(is_delta).unwrap();
        run.lines[place]["kept"]["event"]["tokens"].as_array_mut().unwrap().pop();
    }),
    bug("a trim loses an instruction's outcome", "I5", |run| {
        *run = crate::scene::trimmed();
        run.lines.retain(|line| line["kept"]["event"]["type"] != "intervention_committed");
    }),
    bug("a reader begins in front of what was trimmed before", "I1", |run| {
        *run = crate::scene::trimmed();
        let place = run.history.observations.iter().position(|seen| seen["kind"] == "trimmed").unwrap();
        let trimmed = run.history.observations.remove(place);
        run.history.observations.insert(0, trimmed);
    }),
    bug("a prompt keeps more than was held", "I9", |run| {
        let place = run.find("response_in_progress", 1);
        run.lines[place]["event"]["event"]["prompt"]["kept"] = json!(1_000);
    }),
    bug("a prompt lacks a token", "I9", |run| {
        let place = run.find("response_in_progress", 0);
        run.lines[place]["event"]["event"]["prompt"]["tokens"].as_array_mut().unwrap().pop();
    }),
    bug("what was seen is gone after a restart", "I2", |run| run.cut_behind("intervention_committed", 0)),
    bug("a response ends twice", "I3", |run| run.repeat("response_ended", 0)),
    bug("a token behind the terminal", "I3", |run| run.copy_behind("output_delta", 0, "response_ended", 0)),
    bug("a conversation goes on behind its deletion", "I3", |run| {
        run.insert_behind("response_created", 1, &json!({"type": "conversation_deleted"}));
    }),
    bug("a token behind a recorded cancel", "I4", |run| run.copy_behind("output_delta", 2, "cancel_requested", 0)),
    bug("a cancelled response completes", "I4", |run| {
        let place = run.find("response_ended", 1);
        assert_eq!(run.lines[place]["event"]["event"]["ending"]["status"], "cancelled");
        run.lines[place]["event"]["event"]["ending"]["status"] = json!("completed");
    }),
    bug("an accepted steer is dropped", "I5", |run| run.remove("intervention_committed", 0)),
    bug("a steer is committed twice", "I5", |run| run.repeat("intervention_committed", 0)),
    bug("a steer is committed and fails", "I5", |run| {
        let place = run.find("intervention_committed", 0);
        let mut failed = run.lines[place]["event"]["event"].clone();
        failed["type"] = json!("intervention_failed");
        run.insert_behind("intervention_committed", 0, &failed);
    }),
    bug("a steer is committed and nobody answers it", "I5", |run| {
        let place = run.find("intervention_committed", 0);
        run.lines[place]["event"]["event"]["successor_id"] = json!("resp_0");
    }),
    bug("a steer that nobody sent is committed", "I5", |run| run.remove("intervention_accepted", 0)),
    bug("one key has two effects", "I6", |run| {
        let place = run.find("response_created", 0);
        let mut again = run.lines[place]["event"]["event"].clone();
        again["id"] = json!("resp_again");
        run.insert_behind("response_ended", 2, &again);
    }),
    bug("one key has two answers", "I6", |run| {
        let place = run.observed("answer", 3);
        run.history.observations[place]["answer"]["response"] = json!("resp_other");
    }),
    bug("one key has two records", "I6", |run| {
        let place = run.lines.iter().position(|line| line["record"].get("key").is_some()).unwrap();
        let line = run.lines[place].clone();
        run.lines.push(line);
    }),
    bug("a response is created twice", "I6", |run| run.repeat("response_created", 0)),
    bug("a call is left without a result", "I7", |run| run.remove("tool_call_closed", 0)),
    bug("a call is answered twice", "I7", |run| {
        let place = run.find("response_created", 4);
        let input = run.lines[place]["event"]["event"]["input"].as_array_mut().unwrap();
        let mut again = input[0].clone();
        assert_eq!(again["body"]["kind"], "function_call_output");
        again["id"] = json!("item_again");
        input.push(again);
    }),
    bug("a cut call is asked for", "I7", |run| {
        let place = run.find_item_done("function_call");
        run.lines[place]["event"]["event"]["status"] = json!("incomplete");
    }),
    bug("an engine is given an open call", "I7", |run| {
        let messages = run.model_input_with("tool");
        messages.retain(|message| message["role"] != "tool");
    }),
    bug("the result of a closed call reaches the model", "I8", |run| {
        let place = run.find("tool_call_closed", 0);
        let closed = run.lines[place]["event"]["event"].clone();
        let mut stale = closed["output"].clone();
        stale["id"] = json!("item_stale");
        stale["body"]["output"] = json!("too late");
        run.insert_behind("intervention_committed", 1, &json!({"type": "items_added", "items": [stale]}));
    }),
    bug("a result is accepted for a call that is closed", "I8", |run| {
        let place = run.find("tool_call_closed", 0);
        let mut accepted = run.lines[place]["event"]["event"].clone();
        accepted["type"] = json!("tool_result_accepted");
        run.insert_behind("tool_call_closed", 0, &accepted);
    }),
    bug("a response is cut where it was not", "I9", |run| {
        let place = run.find("intervention_committed", 0);
        run.lines[place]["event"]["event"]["cut"]["token_index"] = json!(1);
    }),
    bug("a successor does not read the steer", "I9", |run| {
        let messages = run.model_input_with("change");
        messages.pop();
    }),
    bug("a successor reads more than was shown", "I9", |run| {
        let messages = run.model_input_with("change");
        messages[1]["content"] = json!("one two three");
    }),
    bug("a successor follows another response", "I9", |run| {
        let place = run.find("response_created", 1);
        run.lines[place]["event"]["event"]["previous"] = json!("resp_0");
    }),
    bug("a fork has other tokens than its parent", "I9", |run| {
        let turn = run.copied_turn();
        turn["output"][0]["tokens"][0] = json!(99);
    }),
    bug("a fork takes a turn less than its parent has", "I9", |run| {
        run.copied_turn();
        let place = run.find("turns_copied", 0);
        run.lines[place]["event"]["event"]["turns"] = json!([]);
    }),
    bug("a fork answers a call otherwise than its parent", "I9", |run| {
        let turn = run.copied_turn();
        turn["calls"][0]["output"]["body"]["output"] = json!("not started");
    }),
    bug("a fork leaves a call of its parent open", "I7", |run| {
        let turn = run.copied_turn();
        turn["calls"][0].as_object_mut().unwrap().remove("output");
    }),
    bug("a create is acknowledged before it is flushed", "I10", |run| run.cut_behind("cancel_requested", 0)),
    bug("a steer is acknowledged before it is flushed", "I10", |run| run.cut_before("intervention_accepted", 0)),
    bug("a cancel is acknowledged before it is flushed", "I10", |run| run.cut_before("cancel_requested", 0)),
    bug("an acknowledged conversation is lost", "I10", |run| {
        let lost = run.lines[1]["conversation"].clone();
        run.lines.retain(|line| line["conversation"] != lost);
    }),
    bug("what was acknowledged is journaled with another input", "I10", |run| {
        let place = run.find("intervention_accepted", 0);
        run.lines[place]["event"]["event"]["items"][0]["body"]["content"][0]["text"] = json!("another");
    }),
    bug("a response never ends", "I11", |run| run.cut_before("response_ended", 2)),
    bug("a tool that may run once is claimed twice", "I12", |run| {
        let place = run.find("tool_call_requested", 0);
        let mut claim = run.lines[place]["event"]["event"].clone();
        claim["type"] = json!("tool_call_claimed");
        run.insert_behind("tool_call_requested", 0, &claim);
        run.insert_behind("tool_call_requested", 0, &claim);
    }),
    bug("somebody reads what is not his", "I13", |run| {
        let place = run.observed("attach", 0);
        run.history.observations[place]["principal"] = json!("eve");
    }),
    bug("a resumed answer says something else", "I14", |run| {
        let place = run.find("output_delta", 1);
        run.lines[place]["event"]["event"]["tokens"] = json!([99]);
    }),
    bug("the same prompt gives other tokens", "I17", |run| {
        let place = run.find("output_delta", 1);
        run.lines[place]["event"]["event"]["tokens"] = json!([99]);
    }),
    bug("an answer goes on where the same one ended by itself", "I17", |run| {
        let place = run.find("output_delta", 1);
        run.lines[place]["event"]["event"]["tokens"] = json!([2, 3, 2, 7]);
    }),
    bug("a refused request has an effect", "I16", |run| {
        let place = run.find("response_created", 2);
        let mut refused = run.lines[place]["event"]["event"].clone();
        refused["id"] = json!("resp_refused");
        refused["input"][0]["body"]["content"][0]["text"] = json!("while it runs");
        run.insert_behind("response_ended", 2, &refused);
    }),
    bug("a sequence_number is left out", "number", |run| {
        let place = run.find("output_delta", 1);
        let number = run.lines[place]["event"]["number"].as_u64().unwrap();
        run.lines[place]["event"]["number"] = json!(number + 1);
    }),
    bug("an event without a meaning", "form", |run| {
        run.insert_behind("response_ended", 2, &json!({"type": "something_else"}));
    }),
];

impl Evidence {
    /// The place of the n-th event of a kind in the dump.
    fn find(&self, kind: &str, nth: usize) -> usize {
        let found = |line: &Value| line["event"]["event"]["type"] == kind;
        let mut places = (0..self.lines.len()).filter(|place| found(&self.lines[*place]));
        places.nth(nth).unwrap_or_else(|| panic!("the run has no {kind} number {nth}"))
    }

    /// The end of the first item of a kind of content.
    fn find_item_done(&self, body: &str) -> usize {
        let added = |line: &&Value| line["event"]["event"]["item"]["body"]["kind"] == body;
        let item = self.lines.iter().find(added).unwrap()["event"]["event"]["item"]["id"].clone();
        let done = |line: &Value| {
            line["event"]["event"]["type"] == "output_item_done" && line["event"]["event"]["item_id"] == item
        };
        self.lines.iter().position(done).unwrap()
    }

    /// The first turn that was copied into a fork.
    fn copied_turn(&mut self) -> &mut Value {
        let place = self.find("turns_copied", 0);
        &mut self.lines[place]["event"]["event"]["turns"][0]
    }

    /// The place of the first event of a kind that a reader saw.
    fn seen(&self, kind: &str) -> usize {
        let named = format!("{{\"type\":{kind:?}");
        let says = |it: &Value| it["text"].as_str().is_some_and(|text| text.contains(&named));
        self.history.observations.iter().position(says).unwrap()
    }

    /// The place of the n-th observation of a kind.
    fn observed(&self, kind: &str, nth: usize) -> usize {
        let all = &self.history.observations;
        (0..all.len()).filter(|place| all[*place]["kind"] == kind).nth(nth).unwrap()
    }

    /// The first input of an engine that says this.
    fn model_input_with(&mut self, said: &str) -> &mut Vec<Value> {
        let input = self
            .history
            .observations
            .iter_mut()
            .find(|it| it["kind"] == "model_input" && it["messages"].to_string().contains(&format!("{said:?}")));
        input.unwrap()["messages"].as_array_mut().unwrap()
    }

    /// Gives the events of a conversation their places anew, as a server that forgot something would have.
    fn renumber(&mut self, conversation: &Value) {
        let mut numbers = std::collections::BTreeMap::<String, u64>::new();
        let events = self.lines.iter_mut().filter(|line| line["conversation"] == *conversation);
        for (place, line) in events.filter(|line| line.get("event").is_some()).enumerate() {
            line["event"]["seq"] = json!(place + 1);
            let event = &line["event"]["event"];
            let id = if event["type"] == "response_created" { &event["id"] } else { &event["response_id"] };
            let next = numbers.entry(id.to_string()).or_default();
            if line["event"].get("number").is_some() {
                line["event"]["number"] = json!(*next);
                *next += 1;
            }
        }
    }

    fn remove(&mut self, kind: &str, nth: usize) {
        let line = self.lines.remove(self.find(kind, nth));
        self.renumber(&line["conversation"]);
    }

    fn repeat(&mut self, kind: &str, nth: usize) {
        self.copy_behind(kind, nth, kind, nth);
    }

    fn copy_behind(&mut self, kind: &str, nth: usize, behind: &str, behind_nth: usize) {
        let line = self.lines[self.find(kind, nth)].clone();
        let place = self.find(behind, behind_nth);
        assert_eq!(line["conversation"], self.lines[place]["conversation"]);
        let conversation = line["conversation"].clone();
        self.lines.insert(place + 1, line);
        self.renumber(&conversation);
    }

    fn insert_behind(&mut self, kind: &str, nth: usize, event: &Value) {
        let place = self.find(kind, nth);
        let mut line = self.lines[place].clone();
        line["event"]["event"] = event.clone();
        if event["type"] != "response_created" {
            line["event"].as_object_mut().unwrap().remove("number");
        }
        let conversation = line["conversation"].clone();
        self.lines.insert(place + 1, line);
        self.renumber(&conversation);
    }

    /// The conversation's journal ends behind this event.
    fn cut_behind(&mut self, kind: &str, nth: usize) {
        self.cut_at(self.find(kind, nth) + 1);
    }

    /// The conversation's journal ends in front of this event.
    fn cut_before(&mut self, kind: &str, nth: usize) {
        self.cut_at(self.find(kind, nth));
    }

    fn cut_at(&mut self, place: usize) {
        let conversation = self.lines[place - 1]["conversation"].clone();
        let mut index = 0;
        self.lines.retain(|line| {
            index += 1;
            index <= place || line["conversation"] != conversation || line.get("event").is_none()
        });
    }
}
