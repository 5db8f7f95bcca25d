//! The families whose calls are tags, Python or bare keys, case by case.

use serde_json::json;

use super::run;
use crate::parse::{DeclaredTool, PipelineConfig};

fn config(format: &str) -> PipelineConfig {
    let parameters = json!({"type": "object", "properties": {
        "s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}, "o": {"type": "object"},
        "a": {"type": "array", "items": {"type": "string"}}, "m": {"type": ["string", "null"]},
    }});
    let tools = vec![DeclaredTool { name: "f".to_owned(), parameters }];
    PipelineConfig { tool_format: format.parse().unwrap(), tools, ..PipelineConfig::default() }
}

#[track_caller]
fn check(format: &str, output: &str, expected: &[&str]) {
    assert_eq!(run(&config(format), output, false), expected, "{output:?}");
}

#[track_caller]
fn check_cut(format: &str, output: &str, expected: &[&str]) {
    assert_eq!(run(&config(format), output, true), expected, "{output:?}");
}

#[test]
fn qwen3_coder_values_follow_the_schema_and_keep_their_space() {
    let call = |body: &str| format!("<tool_call>\n<function=f>\n{body}</function>\n</tool_call>");
    for (body, arguments) in [
        ("", "{}"),
        ("<parameter=s>\n  null\n\n</parameter>\n", r#"{"s":"  null\n"}"#),
        ("<parameter=s>42</parameter><parameter=n>\n42\n</parameter>\n", r#"{"s":"42","n":42}"#),
        ("<parameter=n>\nmany\n</parameter>\n", r#"{"n":"many"}"#),
        ("<parameter=n>\n123456789012345678901234567890\n</parameter>\n", r#"{"n":123456789012345678901234567890}"#),
        ("<parameter=b>\nTrue\n</parameter>\n<parameter=m>\nNone\n</parameter>\n", r#"{"b":true,"m":null}"#),
        ("<parameter=o>\n{'k': [1, \"</parameter>\"]}\n</parameter>\n", r#"{"o":{"k": [1, "</parameter>"]}}"#),
        ("<parameter=s>\n&lt;a&gt;\t\\n\n</parameter>\n", r#"{"s":"&lt;a&gt;\t\\n"}"#),
        ("<parameter=unknown>\n[1]\n</parameter>\n", r#"{"unknown":[1]}"#),
        (
            "<parameter=s>\na</parameter>\nb</function>c</tool_call>\n</parameter>\n",
            r#"{"s":"a</parameter>\nb</function>c</tool_call>"}"#,
        ),
        ("<parameter=s>\n</parameter>\n</parameter>\n", r#"{"s":"</parameter>"}"#),
    ] {
        check("qwen3_coder", &call(body), &[&format!("C:f({arguments})")]);
        check(
            "qwen3_coder",
            &format!("A\n<function=f>\n{body}</function>\nB"),
            &["T:A", &format!("C:f({arguments})"), "T:\nB"],
        );
        check("hermes", &call(body), &[&format!("C:f({arguments})")]);
    }
}

#[test]
fn qwen3_coder_tolerates_what_is_missing_at_the_end_and_nothing_else() {
    let open = "<tool_call>\n<function=f>\n<parameter=s>\nx";
    for end in [
        "\n</parameter>\n</function>\n",
        "\n</parameter>\n",
        "\n</parameter>\n</func",
        "\n</function>\n</tool_call>",
        "</tool_call>\n",
    ] {
        check("qwen3_coder", &format!("{open}{end}"), &["C:f({\"s\":\"x\"})"]);
        let cut = run(&config("qwen3_coder"), &format!("{open}{end}"), true);
        assert!(cut[0].starts_with("C!:f({\"s\":\"x"), "{end}: {cut:?}");
    }
    let second = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
    check("qwen3_coder", &format!("{open}\n</function>\n</tool_call>\n{second}"), &["C:f({\"s\":\"x\"})", "C:f({})"]);
    check("qwen3_coder", open, &["C!:f({\"s\":\"x)"]);
    check_cut("qwen3_coder", &format!("{open}\n</para"), &["C!:f({\"s\":\"x\\n</para)"]);
    for text in [
        "<tool_call>\n<function=f",
        "<tool_call>\n<function=f>\n",
        "<tool_call>\n<function=>\n</function>",
        "<function=f> is how.",
        "<tool_call>f</tool_call>",
    ] {
        check("qwen3_coder", text, &[&format!("T:{text}")]);
    }
    let two = "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>";
    check("qwen3_coder", two, &["C:f({})", "C:g({})"]);
    let broken = "<tool_call><function=f><parameter=s>x</parameter>oops<p></function></tool_call> Text";
    check("qwen3_coder", broken, &["C!:f({\"s\":\"x</parameter>oops<p></function></tool_call> Text)"]);
    let broken = "<tool_call><function=f><parameter=s>x</parameter><parameter=s\n</function></tool_call> Text";
    check("qwen3_coder", broken, &["C!:f({\"s\":\"x\"<parameter=s\n</function>)", "T: Text"]);
    check(
        "qwen3_coder",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n</tool_call>",
        &["C:f({\"s\": \"x\"})"],
    );
}

#[test]
fn a_block_that_is_not_closed_ends_at_the_next_and_at_prose() {
    let call = |value: &str| format!("<function=f>\n<parameter=s>{value}</parameter>\n</function>\n");
    let (block, calls) = (|call: &str| format!("<tool_call>\n{call}"), ["C:f({\"s\":\"a\"})", "C:f({\"s\":\"b\"})"]);
    for format in ["qwen3_coder", "hermes"] {
        let two = format!("{}\n{}</tool_call>", block(&call("a")), block(&call("b")));
        check(format, &two, &calls);
        check(format, &format!("{}Done, ok.", block(&call("a"))), &[calls[0], "T:\nDone, ok."]);
        check(format, &format!("{}<tool", block(&call("a"))), &[calls[0], "T:\n<tool"]);
        check(format, &format!("{}</tool", block(&call("a"))), &calls[..1]);
    }
    let invoke = |value: &str| {
        format!("<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">{value}</parameter>\n</invoke>\n")
    };
    check("minimax_m2", &format!("{}{}</minimax:tool_call>", invoke("a"), invoke("b")), &calls);
    check("minimax_m2", &format!("{}Done.", invoke("a")), &[calls[0], "T:\nDone."]);
    let glm = |value: &str| format!("<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>{value}</arg_value>\n");
    check("glm47", &format!("{}{}</tool_call>", glm("a"), glm("b")), &calls);
    check("glm47", &format!("{}<tool_", glm("a")), &[calls[0], "T:\n<tool_"]);
}

#[test]
fn an_answer_that_ends_inside_the_tag_of_another_argument_is_no_whole_call() {
    check(
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<param",
        &["C!:f({\"s\":\"x\"<param)"],
    );
    check("glm47", "<tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value><ar", &["C!:f({\"s\":\"x\"<ar)"]);
    let m = "]<]minimax[>[";
    let open = format!("{m}<tool_call>{m}<invoke name=\"f\">{m}<s>x{m}</s>");
    check("minimax_m3", &format!("{open}{m}<n"), &[&format!("C!:f({{\"s\":\"x\"{m}<n)")]);
    check("minimax_m3", &format!("{open}{m}</inv"), &["C:f({\"s\":\"x\"})"]);
    check("minimax_m3", &format!("{open}{m}</invoke>{m}<inv"), &["C:f({\"s\":\"x\"})", &format!("T:{m}<inv")]);
}

#[test]
fn a_required_argument_that_is_missing_ends_a_value_without_closing_tag() {
    let parameters = json!({"type": "object", "required": ["s", "n"], "properties": {
        "s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"},
    }});
    let tools = vec![DeclaredTool { name: "f".to_owned(), parameters }];
    let config = PipelineConfig { tools, ..config("qwen3_coder") };
    for (values, arguments) in [
        ("<parameter=s>\nOslo\n<parameter=n>\n3", r#"{"s":"Oslo","n":3}"#),
        ("<parameter=n>\n3\n<parameter=s>\nOslo", r#"{"n":3,"s":"Oslo"}"#),
        ("<parameter=s>\na\n<parameter=b>\ntrue", r#"{"s":"a\n<parameter=b>\ntrue"}"#),
        ("<parameter=s>\na\n<parameter=s>\nb", r#"{"s":"a\n<parameter=s>\nb"}"#),
        ("<parameter=s>\na <parameter=n>\n3", r#"{"s":"a <parameter=n>\n3"}"#),
        ("<parameter=s>\na\n<parameter=\n<param", r#"{"s":"a\n<parameter=\n<param"}"#),
    ] {
        let output = format!("<tool_call>\n<function=f>\n{values}\n</parameter>\n</function>\n</tool_call>");
        assert_eq!(run(&config, &output, false), [format!("C:f({arguments})")], "{values}");
    }
    let open = "<tool_call>\n<function=f>\n<parameter=s>\na\n<parameter=n";
    assert_eq!(run(&config, open, false), ["C!:f({\"s\":\"a\\n<parameter=n)"]);
}

#[test]
fn glm_calls_may_have_line_ends_or_none() {
    check("glm47", "<tool_call>f</tool_call>", &["C:f({})"]);
    check("glm47", "<tool_call>f\n</tool_call>\n<tool_call>g</tool_call>", &["C:f({})", "C:g({})"]);
    let values = "<arg_key>s</arg_key>\n<arg_value> 1 </arg_value>\n<arg_key>n</arg_key><arg_value>2</arg_value>";
    let call = &format!("<tool_call>f\n{values}</tool_call>");
    check("glm47", call, &["C:f({\"s\":\" 1 \",\"n\":2})"]);
    check("glm47", "<tool_call> is a marker", &["T:<tool_call> is a marker"]);
    check(
        "glm47",
        "<tool_call>f<arg_key>s</arg_key><arg_value>a</tool_call>b</arg_value></tool_call>",
        &["C:f({\"s\":\"a</tool_call>b\"})"],
    );
    check_cut("glm47", "<tool_call>f<arg_key>s</arg_key><arg_value>a", &["C!:f({\"s\":\"a)"]);
}

#[test]
fn deepseek_parameters_say_whether_they_are_text() {
    for (format, block) in [("deepseek_v3_2", "function_calls"), ("deepseek_v4", "tool_calls")] {
        let call = |body: &str| {
            format!(
                "Now.\n\n<｜DSML｜{block}>\n<｜DSML｜invoke name=\"f\">\n{body}</｜DSML｜invoke>\n</｜DSML｜{block}>"
            )
        };
        let parameter =
            |string: &str, value: &str| format!("<｜DSML｜parameter name=\"s\"{string}>{value}</｜DSML｜parameter>\n");
        check(format, &call(&parameter(" string=\"true\"", "1")), &["T:Now.", "C:f({\"s\":\"1\"})"]);
        check(format, &call(&parameter(" string=\"false\"", "1.50")), &["T:Now.", "C:f({\"s\":1.50})"]);
        check(format, &call(&parameter(" string=\"false\"", "plain")), &["T:Now.", "C:f({\"s\":\"plain\"})"]);
        check(format, &call(&parameter("", "1")), &["T:Now.", "C:f({\"s\":\"1\"})"]);
        check(format, &call(""), &["T:Now.", "C:f({})"]);
        check(
            format,
            &call(&parameter("", "a</｜DSML｜invoke>b")),
            &["T:Now.", "C:f({\"s\":\"a</｜DSML｜invoke>b\"})"],
        );
    }
}

#[test]
fn minimax_calls_share_a_block() {
    let invoke = "<invoke name=\"f\">\n<parameter name=\"s\">1</parameter>\n</invoke>\n";
    let block = format!("<minimax:tool_call>\n{invoke}<invoke name=\"g\"></invoke>\n</minimax:tool_call>");
    check("minimax_m2", &block, &["C:f({\"s\":\"1\"})", "C:g({})"]);
    check("minimax_m2", "<minimax:tool_call>f</minimax:tool_call>", &["T:<minimax:tool_call>f</minimax:tool_call>"]);
}

#[test]
fn minimax_m3_elements_nest() {
    let m = "]<]minimax[>[";
    let call = |body: &str| format!("{m}<tool_call>\n{m}<invoke name=\"f\">{body}{m}</invoke>\n{m}</tool_call>");
    for (body, arguments) in [
        (String::new(), "{}"),
        (format!("{m}<s> 1 {m}</s>{m}<n>1{m}</n>"), r#"{"s":" 1 ","n":1}"#),
        (format!("{m}<a>\n{m}<item>1{m}</item>{m}<item>x{m}</item>\n{m}</a>"), r#"{"a":["1","x"]}"#),
        (format!("{m}<o>{m}<k>1{m}</k>{m}<l>{m}<item>2{m}</item>{m}</l>{m}</o>"), r#"{"o":{"k":1,"l":[2]}}"#),
        (format!("{m}<o>{{\"k\": 1}}{m}</o>{m}<a>{m}</a>"), r#"{"o":{"k": 1},"a":[]}"#),
        (
            format!("{m}<s>a{m}<b>c{m}</b> ]<]mini{m}</s> {m}</s>"),
            &format!(r#"{{"s":"a{m}<b>c{m}</b> ]<]mini{m}</s> "}}"#),
        ),
        (format!("{m}<s>{m}</s>"), r#"{"s":""}"#),
    ] {
        check("minimax_m3", &call(&body), &[&format!("C:f({arguments})")]);
    }
    let open = format!("{m}<tool_call>{m}<invoke name=\"f\">{m}<s>x");
    check("minimax_m3", &format!("{open}{m}</s>{m}</invoke>"), &["C:f({\"s\":\"x\"})"]);
    check("minimax_m3", &format!("{open}{m}</s>"), &["C:f({\"s\":\"x\"})"]);
    check("minimax_m3", &open, &["C!:f({\"s\":\"x)"]);
    check("minimax_m3", &format!("{m}<tool_call> no"), &[&format!("T:{m}<tool_call> no")]);
}

#[test]
fn kimi_k3_arguments_say_their_type() {
    let argument = |kind: &str, value: &str| {
        format!("<|open|>argument key=\"s\" type=\"{kind}\"<|sep|>{value}<|close|>argument<|sep|>")
    };
    let call = |body: &str| {
        let call = format!("<|open|>call tool=\"f\" index=\"1\"<|sep|>{body}<|close|>call<|sep|>");
        format!("<|open|>tools<|sep|>{call}<|close|>tools<|sep|>")
    };
    check("kimi_k3", &call(&argument("string", "1 <|close|> &amp;")), &["C:f({\"s\":\"1 <|close|> &amp;\"})"]);
    check("kimi_k3", &call(&argument("number", "1")), &["C:f({\"s\":1})"]);
    check("kimi_k3", &call(&argument("object", "{\"a\":null}")), &["C:f({\"s\":{\"a\":null}})"]);
    check("kimi_k3", &call(""), &["C:f({})"]);
}

#[test]
fn gemma_calls_stand_in_blocks_of_their_own_or_together() {
    check("gemma4", "<|tool_call>call:f{}<tool_call|>", &["C:f({})"]);
    check("gemma4", "<|tool_call>call:f{s:<|\"|>a,b}<|\"|>,n:1}<tool_call|>", &["C:f({\"s\":\"a,b}\",\"n\":1})"]);
    check("gemma4", "<|tool_call>call:f{}call:g{a:[1,true]}<tool_call|>", &["C:f({})", "C:g({\"a\":[1,true]})"]);
    check("gemma4", "<|tool_call>call:f{}", &["C:f({})"]);
    check("gemma4", "<|tool_call>call f", &["T:<|tool_call>call f"]);
    check_cut("gemma4", "<|tool_call>call:f{s:<|\"|>a", &["C!:f({\"s\":\"a)"]);
    check("gemma4", "<|tool_call>call:f{s:1]}<tool_call|>x", &["C!:f({\"s\":1]})", "T:x"]);
}

#[test]
fn python_calls_are_lists_of_declared_tools_or_marked() {
    check("pythonic", "[f(s='a', n=1), f()]", &["C:f({\"s\":\"a\",\"n\":1})", "C:f({})"]);
    check("pythonic", "[f(\"a\", 2)]", &["C:f({\"s\":\"a\",\"n\":2})"]);
    check("pythonic", "<|python_start|>[g(x=[{'k': None}])]<|python_end|>", &["C:g({\"x\":[{\"k\": null}]})"]);
    for text in ["[g(x=1)]", "[1] See f(x).", "[f](url)", "[f(x)] is", "See [f(s='a')]", "["] {
        check("pythonic", text, &[&format!("T:{text}")]);
    }
    check("pythonic", "[f(s='a'", &["C!:f({\"s\":\"a\")"]);
    check("pythonic", "[f(s='a'), f(", &["C:f({\"s\":\"a\"})", "T:, f("]);
    check(
        "lfm2",
        "Hi <|tool_call_start|>[f(s=\"]<|tool_call_end|>\")]<|tool_call_end|> there",
        &["T:Hi ", "C:f({\"s\":\"]<|tool_call_end|>\"})", "T: there"],
    );
    check("lfm2", "<|tool_call_start|>f(n=1)<|tool_call_end|>", &["C:f({\"n\":1})"]);
    check(
        "lfm2",
        "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]<|tool_call_end|>",
        &["C:f({\"n\": 1})"],
    );
}
