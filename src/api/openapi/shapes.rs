//! Schemas of what has no type of its own on the wire: fields that several requests share, and small answers.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::protocol::items::Item;
use crate::protocol::responses::Usage;

/// An object whose fields are told elsewhere.
pub(super) fn object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object"})
}

/// What a request may say of how it is run, kept and shared. See `docs/protocol.md`.
pub(super) fn policies(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "durability": {"description": "When its events are flushed.", "enum": ["sync", "group", "relaxed", null]},
            "on_disconnect": {
                "description": "What happens when nobody reads it any more.",
                "enum": ["continue", "pause", "cancel", null],
            },
            "grace_ms": {"description": "How long that waits.", "type": ["integer", "null"], "minimum": 0},
            "on_restart": {"description": "What a restart makes of it.", "type": ["string", "null"]},
            "max_unattended_tokens": {"type": ["integer", "null"], "minimum": 0},
            "max_conversation_tokens": {"type": ["integer", "null"], "minimum": 1},
            "if_busy": {"description": "What becomes of it while another runs.", "type": ["string", "null"]},
            "cache_salt": {"description": "Who shares its keys and values.", "type": ["string", "null"]},
            "service_tier": {"type": ["string", "null"]},
            "nvext": {
                "description": "`agent_hints`: `priority`, `strict_priority`, `osl`, `latency_sensitivity`, …",
                "type": ["object", "null"],
            },
        },
    })
}

/// What is gone.
pub(super) fn deleted(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {"object": {"type": "string"}, "id": {"type": "string"}, "deleted": {"const": true}},
        "required": ["object", "id", "deleted"],
    })
}

pub(super) fn input_tokens(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {"object": {"const": "response.input_tokens"}, "input_tokens": {"type": "integer"}},
        "required": ["object", "input_tokens"],
    })
}

pub(super) fn compaction(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "object": {"const": "response.compaction"},
            "created_at": {"type": "integer"},
            "output": generator.subschema_for::<Vec<Item>>(),
            "usage": generator.subschema_for::<Option<Usage>>(),
        },
        "required": ["id", "object", "created_at", "output", "usage"],
    })
}

/// How much of what was held a prompt began with.
pub(super) fn prefix(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "object": {"const": "response.prefix"},
            "id": {"type": "string"},
            "previous_response_id": {"type": ["string", "null"]},
            "held_tokens": {"description": "The earlier prompt and its answer.", "type": "integer"},
            "prompt_tokens": {"type": "integer"},
            "common_tokens": {"description": "At the beginning of both.", "type": "integer"},
            "cached_tokens": {"description": "Taken from the cache when it ran.", "type": "integer"},
            "complete": {"description": "Whether the prompt begins with all that was held.", "type": "boolean"},
            "difference": {"description": "Where they part, and why.", "type": ["object", "null"]},
        },
        "required": ["object", "id", "held_tokens", "prompt_tokens", "common_tokens", "cached_tokens", "complete"],
    })
}

pub(super) fn claim(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "object": {"const": "tool_call.claim"},
            "response_id": {"type": "string"},
            "call_id": {"type": "string"},
            "name": {"type": ["string", "null"]},
            "arguments": {"description": "JSON text.", "type": ["string", "null"]},
            "attempt": {"type": "integer", "minimum": 1},
            "lease_until": {"description": "In milliseconds since the Unix epoch.", "type": "integer"},
        },
        "required": ["object", "response_id", "call_id", "attempt", "lease_until"],
    })
}

pub(super) fn tool_result(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "object": {"const": "tool_result"},
            "call_id": {"type": "string"},
            "accepted_seq": {"description": "The event that has it.", "type": "integer"},
            "open_calls": {"description": "Calls that still wait.", "type": "array"},
            "successor_id": {"description": "The response that goes on.", "type": ["string", "null"]},
        },
        "required": ["object", "call_id", "accepted_seq", "open_calls", "successor_id"],
    })
}

/// `{"status": …}`
pub(super) fn status(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]})
}

pub(super) fn hello(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "properties": {"server": {"const": "midstream"}}, "required": ["server"]})
}

pub(super) fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string"})
}

// Variables of the query.

pub(super) fn flag() -> Value {
    json!({"type": "boolean"})
}

pub(super) fn number() -> Value {
    json!({"type": "integer", "minimum": 0})
}

pub(super) fn word() -> Value {
    json!({"type": "string"})
}

/// Each label is a variable of its own, with its name in brackets.
pub(super) fn labels() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

pub(super) fn order() -> Value {
    json!({"enum": ["asc", "desc"]})
}
