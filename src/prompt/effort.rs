//! The words for how hard a model is to think, and what each stands for: tokens of reasoning, and variables of the
//! model's template.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a word stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Effort {
    /// Tokens of reasoning; none sets no bound, and 0 says that the model is not to think.
    pub budget_tokens: Option<u32>,
    /// Variables for the template, where a request does not set them itself.
    pub template_kwargs: Map<String, Value>,
}

/// The words that every model takes unless its settings say otherwise, from the least to the most.
const USUAL: [(&str, Option<u32>); 6] = [
    ("none", Some(0)),
    ("minimal", Some(256)),
    ("low", Some(1024)),
    ("medium", Some(4096)),
    ("high", Some(16_384)),
    ("xhigh", None),
];

/// The words that a model takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Efforts(Vec<(String, Effort)>);

impl Default for Efforts {
    fn default() -> Self {
        let usual =
            |(word, budget_tokens): (&str, _)| (word.to_owned(), Effort { budget_tokens, template_kwargs: Map::new() });
        Self(USUAL.map(usual).into())
    }
}

impl Efforts {
    /// The usual words, with these in their place and behind them.
    pub fn with(own: &BTreeMap<String, Effort>) -> Self {
        let mut all = Self::default();
        for (word, effort) in own {
            match all.0.iter_mut().find(|(known, _)| known == word) {
                Some((_, usual)) => usual.clone_from(effort),
                None => all.0.push((word.clone(), effort.clone())),
            }
        }
        all
    }

    /// What a word stands for.
    pub fn get(&self, word: &str) -> Option<&Effort> {
        self.0.iter().find(|(known, _)| known == word).map(|(_, effort)| effort)
    }

    /// The words: the usual ones from the least to the most, then the model's own.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(word, _)| word.as_str())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_usual_words_stand_for_what_is_documented() {
        let efforts = Efforts::default();
        let tokens: Vec<_> = efforts.words().map(|word| (word, efforts.get(word).unwrap().budget_tokens)).collect();
        let documented = include_str!("../../docs/generation.md");
        let row = |name: &str| {
            let line = documented.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap();
            let cells = line.split('|').map(|cell| cell.trim().trim_matches('`').replace(',', ""));
            cells.filter(|cell| !cell.is_empty() && *cell != name).collect::<Vec<String>>()
        };
        let told: Vec<(String, Option<u32>)> =
            row("word").into_iter().zip(row("tokens").iter().map(|cell| cell.parse().ok())).collect();
        assert_eq!(told.len(), tokens.len());
        for ((word, budget), (told, documented)) in tokens.iter().zip(&told) {
            assert_eq!((*word, budget), (told.as_str(), documented));
        }
        assert_eq!(
            tokens[1..5],
            [("minimal", Some(256)), ("low", Some(1_024)), ("medium", Some(4_096)), ("high", Some(16_384))]
        );
    }

    #[test]
    fn a_models_own_words_stand_beside_the_usual_ones_or_in_their_place() {
        let own = |budget_tokens, template_kwargs: Value| Effort {
            budget_tokens,
            template_kwargs: template_kwargs.as_object().unwrap().clone(),
        };
        let max = own(None, json!({"reasoning_effort": "high"}));
        let low = own(Some(7), json!({}));
        let settings = BTreeMap::from([("max".to_owned(), max.clone()), ("low".to_owned(), low.clone())]);
        let efforts = Efforts::with(&settings);
        assert_eq!((efforts.get("max"), efforts.get("low")), (Some(&max), Some(&low)));
        assert_eq!(efforts.get("none").unwrap().budget_tokens, Some(0));
        assert_eq!(efforts.get("Low"), None);
        assert_eq!(efforts.words().collect::<Vec<_>>(), ["none", "minimal", "low", "medium", "high", "xhigh", "max"]);
    }
}
