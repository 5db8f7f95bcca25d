//! `midstream tokenize`: the tokens of a text in a model's vocabulary.
//!
//! Reads the text parts of a model's file, not its weights.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde_json::json;

use crate::app::{load_options, template_text};
use crate::config::{Config, Flags};
use crate::engine::{ModelInfo, read_model_info};
use crate::models::{self, DEFAULT_MODEL, Fetcher};

/// Which model's text is meant.
#[derive(Args, Debug)]
pub(super) struct WhichModel {
    /// A known model or a GGUF file [default: the first of the settings, else smollm2-135m-instruct]
    #[arg(long, value_name = "NAME|FILE.gguf")]
    model: Option<String>,
    /// The chat template: chatml, hermes, llama3, mistral, gemma, or a file [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// Read settings from this file [default: midstream.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl WhichModel {
    /// The settings, as `serve` would have them.
    pub(super) fn settings(&self) -> anyhow::Result<Config> {
        Ok(Config::load(self.config.as_deref(), super::serve::variables(), Flags::default())?)
    }

    /// Reads everything but the weights, with the model and the chat template that are named here, else in the
    /// settings.
    pub(super) fn read(&self, config: &Config) -> anyhow::Result<ModelInfo> {
        let file = models::resolve(self.name(config), &Fetcher::for_user()?)?;
        let mut options = load_options(config, &file.id)?;
        if let Some(name) = &self.chat_template {
            options.template = Some(template_text(name)?);
        }
        Ok(read_model_info(&file.path, &options)?)
    }

    fn name<'a>(&'a self, config: &'a Config) -> &'a str {
        self.model.as_ref().or(config.models.first()).map_or(DEFAULT_MODEL, String::as_str)
    }
}

/// How it is used.
const EXAMPLES: &str = "\
Examples:
  midstream tokenize 'How many tokens are this?'
  midstream tokenize --model ./my.gguf < text.txt";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The text, its words joined by a space [default: standard input]
    #[arg(value_name = "TEXT")]
    text: Vec<String>,
    #[command(flatten)]
    model: WhichModel,
    /// Take the texts of control tokens as text, as in a message
    #[arg(long)]
    plain: bool,
    /// Write JSON with the ids and the text of each
    #[arg(long)]
    tokens: bool,
}

/// Does what is asked.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let text = if arguments.text.is_empty() { standard_input()? } else { arguments.text.join(" ") };
    let model = arguments.model.read(&arguments.model.settings()?)?;
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
    use super::*;

    #[test]
    fn the_model_is_the_one_that_is_named_else_the_first_of_the_settings() {
        let named = |flag: Option<&str>, models: &[&str]| {
            let model = WhichModel { model: flag.map(str::to_owned), chat_template: None, config: None };
            let models = models.iter().map(|name| (*name).to_owned()).collect();
            model.name(&Config { models, ..Config::default() }).to_owned()
        };
        assert_eq!(named(Some("a.gguf"), &["b.gguf"]), "a.gguf");
        assert_eq!(named(None, &["b.gguf", "c.gguf"]), "b.gguf");
        assert_eq!(named(None, &[]), DEFAULT_MODEL);
    }

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
