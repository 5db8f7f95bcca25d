//! What one route takes and answers, and how that is written.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use crate::api::errors::{ANTHROPICS_ROUTES, OWN_ROUTES};
use crate::error::Code;
use crate::protocol::{error, messages};

/// What any route may refuse with that asks who sends the request.
const ANYWHERE: [Code; 9] = [
    Code::InvalidInput,
    Code::InvalidApiKey,
    Code::PermissionDenied,
    Code::RateLimitExceeded,
    Code::Internal,
    Code::Overloaded,
    Code::Recovering,
    Code::Draining,
    Code::StorageUnavailable,
];
/// And what besides, where there is a body.
const OF_BODIES: [Code; 3] = [Code::RequestTimeout, Code::RequestTooLarge, Code::UnsupportedEncoding];
/// And what besides, where a header may name the request so that it is done once.
const OF_KEYS: [Code; 2] = [Code::IdempotencyInProgress, Code::IdempotencyKeyReused];

/// The schemas of what is taken and of what is answered: a field that is left out where it is empty is optional in
/// one and the other way round.
pub(super) struct Schemas {
    pub(super) taken: SchemaGenerator,
    pub(super) answered: SchemaGenerator,
}

/// Gives a type's schema.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The schema of a type of the wire.
pub(super) fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A variable of the query.
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) schema: fn() -> Value,
    pub(super) what: &'static str,
}

/// What one route takes and answers.
pub(super) struct Operation {
    pub(super) method: &'static str,
    /// As the router has it.
    pub(super) path: &'static str,
    tag: &'static str,
    what: &'static str,
    takes: Vec<SchemaOf>,
    needs_body: bool,
    query: Vec<Variable>,
    /// Whether `Idempotency-Key` may be given, or must.
    keyed: Option<bool>,
    answers: Vec<(u16, &'static str, Option<SchemaOf>, &'static str)>,
    refuses: Vec<Code>,
    is_open: bool,
}

impl Operation {
    pub(super) fn new(method: &'static str, path: &'static str, tag: &'static str, what: &'static str) -> Self {
        Self {
            method,
            path,
            tag,
            what,
            takes: Vec::new(),
            needs_body: false,
            query: Vec::new(),
            keyed: None,
            answers: Vec::new(),
            refuses: Vec::new(),
            is_open: false,
        }
    }

    /// A body that is all of these.
    pub(super) fn takes(self, parts: &[SchemaOf]) -> Self {
        Self { takes: parts.to_vec(), needs_body: true, ..self }
    }

    /// A body that may be left out.
    pub(super) fn may_take(self, part: SchemaOf) -> Self {
        Self { takes: vec![part], ..self }
    }

    pub(super) fn query(mut self, variables: impl IntoIterator<Item = Variable>) -> Self {
        self.query.extend(variables);
        self
    }

    /// `Idempotency-Key` may be given, or must.
    pub(super) fn keyed(self, is_required: bool) -> Self {
        Self { keyed: Some(is_required), ..self }
    }

    /// JSON with this status.
    pub(super) fn answers(self, status: u16, schema: SchemaOf, what: &'static str) -> Self {
        self.says(status, "application/json", Some(schema), what)
    }

    /// Server-sent events; each one's `data` is described by the text.
    pub(super) fn streams(self, what: &'static str) -> Self {
        self.says(200, "text/event-stream", None, what)
    }

    /// Anything else.
    pub(super) fn says(
        mut self,
        status: u16,
        media: &'static str,
        schema: Option<SchemaOf>,
        what: &'static str,
    ) -> Self {
        self.answers.push((status, media, schema, what));
        self
    }

    /// What it may refuse with besides what any route may.
    pub(super) fn refuses(mut self, codes: &[Code]) -> Self {
        self.refuses.extend_from_slice(codes);
        self
    }

    /// Nobody is asked for a key.
    pub(super) fn open(self) -> Self {
        Self { is_open: true, ..self }
    }

    pub(super) fn describe(&self, schemas: &mut Schemas) -> Value {
        let mut operation = json!({
            "tags": [self.tag],
            "summary": self.what,
            "operationId": self.id(),
            "parameters": self.parameters(),
            "responses": self.responses(schemas),
        });
        if self.is_open {
            operation["security"] = json!([{}]);
        }
        let mut parts: Vec<_> = self.takes.iter().map(|schema| json!(schema(&mut schemas.taken))).collect();
        let body = if parts.len() == 1 { parts.pop() } else { Some(json!({"allOf": parts})) };
        if !self.takes.is_empty() {
            let content = json!({"application/json": {"schema": body}});
            operation["requestBody"] = json!({"required": self.needs_body, "content": content});
        }
        operation
    }

    /// `post_v1_responses_id_cancel`
    fn id(&self) -> String {
        let path = self.path.replace(['{', '}', '*', '.'], "").replace('/', "_");
        format!("{}{}", self.method, if path == "_" { "" } else { &path })
    }

    fn parameters(&self) -> Vec<Value> {
        let names = self.path.split('{').skip(1).filter_map(|it| it.split('}').next());
        let names = names.map(|name| name.trim_start_matches('*'));
        let mut parameters: Vec<_> = names
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
            .collect();
        parameters.extend(self.query.iter().map(|it| {
            let schema = (it.schema)();
            let mut parameter = json!({"name": it.name, "in": "query", "description": it.what, "schema": schema});
            if parameter["schema"]["type"] == "object" {
                parameter["style"] = json!("deepObject");
            }
            parameter
        }));
        parameters.extend(self.keyed.map(|is_required| {
            json!({
                "name": "Idempotency-Key",
                "in": "header",
                "required": is_required,
                "description": "Names the request: sent again with the same name it is not done again.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 256},
            })
        }));
        parameters
    }

    fn responses(&self, schemas: &mut Schemas) -> Value {
        let mut responses = BTreeMap::<u16, Value>::new();
        for (status, media, schema, what) in &self.answers {
            let response = responses.entry(*status).or_insert_with(|| json!({"description": what}));
            if !media.is_empty() {
                let schema = schema.map(|schema| json!({"schema": schema(&mut schemas.answered)}));
                response["content"][*media] = schema.unwrap_or(json!({}));
            }
        }
        let (media, error) = self.form_of_refusals();
        for code in Code::ALL.iter().filter(|code| self.may_refuse_with(**code)) {
            let response = responses.entry(code.status()).or_insert_with(
                || json!({"description": "", "content": {media: {"schema": error(&mut schemas.answered)}}}),
            );
            let said = response["description"].as_str().unwrap_or_default();
            let comma = if said.is_empty() { "" } else { ", " };
            response["description"] = json!(format!("{said}{comma}`{code}`"));
            if matches!(code.status(), 429 | 503) {
                let seconds = json!({"description": "Seconds to wait.", "schema": {"type": "integer"}});
                response["headers"]["Retry-After"] = seconds;
            }
        }
        responses.into_iter().map(|(status, response)| (status.to_string(), response)).collect()
    }

    fn may_refuse_with(&self, code: Code) -> bool {
        self.refuses.contains(&code)
            || (!self.is_open && ANYWHERE.contains(&code))
            || (!self.takes.is_empty() && OF_BODIES.contains(&code))
            || (self.keyed.is_some() && OF_KEYS.contains(&code))
            || (self.keyed == Some(true) && code == Code::IdempotencyKeyRequired)
    }

    /// In whose form the route refuses.
    fn form_of_refusals(&self) -> (&'static str, SchemaOf) {
        if self.path.starts_with(ANTHROPICS_ROUTES) {
            ("application/json", of::<messages::ErrorBody>)
        } else if OWN_ROUTES.contains(&self.path) {
            ("application/problem+json", of::<error::Problem>)
        } else {
            ("application/json", of::<error::ErrorBody>)
        }
    }
}
