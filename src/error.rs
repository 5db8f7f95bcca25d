//! Every error code that a client can see, in one list, with its HTTP status.
//!
//! The strings are stable: clients match on them. Messages are for people and may change.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:literal;)*) => {
        /// A stable error code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $variant,)* }

        impl Code {
            /// Every code, for documentation and tests.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The text that clients match on.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The HTTP status it is answered with.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// The code with this text.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// A field has the wrong type or value, or the JSON does not parse.
    InvalidInput = "invalid_input", 400;
    /// `after` lies beyond the last event.
    CursorInFuture = "cursor_in_future", 400;
    /// A native intervention came without a key.
    IdempotencyKeyRequired = "idempotency_key_required", 400;
    /// Prompt and answer do not fit into the model's context.
    ContextLengthExceeded = "context_length_exceeded", 400;
    /// `previous_response_id` names a response that is not known.
    PreviousResponseNotFound = "previous_response_not_found", 400;
    /// The credential is missing or wrong.
    InvalidApiKey = "invalid_api_key", 401;
    /// The credential does not allow this.
    PermissionDenied = "permission_denied", 403;
    /// No such route.
    NotFound = "not_found", 404;
    /// No such conversation for this principal.
    ConversationNotFound = "conversation_not_found", 404;
    /// No such response for this principal.
    ResponseNotFound = "response_not_found", 404;
    /// No such tool call.
    ToolCallNotFound = "tool_call_not_found", 404;
    /// No such intervention.
    InterventionNotFound = "intervention_not_found", 404;
    /// No such model.
    ModelNotFound = "model_not_found", 404;
    /// The route exists, the method does not.
    MethodNotAllowed = "method_not_allowed", 405;
    /// The body came too slowly.
    RequestTimeout = "request_timeout", 408;
    /// The response ended before the request was decided.
    ResponseAlreadyCompleted = "response_already_completed", 409;
    /// Another response is the active one.
    ResponseNotActive = "response_not_active", 409;
    /// The call was closed and takes no result any more.
    ToolCallClosed = "tool_call_closed", 409;
    /// Another worker has the call.
    ToolCallClaimed = "tool_call_claimed", 409;
    /// A socket has as many streams, or responses at once, as it may.
    WebsocketStreamLimitReached = "websocket_stream_limit_reached", 400;
    /// A socket is as old as it may become.
    WebsocketConnectionLimitReached = "websocket_connection_limit_reached", 400;
    /// This server takes no WebSocket here.
    UpgradeRequired = "upgrade_required", 426;
    /// The first request with this key is still running.
    IdempotencyInProgress = "idempotency_in_progress", 409;
    /// A response is running in this conversation.
    ConversationBusy = "conversation_busy", 409;
    /// The intervention is decided already.
    InterventionDecided = "intervention_decided", 409;
    /// The cursor lies before the oldest event kept.
    CursorExpired = "cursor_expired", 410;
    /// The body is larger than the limit.
    RequestTooLarge = "request_too_large", 413;
    /// The body's encoding is not known.
    UnsupportedEncoding = "unsupported_encoding", 415;
    /// The key was used with another body.
    IdempotencyKeyReused = "idempotency_key_reused", 422;
    /// The call has another result already.
    ToolResultConflict = "tool_result_conflict", 422;
    /// Too many requests.
    RateLimitExceeded = "rate_limit_exceeded", 429;
    /// Too many undecided interventions.
    TooManyPendingSteers = "too_many_pending_steers", 429;
    /// A fault of the server itself.
    Internal = "internal_error", 500;
    /// The engine or provider that has the model cannot be reached.
    UpstreamUnreachable = "upstream_unreachable", 502;
    /// A queue is full.
    Overloaded = "overloaded", 503;
    /// The server is starting.
    Recovering = "recovering", 503;
    /// The server is stopping.
    Draining = "draining", 503;
    /// The journal cannot be written.
    StorageUnavailable = "storage_unavailable", 503;
    /// The conversation's journal is damaged and set aside.
    ConversationDamaged = "conversation_damaged", 503;
    /// The response ended `failed` because the process restarted too often without progress.
    ServerRestarted = "server_restarted", 500;
    /// The engine failed while generating.
    EngineFailed = "engine_failed", 500;
    /// The response was cancelled before the intervention was decided.
    ResponseCancelled = "response_cancelled", 409;
    /// The response failed before the intervention was decided.
    ResponseFailed = "response_failed", 409;
    /// The response had closed its reasoning before its budget could change.
    ReasoningAlreadyEnded = "reasoning_already_ended", 409;
    /// The response ended because nobody read it.
    Disconnected = "disconnected", 409;
    /// The conversation was deleted before the intervention was decided.
    ConversationDeleted = "conversation_deleted", 409;
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("unknown error code {text}")))
    }
}
