//! `midstream render`: the prompt of a request, by the same way as a generation's; or why it does not begin with
//! another request's.
//!
//! Reads the text parts of a model's file, not its weights; starts no server and asks none.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use super::tokenize::{WhichModel, standard_input};
use crate::actors::preview_prompt;
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::ModelInfo;
use crate::prompt::{Message, PromptEnd, Side, ToolDefinition, compare};

/// How it is used.
const EXAMPLES: &str = "\
Examples:
  midstream render request.json
  midstream render second.json --after first.json     # what of the first one's prompt the second keeps
  midstream render --tokens --model ./my.gguf < request.json";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The body of a chat completion or of a response, as JSON [default: standard input]
    #[arg(value_name = "REQUEST.json")]
    request: Option<PathBuf>,
    #[command(flatten)]
    model: WhichModel,
    /// An earlier request, its answer included: say what of its prompt this one keeps, and why not all
    #[arg(long, value_name = "REQUEST.json")]
    after: Option<PathBuf>,
    /// Write JSON with the tokens and their texts
    #[arg(long)]
    tokens: bool,
    /// Do not end where the answer begins
    #[arg(long)]
    no_generation_prompt: bool,
    /// Leave out a billing line at the head of the system text
    #[arg(long)]
    strip_preamble: bool,
}

/// A prompt and what it was made from.
struct Prompt {
    tokens: Vec<u32>,
    text: String,
    messages: Vec<Message>,
    tools: Vec<ToolDefinition>,
}

impl Prompt {
    fn side(&self) -> Side<'_> {
        Side { tokens: &self.tokens, messages: &self.messages, tools: &self.tools }
    }
}

/// Does what is asked.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let config = arguments.model.settings()?;
    let model = arguments.model.read(&config)?;
    let render = |request, ends| render(arguments, &config, &model, request, ends);
    let prompt = render(arguments.request.as_deref(), !arguments.no_generation_prompt)?;
    let mut out = io::stdout().lock();
    if let Some(before) = &arguments.after {
        let held = render(Some(before), false)?;
        let report = compare(&model.tokenizer, model.template.capabilities(), held.side(), prompt.side());
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else if arguments.tokens {
        let text = |id: &u32| super::tokenize::spelled(&model, *id);
        let texts: Vec<String> = prompt.tokens.iter().map(text).collect();
        let (count, tokens) = (prompt.tokens.len(), &prompt.tokens);
        writeln!(out, "{}", json!({"count": count, "prompt": prompt.text, "tokens": tokens, "token_strs": texts}))?;
    } else {
        out.write_all(prompt.text.as_bytes())?;
    }
    Ok(out.flush()?)
}

fn render(
    arguments: &Arguments,
    config: &Config,
    model: &ModelInfo,
    request: Option<&Path>,
    ends: bool,
) -> anyhow::Result<Prompt> {
    let name = request.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let read = |path| std::fs::read_to_string(path).with_context(|| format!("reading {name}"));
    let text = request.map_or_else(standard_input, read)?;
    let mut body: Value = serde_json::from_str(&text).with_context(|| format!("{name} is not JSON"))?;
    check(&name, &body)?;
    if arguments.strip_preamble {
        body["strip_preamble"] = json!(true);
    }
    let refused = |message: String| anyhow::anyhow!("{name}: {message}");
    let mut create = crate::api::request_to_render(model, &body).map_err(|reject| refused(reject.message))?;
    if !ends {
        create.config.prompt_end = PromptEnd::Nothing;
    }
    let tools = create.config.tools.clone();
    let (messages, built) =
        preview_prompt(create, Clock::System.unix_ms(), model, config).map_err(|reject| refused(reject.message))?;
    Ok(Prompt { tokens: built.tokens, text: built.text, messages, tools })
}

/// Whether there is anything to render; what a server refuses is refused here.
fn check(name: &str, body: &Value) -> anyhow::Result<()> {
    anyhow::ensure!(body.is_object(), "{name} must hold a JSON object: the body of a chat completion or of a response");
    let given = |field: &str| body.get(field).is_some_and(|value| !value.is_null());
    anyhow::ensure!(given("messages") || given("input"), "{name} has neither messages nor input: nothing to render");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_conversation_is_refused() {
        for body in [json!([]), json!({}), json!({"foo": 1}), json!({"messages": null})] {
            let refused = check("a.json", &body).unwrap_err().to_string();
            assert!(refused.starts_with("a.json "), "{refused}");
        }
        assert!(check("a.json", &json!({"input": "hi"})).is_ok());
    }
}
