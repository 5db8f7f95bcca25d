//! The catalogue: which models can be asked for, and by which name.

use std::sync::Arc;

use super::contract::Engine;

/// The models that this process serves. The first is the default.
#[derive(Clone, Default)]
pub struct Catalog {
    engines: Vec<Arc<dyn Engine>>,
}

impl Catalog {
    /// A catalogue of these engines; of two with one id, the first is found.
    pub fn new(engines: Vec<Arc<dyn Engine>>) -> Self {
        Self { engines }
    }

    /// The engine of this model, by its id or else by another name of it; without a name, the default.
    pub fn get(&self, model: Option<&str>) -> Option<&Arc<dyn Engine>> {
        match model {
            Some(name) => {
                let by_id = self.engines.iter().find(|engine| engine.model().id == name);
                let is_alias = |engine: &&Arc<dyn Engine>| engine.model().aliases.iter().any(|alias| alias == name);
                by_id.or_else(|| self.engines.iter().find(is_alias))
            }
            None => self.engines.first(),
        }
    }

    /// All of them, the default first.
    pub fn list(&self) -> impl Iterator<Item = &Arc<dyn Engine>> {
        self.engines.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ScriptedEngine;

    #[test]
    fn a_model_is_found_by_each_of_its_names_and_an_id_wins() {
        let engine = |names: &[&str]| -> Arc<dyn Engine> {
            let engine = ScriptedEngine::from_json(r#"[{"deltas": ["a"]}]"#).unwrap();
            Arc::new(engine.with_aliases(names.iter().map(|name| (*name).to_owned()).collect()))
        };
        let (first, second) = (engine(&["one"]), engine(&["two", "one", "scripted"]));
        let catalog = Catalog::new(vec![first.clone(), second.clone()]);
        let is = |name: Option<&str>, engine: &Arc<dyn Engine>| Arc::ptr_eq(catalog.get(name).unwrap(), engine);
        assert!(is(None, &first) && is(Some("scripted"), &first) && is(Some("one"), &first));
        assert!(is(Some("two"), &second) && catalog.get(Some("three")).is_none());
    }
}
