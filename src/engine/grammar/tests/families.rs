//! Calls in every family's form: what a constraint makes a model say, the family's reader reads as that call.

use proptest::prelude::*;

use super::*;
use crate::engine::settings::{INPUT, InputRule};
use crate::parse::{
    CallPart, DeclaredTool, Piece, Pipeline, PipelineConfig, ReasoningFormat, ToolFormat, closes_reasoning,
};

fn families() -> impl Iterator<Item = ToolFormat> {
    ToolFormat::all().filter(|format| *format != ToolFormat::NONE)
}

fn reasoning_of(format: ToolFormat) -> &'static str {
    match format.name() {
        "harmony" => "gpt_oss",
        "inkling" => "inkling",
        _ => "none",
    }
}

/// The calls that a family's reader finds: their names and arguments, all of them whole.
fn read(format: ToolFormat, tools: &[ToolDefinition], said: &str) -> Vec<(String, Value)> {
    let declared =
        |tool: &ToolDefinition| DeclaredTool { name: tool.name.clone(), parameters: tool.parameters.clone() };
    let reasoning = reasoning_of(format);
    let mut pipeline = Pipeline::new(PipelineConfig {
        tool_format: format,
        reasoning: if reasoning == "none" { ReasoningFormat::NONE } else { reasoning.parse().unwrap() },
        tools: tools.iter().map(declared).collect(),
        ..PipelineConfig::default()
    });
    let mut pieces = Vec::new();
    pipeline.push(said.as_bytes(), &mut pieces);
    pipeline.finish(&mut pieces, false);
    let mut calls = Vec::new();
    for piece in pieces {
        match piece {
            Piece::ToolCallStarted { name, .. } => calls.push((name, Value::Null)),
            Piece::ToolCallDone { arguments, complete, .. } => {
                assert!(complete, "{format}: {said}");
                calls.last_mut().unwrap().1 = serde_json::from_str(&arguments).unwrap();
            }
            Piece::Text(text) => assert!(text.trim().is_empty(), "{format}: {text:?} of {said:?}"),
            Piece::Reasoning(_) | Piece::ToolCallArguments { .. } | Piece::Thought { .. } | Piece::Stopped { .. } => {}
        }
    }
    calls
}

/// What closes a text in a form where texts stand as they are.
fn closes_text(format: ToolFormat, said: &str) -> String {
    let mark = "]<]minimax[>[<";
    match format.name() {
        "glm47" => "</arg_value>\n".to_owned(),
        "minimax_m2" => "</parameter>\n".to_owned(),
        "minimax_m3" => {
            let opened = said.match_indices(mark).map(|(at, _)| &said[at + mark.len()..]);
            let key = opened.filter(|rest| !rest.starts_with('/')).last().and_then(|rest| rest.split_once('>'));
            format!("]<]minimax[>[</{}>\n", key.map_or("", |(key, _)| key))
        }
        "deepseek_v3_2" | "deepseek_v4" => "</｜DSML｜parameter>\n".to_owned(),
        "kimi_k3" => "<|close|>argument<|sep|>".to_owned(),
        "gemma4" => "<|\"|>".to_owned(),
        _ => "\n</parameter>\n".to_owned(),
    }
}

/// Says what ends soonest behind the drawn choices, and never thinks in channels.
fn say(format: ToolFormat, guide: &mut Guide, choices: &[u8]) -> String {
    let mut choices = choices.iter();
    walk(guide, |said, mask| {
        let allowed: Vec<u32> = (0..=END).filter(|token| mask.is_allowed(*token)).collect();
        if said.ends_with(b"<|channel|>") {
            return u32::from(b'c');
        }
        // Letters, so that no character is cut.
        let letters = || allowed.iter().copied().filter(|token| *token < 128).collect::<Vec<_>>();
        if let Some(choice) = choices.next() {
            let letters = letters();
            return letters.get(*choice as usize % letters.len().max(1)).copied().unwrap_or(allowed[0]);
        }
        // A text is closed byte by byte, once that is begun.
        let close = closes_text(format, &String::from_utf8_lossy(said));
        let begun = (1..close.len()).rev().find(|at| said.ends_with(&close.as_bytes()[..*at]));
        let is_text = [b'a', b'"', b'\n'].into_iter().all(|byte| allowed.contains(&u32::from(byte)));
        let next = u32::from(close.as_bytes()[begun.unwrap_or(0)]);
        if (begun.is_some() || is_text) && allowed.contains(&next) {
            return next;
        }
        let soonest = [END, u32::from(b'"'), u32::from(b'<'), u32::from(b'\n'), u32::from(b']'), u32::from(b'}')];
        soonest.into_iter().find(|token| allowed.contains(token)).unwrap_or(allowed[0])
    })
}

fn scene(format: ToolFormat, tools: Vec<ToolDefinition>) -> Scene {
    Scene { tools, format: format.name(), reasoning: reasoning_of(format) }
}

/// A tool with an argument of every kind.
fn every_kind() -> ToolDefinition {
    let properties = json!({
        "city": {"type": "string", "description": "Where"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "exact": {"type": "boolean"},
        "none": {"type": "null"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "more": {
            "type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"],
            "additionalProperties": false,
        },
    });
    let required = json!(["unit", "days", "tags"]);
    tool("every_kind", json!({"type": "object", "properties": properties, "required": required}))
}

fn must(names: &[&str], several: bool) -> Constraint {
    Constraint { text: TextRule::Nothing, calls: Some(call_rule(names, several)), at: None }
}

#[test]
fn a_call_in_a_familys_own_form_is_what_its_reader_reads() {
    for format in families() {
        let scene = scene(format, vec![weather()]);
        let said = say(format, &mut scene.guide(&must(&["weather"], false), None), &[]);
        let calls = read(format, &scene.tools, &said);
        let [(name, arguments)] = &calls[..] else { panic!("{format}: {said:?} {calls:?}") };
        assert_eq!(name, "weather", "{format}: {said:?}");
        assert!(arguments["city"].is_string(), "{format}: {said:?}");
    }
}

#[test]
fn a_call_begins_behind_the_reasoning_also_where_its_reader_takes_one_inside_of_it() {
    for (reasoning, family) in [
        ("deepseek_v4", "deepseek_v4"),
        ("nemotron_v3", "qwen3_coder"),
        ("minimax_m2", "minimax_m2"),
        ("kimi_k25", "kimi_k2"),
        ("minimax_m3", "minimax_m3"),
        ("kimi_k3", "kimi_k3"),
    ] {
        let format: ToolFormat = family.parse().unwrap();
        let scene = Scene { tools: vec![weather()], format: format.name(), reasoning };
        let close = closes_reasoning(reasoning.parse().unwrap()).unwrap();
        for text in [TextRule::Nothing, TextRule::Any] {
            let calls = Some(call_rule(&["weather"], false));
            let is_bound = text == TextRule::Nothing;
            let compiled = scene.compile(&Constraint { text, calls, at: None }).unwrap();
            for opening in format.openings() {
                let mut guide = compiled.guide(Some(true));
                let (begun, last) = opening.as_bytes().split_at(opening.len() - 1);
                let mut think = |thought: &[u8]| {
                    for token in thought.iter().copied().map(u32::from) {
                        assert!(guide.mask().unwrap().unwrap().is_allowed(token), "{reasoning}: {opening}");
                        guide.accept(token).unwrap();
                    }
                };
                think(b"so: ");
                think(begun);
                assert!(!guide.mask().unwrap().unwrap().is_allowed(u32::from(last[0])), "{reasoning}: {opening}");
                for token in close.bytes().map(u32::from) {
                    assert!(guide.mask().unwrap().unwrap().is_allowed(token), "{reasoning}: {opening}");
                    guide.accept(token).unwrap();
                }
                if is_bound {
                    let said = say(format, &mut guide, &[]);
                    let calls = read(format, &scene.tools, &said);
                    assert!(calls.len() == 1 && calls[0].1["city"].is_string(), "{reasoning}: {said:?}");
                }
            }
        }
    }
}

#[test]
fn where_no_tool_can_be_called_there_is_text_and_no_call() {
    let none = |text: TextRule| Constraint { text, calls: Some(call_rule(&[], true)), at: None };
    for format in families().filter(|format| !["inkling", "harmony"].contains(&format.name())) {
        let scene = scene(format, vec![weather()]);
        let call = say(format, &mut scene.guide(&must(&["weather"], false), None), &[]);
        assert!(scene.takes(&none(TextRule::Any), "So it is.") && scene.takes(&none(TextRule::Any), ""), "{format}");
        assert!(!scene.takes(&none(TextRule::Any), &call), "{format}: {call:?}");
        let form = none(TextRule::Choice { texts: vec!["yes".to_owned()] });
        assert!(scene.takes(&form, "yes") && !scene.takes(&form, &call), "{format}");
    }
}

#[test]
fn families_write_their_own_forms() {
    for (family, begins) in [
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\n"),
        ("hermes", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \""),
        ("glm47", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>"),
        ("minimax_m2", "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">"),
        ("minimax_m3", "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"weather\">\n]<]minimax[>[<city>"),
        (
            "deepseek_v4",
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">",
        ),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:"),
        ("kimi_k3", "<|open|>tools<|sep|><|open|>call tool=\"weather\" index=\""),
        ("gemma4", "<|tool_call>call:weather{city:<|\"|>"),
        ("pythonic", "[weather(city=\""),
        ("lfm2", "<|tool_call_start|>[weather(city=\""),
        (
            "inkling",
            "<|message_model|>weather<|content_invoke_tool_json|>{\"name\": \"weather\", \"args\": {\"city\": \"",
        ),
    ] {
        let format: ToolFormat = family.parse().unwrap();
        let mut guide = scene(format, vec![weather()]).guide(&must(&["weather"], true), None);
        for (at, token) in begins.bytes().enumerate() {
            let allowed = guide.mask().unwrap().unwrap().is_allowed(u32::from(token));
            assert!(allowed, "{family}: behind {:?}", &begins[..begins.floor_char_boundary(at)]);
            guide.accept(u32::from(token)).unwrap();
        }
    }
}

#[test]
fn a_schema_that_a_form_cannot_say_is_said_in_another_that_is_read() {
    let pattern = json!({"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
        "required": ["zip"], "additionalProperties": false});
    let any_of = json!({"anyOf": [one_field("a"), one_field("b")]});
    for parameters in [pattern, any_of] {
        for format in families().filter(|format| !["inkling", "harmony"].contains(&format.name())) {
            let tools = vec![tool("look", parameters.clone())];
            let said = say(format, &mut scene(format, tools.clone()).guide(&must(&["look"], false), None), &[]);
            let calls = read(format, &tools, &said);
            assert_eq!(calls.len(), 1, "{format}: {said:?}");
            let zip = calls[0].1.get("zip").map(|zip| zip.as_str().unwrap().len());
            assert!(zip.is_none_or(|digits| digits == 5), "{format}: {said:?}");
        }
    }
}

#[test]
fn a_tool_that_is_not_strict_takes_any_arguments() {
    let rule =
        CallRule { tools: vec![Callable { name: "look".to_owned(), by_schema: false, input: None }], several: false };
    let constraint = Constraint { text: TextRule::Nothing, calls: Some(rule), at: None };
    let three = json!({"a": {"type": "integer", "minimum": 3, "maximum": 3}});
    let number = json!({"type": "object", "properties": three, "required": ["a"], "additionalProperties": false});
    for format in families() {
        let tools = vec![tool("look", json!({"type": "object", "properties": {"a": {"type": "integer"}}}))];
        let compiled = scene(format, tools.clone()).compile(&constraint).unwrap();
        // An integer can be said in one of the forms that the family reads.
        let strict = |parameters: &Value| {
            let guided = scene(format, vec![tool("look", parameters.clone())]);
            say(format, &mut guided.guide(&must(&["look"], false), None), &[])
        };
        let bare = r#"{"name": "look", "arguments": {"a": 3}}"#.to_owned();
        let said = [strict(&number), strict(&json!({"anyOf": [number]})), bare];
        let taken = said.iter().find(|said| takes(&mut compiled.guide(None), said));
        let taken = taken.unwrap_or_else(|| panic!("{format}: {said:?}"));
        assert_eq!(read(format, &tools, taken), [("look".to_owned(), json!({"a": 3}))], "{format}: {taken:?}");
    }
}

#[test]
fn what_is_read_as_a_call_without_marks_is_no_prose() {
    let constraint = Constraint { text: TextRule::Any, calls: Some(call_rule(&["weather"], true)), at: None };
    let object = r#"{"name": "weather", "arguments": {"town": 1}}"#;
    for format in families().filter(|format| !["inkling", "harmony"].contains(&format.name())) {
        let scene = scene(format, vec![weather()]);
        let compiled = scene.compile(&constraint).unwrap();
        let mut calls = vec![object.to_owned(), format!(" \n\t{object}")];
        for fence in ["```", "```json", "\n```JSON ", "```tool_call"] {
            calls.push(format!("{fence}\n {object}\n```"));
        }
        match format.name() {
            "pythonic" => calls.extend(["[weather(town=1)]", "\n[weather(town=1)]"].map(str::to_owned)),
            "qwen3_coder" => {
                let call = "<function=weather>\n<parameter=town>\n1\n</parameter>\n</function>";
                calls.push(call.to_owned());
            }
            _ => {}
        }
        for call in calls {
            assert_eq!(read(format, &scene.tools, &call).len(), 1, "{format}: {call:?}");
            assert!(!takes(&mut compiled.guide(None), &call), "{format}: {call:?}");
        }
        for prose in [
            "",
            "\n Sure.",
            "```python\nx = {1: [2]}\n```\nDone: {\"a\": 1}.",
            "```\nls\n```",
            "```json\n[]\n```",
            "`{}` is <empty> and [this], functools.reduce(f), is not.",
            &format!("See:\n{object}"),
        ] {
            assert!(takes(&mut compiled.guide(None), prose), "{format}: {prose:?}");
        }
    }
}

#[test]
fn what_a_form_cannot_close_is_not_said_in_it() {
    let choice = |texts: &[&str]| {
        json!({"type": "object", "properties": {"a": {"type": "string", "enum": texts}}, "required": ["a"],
            "additionalProperties": false})
    };
    let closing = "x]<]minimax[>[</a>";
    for format in families() {
        let tools = vec![tool("look", choice(&[closing]))];
        let said = say(format, &mut scene(format, tools.clone()).guide(&must(&["look"], false), None), &[]);
        assert_eq!(read(format, &tools, &said), [("look".to_owned(), json!({"a": closing}))], "{format}: {said:?}");
        assert!(scene(format, vec![tool("look", choice(&[]))]).compile(&must(&["look"], false)).is_err(), "{format}");
    }
}

fn custom(input: InputRule) -> (ToolDefinition, Constraint) {
    let parameters = json!({"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT],
        "additionalProperties": false});
    let callable = Callable { name: "patch".to_owned(), by_schema: true, input: Some(input) };
    let calls = Some(CallRule { tools: vec![callable], several: false });
    (tool("patch", parameters), Constraint { text: TextRule::Nothing, calls, at: None })
}

/// Codex's own form of a patch, as far as it matters here.
const PATCH: &str = r#"
start: begin file+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
file: added | changed
added: "*** Add File: " name LF add_line+
changed: "*** Update File: " name LF change+
change: "@@" LF -> place
    | ("+" | "-" | " ") /(.*)/ LF
name: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"#;

/// Whether a family has a form in which texts stand as they are.
fn says_raw(format: ToolFormat) -> bool {
    let mut parts = format.writing().ways.iter().copied().flatten();
    parts.any(|part| matches!(part, CallPart::Each(each) if each.is_raw))
}

#[test]
fn the_text_of_a_tool_follows_its_grammar_where_the_form_carries_text() {
    let (tool, constraint) = custom(InputRule::Lark { grammar: PATCH.to_owned() });
    let lines = ["*** Begin Patch", "*** Add File: a b.rs", "+say \"</parameter>\"", "+", "*** Update File: c", "@@"];
    let patch = format!("{}\n-x\n+y\n*** End Patch", lines.join("\n"));
    let mut carrying = Vec::new();
    for format in families() {
        let scene = scene(format, vec![tool.clone()]);
        let compiled = scene.compile(&constraint).unwrap();
        let told = only_told(format.writing(), constraint.calls.as_ref().unwrap(), &scene.tools);
        // Where it is not carried, it is any text in JSON, which is said.
        assert_eq!(told.is_empty(), says_raw(format), "{format}");
        if !says_raw(format) {
            assert_eq!(told, [("patch", PATCH)], "{format}");
            let said = say(format, &mut compiled.guide(None), &[]);
            assert_eq!(read(format, &scene.tools, &said).len(), 1, "{format}: {said:?}");
            continue;
        }
        carrying.push(format.name());
        let mut told = patch.bytes().map(u32::from).peekable();
        let said = walk(&mut compiled.guide(None), |_, mask| {
            let soonest = [END, u32::from(b'"'), u32::from(b'<'), u32::from(b'\n')];
            let next = told.next_if(|token| mask.is_allowed(*token));
            next.unwrap_or_else(|| soonest.into_iter().chain(0..256).find(|token| mask.is_allowed(*token)).unwrap())
        });
        let calls = read(format, &scene.tools, &said);
        assert_eq!(calls.len(), 1, "{format}: {said:?}");
        // The grammar leaves the last line end open.
        assert_eq!(calls[0].1[INPUT].as_str().unwrap().trim_end(), patch, "{format}: {said:?}");
    }
    let expected = [
        "hermes",
        "qwen3_coder",
        "glm47",
        "deepseek_v3_2",
        "deepseek_v4",
        "minimax_m2",
        "minimax_m3",
        "kimi_k3",
        "gemma4",
    ];
    assert_eq!(carrying, expected);
}

#[test]
fn a_grammar_that_is_none_is_refused_also_where_it_is_only_told() {
    for (wrong, word) in [("start: missing".to_owned(), "missing"), ("x".repeat(20_000), "bytes")] {
        let (tool, constraint) = custom(InputRule::Lark { grammar: wrong });
        for format in families() {
            let scene = scene(format, vec![tool.clone()]);
            let grammars = grammars();
            let told = grammars.check_told(&constraint, &scene.surroundings(), None);
            let refused = told.and_then(|()| Ok(grammars.compile(&constraint, &scene.surroundings())?)).unwrap_err();
            assert!(refused.to_string().contains(word), "{format}: {refused}");
        }
    }
    // Beside a tool whose arguments only JSON can say, a form of tags carries no text either.
    let (tool, constraint) = custom(InputRule::Lark { grammar: PATCH.to_owned() });
    let pattern = json!({"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}});
    let tools = vec![tool, super::tool("zip", pattern)];
    let mut rule = constraint.calls.unwrap();
    let writing = |family: &str| family.parse::<ToolFormat>().unwrap().writing();
    rule.tools.extend(call_rule(&["zip"], false).tools);
    assert_eq!(only_told(writing("kimi_k3"), &rule, &tools), [("patch", PATCH)]);
    assert!(only_told(writing("hermes"), &rule, &tools).is_empty());
}

#[test]
fn the_text_of_a_tool_follows_its_expression_in_every_form() {
    let (tool, constraint) = custom(InputRule::Regex { pattern: "say \"[a-c]{2}\\n/\"|never".to_owned() });
    for format in families() {
        let scene = scene(format, vec![tool.clone()]);
        for choices in [&[][..], &[1, 2, 3, 4, 5, 6, 7, 8, 9]] {
            let said = say(format, &mut scene.guide(&constraint, None), choices);
            let calls = read(format, &scene.tools, &said);
            assert_eq!(calls.len(), 1, "{format}: {said:?}");
            let text = calls[0].1[INPUT].as_str().unwrap().to_owned();
            let is_said = text.strip_prefix("say \"").and_then(|rest| rest.strip_suffix("\n/\""));
            let fits = text == "never" || is_said.is_some_and(|word| word.len() == 2);
            assert!(fits, "{format}: {text:?} in {said:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..Default::default() })]

    /// However a model chooses among what is allowed, its reader finds a call of the tool with arguments of its schema.
    #[test]
    fn whatever_is_chosen_the_reader_finds_arguments_of_the_schema(
        choices in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        for format in families() {
            let scene = scene(format, vec![every_kind()]);
            let said = say(format, &mut scene.guide(&must(&["every_kind"], false), None), &choices);
            let calls = read(format, &scene.tools, &said);
            prop_assert_eq!(calls.len(), 1, "{}: {:?}", format, &said);
            let given = &calls[0].1;
            prop_assert!(given["unit"] == "C" || given["unit"] == "F", "{}: {:?}", format, &said);
            let days = given["days"].as_f64().is_some_and(|days| (0.0..=9.0).contains(&days));
            let tags = given["tags"].as_array().is_some_and(|tags| tags.iter().all(|tag| tag == "a" || tag == "b"));
            prop_assert!(days && tags, "{}: {:?}", format, &said);
            prop_assert!(given.get("exact").is_none_or(Value::is_boolean), "{}: {:?}", format, &said);
            prop_assert!(given.get("none").is_none_or(Value::is_null), "{}: {:?}", format, &said);
            prop_assert!(given.get("city").is_none_or(Value::is_string), "{}: {:?}", format, &said);
            prop_assert!(given.get("more").is_none_or(|more| more["x"].is_boolean()), "{}: {:?}", format, &said);
        }
    }
}
