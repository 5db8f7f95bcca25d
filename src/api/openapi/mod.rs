//! What every route takes and answers, as OpenAPI 3.1. The schemas are made of the wire's own types and the refusals
//! of the list of error codes, so that the description cannot say what the server does not.

mod operation;
mod operations;
mod shapes;

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use operation::Schemas;

/// The description, made once.
static TEXT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", document()));

/// `GET /openapi.json`
pub(crate) async fn get() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str())
}

fn document() -> Value {
    let settings = || SchemaSettings::draft2020_12().with(|it| it.definitions_path = "/components/schemas".into());
    let mut schemas = Schemas {
        taken: settings().for_deserialize().into_generator(),
        answered: settings().for_serialize().into_generator(),
    };
    let mut paths = Map::new();
    for operation in operations::all() {
        let path = operation.path.replace("{*", "{");
        let path = paths.entry(path).or_insert_with(|| json!({}));
        path[operation.method] = operation.describe(&mut schemas);
    }
    let mut definitions = schemas.taken.take_definitions(true);
    definitions.extend(schemas.answered.take_definitions(true));
    definitions.sort_keys();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "midstream",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Serves language models to agents; conversations are durable and can be steered. \
                Fields that nobody knows are ignored, so that clients of any age can ask.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        // A server without keys asks for none.
        "security": [{}, {"bearer": []}, {"x_api_key": []}],
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_described_and_no_other() {
        let routes = include_str!("../mod.rs").split(".route(").skip(1);
        let routes: BTreeSet<_> = routes.map(|it| it.split('"').nth(1).unwrap().replace("{*", "{")).collect();
        let described: BTreeSet<_> = document()["paths"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(described, routes);
    }

    #[test]
    fn types_of_one_name_are_one_type() {
        // The generators number a second type of a name; clients that are made of the description would show it.
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let numbered: Vec<_> = schemas.keys().filter(|name| name.ends_with(|it: char| it.is_ascii_digit())).collect();
        assert_eq!(numbered, Vec::<&String>::new());
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = document();
        let mut named = Vec::new();
        references(&document, &mut named);
        assert!(named.len() > 100, "{}", named.len());
        for name in named {
            assert!(document.pointer(name.trim_start_matches('#')).is_some(), "{name}");
        }
    }

    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
}
