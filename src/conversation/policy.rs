//! Policies: what a client may ask for beyond the answer itself. Plain values; what they mean is decided elsewhere.

use serde::{Deserialize, Serialize};

/// How long a foreground response without a conversation outlives its last reader, unless the client says.
const GRACE_MS: u64 = 30_000;

/// How many times a call is offered, unless its tool says.
const ATTEMPTS_MAX: u32 = 3;

/// Where a steer cuts the response that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// At the next token.
    #[default]
    Now,
    /// Behind the output item that is open.
    Item,
    /// Not at all: it is the next turn.
    After,
}

/// What a steer does to those before it that are undecided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnMultiple {
    /// All are committed together.
    #[default]
    Merge,
    /// It takes their place.
    Replace,
}

/// What becomes of a steer whose response has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLate {
    /// It is refused.
    #[default]
    Fail,
    /// It becomes the next turn.
    Enqueue,
}

/// What a steer does to open calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolsOnSteer {
    /// They are closed.
    #[default]
    Cancel,
    /// It waits for their results.
    Await,
}

/// How a decision's flush is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlushPolicy {
    /// One flush for all that wait.
    #[default]
    Group,
    /// A flush of its own.
    Sync,
    /// Deltas are shown before they are flushed.
    Relaxed,
}

/// What happens to a response that nobody reads any more, after its grace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    /// It goes on.
    #[default]
    Continue,
    /// It stands at a token until somebody reads again.
    Pause,
    /// It ends.
    Cancel,
}

/// What a restart does to a response that was running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnRestart {
    /// It goes on.
    #[default]
    Resume,
    /// It fails.
    Fail,
}

/// What a request for a response does while another one runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IfBusy {
    /// It is refused.
    #[default]
    Fail,
    /// It becomes the next turn.
    Enqueue,
    /// It cuts the one that runs, as a steer does.
    Steer,
}

/// What a client asked for; what it left out is inherited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policies {
    /// See [`Policy::durability`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<FlushPolicy>,
    /// See [`Policy::on_disconnect`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
    /// See [`Policy::grace_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// See [`Policy::on_restart`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_restart: Option<OnRestart>,
    /// See [`Policy::max_unattended_tokens`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unattended_tokens: Option<u32>,
    /// See [`Policy::max_conversation_tokens`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_conversation_tokens: Option<u64>,
    /// What a request does while another response runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_busy: Option<IfBusy>,
}

/// What holds for one response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// How its events are flushed.
    pub durability: FlushPolicy,
    /// What happens when nobody reads it any more.
    pub on_disconnect: OnDisconnect,
    /// How long it may go unread before that, in milliseconds.
    pub grace_ms: u64,
    /// What a restart does to it.
    pub on_restart: OnRestart,
    /// Tokens it may generate unread; then it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unattended_tokens: Option<u32>,
    /// Tokens that all answers of its conversation may have together, it included; then it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_conversation_tokens: Option<u64>,
}

/// How long a model may think.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thinking {
    /// Tokens of reasoning; then the reasoning is closed. None sets no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_tokens: Option<u32>,
    /// The word that the client said it with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
}

/// How calls of one tool are watched over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolPolicy {
    /// Time from the request to the result, in milliseconds; then the model sees an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How many times a call may be offered.
    pub max_attempts: u32,
    /// Whether a call that may have run can run again.
    pub idempotent: bool,
}

impl Default for ToolPolicy {
    fn default() -> Self {
        Self { timeout_ms: None, max_attempts: ATTEMPTS_MAX, idempotent: false }
    }
}

impl When {
    /// Whether it is the default, which is not stored.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl ToolsOnSteer {
    /// Whether it is the default, which is not stored.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Policies {
    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What was asked for, else what is inherited.
    #[must_use]
    pub fn or(self, inherited: Self) -> Self {
        Self {
            durability: self.durability.or(inherited.durability),
            on_disconnect: self.on_disconnect.or(inherited.on_disconnect),
            grace_ms: self.grace_ms.or(inherited.grace_ms),
            on_restart: self.on_restart.or(inherited.on_restart),
            max_unattended_tokens: self.max_unattended_tokens.or(inherited.max_unattended_tokens),
            max_conversation_tokens: self.max_conversation_tokens.or(inherited.max_conversation_tokens),
            if_busy: self.if_busy.or(inherited.if_busy),
        }
    }

    /// What holds for a response. One that nobody could find again ends with its readers.
    pub fn resolve(self, store: bool, outlives_its_readers: bool) -> Policy {
        let on_disconnect = match self.on_disconnect {
            _ if !store => OnDisconnect::Cancel,
            Some(asked) => asked,
            None if outlives_its_readers => OnDisconnect::Continue,
            None => OnDisconnect::Cancel,
        };
        let grace_ms = match self.grace_ms {
            _ if !store => 0,
            Some(asked) => asked,
            None if on_disconnect == OnDisconnect::Continue => 0,
            None => GRACE_MS,
        };
        Policy {
            durability: self.durability.unwrap_or_default(),
            on_disconnect,
            grace_ms,
            on_restart: self.on_restart.unwrap_or_default(),
            max_unattended_tokens: self.max_unattended_tokens,
            max_conversation_tokens: self.max_conversation_tokens,
        }
    }
}

impl Policy {
    /// Whether it is the default, which is not stored.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it matters to it that somebody reads.
    pub fn minds_readers(&self) -> bool {
        self.on_disconnect != OnDisconnect::Continue || self.max_unattended_tokens.is_some()
    }
}
