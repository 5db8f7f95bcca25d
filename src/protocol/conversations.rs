//! `/v1/conversations`, interventions, and what the conversation's WebSocket takes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::TextOr;
use super::items::{ContentPart, InputItem, Item};

/// `POST /v1/conversations`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct CreateConversation {
    /// The client's own labels.
    pub metadata: Option<Map<String, Value>>,
    /// First items of the transcript.
    pub items: Option<Vec<InputItem>>,
}

/// `POST /v1/conversations/{id}`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct UpdateConversation {
    /// The client's own labels, all of them.
    pub metadata: Map<String, Value>,
}

/// `POST /v1/conversations/{id}/items`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct AddItems {
    /// Items behind those that are there.
    pub items: Vec<InputItem>,
}

/// `POST /v1/conversations/{id}/tool_results`, and `conversation.tool_result`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct ToolResult {
    /// The response that made the call.
    pub response_id: Option<String>,
    /// Which call.
    pub call_id: Option<String>,
    /// Which attempt; none means the current one.
    pub attempt: Option<u32>,
    /// What the model sees.
    pub output: Option<TextOr<ContentPart>>,
    /// Whether the tool failed.
    pub is_error: Option<bool>,
}

/// `POST /v1/conversations/{id}/tool_calls/{call_id}/claim`, and `conversation.tool_claim`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct ToolClaim {
    /// The response that made the call.
    pub response_id: Option<String>,
    /// Which call; in HTTP the path says it.
    pub call_id: Option<String>,
    /// Which attempt; none means the current one.
    pub attempt: Option<u32>,
    /// How long the call is the worker's, in milliseconds.
    pub lease_ms: Option<u64>,
}

/// `intervention.withdraw`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Withdraw {
    /// Which intervention.
    pub intervention_id: Option<String>,
}

/// A conversation.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Conversation {
    /// `conv_…`
    pub id: String,
    /// Always `conversation`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created_at: u64,
    /// The client's own labels.
    pub metadata: Map<String, Value>,
}

/// A conversation as a list shows it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ListedConversation {
    /// What it is called: its label `title`, else its first user's first words.
    pub title: Option<String>,
    /// When something happened in it last, in seconds since the Unix epoch.
    pub updated_at: u64,
    /// The conversation.
    #[serde(flatten)]
    pub conversation: Conversation,
}

/// A page of conversations.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConversationList {
    /// Always `list`.
    pub object: &'static str,
    /// The conversations.
    pub data: Vec<ListedConversation>,
    /// The first conversation's id.
    pub first_id: Option<String>,
    /// The last conversation's id.
    pub last_id: Option<String>,
    /// Whether there are more behind the last.
    pub has_more: bool,
}

/// A page of items.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ItemList {
    /// Always `list`.
    pub object: &'static str,
    /// The items.
    pub data: Vec<Item>,
    /// The first item's id.
    pub first_id: Option<String>,
    /// The last item's id.
    pub last_id: Option<String>,
    /// Whether there are more behind the last.
    pub has_more: bool,
}

/// The first frame of every attach: where the conversation stands.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Snapshot {
    /// Always `conversation.snapshot`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Which conversation.
    pub conversation_id: Option<String>,
    /// `idle`, `running` or `requires_action`.
    pub status: &'static str,
    /// What a running one does: `queued`, `prefill`, `decoding` or `paused`.
    pub phase: Option<&'static str>,
    /// The response that is running.
    pub active_response: Option<String>,
    /// The last event's seq.
    pub last_seq: u64,
    /// The first event that is kept.
    pub oldest_seq: u64,
    /// Counts how often acknowledged events were lost.
    pub epoch: u64,
    /// Ids of undecided interventions.
    pub pending_interventions: Vec<String>,
    /// Responses that wait for their turn, in order.
    pub queued_responses: Vec<String>,
    /// Calls that wait for a result.
    pub open_calls: Vec<OpenCall>,
}

/// A call that waits for a result.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct OpenCall {
    /// The response that made it.
    pub response_id: String,
    /// Which call.
    pub call_id: String,
    /// The function.
    pub name: String,
    /// From 1.
    pub attempt: u32,
    /// When the lease of the worker that has it ends, in milliseconds since the Unix epoch.
    pub claimed_until_ms: Option<u64>,
}

/// `POST /v1/responses/{id}/interventions`, and `conversation.intervene`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Intervene {
    /// The new instruction.
    pub input: Option<TextOr<InputItem>>,
    /// When to stop.
    pub when: Option<String>,
    /// What several pending ones become.
    pub on_multiple: Option<String>,
    /// What a late one becomes.
    pub on_late: Option<String>,
    /// What open tool calls become.
    pub tools: Option<String>,
    /// A new thinking budget.
    pub reasoning: Option<Value>,
    /// The response it is meant for; in HTTP the path says it.
    pub response_id: Option<String>,
}

/// What became of an intervention.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Intervention {
    /// Always `intervention`.
    pub object: &'static str,
    /// `steer_…`
    pub id: String,
    /// The response it was meant for.
    pub response_id: String,
    /// The response that answers it.
    pub successor_id: Option<String>,
    /// `accepted`, `pending`, `committed`, `failed`, `superseded` or `withdrawn`.
    pub status: &'static str,
    /// The status once it is final; `enqueued` for one that came late and became a turn of its own.
    pub outcome: Option<&'static str>,
    /// The event that decided it.
    pub seq: u64,
    /// What it says.
    pub input: Vec<Item>,
    /// Why it failed.
    pub error: Option<Value>,
    /// Whether it outlives the process: its response is stored.
    pub durable: bool,
}

/// `response.cancel`, and the body of `POST /v1/responses/{id}/cancel`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Cancel {
    /// Which response; on a socket none means the active one.
    pub response_id: Option<String>,
    /// Whether to answer only after the sequence is gone; the default.
    pub wait: Option<bool>,
    /// Whether to cancel the successor too.
    pub cascade: Option<bool>,
}

/// `conversation.subscribe`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct Subscribe {
    /// The cursor: events behind it are sent.
    pub after: Option<Value>,
    /// The types of the frames that are wanted; none means all that the journal has.
    pub types: Option<Vec<String>>,
}
