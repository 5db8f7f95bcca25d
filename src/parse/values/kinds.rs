//! Which kinds of JSON value a schema takes.

use std::ops::BitOr;

use serde_json::Value;

/// References are followed this far; a schema that goes on is taken to allow anything.
const REFERENCES_MAX: usize = 8;

/// A set of the kinds of JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::parse) struct Kinds(u8);

impl Kinds {
    pub(in crate::parse) const NONE: Self = Self(0);
    pub(in crate::parse) const STRING: Self = Self(1);
    pub(in crate::parse) const INTEGER: Self = Self(2);
    /// Numbers that are no integers; a schema's `number` is both.
    pub(in crate::parse) const FRACTION: Self = Self(4);
    pub(in crate::parse) const BOOLEAN: Self = Self(8);
    pub(in crate::parse) const NULL: Self = Self(16);
    pub(in crate::parse) const OBJECT: Self = Self(32);
    pub(in crate::parse) const ARRAY: Self = Self(64);
    /// No schema says what the value is: JSON where it is strictly that, text otherwise.
    pub(in crate::parse) const UNKNOWN: Self = Self(255);
    /// Everything but text; what is none of it is text all the same.
    pub(in crate::parse) const NOT_TEXT: Self = Self(126);

    pub(in crate::parse) fn any_of(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// What the parameter of a tool takes, by the tool's schema of all its arguments.
    pub(in crate::parse) fn of_parameter(parameters: Option<&Value>, name: &str) -> Self {
        let Some(root) = parameters else {
            return Self::UNKNOWN;
        };
        let property = properties(root, root, 0).and_then(|properties| properties.get(name));
        let property = property.or_else(|| root.get("additionalProperties").filter(|schema| schema.is_object()));
        property.map_or(Self::UNKNOWN, |schema| Self::of(schema, root))
    }

    /// What a schema takes; `root` is where its references begin.
    pub(in crate::parse) fn of(schema: &Value, root: &Value) -> Self {
        Self::at(schema, root, 0)
    }

    fn at(schema: &Value, root: &Value, depth: usize) -> Self {
        let Some(fields) = schema.as_object().filter(|_| depth <= REFERENCES_MAX) else {
            return Self::UNKNOWN;
        };
        let nullable = fields.get("nullable") == Some(&Value::Bool(true));
        let or_null = if nullable { Self::NULL } else { Self::NONE };
        if let Some(named) = resolve(schema, root) {
            return Self::at(named, root, depth + 1) | or_null;
        }
        let union = |schemas: &Value| {
            let schemas = schemas.as_array().filter(|schemas| !schemas.is_empty())?;
            Some(schemas.iter().fold(Self::NONE, |kinds, schema| kinds | Self::at(schema, root, depth + 1)))
        };
        let values = |values: &Value| {
            let values = values.as_array().filter(|values| !values.is_empty())?;
            Some(values.iter().fold(Self::NONE, |kinds, value| kinds | Self::of_value(value)))
        };
        let all = |schemas: &Value| {
            let schemas = schemas.as_array()?;
            Some(Self(schemas.iter().fold(255, |kinds, schema| kinds & Self::at(schema, root, depth + 1).0)))
        };
        let kinds = (fields.get("type").and_then(Self::of_type))
            .or_else(|| fields.get("enum").and_then(values))
            .or_else(|| fields.get("const").map(Self::of_value))
            .or_else(|| fields.get("anyOf").and_then(union))
            .or_else(|| fields.get("oneOf").and_then(union))
            .or_else(|| fields.get("allOf").and_then(all))
            .or_else(|| fields.contains_key("properties").then_some(Self::OBJECT))
            .or_else(|| fields.contains_key("items").then_some(Self::ARRAY))
            .unwrap_or(Self::UNKNOWN);
        if kinds == Self::NONE { Self::UNKNOWN } else { kinds | or_null }
    }

    fn of_type(of_type: &Value) -> Option<Self> {
        let kind = |name: &Value| match name.as_str()? {
            "string" | "str" => Some(Self::STRING),
            "integer" | "int" => Some(Self::INTEGER),
            "number" | "float" => Some(Self::INTEGER | Self::FRACTION),
            "boolean" | "bool" => Some(Self::BOOLEAN),
            "null" => Some(Self::NULL),
            "object" | "dict" => Some(Self::OBJECT),
            "array" | "list" => Some(Self::ARRAY),
            _ => None,
        };
        match of_type {
            Value::Array(names) if names.is_empty() => None,
            Value::Array(names) => names.iter().map(kind).try_fold(Self::NONE, |kinds, kind| Some(kinds | kind?)),
            name => kind(name),
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::INTEGER | Self::FRACTION,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }
}

impl BitOr for Kinds {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The names of a tool's parameters in the order in which its schema has them.
pub(in crate::parse) fn property_names(parameters: Option<&Value>) -> Vec<String> {
    let properties = parameters.and_then(|root| properties(root, root, 0));
    properties.map(|properties| properties.keys().cloned().collect()).unwrap_or_default()
}

fn properties<'a>(schema: &'a Value, root: &'a Value, depth: usize) -> Option<&'a serde_json::Map<String, Value>> {
    if let Some(named) = resolve(schema, root).filter(|_| depth < REFERENCES_MAX) {
        return properties(named, root, depth + 1);
    }
    schema.get("properties")?.as_object()
}

/// The schema that a reference names.
fn resolve<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    let reference = schema.get("$ref")?.as_str()?;
    root.pointer(reference.strip_prefix('#')?)
}

/// A place in the arguments of a tool, by which its schema is found.
#[derive(Clone, Debug, Default)]
pub(in crate::parse) struct Place(Vec<Option<String>>);

impl Place {
    /// Goes on to a field of an object or, without a name, to an element of an array.
    pub(in crate::parse) fn enter(&mut self, field: Option<&str>) {
        self.0.push(field.map(str::to_owned));
    }

    pub(in crate::parse) fn leave(&mut self) {
        self.0.pop();
    }

    /// What the schema of all arguments takes here.
    pub(in crate::parse) fn kinds(&self, parameters: Option<&Value>) -> Kinds {
        let Some(root) = parameters else {
            return Kinds::UNKNOWN;
        };
        let here = self.0.iter().try_fold(root, |schema, step| child(schema, root, step.as_deref(), 0));
        here.map_or(Kinds::UNKNOWN, |schema| Kinds::of(schema, root))
    }
}

/// The schema of a field or an element, in a schema or in one of the alternatives that it names.
fn child<'a>(schema: &'a Value, root: &'a Value, field: Option<&str>, depth: usize) -> Option<&'a Value> {
    if depth > REFERENCES_MAX {
        return None;
    }
    if let Some(named) = resolve(schema, root) {
        return child(named, root, field, depth + 1);
    }
    let here = match field {
        Some(name) => schema.get("properties").and_then(|properties| properties.get(name)),
        None => schema.get("items"),
    };
    let alternatives = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
    here.or_else(|| alternatives.into_iter().find_map(|schema| child(schema, root, field, depth + 1)))
        .or_else(|| schema.get("additionalProperties").filter(|open| field.is_some() && open.is_object()))
}
