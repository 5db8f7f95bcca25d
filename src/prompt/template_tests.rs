//! Templates of every kind, written for these tests in the manner of real ones: what the probe finds, what is adapted,
//! and that a growing conversation keeps its tokens.

use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::{
    Built, Capabilities, ChatTemplate, Message, PromptEnd, Rendering, Role, TemplateError, ToolCall, ToolDefinition,
    build, builtin_template, builtin_template_names, template_kwargs,
};
use crate::engine::tokenizer::Tokenizer;

const FIXTURES: [(&str, &str); 10] = [
    ("drops_earlier_reasoning", include_str!("fixtures/drops_earlier_reasoning.jinja")),
    ("keeps_reasoning_when_told", include_str!("fixtures/keeps_reasoning_when_told.jinja")),
    ("wants_text_arguments", include_str!("fixtures/wants_text_arguments.jinja")),
    ("channels", include_str!("fixtures/channels.jinja")),
    ("thinking_parts", include_str!("fixtures/thinking_parts.jinja")),
    ("only_parts", include_str!("fixtures/only_parts.jinja")),
    ("segments", include_str!("fixtures/segments.jinja")),
    ("pairs_of_arguments", include_str!("fixtures/pairs_of_arguments.jinja")),
    ("ids_name_tools", include_str!("fixtures/ids_name_tools.jinja")),
    ("hermes", include_str!("templates/hermes.jinja")),
];

fn template(name: &str) -> ChatTemplate {
    let fixture = FIXTURES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source);
    let source = fixture.or_else(|| builtin_template(name)).unwrap();
    ChatTemplate::new(source, "<s>", "</s>").unwrap()
}

fn can(name: &str) -> Capabilities {
    template(name).capabilities().clone()
}

fn all() -> impl Iterator<Item = (&'static str, ChatTemplate)> {
    let names = FIXTURES.iter().map(|(name, _)| *name).chain(builtin_template_names());
    names.map(|name| (name, template(name)))
}

fn render(template: &ChatTemplate, messages: &[Message], kwargs: &Json) -> Result<String, TemplateError> {
    let kwargs = kwargs.as_object().unwrap();
    let rendering =
        Rendering { messages, tools: &[], end: PromptEnd::Answer, kwargs, now_unix_ms: 0, strip_preamble: false };
    template.render(&rendering)
}

fn says(role: Role, text: &str) -> Message {
    Message::text(role, text)
}

fn calls(id: &str, arguments: &str) -> Message {
    let call = ToolCall::new(id, "read", arguments);
    Message { tool_calls: vec![call], ..says(Role::Assistant, "") }
}

fn result(id: &str, text: &str) -> Message {
    Message { tool_call_id: Some(id.to_owned()), name: Some("read".to_owned()), ..says(Role::Tool, text) }
}

fn thought(message: Message, reasoning: &str) -> Message {
    Message { reasoning_content: Some(reasoning.to_owned()), ..message }
}

fn tools() -> Vec<ToolDefinition> {
    let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    vec![ToolDefinition { name: "read".to_owned(), description: Some("Reads".to_owned()), parameters }]
}

#[test]
fn the_probe_finds_who_knows_tools_and_how_arguments_come() {
    for (name, knows, text, none) in [
        ("drops_earlier_reasoning", true, false, false),
        ("keeps_reasoning_when_told", true, false, false),
        ("wants_text_arguments", true, true, true),
        ("channels", true, false, false),
        ("thinking_parts", true, false, false),
        ("pairs_of_arguments", true, false, false),
        ("ids_name_tools", true, false, false),
        ("llama3", true, false, false),
        ("mistral", true, false, false),
        ("chatml", false, false, false),
        ("gemma", false, false, false),
        ("only_parts", false, false, false),
    ] {
        let can = can(name);
        assert_eq!([can.tools, can.tool_calls], [knows; 2], "{name}");
        assert_eq!((can.arguments_as_text, can.call_content_is_none), (text, none), "{name}");
    }
    assert!(can("only_parts").content_as_parts && !can("thinking_parts").content_as_parts);
    for (name, _) in all() {
        assert_eq!(can(name).short_call_ids, ["thinking_parts", "mistral"].contains(&name), "{name}");
        assert_eq!(can(name).call_ids_name_tools, name == "ids_name_tools", "{name}");
    }
}

#[test]
fn the_probe_finds_where_reasoning_is_read_and_what_keeps_it() {
    for (name, field, earlier) in [
        ("drops_earlier_reasoning", Some("reasoning_content"), false),
        ("keeps_reasoning_when_told", Some("reasoning_content"), false),
        ("wants_text_arguments", None, false),
        ("channels", Some("thinking"), false),
        ("thinking_parts", Some("content"), true),
        ("segments", Some("reasoning_content"), true),
        ("pairs_of_arguments", Some("reasoning_content"), false),
        ("hermes", Some("reasoning_content"), true),
        ("llama3", None, false),
    ] {
        let can = can(name);
        assert_eq!((can.reasoning_field, can.keeps_earlier_reasoning), (field, earlier), "{name}");
        assert_eq!(can.reasoning_segments, name == "segments", "{name}");
    }
    let told = can("keeps_reasoning_when_told");
    assert_eq!(told.keeps_reasoning_with, [("truncate_history_thinking", false)]);
    assert_eq!(can("pairs_of_arguments").keeps_reasoning_with, [("clear_thinking", false)]);
    assert!(can("drops_earlier_reasoning").keeps_reasoning_with.is_empty());
}

#[test]
fn the_probe_finds_what_switches_thinking() {
    for (name, switch) in [
        ("drops_earlier_reasoning", Some("enable_thinking")),
        ("keeps_reasoning_when_told", Some("enable_thinking")),
        ("wants_text_arguments", None),
        ("hermes", Some("enable_thinking")),
        ("chatml", None),
    ] {
        assert_eq!(can(name).thinking_switch, switch, "{name}");
    }
}

#[test]
fn the_probe_shows_a_call_as_the_template_writes_it() {
    for (name, begins) in [
        ("hermes", "<tool_call>\n{\"name\": \"midstream_probe_tool\", \"arguments\": {\"probe_key\":"),
        ("drops_earlier_reasoning", "<tool_call>\n{\"name\""),
        ("wants_text_arguments", "<｜tool▁calls▁begin｜>"),
        ("llama3", "{\"name\": \"midstream_probe_tool\", \"parameters\": {"),
        ("mistral", "[TOOL_CALLS] [{\"name\""),
        ("ids_name_tools", "<|tool_call_begin|>functions.midstream_probe_tool:0<|tool_call_argument_begin|>{"),
        ("channels", "to=functions.midstream_probe_tool<|channel|>commentary json<|message|>{"),
        ("keeps_reasoning_when_told", "<tool_call>\n<function=midstream_probe_tool>\n<parameter=probe_key>"),
        ("pairs_of_arguments", "<tool_call>midstream_probe_tool\n<arg_key>"),
    ] {
        let sample = can(name).tool_call_sample.unwrap();
        assert!(sample.contains(begins), "{name}: {sample}");
        assert!(!sample.contains("probe user"), "{name}: {sample}");
    }
    assert_eq!(can("gemma").tool_call_sample, None);
}

#[test]
fn what_a_template_refuses_is_said_in_a_way_it_takes() {
    let turns = [
        says(Role::System, "Be kind."),
        says(Role::System, "Be brief."),
        says(Role::User, "a"),
        says(Role::User, "b"),
        says(Role::Assistant, "c"),
        says(Role::System, "Now rhyme."),
        says(Role::User, "d"),
    ];
    let gemma = render(&template("gemma"), &turns, &json!({})).unwrap();
    let expected = "<s><start_of_turn>user\nBe kind.\n\nBe brief.\n\na\n\nb<end_of_turn>\n\
        <start_of_turn>model\nc<end_of_turn>\n\
        <start_of_turn>user\n<system>\nNow rhyme.\n</system>\n\nd<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(gemma, expected);
    let chatml = render(&template("chatml"), &turns, &json!({})).unwrap();
    assert!(chatml.contains("<|im_start|>system\nBe brief.") && chatml.contains("<|im_start|>system\nNow rhyme."));
    // A text that the template would gather at the beginning stays behind what was said before it.
    let gathered = render(&template("wants_text_arguments"), &turns, &json!({})).unwrap();
    assert!(gathered.starts_with("<s>Be kind.\n\nBe brief.<｜User｜>a"), "{gathered}");
    assert!(gathered.contains("<｜User｜><system>\nNow rhyme.\n</system>"), "{gathered}");
}

#[test]
fn a_steer_behind_a_result_and_long_call_ids_do_not_fail() {
    let id = "callAbcdefghijklmnopqrstuvwx";
    let turns = [
        says(Role::User, "a"),
        calls(id, "{\"path\": \"x\"}"),
        result(id, "r"),
        says(Role::User, "no, b"),
        says(Role::Assistant, "c"),
        says(Role::User, "d"),
    ];
    for (name, template) in all() {
        let rendered = render(&template, &turns, &json!({}));
        assert!(rendered.is_ok_and(|text| text.contains("no, b")), "{name}");
    }
}

#[test]
fn a_call_without_arguments_or_with_cut_ones_fails_no_later_prompt() {
    for (name, template) in all() {
        for arguments in ["", "null", "[1]", "{\"a\": \"\\ud83d\"}", "{\"path\": \"x"] {
            let turns = [says(Role::User, "a"), calls("1", arguments), result("1", "r"), says(Role::User, "go on")];
            let rendered = render(&template, &turns, &json!({}));
            assert!(rendered.as_ref().is_ok_and(|text| text.contains("go on")), "{name} {arguments}: {rendered:?}");
        }
    }
}

#[test]
fn the_mistral_prompt_only_grows() {
    let template = template("mistral");
    let mut turns = vec![says(Role::System, "Be kind."), says(Role::User, "a")];
    let tools = tools();
    let kwargs = Map::new();
    let text = |messages: &[Message]| {
        let (kwargs, tools) = (&kwargs, &tools[..]);
        let rendering =
            Rendering { messages, tools, end: PromptEnd::Answer, kwargs, now_unix_ms: 0, strip_preamble: false };
        template.render(&rendering).unwrap()
    };
    let before = text(&turns);
    turns.extend([says(Role::Assistant, "b"), says(Role::User, "c")]);
    let after = text(&turns);
    assert!(before.contains("[AVAILABLE_TOOLS]") && before.contains("Be kind."), "{before}");
    assert!(after.starts_with(&before), "{before}\n{after}");
}

#[test]
fn interleaved_reasoning_stays_in_front_of_its_call_where_the_template_can_say_so() {
    let turns = [
        says(Role::User, "a"),
        thought(calls("1", "{\"path\": \"x\"}"), "first"),
        thought(calls("2", "{\"path\": \"y\"}"), "second"),
        result("1", "r"),
        result("2", "s"),
    ];
    let rendered = render(&template("segments"), &turns, &json!({})).unwrap();
    let expected = "<|im_start|>assistant\n<think>first</think><tool_call>read {\"path\": \"x\"}</tool_call>\
        <think>second</think><tool_call>read {\"path\": \"y\"}</tool_call><|im_end|>\n";
    assert!(rendered.contains(expected), "{rendered}");
    for (name, template) in all() {
        let can = template.capabilities();
        let rendered = render(&template, &turns, &json!({})).unwrap();
        let place = |text: &str| rendered.find(text).unwrap_or_else(|| panic!("{name}: {text}: {rendered}"));
        if can.reasoning_field.is_some() || !rendered.contains("｜") {
            assert!(place("first") < place("second"), "{name}");
        }
    }
}

#[test]
fn reasoning_of_calls_is_kept_inside_the_content_where_there_is_no_field_for_it() {
    let turns = [
        says(Role::User, "a"),
        thought(calls("1", "{\"path\": \"x\"}"), "because"),
        result("1", "r"),
        thought(says(Role::Assistant, "b"), "plainly"),
        says(Role::User, "c"),
    ];
    let rendered = render(&template("llama3"), &turns, &json!({})).unwrap();
    assert!(rendered.contains("<think>\nbecause\n</think>") && !rendered.contains("plainly"), "{rendered}");
    let told = template("keeps_reasoning_when_told");
    let kept = template_kwargs(&Map::new(), told.capabilities());
    let kept = render(&told, &turns, &Json::Object(kept)).unwrap();
    assert!(kept.contains("because") && kept.contains("plainly"), "{kept}");
    let dropped = render(&told, &turns, &json!({"enable_thinking": false})).unwrap();
    assert!(!dropped.contains("because") && dropped.ends_with("<think></think>"), "{dropped}");
}

#[test]
fn a_call_is_never_lost_to_what_is_said_in_front_of_it() {
    for (name, template) in all() {
        let call = Message { content: "Let me see.".to_owned(), ..calls("1", "{\"path\": \"x\"}") };
        let turns = [says(Role::User, "a"), thought(call, "hm"), result("1", "r")];
        let rendered = render(&template, &turns, &json!({})).unwrap();
        let all = ["Let me see.", "read", "path"].iter().all(|text| rendered.contains(text));
        assert!(all, "{name}: {rendered}");
    }
}

/// One turn: what the user says, how often the model calls before it answers, whether it thinks.
#[derive(Clone, Debug)]
struct Turn {
    said: Vec<(Role, String)>,
    calls: usize,
    thinks: bool,
    answer: String,
}

fn turn() -> impl Strategy<Value = Turn> {
    let text = "[a-zé<>{}\"]{1,6}( [a-z]{1,4}){0,2}";
    let role = prop_oneof![4 => Just(Role::User), 1 => Just(Role::System), 1 => Just(Role::Developer)];
    let said = prop::collection::vec((role, text), 0..2);
    (said, text, 0usize..3, any::<bool>(), text).prop_map(|(mut said, last, calls, thinks, answer)| {
        said.push((Role::User, last));
        Turn { said, calls, thinks, answer }
    })
}

/// The messages of each prompt in turn: a prompt for every answer, be it a call or a text.
fn prompts(turns: &[Turn]) -> Vec<Vec<Message>> {
    let mut messages = Vec::new();
    let mut prompts = Vec::new();
    for (number, turn) in turns.iter().enumerate() {
        messages.extend(turn.said.iter().map(|(role, text)| says(*role, text)));
        let think = |message, text: &str| if turn.thinks { thought(message, text) } else { message };
        for call in 0..turn.calls {
            prompts.push(messages.clone());
            let id = format!("call{number}x{call}");
            messages.push(think(calls(&id, r#"{"path": "a b",  "n": [1]}"#), "why I call"));
            messages.push(result(&id, "it says\n<tool_call>"));
        }
        prompts.push(messages.clone());
        messages.push(think(says(Role::Assistant, &turn.answer), "why I say so"));
    }
    prompts.push(messages);
    prompts
}

fn built_at(template: &ChatTemplate, messages: &[Message], end: PromptEnd) -> Built {
    let kwargs = template_kwargs(&Map::new(), template.capabilities());
    let (tools, kwargs) = (&tools()[..], &kwargs);
    let rendering = Rendering { messages, tools, end, kwargs, now_unix_ms: 0, strip_preamble: false };
    build(template, &Tokenizer::bytes(), &rendering, None).unwrap()
}

fn built(template: &ChatTemplate, messages: &[Message], prompt: bool, held: Option<&[u32]>) -> Built {
    let kwargs = template_kwargs(&Map::new(), template.capabilities());
    let tools = tools();
    let rendering = Rendering {
        messages,
        tools: &tools,
        end: PromptEnd::generation_prompt(prompt),
        kwargs: &kwargs,
        now_unix_ms: 0,
        strip_preamble: false,
    };
    build(template, &Tokenizer::bytes(), &rendering, held).unwrap()
}

/// A prompt that ends inside its last message.
fn continued(template: &ChatTemplate, messages: &[Message], held: Option<&[u32]>) -> Result<Built, TemplateError> {
    let kwargs = template_kwargs(&Map::new(), template.capabilities());
    let (tools, kwargs) = (&tools()[..], &kwargs);
    let end = PromptEnd::Message;
    let rendering = Rendering { messages, tools, end, kwargs, now_unix_ms: 0, strip_preamble: false };
    build(template, &Tokenizer::bytes(), &rendering, held)
}

#[test]
fn a_prompt_that_goes_on_with_the_last_message_ends_behind_its_last_letter() {
    for (name, template) in all() {
        for said in ["So it is", "  So it is \n", "So\u{F0100} <|im_end|> is"] {
            let turns = [says(Role::User, "a"), says(Role::Assistant, "b"), says(Role::User, "c")];
            let turns = [&turns[..], &[says(Role::Assistant, said)]].concat();
            let built = continued(&template, &turns, None).unwrap();
            let end = said.trim_start();
            assert!(built.text.ends_with(end), "{name}: {:?} does not end in {end:?}", built.text);
            assert_eq!(built.text.matches("So").count(), 1, "{name}: {:?}", built.text);
            let closed = built_at(&template, &turns, PromptEnd::Nothing);
            let kept = closed.text.starts_with(built.text.trim_end());
            assert!(kept, "{name}: {:?} does not begin with {:?}", closed.text, built.text);
        }
    }
}

#[test]
fn behind_any_other_message_an_answer_of_its_own_begins() {
    let called = calls("1", "{}");
    for (name, template) in all() {
        for turns in [vec![says(Role::User, "a")], vec![says(Role::User, "a"), called.clone(), result("1", "r")]] {
            let built = continued(&template, &turns, None).unwrap();
            assert_eq!(built, built_at(&template, &turns, PromptEnd::Answer), "{name}");
        }
    }
    let turns = [says(Role::User, "a"), says(Role::Assistant, "b")];
    let blind = ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap();
    assert_eq!(continued(&blind, &turns, None), Err(TemplateError::NotContinued));
}

#[test]
fn the_next_prompt_begins_with_one_that_went_on_and_what_was_said_then() {
    for name in APPEND_ONLY {
        let template = template(name);
        let mut turns = vec![says(Role::User, "a"), says(Role::Assistant, "So it")];
        let prompt = continued(&template, &turns, None).unwrap();
        let said = [prompt.tokens, Tokenizer::bytes().encode(" is <b>", false)].concat();
        turns[1].content.push_str(" is <b>");
        turns.push(says(Role::User, "c"));
        let next = built(&template, &turns, true, Some(&said));
        assert_eq!(next.common_prefix_tokens, said.len(), "{name}: {}", next.text);
    }
}

fn shared(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// These write an answer where it stands, in every turn, and nothing in front of it changes.
const APPEND_ONLY: [&str; 8] =
    ["chatml", "hermes", "llama3", "gemma", "segments", "only_parts", "keeps_reasoning_when_told", "ids_name_tools"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_template_takes_every_conversation_and_keeps_the_longest_beginning(
        turns in prop::collection::vec(turn(), 1..4),
    ) {
        for (name, template) in all() {
            let mut held: Option<Vec<u32>> = None;
            for messages in prompts(&turns) {
                let fresh = built(&template, &messages, true, None);
                let next = built(&template, &messages, true, held.as_deref());
                prop_assert_eq!(&next.text, &fresh.text, "{}", name);
                prop_assert_eq!(&next.tokens, &fresh.tokens, "{}", name);
                let longest = held.as_ref().map_or(0, |held| shared(held, &fresh.tokens));
                // At most the rest of one character is not kept.
                let kept = next.common_prefix_tokens;
                prop_assert!(kept <= longest && kept + 3 >= longest, "{}", name);
                held = Some(next.tokens);
            }
        }
    }

    #[test]
    fn the_next_prompt_begins_with_the_last_and_its_answer(turns in prop::collection::vec(turn(), 1..4)) {
        for name in APPEND_ONLY {
            let template = template(name);
            let prompts = prompts(&turns);
            for pair in prompts.windows(2) {
                // The model answers as its template writes answers; what follows in the second prompt is the answer
                // and what came after it.
                let answered = &pair[1][..=pair[0].len()];
                let whole = built(&template, answered, false, None);
                let prompt = built(&template, &pair[0], true, None);
                let kept = shared(&prompt.tokens, &whole.tokens);
                let opened = prompt.tokens.len() - kept;
                prop_assert!(opened <= "<think>\n".len(), "{name}: {} | {}", prompt.text, whole.text);
                let next = built(&template, &pair[1], true, Some(&whole.tokens));
                let kept = next.common_prefix_tokens;
                prop_assert!(kept + 1 >= whole.tokens.len(), "{name}: {} | {}", whole.text, next.text);
            }
        }
    }
}
