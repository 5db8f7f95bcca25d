//! What must be true of any chat template whatever: the fuzzer of `fuzz/` looks for one of which it is not, and a test
//! tries the templates that are kept there.
//!
//! Asserts, and nothing else: no part of the server is built with it.

use serde_json::{Map, json};

use super::environment::{self, Limits, TEMPLATE};
use super::template::without_panic;
use super::{ChatTemplate, Message, PromptEnd, Rendering, Role, ToolCall, ToolDefinition, values};

/// Enough for every template that is usual, and little enough that the slowest takes no second.
const LIMITS: Limits = Limits { fuel: 100_000, weight: 1 << 20 };
/// What the engine may take without checks and payments between its instructions, which count as well.
const PLAIN_FUEL: u64 = 4 * LIMITS.fuel;

/// Loads the template and renders a conversation with it, twice: it ends, the outcome is the same, and where there is
/// a text it is that of the engine without the meter.
pub fn check(source: &str) {
    if let Ok(template) = ChatTemplate::new(source, "<s>", "</s>") {
        let (messages, tools, kwargs) = (messages(), tools(), &Map::new());
        let (messages, tools) = (&messages[..], &tools[..]);
        let rendering =
            Rendering { messages, tools, end: PromptEnd::Answer, kwargs, now_unix_ms: 0, strip_preamble: true };
        assert_eq!(template.render(&rendering), template.render(&rendering));
    }
    let Ok(mut environment) = environment::environment(source) else { return };
    let shape = super::Capabilities::unknown().shape();
    let messages: Vec<_> = messages().iter().map(|message| values::message(message, shape, None)).collect();
    let tools: Vec<_> = tools().iter().map(|tool| values::plain(&values::tool_json(tool))).collect();
    let context = minijinja::Value::from_pairs([
        ("messages", minijinja::Value::from(messages)),
        ("tools", minijinja::Value::from(tools)),
        ("add_generation_prompt", minijinja::Value::from(true)),
        ("bos_token", minijinja::Value::from("<s>")),
    ]);
    let metered = without_panic(|| environment::render(&environment, context.clone(), LIMITS).ok());
    let Some(Some(metered)) = metered else { return };
    environment.set_fuel(Some(PLAIN_FUEL));
    let plain = || environment.get_template(TEMPLATE).and_then(|template| template.render(&context)).ok();
    // The engine alone has no `%` for texts.
    if let Some(Some(plain)) = without_panic(plain) {
        assert_eq!(plain, metered);
    }
}

fn messages() -> Vec<Message> {
    let call = |id: &str| ToolCall::new(id, "f", "{\"a\": [1.50, \"x\"]}");
    let result = Message::text(Role::Tool, "1 < 2");
    vec![
        Message::text(Role::System, "Be kind."),
        Message::text(Role::User, "Hello "),
        Message {
            reasoning_content: Some("why".to_owned()),
            tool_calls: vec![call("aB3dE6gH9"), call("bB3dE6gH9")],
            ..Message::text(Role::Assistant, "")
        },
        Message { tool_call_id: Some("aB3dE6gH9".to_owned()), name: Some("f".to_owned()), ..result.clone() },
        Message { tool_call_id: Some("bB3dE6gH9".to_owned()), name: Some("f".to_owned()), ..result },
        Message::text(Role::Assistant, "<think>\nso\n</think>\n\nThere."),
        Message::text(Role::User, "And?"),
    ]
}

fn tools() -> Vec<ToolDefinition> {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}}});
    vec![ToolDefinition { name: "f".to_owned(), description: Some("Does".to_owned()), parameters }]
}
