//! The report names the place and the cause, for every way in which prompts part that clients are known for.

use serde_json::{Map, json};

use super::{
    Cause, ChatTemplate, Message, PrefixReport, PromptEnd, Rendering, Role, Side, ToolCall, ToolDefinition, build,
    compare,
};
use crate::engine::tokenizer::Tokenizer;

struct Talk {
    messages: Vec<Message>,
    tools: Vec<ToolDefinition>,
}

fn talk(said: &[(Role, &str)]) -> Talk {
    Talk { messages: said.iter().map(|(role, text)| Message::text(*role, *text)).collect(), tools: Vec::new() }
}

fn usual() -> Talk {
    let said = [(Role::System, "Be kind."), (Role::User, "hi"), (Role::Assistant, "hello"), (Role::User, "more")];
    talk(&said)
}

fn tool(name: &str) -> ToolDefinition {
    let parameters = json!({"type": "object", "properties": {}});
    ToolDefinition { name: name.to_owned(), description: None, parameters }
}

fn thought(text: &str, reasoning: &str) -> Message {
    Message { reasoning_content: Some(reasoning.to_owned()), ..Message::text(Role::Assistant, text) }
}

/// The tokens of a talk whose last message is the answer that is held.
fn tokens(template: &ChatTemplate, talk: &Talk, prompt: bool) -> Vec<u32> {
    let kwargs = Map::new();
    let rendering = Rendering {
        messages: &talk.messages,
        tools: &talk.tools,
        end: PromptEnd::generation_prompt(prompt),
        kwargs: &kwargs,
        now_unix_ms: 0,
        strip_preamble: false,
    };
    build(template, &Tokenizer::bytes(), &rendering, None).unwrap().tokens
}

fn report(source: &str, held: &Talk, prompt: &Talk) -> PrefixReport {
    let template = ChatTemplate::new(source, "", "").unwrap();
    let (before, after) = (tokens(&template, held, false), tokens(&template, prompt, true));
    let held = Side { tokens: &before, messages: &held.messages, tools: &held.tools };
    let prompt = Side { tokens: &after, messages: &prompt.messages, tools: &prompt.tools };
    compare(&Tokenizer::bytes(), template.capabilities(), held, prompt)
}

const HERMES: &str = include_str!("templates/hermes.jinja");
const DROPS: &str = include_str!("fixtures/drops_earlier_reasoning.jinja");

#[track_caller]
fn check(source: &str, held: &Talk, prompt: &Talk, cause: Cause, message: Option<usize>) -> PrefixReport {
    let report = report(source, held, prompt);
    let difference = report.difference.clone().expect("they part");
    assert_eq!((difference.cause, difference.message), (cause, message), "{difference:#?}");
    assert!(!report.complete && difference.token == report.common_tokens, "{difference:#?}");
    report
}

#[test]
fn a_prompt_that_only_goes_on_has_no_difference() {
    let held = Talk { messages: usual().messages[..3].to_vec(), tools: vec![tool("a")] };
    let prompt = Talk { tools: vec![tool("a")], ..usual() };
    let report = report(HERMES, &held, &prompt);
    assert!(report.complete && report.difference.is_none());
    assert_eq!(report.common_tokens, report.held_tokens);
}

#[test]
fn a_clock_in_the_system_text_is_a_timestamp() {
    for (before, after) in [
        ("Today is 2026-11-28.", "Today is 2026-11-29."),
        ("Now: Sat Nov 28 21:00:07 2026", "Now: Sat Nov 28 21:04:07 2026"),
        ("It is 9:07.", "It is 9:15."),
    ] {
        let (mut held, mut prompt) = (usual(), usual());
        held.messages[0].content = format!("Be kind.\n{before}\nBe brief.");
        prompt.messages[0].content = format!("Be kind.\n{after}\nBe brief.");
        let report = check(HERMES, &held, &prompt, Cause::Timestamp, Some(0));
        let difference = report.difference.unwrap();
        assert!(difference.held.contains(before) && difference.prompt.contains(after), "{difference:#?}");
        assert_eq!(difference.role, Some(Role::System));
    }
}

#[test]
fn a_version_is_no_timestamp() {
    let (mut held, mut prompt) = (usual(), usual());
    held.messages[0].content = "Be v 1.2.3-4 kind.".to_owned();
    prompt.messages[0].content = "Be v 1.2.3-5 kind.".to_owned();
    check(HERMES, &held, &prompt, Cause::SystemChanged, Some(0));
}

#[test]
fn another_system_text_is_named_with_its_byte() {
    let (held, mut prompt) = (usual(), usual());
    prompt.messages[0].content = "Be rude.".to_owned();
    let report = check(HERMES, &held, &prompt, Cause::SystemChanged, Some(0));
    assert_eq!(report.difference.unwrap().byte, Some("<|im_start|>system\nBe ".len()));
}

#[test]
fn a_billing_line_is_named() {
    let (mut held, mut prompt) = (usual(), usual());
    held.messages[0].content = "x-anthropic-billing-header: cc_version=2.1.332.0b8;\nBe kind.".to_owned();
    prompt.messages[0].content = "x-anthropic-billing-header: cc_version=2.1.332.5b0;\nBe kind.".to_owned();
    check(HERMES, &held, &prompt, Cause::BillingLine, Some(0));
}

#[test]
fn tools_in_another_order_are_told_from_other_tools() {
    let with = |names: &[&str]| Talk { tools: names.iter().map(|name| tool(name)).collect(), ..usual() };
    check(HERMES, &with(&["a", "b"]), &with(&["b", "a"]), Cause::ToolsReordered, None);
    for (before, after, words) in [
        (&["a", "b"][..], &["a", "c"][..], "other tools are offered"),
        (&["a"], &[], "are left out"),
        (&[], &["a"], "before there were none"),
    ] {
        let report = check(HERMES, &with(before), &with(after), Cause::ToolsChanged, None);
        assert!(report.difference.unwrap().explanation.contains(words), "{words}");
    }
}

#[test]
fn reasoning_that_the_client_left_out_is_told_from_reasoning_that_the_template_drops() {
    let (mut held, prompt) = (usual(), usual());
    held.messages[2] = thought("hello", "they greet me");
    check(HERMES, &held, &prompt, Cause::ReasoningChanged, Some(2));
    let held = Talk { messages: held.messages[..3].to_vec(), tools: Vec::new() };
    let mut prompt = usual();
    prompt.messages[2] = thought("hello", "they greet me");
    check(DROPS, &held, &prompt, Cause::ReasoningDropped, Some(2));
}

#[test]
fn an_answer_that_the_template_writes_otherwise_and_a_changed_history_are_told_apart() {
    let (mut held, prompt) = (usual(), usual());
    held.messages[1].content = "ho".to_owned();
    check(HERMES, &held, &prompt, Cause::HistoryChanged, Some(1));
    let strips = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
        {{ message.content.strip() }}<|im_end|>\n{% endfor %}";
    let answered = Talk { messages: usual().messages[..3].to_vec(), tools: Vec::new() };
    let template = ChatTemplate::new(strips, "", "").unwrap();
    let mut own = tokens(&template, &Talk { messages: answered.messages[..2].to_vec(), tools: Vec::new() }, false);
    own.extend("?assistant\n hello ".bytes().map(u32::from));
    let place = own.len() - "?assistant\n hello ".len();
    own[place] = 256;
    let prompt_tokens = tokens(&template, &prompt, true);
    let held = Side { tokens: &own, messages: &answered.messages, tools: &[] };
    let side = Side { tokens: &prompt_tokens, messages: &prompt.messages, tools: &[] };
    let report = compare(&Tokenizer::bytes(), template.capabilities(), held, side);
    let difference = report.difference.unwrap();
    assert_eq!((difference.cause, difference.message), (Cause::AnswerRewritten, Some(2)), "{difference:#?}");
}

#[test]
fn reasoning_between_calls_is_named_where_the_template_has_no_place_for_it() {
    let call = |id: &str| {
        let call = ToolCall::new(id, "a", "{}");
        Message { tool_calls: vec![call], ..thought("", &format!("why {id}")) }
    };
    let mut messages = usual().messages[..2].to_vec();
    messages.extend([call("1"), call("2")]);
    let template = ChatTemplate::new(HERMES, "", "").unwrap();
    let talk = Talk { messages: messages.clone(), tools: Vec::new() };
    let prompt = tokens(&template, &talk, false);
    // What the model wrote: one message with both spans.
    let own = "<think>\nwhy 1\n</think>\n\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>\n\
        <think>\nwhy 2\n</think>\n\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>";
    let asked = Talk { messages: messages[..2].to_vec(), tools: Vec::new() };
    let mut held = tokens(&template, &asked, true);
    held.extend(own.bytes().map(u32::from).chain([257]));
    let held = Side { tokens: &held, messages: &messages, tools: &[] };
    let prompt = Side { tokens: &prompt, messages: &messages, tools: &[] };
    let report = compare(&Tokenizer::bytes(), template.capabilities(), held, prompt);
    assert_eq!(report.difference.unwrap().cause, Cause::InterleavedReasoning);
}

#[test]
fn tokens_that_spell_the_same_text_have_no_byte_that_differs() {
    let tokens = [256u32, 97, 98];
    let side = |tokens| Side { tokens, messages: &[], tools: &[] };
    let template = ChatTemplate::chatml().unwrap();
    let cut = "<|im_start|>ab".bytes().map(u32::from).collect::<Vec<_>>();
    let report = compare(&Tokenizer::bytes(), template.capabilities(), side(&tokens), side(&cut));
    let difference = report.difference.unwrap();
    assert_eq!((difference.cause, difference.byte, difference.token), (Cause::Tokenization, None, 0));
}
