//! `midstream codex-catalog`: the file that tells Codex what it must know of the models, for its setting
//! `model_catalog_json`.
//!
//! Reads the models' files without their weights, with the same flags and settings as `serve`; serves nothing.

use std::io::{self, Write};

use super::serve::{self, Arguments, Prepared};
use crate::api::codex_catalog;
use crate::app::load_options;
use crate::engine::{Engine, ModelInfo, ScriptedEngine, read_file_facts};

/// Writes it to standard output.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    write(&serve::prepare(arguments)?, &mut io::stdout().lock())
}

fn write(prepared: &Prepared, out: &mut impl Write) -> anyhow::Result<()> {
    let mut models: Vec<ModelInfo> = Vec::new();
    for file in &prepared.models {
        models.push(read_file_facts(&file.path, &load_options(&prepared.config, &file.id)?)?.model);
    }
    if let Some(path) = &prepared.config.scripted {
        models.push(ScriptedEngine::from_file(path)?.model().clone());
    }
    writeln!(out, "{}", serde_json::to_string_pretty(&codex_catalog(models.iter()))?)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::config::Config;
    use crate::engine::tiny::Tiny;
    use crate::models::ModelFile;

    #[test]
    fn codex_is_told_how_much_each_model_takes_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, Tiny::default().file()).unwrap();
        let models = vec![ModelFile { id: "org/tiny".to_owned(), path }];
        let mut out = Vec::new();
        write(&Prepared { config: Config::default(), models }, &mut out).unwrap();
        let catalogue: Value = serde_json::from_slice(&out).unwrap();
        let model = &catalogue["models"][0];
        let context = model["context_window"].as_u64().unwrap();
        assert_eq!(model["slug"], "org/tiny");
        assert_eq!(model["auto_compact_token_limit"], context * 8 / 10);
        assert_eq!(model["truncation_policy"]["mode"], "tokens");
        assert!(model["truncation_policy"]["limit"].as_u64().unwrap() <= context / 8);
        assert!(model["base_instructions"].as_str().unwrap().contains("apply_patch"));
    }
}
