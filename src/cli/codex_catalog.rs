//! `midstream codex-catalog`: the file that tells Codex what it must know of the models, for its setting
//! `model_catalog_json`.
//!
//! Reads the models' files without their weights, with the same flags and settings as `serve`; serves nothing.

use std::io::{self, Write};

use super::serve::{self, Arguments, Prepared};
use crate::api::codex_catalog;
use crate::app::{load_options, upstream_engines};
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
        let engine = ScriptedEngine::from_file(path)?;
        let id = engine.model().id.clone();
        let (efforts, aliases) = (prepared.config.efforts_of(&id), prepared.config.aliases_of(&id));
        models.push(engine.with_efforts(&efforts).with_aliases(aliases).model().clone());
    }
    models.extend(upstream_engines(&prepared.config)?.iter().map(|engine| engine.model().clone()));
    writeln!(out, "{}", serde_json::to_string_pretty(&codex_catalog(models.iter()))?)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::config::{Config, ModelConfig};
    use crate::engine::tiny::Tiny;
    use crate::models::ModelFile;
    use crate::prompt::Effort;

    #[test]
    fn codex_is_told_how_much_each_model_takes_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, Tiny::default().file()).unwrap();
        let models = vec![ModelFile { id: "org/tiny".to_owned(), path }];
        let brief = Effort { budget_tokens: Some(7), ..Effort::default() };
        let efforts = [("briefly".to_owned(), brief)].into();
        let own = ModelConfig {
            aliases: vec!["gpt-9".to_owned()],
            efforts,
            reasoning: Some("qwen3".to_owned()),
            ..ModelConfig::default()
        };
        let config = Config { model: [("org/tiny".to_owned(), own)].into(), ..Config::default() };
        let mut out = Vec::new();
        write(&Prepared { config, models, tls: None }, &mut out).unwrap();
        let catalogue: Value = serde_json::from_slice(&out).unwrap();
        let (model, alias) = (&catalogue["models"][0], &catalogue["models"][1]);
        let levels = model["supported_reasoning_levels"].as_array().unwrap();
        let words: Vec<_> = levels.iter().map(|level| level["effort"].as_str().unwrap()).collect();
        assert_eq!(words, ["none", "minimal", "low", "medium", "high", "xhigh", "briefly"]);
        assert!(levels[6]["description"].as_str().unwrap().contains('7'));
        assert_eq!(
            (&alias["slug"], &alias["supported_reasoning_levels"]),
            (&"gpt-9".into(), &model["supported_reasoning_levels"])
        );
        assert_eq!(alias["context_window"], model["context_window"]);
        let context = model["context_window"].as_u64().unwrap();
        assert_eq!(model["slug"], "org/tiny");
        assert_eq!(model["auto_compact_token_limit"], context * 8 / 10);
        assert_eq!(model["truncation_policy"]["mode"], "tokens");
        assert!(model["truncation_policy"]["limit"].as_u64().unwrap() <= context / 8);
        assert!(model["base_instructions"].as_str().unwrap().contains("apply_patch"));
    }
}
