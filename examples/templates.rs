//! Renders conversations with chat templates for `tools/templates/compare.py`: a request per line of standard input, an
//! outcome per line of standard output. A development tool; `scripts/templates` runs it.

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};

use midstream::prompt::{Capabilities, ChatTemplate, Message, PromptEnd, Rendering, ToolDefinition};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Request {
    /// The template's file.
    template: String,
    messages: Vec<Message>,
    tools: Vec<ToolDefinition>,
    variables: Map<String, Value>,
    /// Whether the prompt ends where the answer begins.
    answer: bool,
    now_ms: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = stdout().lock();
    let mut last: Option<(String, Result<ChatTemplate, String>)> = None;
    for line in stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let same = last.take().filter(|(path, _)| *path == request.template);
        let (path, template) = if let Some(same) = same {
            same
        } else {
            let source = std::fs::read_to_string(&request.template)?;
            let template = ChatTemplate::new(&source, "<s>", "</s>").map_err(|error| error.to_string());
            (request.template.clone(), template)
        };
        writeln!(out, "{}", outcome(&template, &request))?;
        last = Some((path, template));
    }
    Ok(())
}

fn outcome(template: &Result<ChatTemplate, String>, request: &Request) -> Value {
    let template = match template {
        Ok(template) => template,
        Err(error) => return json!({"error": error, "unknown": []}),
    };
    let rendering = Rendering {
        messages: &request.messages,
        tools: &request.tools,
        end: PromptEnd::generation_prompt(request.answer),
        kwargs: &request.variables,
        now_unix_ms: request.now_ms,
        strip_preamble: false,
    };
    let unknown = unknown(template.capabilities());
    match template.render(&rendering) {
        Ok(text) => json!({"text": text, "unknown": unknown}),
        Err(error) => json!({"error": error.to_string(), "unknown": unknown}),
    }
}

/// What the template does not know, so that it is said in another way.
fn unknown(can: &Capabilities) -> Vec<&'static str> {
    let knows = [
        ("tools", can.tools),
        ("tool_calls", can.tool_calls),
        ("tool_results", can.tool_results),
        ("system", can.system),
    ];
    knows.into_iter().filter(|(_, knows)| !knows).map(|(what, _)| what).collect()
}
