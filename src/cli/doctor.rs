//! `midstream doctor`: what is known of the machine, and of the conversations and models that `serve` would serve, with
//! the same flags and settings.
//!
//! Reads a copy of the journal, the models' files without their weights, and scripts; serves nothing. All it changes is
//! what a compaction or repair that was cut off left to be finished, as every command does that opens the folder.

use std::io;
use std::path::Path;

use clap::Args;

use super::conversations::say_damage;
use super::findings::{Section, are_well, write_json, write_lines};
use super::machine::examine;
use super::serve::{self, Prepared};
use crate::app::{doubts, load_options};
use crate::engine::{Engine, Room, ScriptedEngine, read_file_facts};
use crate::store::{Error, find_damage, holds_journal, inspect};

/// What else there is to know.
const ABOUT: &str = "\
It takes the flags of `midstream serve`, so that what would be served is what is looked at. Lines that begin with `!`
are doubtful or wrong, and say what to do. Nothing is changed.

  midstream doctor
  midstream doctor --model ./my.gguf --data-dir /var/lib/midstream
  midstream doctor --json | jq '.sections[].findings[] | select(.grade != \"fine\")'

Exit code 0: a server could start. 1: conversations are damaged, or something else stands in the way.";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = ABOUT)]
pub(super) struct Doctor {
    /// Write JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    serve: serve::Arguments,
}

/// Says it: the machine, the conversations, then model by model. Fails where something stands in the way.
pub(super) fn run(arguments: Doctor) -> anyhow::Result<()> {
    let (prepared, room) = (serve::prepare(arguments.serve)?, Room::now());
    let folder = &prepared.config.data_dir;
    let mut sections = vec![examine(&prepared.config, room), conversations(folder)];
    sections.extend(models(&prepared, room)?);
    let mut out = io::stdout().lock();
    if arguments.json {
        write_json(&sections, &mut out)?;
    } else {
        write_lines(&sections, &mut out)?;
    }
    let folder = folder.display();
    anyhow::ensure!(
        are_well(&sections[1..]),
        "conversations in {folder} are damaged, or cannot be read; what to do is said above"
    );
    anyhow::ensure!(are_well(&sections), "this machine cannot serve with these settings; what to do is said above");
    Ok(())
}

/// What of the conversations is damaged, and what can be done.
fn conversations(folder: &Path) -> Section {
    let mut section = Section::new("conversations");
    section.fine("folder", folder.display().to_string());
    if !holds_journal(folder) {
        section.fine("journal", "none yet");
        return section;
    }
    let found = match inspect(folder, find_damage).and_then(|found| found) {
        Ok(found) => found,
        Err(Error::InUse(_)) => {
            section.fine("journal", "not looked at: another midstream runs on this folder; stop it and ask again");
            return section;
        }
        Err(error) => {
            section.wrong("journal", format!("not readable: {error}"));
            return section;
        }
    };
    if found.is_empty() {
        section.fine("journal", "nothing is damaged");
        return section;
    }
    let mut said = Vec::new();
    // Writing to memory never fails.
    let _ = say_damage(&found, &mut said);
    for line in String::from_utf8_lossy(&said).lines() {
        section.wrong("damaged", line);
    }
    section.wrong(
        "to do",
        format!(
            "restore the folder from a copy, or lose what is damaged and keep the rest: midstream conversations repair \
             --apply --data-dir {}",
            folder.display()
        ),
    );
    section
}

/// What is known of each model, and whether there is memory for all of them.
fn models(prepared: &Prepared, room: Option<Room>) -> anyhow::Result<Vec<Section>> {
    let mut sections = Vec::new();
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
        let mut section = Section::new(&model.id);
        section.fine("file", file.path.display().to_string());
        section.fine("architecture", facts.architecture.as_str());
        section.fine("context", format!("{} tokens", model.context_length));
        section.fine("tokenizer", format!("{}; {} tokens", facts.tokenizer, model.tokenizer.vocab_size()));
        section.fine("chat template", format!("{template}; {tools}"));
        section.fine("tool format", format!("{}, {}", model.tool_format, chosen(options.tool_format.is_some())));
        section.fine("reasoning", format!("{}, {}", model.reasoning, chosen(options.reasoning.is_some())));
        section.fine("memory", facts.needs.to_string());
        for doubt in doubts(model, &prepared.config).iter().chain(&facts.warnings) {
            section.doubtful("doubtful", doubt);
        }
        if let Err(shortage) = facts.needs.check(room, promised) {
            section.doubtful("does not fit", shortage.to_string());
        }
        promised += facts.needs.total();
        sections.push(section);
    }
    if let Some(path) = &prepared.config.scripted {
        let engine = ScriptedEngine::from_file(path)?;
        let model = engine.model();
        let mut section = Section::new(&model.id);
        section.fine("file", format!("{}, a script", path.display()));
        section.fine("context", format!("{} tokens", model.context_length));
        section.fine("tokenizer", format!("bytes; {} tokens", model.tokenizer.vocab_size()));
        section.fine("tool format", format!("{}, by the script", model.tool_format));
        section.fine("reasoning", format!("{}, by the script", model.reasoning));
        sections.push(section);
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::Bound;
    use crate::engine::tiny::Tiny;
    use crate::models::ModelFile;

    fn lines(sections: &[Section]) -> String {
        let mut out = Vec::new();
        write_lines(sections, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_model_is_described_with_the_memory_it_takes_and_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, Tiny::default().file()).unwrap();
        let files = ["one", "two"].map(|id| ModelFile { id: id.to_owned(), path: path.clone() }).to_vec();
        let prepared =
            Prepared { config: Config { kv_bytes: 500_000_000, ..Config::default() }, models: files, tls: None };
        let describe = |bytes: u64| lines(&models(&prepared, Some(Room { bytes, bound: Bound::Machine })).unwrap());
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
            models(&Prepared { config, models: Vec::new(), tls: None }, None).map(|sections| lines(&sections))
        };
        let said = describe(r#"{"tool_format": "hermes", "replies": [{"deltas": ["a"]}]}"#).unwrap();
        assert!(said.starts_with("scripted\n") && said.contains("tool format    hermes, by the script"), "{said}");
        assert!(format!("{:#}", describe("[").unwrap_err()).contains("script.json"));
    }
}
