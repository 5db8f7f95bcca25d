//! The ids that a template writes on calls and on their results: those that the model itself gave, else ids in the form
//! that the template takes.
//!
//! Works on messages only. The id of a call follows from the call and from the calls in front of it, so that a growing
//! conversation keeps its beginning.

use std::collections::{HashMap, HashSet, VecDeque};

use super::adapt::Messages;
use super::probe::Capabilities;
use super::{Message, ToolCall};

/// Letters and digits of a short id.
const SHORT_ID: usize = 9;

/// What stands in front of the name in an id that names the function.
const NAMING: &str = "functions.";

/// An id that names the function, with the number of the call.
pub(super) fn naming(name: &str, number: &str) -> String {
    format!("{NAMING}{name}:{number}")
}

/// Gives calls and their results the ids that the template is to write.
pub(super) fn show(messages: &mut Messages<'_>, can: &Capabilities) {
    let demands = can.short_call_ids || can.call_ids_name_tools;
    let concerns = |message: &Message| {
        let native = message.tool_calls.iter().any(|call| call.native_id.is_some());
        native || demands && (!message.tool_calls.is_empty() || message.tool_call_id.is_some())
    };
    if !messages.iter().any(concerns) {
        return;
    }
    let mut ids = Ids { can, shown: HashSet::new(), calls: 0, unanswered: HashMap::new() };
    for message in messages.to_mut() {
        for call in &mut message.tool_calls {
            call.id = ids.of_call(call);
        }
        if let Some(id) = &mut message.tool_call_id {
            *id = ids.of_result(id);
        }
    }
}

struct Ids<'a> {
    can: &'a Capabilities,
    /// Every id that was given to a call.
    shown: HashSet<String>,
    /// How many calls there were.
    calls: usize,
    /// By the id that results name: what the calls of this id are shown with, those without a result yet first.
    unanswered: HashMap<String, VecDeque<String>>,
}

impl Ids<'_> {
    fn of_call(&mut self, call: &ToolCall) -> String {
        let own = call.native_id.iter().chain([&call.id]).find(|id| self.fits(id, &call.name)).cloned();
        let shown = own.unwrap_or_else(|| self.made(call));
        self.calls += 1;
        self.shown.insert(shown.clone());
        self.unanswered.entry(call.id.clone()).or_default().push_back(shown.clone());
        shown
    }

    /// A result has the id of its call. Clients may use one id twice: then each result answers the first call that has
    /// none.
    fn of_result(&mut self, id: &str) -> String {
        match self.unanswered.get_mut(id) {
            Some(calls) if calls.len() > 1 => calls.pop_front(),
            Some(calls) => calls.front().cloned(),
            None if self.can.short_call_ids && !is_short(id) => Some(short(id)),
            None => None,
        }
        .unwrap_or_else(|| id.to_owned())
    }

    /// Whether the template can take the id as it is. A model may have given it whose template is another one.
    fn fits(&self, id: &str, name: &str) -> bool {
        if self.can.short_call_ids { is_short(id) } else { !self.can.call_ids_name_tools || names(id, name) }
    }

    fn made(&self, call: &ToolCall) -> String {
        if self.can.short_call_ids {
            return short(&call.id);
        }
        let mut number = self.calls;
        loop {
            let id = naming(&call.name, &number.to_string());
            if !self.shown.contains(&id) {
                return id;
            }
            number += 1;
        }
    }
}

/// Whether the id names the function and has a number: `functions.NAME:NUMBER`, or without what is in front.
fn names(id: &str, name: &str) -> bool {
    let Some((path, number)) = id.rsplit_once(':') else { return false };
    let counts = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    counts && path.strip_prefix(NAMING).unwrap_or(path) == name
}

fn is_short(id: &str) -> bool {
    id.len() == SHORT_ID && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// A hash of the id (FNV-1a), in digits and lower-case letters: the same for the same id, always.
fn short(id: &str) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut rest = id.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    let digits = (0..SHORT_ID).map(|_| {
        let digit = DIGITS[(rest % 36) as usize];
        rest /= 36;
        char::from(digit)
    });
    digits.collect()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::prompt::Role;

    fn named() -> Capabilities {
        Capabilities { call_ids_name_tools: true, ..Capabilities::unknown() }
    }

    fn nine_letters() -> Capabilities {
        Capabilities { short_call_ids: true, ..Capabilities::unknown() }
    }

    /// A message that calls `f` by these ids: ours, and the model's where it gave one.
    fn calls(ids: &[(&str, Option<&str>)]) -> Message {
        let call = |(id, native): &(&str, Option<&str>)| ToolCall {
            native_id: native.map(str::to_owned),
            ..ToolCall::new(*id, "f", "{}")
        };
        Message { tool_calls: ids.iter().map(call).collect(), ..Message::text(Role::Assistant, "") }
    }

    fn result(id: &str) -> Message {
        Message { tool_call_id: Some(id.to_owned()), ..Message::text(Role::Tool, "r") }
    }

    /// All ids as the template sees them, in order.
    fn shown(messages: &[Message], can: &Capabilities) -> Vec<String> {
        let mut messages = Cow::Borrowed(messages);
        show(&mut messages, can);
        let ids = |message: &Message| {
            let calls = message.tool_calls.iter().map(|call| call.id.clone());
            calls.chain(message.tool_call_id.clone()).collect::<Vec<_>>()
        };
        messages.iter().flat_map(ids).collect()
    }

    #[test]
    fn the_models_own_ids_are_shown_on_calls_and_results() {
        let turn = [calls(&[("ours1", Some("theirs")), ("ours2", None)]), result("ours2"), result("ours1")];
        assert_eq!(shown(&turn, &Capabilities::unknown()), ["theirs", "ours2", "ours2", "theirs"]);
        let again = [&turn[..], &[calls(&[("ours3", Some("theirs"))]), result("ours3"), result("unknown")]].concat();
        let both = ["theirs", "ours2", "ours2", "theirs", "theirs", "theirs", "unknown"];
        assert_eq!(shown(&again, &Capabilities::unknown()), both);
    }

    #[test]
    fn ids_that_must_name_the_function_are_numbered_through_the_conversation_and_never_twice_the_same() {
        let turns = [
            calls(&[("a", None), ("b", Some("functions.f:2"))]),
            result("a"),
            result("b"),
            calls(&[("c", None), ("functions.f:7", None), ("g:9", None)]),
            result("functions.f:7"),
        ];
        let expected = [
            "functions.f:0",
            "functions.f:2",
            "functions.f:0",
            "functions.f:2",
            "functions.f:3",
            "functions.f:7",
            "functions.f:4",
            "functions.f:7",
        ];
        assert_eq!(shown(&turns, &named()), expected);
        for count in 0..turns.len() {
            let before = shown(&turns[..count], &named());
            assert_eq!(before, expected[..before.len()], "a growing conversation keeps its beginning");
        }
    }

    #[test]
    fn ids_that_must_be_short_are_the_models_own_or_hashes_and_those_of_another_model_are_made_fit() {
        let turn = [
            calls(&[("call1", Some("aB3dE6gH9")), ("call2", Some("functions.f:0")), ("123456789", None)]),
            result("call1"),
            result("call2"),
            result("stray"),
        ];
        let ids = shown(&turn, &nine_letters());
        assert_eq!([&ids[0], &ids[2], &ids[3]], ["aB3dE6gH9", "123456789", "aB3dE6gH9"]);
        assert!(ids.iter().all(|id| is_short(id)) && ids[1] == ids[4] && ids[1] != ids[5], "{ids:?}");
    }

    #[test]
    fn results_of_calls_with_one_id_belong_to_these_calls_in_order() {
        let turn = [calls(&[("x", None), ("x", None)]), result("x"), result("x"), result("x")];
        let ids = ["functions.f:0", "functions.f:1"];
        assert_eq!(shown(&turn, &named()), [ids[0], ids[1], ids[0], ids[1], ids[1]]);
    }
}
