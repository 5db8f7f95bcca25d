//! `midstream tokenize`: the tokens of a text in a model's vocabulary.
//!
//! Reads the text parts of a model's file, not its weights.

use std::io::{self, Read, Write};

use anyhow::Context;
use clap::Args;
use serde_json::json;

use crate::app::template_text;
use crate::config::Config;
use crate::engine::{LoadOptions, ModelInfo, read_model_info};
use crate::models::{self, DEFAULT_MODEL, Fetcher};

/// Which model's text is meant.
#[derive(Args, Debug)]
pub(super) struct Model {
    /// A known model or a GGUF file
    #[arg(long, value_name = "NAME|FILE.gguf", default_value = DEFAULT_MODEL)]
    model: String,
    /// The chat template: chatml, hermes, llama3, mistral, gemma, or a file [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
}

impl Model {
    /// Reads everything but the weights, with the chat template that is named here, else in the settings.
    pub(super) fn read(&self, config: &Config) -> anyhow::Result<ModelInfo> {
        let file = models::resolve(&self.model, &Fetcher::for_user()?)?;
        let template = self.chat_template.as_deref().or_else(|| config.chat_template_of(&file.id));
        let template = template.map(template_text).transpose()?;
        let options = LoadOptions { id: Some(file.id), template, ..LoadOptions::default() };
        Ok(read_model_info(&file.path, &options)?)
    }
}

/// What is set on the command line.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The text [default: standard input]
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    #[command(flatten)]
    model: Model,
    /// Take the texts of control tokens as text, as in a message
    #[arg(long)]
    plain: bool,
    /// Write JSON with the ids and the text of each
    #[arg(long)]
    tokens: bool,
}

/// Does what is asked.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let text = arguments.text.clone().map_or_else(standard_input, Ok)?;
    let model = arguments.model.read(&Config::default())?;
    let tokens = model.tokenizer.encode(&text, !arguments.plain);
    let mut out = io::stdout().lock();
    if arguments.tokens {
        let texts: Vec<String> = tokens.iter().map(|id| spelled(&model, *id)).collect();
        writeln!(out, "{}", json!({"count": tokens.len(), "tokens": tokens, "token_strs": texts}))?;
    } else {
        writeln!(out, "{}", tokens.len())?;
    }
    Ok(out.flush()?)
}

/// All of standard input.
pub(super) fn standard_input() -> anyhow::Result<String> {
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text).context("reading standard input")?;
    Ok(text)
}

/// The text of a token; it need not hold whole characters.
pub(super) fn spelled(model: &ModelInfo, id: u32) -> String {
    let tokenizer = &model.tokenizer;
    let bytes = tokenizer.special_text(id).map_or_else(|| tokenizer.token_bytes(id), str::as_bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::template_text;

    #[test]
    fn a_template_is_a_name_or_a_file_and_what_is_neither_is_told_the_names() {
        assert!(template_text("hermes").unwrap().contains("<tool_call>"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.jinja");
        std::fs::write(&path, "{{ 1 }}").unwrap();
        assert_eq!(template_text(path.to_str().unwrap()).unwrap(), "{{ 1 }}");
        let refused = format!("{:#}", template_text("no-such-template").unwrap_err());
        assert!(refused.contains("no-such-template, which is a file or one of chatml, hermes"), "{refused}");
        std::fs::write(&path, "{% if %}").unwrap();
        let refused = format!("{:#}", template_text(path.to_str().unwrap()).unwrap_err());
        assert!(refused.contains("own.jinja cannot be used: the chat template does not compile"), "{refused}");
    }
}
