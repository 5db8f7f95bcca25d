//! The families that write arguments as JSON, and every way of marking reasoning, on tables.

use super::{DeclaredTool, Piece, PipelineConfig, pieces, run};

/// What comes of an output, in short, read at once and byte by byte.
#[track_caller]
fn check(tool_format: &str, reasoning: &str, output: &str, expected: &[&str]) {
    let config = PipelineConfig {
        tool_format: tool_format.parse().unwrap(),
        reasoning: reasoning.parse().unwrap(),
        tools: ["f", "g"]
            .map(|name| DeclaredTool { name: name.to_owned(), parameters: serde_json::Value::Null })
            .into(),
        ..PipelineConfig::default()
    };
    assert_eq!(run(&config, output, false), expected, "{output:?}");
}

#[test]
fn arrays_of_calls_are_calls() {
    let array = "[{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}, {\"name\": \"x\", \"arguments\": {}}]";
    for (format, output) in [
        ("hermes", format!("<tool_call>{array}</tool_call>")),
        ("nemotron_deci", format!("<TOOLCALL>{array}</TOOLCALL>")),
        ("jamba", format!("<tool_calls>{array}</tool_calls>")),
        ("phi4", format!("functools{array}")),
        ("mistral", format!("[TOOL_CALLS]{array}")),
        ("mistral", format!("[TOOL_CALLS] {array} [/TOOL_CALLS]")),
    ] {
        let calls = ["C:f({\"a\": \"]\"})", "C:x({})"];
        check(format, "none", &output, &calls);
        check(format, "none", &format!("Well.\n{output}"), &[&["T:Well."][..], &calls].concat());
        check(format, "none", &format!("{output}\nSo."), &[&calls[..], &["T:\nSo."]].concat());
    }
    check("phi4", "none", "functools are [1]", &["T:functools are [1]"]);
    check("jamba", "none", "<tool_calls>[]</tool_calls>", &["T:<tool_calls>[]</tool_calls>"]);
    let broken = "<TOOLCALL>[{\"name\":\"f\",\"arguments\":{}}, 1]</TOOLCALL>";
    check("nemotron_deci", "none", broken, &["C:f({})", "T:, 1]</TOOLCALL>"]);
    check(
        "nemotron_deci",
        "none",
        "<TOOLCALL>[{\"name\":\"f\",\"arguments\":{\"a\":x}}]</TOOLCALL>b",
        &["C!:f({\"a\":x}}])", "T:b"],
    );
}

#[test]
fn llama_needs_no_marker_for_a_declared_tool() {
    let call = "{\"name\": \"f\", \"parameters\": {\"a\": \";\"}}";
    let calls = ["C:f({\"a\": \";\"})"; 2];
    check("llama3_json", "none", call, &calls[..1]);
    check("llama3_json", "none", &format!("<|python_tag|>{call}"), &calls[..1]);
    check("llama3_json", "none", &format!("{call}; {call}"), &calls);
    check("llama3_json", "none", &format!("<|python_tag|>{call};{call}"), &calls);
    check("llama3_json", "none", &format!("{call} So."), &[calls[0], "T: So."]);
    check("llama3_json", "none", &format!("{}; {call}", &call[..call.len() - 1]), &calls);
    let other = "{\"name\": \"Ann\", \"parameters\": {}}";
    check("llama3_json", "none", other, &[&format!("T:{other}")]);
    check("llama3_json", "none", &format!("<|python_tag|>{other}"), &["C:Ann({})"]);
    check("llama3_json", "none", "```json\n{\"name\": \"f\", \"parameters\": {}}\n```", &["C:f({})"]);
    check("llama3_json", "none", "{\"a\": 1}", &["T:{\"a\": 1}"]);
}

#[test]
fn arguments_that_are_no_object_make_no_call_and_null_is_as_good_as_none() {
    let call = |fields: &str| format!("<tool_call>{{\"name\":\"f\",{fields}}}</tool_call>");
    for fields in ["\"arguments\":[1]", "\"arguments\":1", "\"arguments\":\"Oslo\"", "\"arguments\":true"] {
        check("hermes", "none", &call(fields), &[&format!("T:{}", call(fields))]);
    }
    for fields in [
        "\"parameters\":null,\"arguments\":{\"a\":1}",
        "\"arguments\":{\"a\":1},\"parameters\":null",
        "\"arguments\":\"\",\"args\":{\"a\":1}",
    ] {
        check("hermes", "none", &call(fields), &["C:f({\"a\":1})"]);
    }
    check("hermes", "none", &call("\"arguments\":\"\""), &["C:f({})"]);
    check("hermes", "none", &call("\"arguments\":null"), &["C:f({})"]);
}

#[test]
fn without_declared_tools_nothing_unmarked_is_a_call() {
    for (format, output) in
        [("llama3_json", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}"), ("pythonic", "[f(a=1)]"), ("pythonic", "[x")]
    {
        let config = PipelineConfig { tool_format: format.parse().unwrap(), ..PipelineConfig::default() };
        assert_eq!(run(&config, output, false), [format!("T:{output}")]);
    }
}

#[test]
fn what_is_left_over_behind_a_call_is_not_text() {
    let call = "{\"name\": \"f\", \"parameters\": {}}";
    check("llama3_json", "none", &format!("{call};"), &["C:f({})"]);
    check("llama3_json", "none", &format!("{call}; no"), &["C:f({})", "T:; no"]);
    check("hermes", "none", &format!("<tool_call>\n{call}}}\n</tool_call>\nOk."), &["C:f({})", "T:\nOk."]);
    check("hermes", "none", &format!("<tool_call>{call}}}}}</tool_call>"), &["C:f({})", "T:}}</tool_call>"]);
}

#[test]
fn markers_that_are_quoted_in_a_message_or_in_reasoning_are_text() {
    for said in [
        "Use `<|end|>` to end.",
        "say \"<|channel|>analysis<|message|>\" first",
        "\"<|start|>assistant<|channel|>final<|message|>\" it is",
    ] {
        let output =
            format!("<|channel|>analysis<|message|>{said}<|end|><|start|>assistant<|channel|>final<|message|>");
        check(
            "harmony",
            "gpt_oss",
            &format!("{output}{said}<|return|>"),
            &[&format!("R:{said}"), &format!("T:{said}")],
        );
    }
    let stray = "a ` b<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}<|call|>";
    check("harmony", "gpt_oss", &format!("<|channel|>final<|message|>{stray}"), &["T:a ` b", "C:f({})"]);
    let fence = "```\nx\n```<|end|><|start|>assistant<|channel|>final<|message|>b";
    check("harmony", "gpt_oss", &format!("<|channel|>commentary<|message|>{fence}"), &["T:```\nx\n```b"]);
    check(
        "hermes",
        "qwen3",
        "<think>it writes \"</think>\" or `</think>` a ` b</think>c",
        &["R:it writes \"</think>\" or `</think>` a ` b", "T:c"],
    );
}

#[test]
fn ids_in_front_of_the_arguments_are_kept() {
    let call = |id: &str| format!("{{\"name\":\"f\",\"id\":{id},\"arguments\":{{}}}}");
    let output = format!("[TOOL_CALLS][{},{},{}]", call("\"abcDEF123\""), call("7"), call("\"\""));
    let config = PipelineConfig { tool_format: "mistral".parse().unwrap(), ..PipelineConfig::default() };
    let ids = pieces(config, std::iter::once(output.as_bytes()), false).0.into_iter().filter_map(|piece| match piece {
        Piece::ToolCallStarted { id, .. } => Some(id),
        _ => None,
    });
    assert_eq!(ids.collect::<Vec<_>>(), [Some("abcDEF123".to_owned()), None, None]);
}

#[test]
fn ids_behind_the_arguments_come_with_the_end_of_the_call() {
    let call = |id: &str| format!("{{\"name\":\"f\",\"arguments\":{{\"a\":1}},\"id\":{id}}}");
    let calls = [call("\"abcDEF123\""), call("7"), call("\"abcDEF123\""), call("\"x\",\"id\":\"y\"")].join(",");
    let config = PipelineConfig { tool_format: "mistral".parse().unwrap(), ..PipelineConfig::default() };
    let output = format!("[TOOL_CALLS][{calls}]");
    for chunk in [1, output.len()] {
        let pieces = pieces(config.clone(), output.as_bytes().chunks(chunk), false).0;
        let ids = pieces.into_iter().filter_map(|piece| match piece {
            Piece::ToolCallStarted { id, .. } => {
                assert_eq!(id, None);
                None
            }
            Piece::ToolCallDone { id, .. } => Some(id),
            _ => None,
        });
        assert_eq!(ids.collect::<Vec<_>>(), [Some("abcDEF123".to_owned()), None, None, Some("x".to_owned())]);
    }
}

#[test]
fn mistral_names_stand_in_front_of_the_arguments() {
    let two = ["C:f({\"a\": \"[TOOL_CALLS]\"})", "C:g({})"];
    check("mistral", "none", "[TOOL_CALLS]f{\"a\": \"[TOOL_CALLS]\"}[TOOL_CALLS]g{}", &two);
    check("mistral", "none", "[TOOL_CALLS]f[ARGS]{\"a\": \"[TOOL_CALLS]\"}[TOOL_CALLS]g[ARGS]{}", &two);
    check("mistral", "none", "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{\"a\": 1}", &["C:f({\"a\": 1})"]);
    check("mistral", "none", "the [TOOL_CALLS] marker {", &["T:the [TOOL_CALLS] marker {"]);
    check("mistral", "none", "[TOOL_CALLS]f{\"a\":x[TOOL_CALLS]g{}", &["C!:f({\"a\":x)", "C:g({})"]);
}

#[test]
fn deepseek_sections_hold_calls() {
    let v3 = |name: &str| {
        format!(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{{\"a\": \"```\"}}\n```<｜tool▁call▁end｜>"
        )
    };
    let section = format!("<｜tool▁calls▁begin｜>{}\n{}<｜tool▁calls▁end｜>", v3("f"), v3("g"));
    check(
        "deepseek_v3",
        "deepseek_r1",
        &format!("why</think>ok\n{section}"),
        &["R:why", "T:ok", "C:f({\"a\": \"```\"})", "C:g({\"a\": \"```\"})"],
    );
    let v3_1 = |name: &str| format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{{\"a\": 1}}<｜tool▁call▁end｜>");
    let section = format!("<｜tool▁calls▁begin｜>{}{}<｜tool▁calls▁end｜>", v3_1("f"), v3_1("g"));
    check("deepseek_v3_1", "none", &section, &["C:f({\"a\": 1})", "C:g({\"a\": 1})"]);
    check("deepseek_v3_1", "none", &format!("{}b", v3_1("f")), &["C:f({\"a\": 1})", "T:b"]);
    check("deepseek_v3_1", "none", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>", &[]);
    check("deepseek_v3_1", "none", "<｜tool▁calls▁begin｜> is a token", &["T:<｜tool▁calls▁begin｜> is a token"]);
    let open = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁calls▁end｜>";
    check("deepseek_v3_1", "none", open, &["C:f({\"a\": 1})"]);
}

#[test]
fn kimi_ids_are_kept() {
    let call = |index: u32| {
        format!("<|tool_call_begin|>functions.a.b:{index}<|tool_call_argument_begin|>{{\"x\": 1}}<|tool_call_end|>")
    };
    let output = format!("Go.<|tool_calls_section_begin|>{}{}{}<|tool_calls_section_end|>", call(0), call(1), call(1));
    check("kimi_k2", "none", &output, &["T:Go.", "C:a.b({\"x\": 1})", "C:a.b({\"x\": 1})", "C:a.b({\"x\": 1})"]);
    let config = PipelineConfig { tool_format: "kimi_k2".parse().unwrap(), ..PipelineConfig::default() };
    let ids: Vec<_> = pieces(config, std::iter::once(output.as_bytes()), false)
        .0
        .into_iter()
        .filter_map(|piece| match piece {
            Piece::ToolCallStarted { id, .. } => Some(id),
            _ => None,
        })
        .collect();
    assert_eq!(ids, [Some("functions.a.b:0".to_owned()), Some("functions.a.b:1".to_owned()), None]);
    let talks = format!("<|tool_calls_section_begin|>{}\nand then\n<|tool_calls_section_end|>\nok", call(0));
    check("kimi_k2", "none", &talks, &["C:a.b({\"x\": 1})", "T:\nand then\nok"]);
    let again = format!("<|tool_calls_section_begin|>{}so {}<|tool_calls_section_end|>", call(0), call(1));
    check("kimi_k2", "none", &again, &["C:a.b({\"x\": 1})", "T:so ", "C:a.b({\"x\": 1})"]);
    let end = "the <|tool_calls_section_end|> mark";
    let expected = ["C:a.b({\"x\": 1})", "T:so ", "C:a.b({\"x\": 1})", &format!("T:{end}")];
    check("kimi_k2", "none", &format!("{again}{end}"), &expected);
    let unclosed = "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{} no<|tool_call_end|><|tool_calls_section_end|>";
    check("kimi_k2", "none", unclosed, &["C:f({})", "T: no"]);
    let inside = format!("<think>so<|tool_call_section_begin|>{}<|tool_call_section_end|></think>b", call(0));
    check("kimi_k2", "kimi_k25", &inside, &["R:so", "C:a.b({\"x\": 1})", "T:b"]);
}

#[test]
fn what_is_said_in_a_section_in_front_of_its_first_call_is_text() {
    for (format, open, call, close, shown) in [
        (
            "kimi_k2",
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
        ),
        (
            "deepseek_v3_1",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
        ),
    ] {
        let check = |output: String, expected: &[&str]| check(format, "kimi_k25", &output, expected);
        let call_seen = "C:f({\"a\": 1})";
        check(format!("</think>{open}I look.\n{call}{close}"), &["T:I look.", call_seen]);
        check(
            format!("</think>So:\n{open} 1 < 2 <<{call}{call}{close}ok"),
            &["T:So:\n 1 < 2 <<", call_seen, call_seen, "T:ok"],
        );
        check(format!("why{open}because {call}{close}</think>b"), &["R:whybecause ", call_seen, "T:b"]);
        // Without a call nothing was opened.
        let spoken_of = format!("{open} is a token, and {close} too");
        check(format!("</think>{spoken_of}"), &[&format!("T:{spoken_of}")]);
        let long = format!("{open}{}", "x".repeat(600));
        check(format!("</think>{long}{call}{close}"), &[&format!("T:{long}"), call_seen]);
        let no_call = format!("{shown} no{close}");
        check(format!("</think>{open}see {no_call}"), &[&format!("T:see {no_call}")]);
    }
}

#[test]
fn harmony_channels_are_reasoning_text_and_calls() {
    let output = "<|channel|>analysis<|message|>why <|end|>\
        <|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>\
        <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json\
        <|message|>{\"a\": \"<|call|>\"}<|call|>\
        <|start|>assistant<|channel|>final<|message|>Done < 1.<|return|>";
    check("harmony", "gpt_oss", output, &["R:why ", "T:Wait.", "C:f({\"a\": \"<|call|>\"})", "T:Done < 1."]);
    let early = " to=functions.f<|channel|>analysis code<|message|>{\"a\": 1}";
    check("harmony", "gpt_oss", early, &["C:f({\"a\": 1})"]);
    check("harmony", "gpt_oss", "Hello <b>", &["T:Hello <b>"]);
    check(
        "harmony",
        "gpt_oss",
        "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b",
        &["R:a", "T:b"],
    );
    let python = "<|channel|>analysis to=python code<|message|>print(1)<|call|>";
    check("harmony", "gpt_oss", python, &[&format!("R:{python}")]);
    check(
        "harmony",
        "gpt_oss",
        "<|channel|>commentary to=functions.f<|message|>{\"a\":x<|call|>b",
        &["C!:f({\"a\":x)", "T:b"],
    );
    let two = "<|channel|>commentary to=functions.f<|message|>{\"a\":1}\
        <|start|>assistant<|channel|>commentary to=functions.g<|message|>{}<|call|>";
    check("harmony", "gpt_oss", two, &["C:f({\"a\":1})", "C:g({})"]);
    check("none", "gpt_oss", two, &[&format!("T:{two}")]);
    check("harmony", "none", "<|channel|>analysis<|message|>a<|end|>", &["T:<|channel|>analysis<|message|>a<|end|>"]);
    check("harmony", "gpt_oss", "  ", &["T:  "]);
}

#[test]
fn inkling_messages_say_what_they_are() {
    let output = "<|content_thinking|>why<|end_message|><|message_model|><|content_text|>Ok.<|end_message|>\
        <|message_model|>f<|content_invoke_tool_json|>\
        {\"args\":{\"a\":\"<|end_message|>\"},\"name\":\"f\"}<|end_message|>";
    check("inkling", "inkling", output, &["R:why", "T:Ok.", "C:f({\"a\":\"<|end_message|>\"})"]);
    check("inkling", "inkling", "f<|content_invoke_tool_json|>{\"name\":\"f\",\"args\":{}}", &["C:f({})"]);
    check("inkling", "inkling", "Hello there", &["T:Hello there"]);
}

#[test]
fn every_way_of_marking_reasoning_is_known() {
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    for (format, output, expected) in [
        ("qwen3", "<think>a</think>b", &["R:a", "T:b"][..]),
        ("qwen3", "b", &["T:b"]),
        ("deepseek_r1", "a\n</think>\n\nb", &["R:a", "T:b"]),
        ("deepseek_r1", "<think>\na</think>b", &["R:a", "T:b"]),
        ("deepseek_r1", "a", &["R:a"]),
        ("kimi", "◁think▷a◁/think▷b", &["R:a", "T:b"]),
        ("mistral", "[THINK]a[/THINK]b", &["R:a", "T:b"]),
        ("minimax_m3", "</mm:think>b", &["T:b"]),
        ("minimax_m3", "b</mm:think>", &["T:b</mm:think>"]),
        ("minimax_m3", "<mm:think>a</mm:think>b", &["R:a", "T:b"]),
        ("granite", "Here is my thought process:\na\nHere's my response:\nb", &["R:a", "T:b"]),
        ("granite", "Here is it.", &["T:Here is it."]),
        ("gemma4", "<|channel>thought\na<channel|>b", &["R:a", "T:b"]),
    ] {
        check("hermes", format, output, expected);
    }
    for format in ["kimi_k25", "minimax_m2", "nemotron_v3"] {
        check("hermes", format, &format!("a\n{call}\n</think>\n\nb"), &["R:a", "C:f({})", "T:b"]);
        check("hermes", format, "a <tool_call> b</think>c", &["R:a <tool_call> b", "T:c"]);
    }
    check("hermes", "deepseek_v4", &format!("<think>a{call}b"), &["R:a", "C:f({})", "T:b"]);
    check("hermes", "deepseek_r1", &format!("a{call}"), &[&format!("R:a{call}")]);
}

#[test]
fn calls_in_fences_and_code_spans_are_spoken_of() {
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    for quoted in [format!("So:\n```\n{call}\n```\nok"), format!("Write `{call}` then."), format!("a \"{call}\"")] {
        check("hermes", "none", &quoted, &[&format!("T:{quoted}")]);
    }
    check("hermes", "none", &format!("```\ncode\n```\n{call}"), &["T:```\ncode\n```", "C:f({})"]);
    check("hermes", "none", &format!("`f` it is {call}"), &["T:`f` it is ", "C:f({})"]);
}

#[test]
fn a_text_that_is_gone_on_with_ends_inside_reasoning_where_its_last_marker_opens() {
    for (format, text, inside) in [
        ("qwen3", "So", false),
        ("deepseek_r1", "So", false),
        ("qwen3", "<think>\nSo", true),
        ("qwen3", "<think>\nSo</think>\nIt", false),
        ("none", "<think>So", false),
        ("granite", "Here is my thought process: So", true),
    ] {
        assert_eq!(crate::parse::text_ends_in_reasoning(format.parse().unwrap(), text), inside, "{format} {text}");
    }
}
