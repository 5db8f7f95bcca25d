//! `midstream doctor`: what is known of the conversations and models that `serve` would serve, with the same flags and
//! settings.
//!
//! Reads a copy of the journal, the models' files without their weights, and scripts; serves nothing. All it changes is
//! what a compaction or repair that was cut off left to be finished, as every command does that opens the folder.

use std::io::{self, Write};
use std::path::Path;

use super::conversations::say_damage;
use super::serve::{self, Arguments, Prepared};
use crate::app::{doubts, load_options};
use crate::engine::{Engine, Room, ScriptedEngine, read_file_facts};
use crate::store::{Error, find_damage, holds_journal, inspect};

/// Says it: the conversations, then model by model. Fails where conversations are damaged.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let (prepared, out) = (serve::prepare(arguments)?, &mut io::stdout().lock());
    let folder = &prepared.config.data_dir;
    let are_whole = describe_conversations(folder, out)?;
    describe(&prepared, Room::now(), out)?;
    anyhow::ensure!(are_whole, "conversations in {} are damaged, or cannot be read", folder.display());
    Ok(())
}

/// Says what of the conversations is damaged and what can be done. False where something is.
fn describe_conversations(folder: &Path, out: &mut impl Write) -> anyhow::Result<bool> {
    writeln!(out, "conversations")?;
    writeln!(out, "  folder         {}", folder.display())?;
    if !holds_journal(folder) {
        writeln!(out, "  journal        none yet")?;
        return Ok(true);
    }
    let found = match inspect(folder, find_damage).and_then(|found| found) {
        Ok(found) => found,
        Err(Error::InUse(_)) => {
            writeln!(
                out,
                "  journal        not looked at: another midstream runs on this folder; stop it and ask again"
            )?;
            return Ok(true);
        }
        Err(error) => {
            writeln!(out, "  journal        not readable: {error}")?;
            return Ok(false);
        }
    };
    if found.is_empty() {
        writeln!(out, "  journal        nothing is damaged")?;
        return Ok(true);
    }
    let mut said = Vec::new();
    say_damage(&found, &mut said)?;
    for line in String::from_utf8_lossy(&said).lines() {
        writeln!(out, "  damaged        {line}")?;
    }
    let folder = folder.display();
    writeln!(
        out,
        "  to do          restore the folder from a copy, or lose what is damaged and keep the rest: midstream \
         conversations repair --apply --data-dir {folder}"
    )?;
    Ok(false)
}

fn describe(prepared: &Prepared, room: Option<Room>, out: &mut impl Write) -> anyhow::Result<()> {
    let mut promised = 0;
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
        writeln!(out, "  memory         {}", facts.needs)?;
        for doubt in doubts(model, &prepared.config).iter().chain(&facts.warnings) {
            writeln!(out, "  doubtful       {doubt}")?;
        }
        if let Err(shortage) = facts.needs.check(room, promised) {
            writeln!(out, "  does not fit   {shortage}")?;
        }
        promised += facts.needs.total();
    }
    if let Some(path) = &prepared.config.scripted {
        let engine = ScriptedEngine::from_file(path)?;
        let model = engine.model();
        writeln!(out, "{}", model.id)?;
        writeln!(out, "  file           {}, a script", path.display())?;
        writeln!(out, "  context        {} tokens", model.context_length)?;
        writeln!(out, "  tokenizer      bytes; {} tokens", model.tokenizer.vocab_size())?;
        writeln!(out, "  tool format    {}, by the script", model.tool_format)?;
        writeln!(out, "  reasoning      {}, by the script", model.reasoning)?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::Bound;
    use crate::engine::tiny::Tiny;
    use crate::models::ModelFile;

    #[test]
    fn a_model_is_described_with_the_memory_it_takes_and_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, Tiny::default().file()).unwrap();
        let models = ["one", "two"].map(|id| ModelFile { id: id.to_owned(), path: path.clone() }).to_vec();
        let prepared = Prepared { config: Config { kv_bytes: 500_000_000, ..Config::default() }, models, tls: None };
        let describe = |bytes: u64| {
            let mut out = Vec::new();
            describe(&prepared, Some(Room { bytes, bound: Bound::Machine }), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let all = describe(2_000_000_000);
        assert!(all.contains("memory         weights 1 MB, KV 500 MB, steps"), "{all}");
        let formats = ["tool format    ", "reasoning      "].map(|name| all.matches(name).count());
        assert_eq!((formats, all.matches(", by the template").count()), ([2, 2], 4), "{all}");
        assert!(!all.contains("does not fit"), "{all}");
        // The first of them fits, the second not any more.
        let said = describe(800_000_000);
        let (first, second) = said.split_once("two\n").unwrap();
        assert!(!first.contains("does not fit"), "{first}");
        assert!(second.contains("does not fit   it needs") && second.contains("set kv_bytes to"), "{second}");
    }

    #[test]
    fn a_script_is_described_like_a_model_and_a_broken_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script.json");
        let describe = |script: &str| {
            std::fs::write(&path, script).unwrap();
            let config = Config { scripted: Some(path.clone()), ..Config::default() };
            let mut out = Vec::new();
            describe(&Prepared { config, models: Vec::new(), tls: None }, None, &mut out)
                .map(|()| String::from_utf8(out).unwrap())
        };
        let said = describe(r#"{"tool_format": "hermes", "replies": [{"deltas": ["a"]}]}"#).unwrap();
        assert!(said.starts_with("scripted\n") && said.contains("tool format    hermes, by the script"), "{said}");
        assert!(format!("{:#}", describe("[").unwrap_err()).contains("script.json"));
    }
}
