//! What a constraint may cost, before the library sees it: it walks rules and references by recursion, and asks how
//! long a text is only when it is too late.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::Uncompilable;
use super::rules::names_schemas;

/// Most bytes of a schema, or of the texts of a choice.
const RULE_BYTES_MAX: usize = 128 * 1024;
/// Most bytes of a grammar: compiling it takes time with the square of that.
const LARK_BYTES_MAX: usize = 16 * 1024;
/// Most bytes of an expression, likewise, and of a text that an answer must repeat word for word.
const LITERAL_BYTES_MAX: usize = 4 * 1024;
/// Most places that a schema refers to, and most rules of a grammar: each may lead to the next.
const REFERENCES_MAX: usize = 1_000;
const RULES_MAX: usize = 1_000;
/// Deepest nesting of a schema.
const DEPTH_MAX: usize = 128;

/// Whether a schema is within the bounds, and says nothing that is wrong by itself. What is refused has its place.
pub(super) fn schema(schema: &Value) -> Result<(), Uncompilable> {
    let text = schema.to_string();
    bytes(text.len(), RULE_BYTES_MAX)?;
    // Where schemas have names of their own, the library finds out what refers to which.
    let root = (!text.contains("\"$id\"")).then_some(schema);
    let mut walk = Walk { root, references: HashSet::new(), path: "#".to_owned() };
    walk.value(schema, 0, Holds::Schema)?;
    let found = walk.references.len();
    if found > REFERENCES_MAX {
        return Err(Uncompilable(format!("the schema refers to {found} places; at most {REFERENCES_MAX} are taken")));
    }
    Ok(())
}

/// What a value in a schema is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// A schema, or a list of some.
    Schema,
    /// Schemas by names of the client's.
    Named,
    /// Anything else: what looks like a keyword in it is none.
    Data,
}

impl Holds {
    /// What stands under a keyword.
    fn under(self, name: &str) -> Self {
        match self {
            Self::Named => Self::Schema,
            Self::Schema if names_schemas(name) => Self::Named,
            Self::Schema if SCHEMAS.contains(&name) => Self::Schema,
            Self::Schema | Self::Data => Self::Data,
        }
    }
}

/// Keywords under which a schema stands, or a list of some.
const SCHEMAS: [&str; 12] = [
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "anyOf",
    "oneOf",
    "allOf",
    "if",
    "then",
    "else",
];
/// The words of `type`.
const TYPES: [&str; 7] = ["object", "array", "string", "integer", "number", "boolean", "null"];
/// Bounds that exclude each other where the first is greater, of values of these types.
const PAIRS: [(&str, &str, &[&str]); 4] = [
    ("minimum", "maximum", &["integer", "number"]),
    ("minLength", "maxLength", &["string"]),
    ("minItems", "maxItems", &["array"]),
    ("minProperties", "maxProperties", &["object"]),
];

struct Walk<'a> {
    /// Where references lead; absent where they may lead elsewhere.
    root: Option<&'a Value>,
    references: HashSet<&'a str>,
    /// A pointer to where it is.
    path: String,
}

impl<'a> Walk<'a> {
    fn value(&mut self, value: &'a Value, depth: usize, holds: Holds) -> Result<(), Uncompilable> {
        if depth > DEPTH_MAX {
            return Err(Uncompilable(format!("the schema is nested deeper than {DEPTH_MAX} levels")));
        }
        match value {
            Value::String(text) => literal(text).map_err(|error| self.here(&error.0)),
            Value::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    self.inside(&index.to_string(), value, depth, holds)?;
                }
                Ok(())
            }
            Value::Object(fields) => {
                self.references.extend(fields.get("$ref").and_then(Value::as_str));
                if holds == Holds::Schema {
                    self.keywords(fields)?;
                }
                for (name, value) in fields {
                    literal(name).map_err(|error| self.here(&error.0))?;
                    // What is only told to people may be as long as it likes.
                    let is_told = matches!(name.as_str(), "description" | "title" | "$comment") && value.is_string();
                    if !is_told {
                        self.inside(name, value, depth, holds.under(name))?;
                    }
                }
                Ok(())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        }
    }

    /// Walks what stands here under this name.
    fn inside(&mut self, name: &str, value: &'a Value, depth: usize, holds: Holds) -> Result<(), Uncompilable> {
        let above = self.path.len();
        self.path.push('/');
        self.path.push_str(&name.replace('~', "~0").replace('/', "~1"));
        self.value(value, depth + 1, holds)?;
        self.path.truncate(above);
        Ok(())
    }

    /// What is wrong, with its place.
    fn here(&self, what: &str) -> Uncompilable {
        Uncompilable(format!("{what}, at {}", self.path))
    }

    /// What is known to be wrong with the keywords of one schema.
    fn keywords(&self, fields: &Map<String, Value>) -> Result<(), Uncompilable> {
        let wrong =
            |keyword: &str, what: &str| Err(Uncompilable(format!("{keyword}: {what}, at {}/{keyword}", self.path)));
        let kind = fields.get("type");
        let mut words =
            kind.into_iter().flat_map(|kind| kind.as_array().map_or(std::slice::from_ref(kind), Vec::as_slice));
        let unknown = |word: &&Value| word.as_str().is_some_and(|word| !TYPES.contains(&word));
        if let Some(word) = words.find(unknown) {
            return wrong("type", &format!("{word} is none of {}", TYPES.join(", ")));
        }
        if let (Some(target), Some(root)) = (fields.get("$ref").and_then(Value::as_str), self.root) {
            let pointer = target.strip_prefix('#');
            let leads = match pointer {
                // Names, and what is escaped as in addresses, are the library's to follow.
                Some(pointer) if !pointer.starts_with('/') || pointer.contains('%') => true,
                Some(pointer) => root.pointer(pointer).is_some(),
                None => false,
            };
            if !leads {
                return wrong("$ref", &format!("there is no {target:?} in the schema"));
            }
        }
        for (least, most, kinds) in PAIRS {
            let number = |keyword: &str| fields.get(keyword).and_then(Value::as_f64);
            let is_of_it = kind.and_then(Value::as_str).is_some_and(|kind| kinds.contains(&kind));
            if let (true, Some(low), Some(high)) = (is_of_it, number(least), number(most))
                && low > high
            {
                return wrong(least, &format!("{low} is more than {high}, the {most}"));
            }
        }
        Ok(())
    }
}

/// Whether a grammar is within the bounds. Every rule has a colon; those in texts and expressions count as well.
pub(super) fn lark(grammar: &str) -> Result<(), Uncompilable> {
    bytes(grammar.len(), LARK_BYTES_MAX)?;
    let rules = grammar.bytes().filter(|byte| *byte == b':').count();
    if rules > RULES_MAX {
        return Err(Uncompilable(format!("the grammar has {rules} rules; at most {RULES_MAX} are taken")));
    }
    Ok(())
}

/// Whether a choice of texts is within the bounds.
pub(super) fn choice(texts: &[String]) -> Result<(), Uncompilable> {
    bytes(texts.iter().map(String::len).sum(), RULE_BYTES_MAX)?;
    texts.iter().try_for_each(|text| literal(text))
}

/// Whether an expression is within the bounds.
pub(super) fn regex(pattern: &str) -> Result<(), Uncompilable> {
    bytes(pattern.len(), LITERAL_BYTES_MAX)
}

fn bytes(bytes: usize, most: usize) -> Result<(), Uncompilable> {
    if bytes > most {
        return Err(Uncompilable(format!("it has {bytes} bytes; at most {most} are taken")));
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
