//! Tools for templates that know none: the Hermes prompt in the system message, calls and results as text.
//!
//! Works on messages only, so that any model's own template still frames them.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::probe::Capabilities;
use super::values::tool_json;
use super::{Message, Role, ToolDefinition};

const INTRODUCTION: &str = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
    You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
const INSTRUCTION: &str = "\n</tools>\n\nFor each function call, return a json object with function name and \
    arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": \
    <args-json-object>}\n</tool_call>";

/// The messages with what the template cannot write of tools, calls and results written out as text; untouched where
/// there is nothing of it.
pub(super) fn adapt<'a>(
    messages: Cow<'a, [Message]>,
    tools: &[ToolDefinition],
    can: &Capabilities,
) -> Cow<'a, [Message]> {
    let as_text = |message: &Message| {
        !can.tool_results && message.role == Role::Tool || !can.tool_calls && !message.tool_calls.is_empty()
    };
    let defines = !can.tools && !tools.is_empty();
    if !defines && !messages.iter().any(as_text) {
        return messages;
    }
    let mut adapted: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    let mut results_open = false;
    for message in messages.iter() {
        let is_result = message.role == Role::Tool && !can.tool_results;
        if is_result {
            let result = format!("<tool_response>\n{}\n</tool_response>", message.content);
            match adapted.last_mut().filter(|_| results_open) {
                Some(results) => results.content = format!("{}\n{result}", results.content),
                None => adapted.push(Message::text(Role::User, result)),
            }
        } else if can.tool_calls {
            adapted.push(message.clone());
        } else {
            adapted.push(with_calls_as_text(message));
        }
        results_open = is_result;
    }
    if defines {
        add_tools(&mut adapted, tools);
    }
    Cow::Owned(adapted)
}

fn with_calls_as_text(message: &Message) -> Message {
    let mut message = message.clone();
    for call in std::mem::take(&mut message.tool_calls) {
        if !message.content.is_empty() {
            message.content.push('\n');
        }
        let name = Json::from(call.name);
        let text = format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {}}}\n</tool_call>", call.arguments);
        message.content.push_str(&text);
    }
    message
}

fn add_tools(messages: &mut Vec<Message>, tools: &[ToolDefinition]) {
    let mut prompt = INTRODUCTION.to_owned();
    for tool in tools {
        prompt.push('\n');
        prompt.push_str(&tool_json(tool).to_string());
    }
    prompt.push_str(INSTRUCTION);
    match messages.first_mut().filter(|message| message.role == Role::System) {
        Some(system) if system.content.is_empty() => system.content = prompt,
        Some(system) => system.content = format!("{}\n\n{prompt}", system.content),
        None => messages.insert(0, Message::text(Role::System, prompt)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::ToolCall;

    fn nothing() -> Capabilities {
        Capabilities { tools: false, tool_calls: false, tool_results: false, ..Capabilities::unknown() }
    }

    #[test]
    fn calls_and_results_become_text() {
        let mut call = Message::text(Role::Assistant, "");
        call.tool_calls = ["1", "2"].map(|id| ToolCall::new(id, "f", r#"{"a":1}"#)).to_vec();
        let results = ["x", "y"].map(|result| Message::text(Role::Tool, result));
        let messages = [vec![Message::text(Role::User, "go"), call], results.to_vec()].concat();
        let adapted = adapt(Cow::Owned(messages), &[], &nothing());
        let shown: Vec<_> = adapted.iter().map(|message| (message.role, message.content.as_str())).collect();
        let call_text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>";
        assert_eq!(shown[1], (Role::Assistant, format!("{call_text}\n{call_text}").as_str()));
        let results = "<tool_response>\nx\n</tool_response>\n<tool_response>\ny\n</tool_response>";
        assert_eq!(shown[2..], [(Role::User, results)]);
    }

    #[test]
    fn tools_join_the_system_message_or_bring_one() {
        let tools = [ToolDefinition { name: "look".to_owned(), description: None, parameters: serde_json::json!({}) }];
        let messages = [Message::text(Role::User, "hi")];
        let adapted = adapt(Cow::Borrowed(&messages), &tools, &nothing());
        assert_eq!(adapted[0].role, Role::System);
        assert!(adapted[0].content.contains(r#"{"type":"function","function":{"name":"look","parameters":{}}}"#));
        let messages = [Message::text(Role::System, "Be kind."), Message::text(Role::User, "hi")];
        let adapted = adapt(Cow::Borrowed(&messages), &tools, &nothing());
        assert!(adapted[0].content.starts_with("Be kind.\n\n# Tools"));
        assert!(matches!(adapt(Cow::Borrowed(&messages), &[], &nothing()), Cow::Borrowed(_)));
    }
}
