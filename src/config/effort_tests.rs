//! The words for how hard a model is to think, as settings.

use serde_json::json;

use super::*;
use crate::prompt::Effort;

fn load(file: &str) -> Result<Config, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.toml");
    std::fs::write(&path, file).unwrap();
    Config::load(Some(&path), [], Flags::default())
}

#[test]
fn a_models_words_are_tables_of_its_own() {
    let file = "[model.\"my-model\".efforts.max]\n\
                budget_tokens = 32768\n\
                template_kwargs = { reasoning_effort = 'high' }\n\
                [model.\"my-model\".efforts.deep]\n";
    let efforts = load(file).unwrap().efforts_of("my-model");
    let template_kwargs = json!({"reasoning_effort": "high"}).as_object().unwrap().clone();
    assert_eq!(efforts["max"], Effort { budget_tokens: Some(32_768), template_kwargs });
    assert_eq!(efforts["deep"], Effort::default(), "no bound, and nothing for the template");
    assert!(load(file).unwrap().efforts_of("other").is_empty());
}

#[test]
fn a_word_that_says_something_else_is_refused_by_its_name() {
    let refused = load("model.m.efforts.max.budget = 7").unwrap_err().to_string();
    assert!(refused.starts_with("unknown setting `budget`"), "{refused}");
    let refused = load("model.m.efforts.max.budget_tokens = -7").unwrap_err().to_string();
    assert!(refused.contains("model.m.efforts.max.budget_tokens"), "{refused}");
}
