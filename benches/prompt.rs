//! Time to make the prompt of a long conversation: rendering, tokenising, both, and behind the tokens that are held.
//!
//! `MIDSTREAM_TEST_MODEL=FILE.gguf cargo bench --no-default-features --bench prompt`. One thread; the model's weights
//! are not read. The conversation is an agent's: questions, reasoning, calls of tools, their results, answers.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]
#![allow(clippy::disallowed_methods, reason = "it is built without the server and its clock")]

use std::time::{Duration, Instant};

use midstream::engine::gguf::Gguf;
use midstream::engine::tokenizer::Tokenizer;
use midstream::prompt::{
    Built, ChatTemplate, Message, PromptEnd, Rendering, Role, ToolCall, ToolDefinition, build, builtin_template,
};
use serde_json::{Map, json};

/// Tokens of the conversation.
const TOKENS: usize = 50_000;
const ROUNDS: usize = 15;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let Ok(path) = std::env::var("MIDSTREAM_TEST_MODEL") else {
        println!("set MIDSTREAM_TEST_MODEL to a GGUF file");
        return Ok(());
    };
    let file = std::fs::read(path)?;
    let gguf = Gguf::parse(&file)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    println!("template   messages  tokens  what                median ms    p90 ms");
    measure("own", &ChatTemplate::from_gguf(&gguf, &tokenizer)?, &tokenizer)?;
    for name in ["hermes", "llama3", "mistral"] {
        let source = builtin_template(name).ok_or("no such template")?;
        measure(name, &ChatTemplate::for_tokenizer(source, &tokenizer)?, &tokenizer)?;
    }
    Ok(())
}

fn measure(name: &str, template: &ChatTemplate, tokenizer: &Tokenizer) -> Outcome<()> {
    let tools = tools();
    let make = |messages: &[Message], prompt: bool, held: Option<&[u32]>| -> Outcome<Built> {
        Ok(build(template, tokenizer, &rendering(messages, &tools, prompt), held)?)
    };
    let mut messages = vec![Message::text(Role::System, "You are an agent that works on a repository.")];
    let per_turn = {
        let before = make(&messages, true, None)?.tokens.len();
        turn(&mut messages, 0);
        make(&messages, true, None)?.tokens.len() - before
    };
    for number in 1..TOKENS / per_turn {
        turn(&mut messages, number);
    }
    let held = make(&messages, false, None)?.tokens;
    messages.push(Message::text(Role::User, "And now the tests, please."));
    let built = make(&messages, true, None)?;
    let report = |what: &str, mut times: Vec<Duration>| {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
        let (count, tokens) = (messages.len(), built.tokens.len());
        println!("{name:<10} {count:>8} {tokens:>7}  {what:<18} {:>10.1} {:>9.1}", at(50), at(90));
    };
    let times = |work: &dyn Fn() -> Outcome<usize>| -> Outcome<Vec<Duration>> {
        (0..ROUNDS)
            .map(|_| {
                let begun = Instant::now();
                std::hint::black_box(work()?);
                Ok(begun.elapsed())
            })
            .collect()
    };
    report("render", times(&|| Ok(template.render(&rendering(&messages, &tools, true))?.len()))?);
    report("tokenise", times(&|| Ok(tokenizer.encode(&built.text, true).len()))?);
    report("both, full", times(&|| Ok(make(&messages, true, None)?.tokens.len()))?);
    report("both, append-only", times(&|| Ok(make(&messages, true, Some(&held))?.common_prefix_tokens))?);
    let kept = make(&messages, true, Some(&held))?.common_prefix_tokens;
    println!("{name:<10} kept {kept} of {} held tokens", held.len());
    Ok(())
}

fn rendering<'a>(messages: &'a [Message], tools: &'a [ToolDefinition], prompt: bool) -> Rendering<'a> {
    static NONE: std::sync::LazyLock<Map<String, serde_json::Value>> = std::sync::LazyLock::new(Map::new);
    Rendering {
        messages,
        tools,
        end: PromptEnd::generation_prompt(prompt),
        kwargs: &NONE,
        now_unix_ms: 0,
        strip_preamble: false,
    }
}

/// A question, a call with its reasoning, the result, the answer: some 400 tokens.
fn turn(messages: &mut Vec<Message>, number: usize) {
    messages.push(Message::text(Role::User, format!("Question {number}: why does the build of part {number} fail?")));
    let id = format!("call{number:09}");
    let arguments = format!(r#"{{"path": "src/part_{number}.rs", "from": {number}, "lines": 40}}"#);
    let call = ToolCall::new(&id, "read_file", arguments);
    messages.push(Message {
        reasoning_content: Some(format!("I have to look at part {number} first, then at what it imports.")),
        tool_calls: vec![call],
        ..Message::text(Role::Assistant, "")
    });
    let line = |line: usize| format!("    let value_{line} = compute({line}, \"part {number}\")?; // step {line}\n");
    let text: String = (0..16).map(line).collect();
    let result = Message::text(Role::Tool, text);
    messages.push(Message { tool_call_id: Some(id), name: Some("read_file".to_owned()), ..result });
    let answer = format!("Part {number} calls `compute` with a text where it wants a number; pass the index alone.");
    messages.push(Message::text(Role::Assistant, answer));
}

fn tools() -> Vec<ToolDefinition> {
    let tool = |name: &str| ToolDefinition {
        name: name.to_owned(),
        description: Some("Works on a file of the repository and gives back its text.".to_owned()),
        parameters: json!({"type": "object", "properties": {
            "path": {"type": "string", "description": "The file"},
            "from": {"type": "integer"}, "lines": {"type": "integer"},
        }, "required": ["path"]}),
    };
    ["read_file", "write_file", "list_files", "run"].map(tool).to_vec()
}
