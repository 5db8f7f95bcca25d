//! What a constraint may cost, before the library sees it: it walks rules and references by recursion, and asks how
//! long a text is only when it is too late.

use std::collections::HashSet;

use serde_json::Value;

use super::Uncompilable;

/// Most bytes of a schema, a grammar, an expression, or the texts of a choice.
pub(super) const RULE_BYTES_MAX: usize = 128 * 1024;
/// Most bytes of a text that an answer must repeat word for word.
const LITERAL_BYTES_MAX: usize = 4 * 1024;
/// Most places that a schema refers to, and most rules of a grammar: each may lead to the next.
const REFERENCES_MAX: usize = 1_000;
const RULES_MAX: usize = 1_000;
/// Deepest nesting of a schema.
const DEPTH_MAX: usize = 128;

/// Whether a schema is within the bounds.
pub(super) fn schema(schema: &Value) -> Result<(), Uncompilable> {
    bytes(schema.to_string().len())?;
    let mut references = HashSet::new();
    walk(schema, 0, &mut references)?;
    if references.len() > REFERENCES_MAX {
        let found = references.len();
        return Err(Uncompilable(format!("the schema refers to {found} places; at most {REFERENCES_MAX} are taken")));
    }
    Ok(())
}

fn walk<'a>(value: &'a Value, depth: usize, references: &mut HashSet<&'a str>) -> Result<(), Uncompilable> {
    if depth > DEPTH_MAX {
        return Err(Uncompilable(format!("the schema is nested deeper than {DEPTH_MAX} levels")));
    }
    match value {
        Value::String(text) => literal(text),
        Value::Array(values) => values.iter().try_for_each(|value| walk(value, depth + 1, references)),
        Value::Object(fields) => {
            references.extend(fields.get("$ref").and_then(Value::as_str));
            fields.iter().try_for_each(|(name, value)| {
                literal(name)?;
                // What is only told to people may be as long as it likes.
                let is_told = matches!(name.as_str(), "description" | "title" | "$comment") && value.is_string();
                if is_told { Ok(()) } else { walk(value, depth + 1, references) }
            })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Whether a grammar is within the bounds. Every rule has a colon; those in texts and expressions count as well.
pub(super) fn lark(grammar: &str) -> Result<(), Uncompilable> {
    bytes(grammar.len())?;
    let rules = grammar.bytes().filter(|byte| *byte == b':').count();
    if rules > RULES_MAX {
        return Err(Uncompilable(format!("the grammar has {rules} rules; at most {RULES_MAX} are taken")));
    }
    Ok(())
}

/// Whether a choice of texts is within the bounds.
pub(super) fn choice(texts: &[String]) -> Result<(), Uncompilable> {
    bytes(texts.iter().map(String::len).sum())?;
    texts.iter().try_for_each(|text| literal(text))
}

/// Whether a rule of so many bytes is within the bounds.
pub(super) fn bytes(bytes: usize) -> Result<(), Uncompilable> {
    if bytes > RULE_BYTES_MAX {
        return Err(Uncompilable(format!("it has {bytes} bytes; at most {RULE_BYTES_MAX} are taken")));
    }
    Ok(())
}

fn literal(text: &str) -> Result<(), Uncompilable> {
    if text.len() > LITERAL_BYTES_MAX {
        let found = text.len();
        return Err(Uncompilable(format!("a text in it has {found} bytes; at most {LITERAL_BYTES_MAX} are taken")));
    }
    Ok(())
}
