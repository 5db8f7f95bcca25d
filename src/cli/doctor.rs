//! `midstream doctor`: what is known of the models that `serve` would serve, with the same flags and settings.
//!
//! Reads the models' files without their weights; starts nothing.

use std::io::{self, Write};

use super::serve::{self, Arguments};
use crate::app::load_options;
use crate::engine::read_file_facts;

/// Says it, model by model.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let prepared = serve::prepare(arguments)?;
    let mut out = io::stdout().lock();
    for file in &prepared.models {
        let options = load_options(&prepared.config, &file.id)?;
        let facts = read_file_facts(&file.path, &options)?;
        let (model, known) = (&facts.model, facts.model.template.capabilities());
        let template = prepared.config.chat_template_of(&file.id).unwrap_or("the file's own");
        let tools = match (known.tools, known.tool_calls) {
            (true, true) => "writes tools and calls",
            (false, false) => "knows no tools; they are described in the usual form",
            (true, false) => "writes tools but no calls",
            (false, true) => "writes calls but no tools",
        };
        let chosen = |set: bool| if set { "as set" } else { "by the template" };
        writeln!(out, "{}", model.id)?;
        writeln!(out, "  file           {}", file.path.display())?;
        writeln!(out, "  architecture   {}", facts.architecture)?;
        writeln!(out, "  context        {} tokens", model.context_length)?;
        writeln!(out, "  tokenizer      {}; {} tokens", facts.tokenizer, model.tokenizer.vocab_size())?;
        writeln!(out, "  chat template  {template}; {tools}")?;
        writeln!(out, "  tool format    {}, {}", model.tool_format, chosen(options.tool_format.is_some()))?;
        writeln!(out, "  reasoning      {}, {}", model.reasoning, chosen(options.reasoning.is_some()))?;
    }
    Ok(out.flush()?)
}
