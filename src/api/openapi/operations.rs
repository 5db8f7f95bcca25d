//! The routes, one by one.

use schemars::{Schema, SchemaGenerator, json_schema};

use super::operation::{Operation, SchemaOf, Variable, of};
use super::shapes;
use crate::error::Code;
use crate::protocol::chat::{ChatRequest, Completion, CompletionList, KeptMessageList, UpdateCompletion};
use crate::protocol::completions::{CompletionRequest, TextCompletion};
use crate::protocol::conversations::{
    AddItems, Cancel, Conversation, ConversationList, CreateConversation, Intervene, Intervention, ItemList, ToolClaim,
    ToolResult, UpdateConversation,
};
use crate::protocol::items::Item;
use crate::protocol::messages::{Message, MessagesRequest, TokenCount};
use crate::protocol::models::{AnthropicModel, AnthropicModelList, Model, ModelList};
use crate::protocol::responses::{CreateResponse, Response};
use crate::protocol::sampling::GenerationParams;
use crate::protocol::tokenize::{Detokenize, Detokenized, RenderedChat, Tokenize, Tokenized};

/// Parts of the body of a request that generates, behind its own fields.
const GENERATION: [SchemaOf; 2] = [of::<GenerationParams>, shapes::policies];
/// What a request may be refused with because of what it asks a model for.
const OF_MODELS: [Code; 5] = [
    Code::ModelNotFound,
    Code::ContextLengthExceeded,
    Code::EngineFailed,
    Code::ServerRestarted,
    Code::UpstreamUnreachable,
];
/// What may stand in the way of a turn of a conversation.
const OF_TURNS: [Code; 8] = [
    Code::NotFound,
    Code::PreviousResponseNotFound,
    Code::ConversationNotFound,
    Code::ResponseNotFound,
    Code::ConversationBusy,
    Code::CursorExpired,
    Code::ConversationDamaged,
    Code::ConversationDeleted,
];
/// What a route on a conversation, or on what is in one, may be refused with.
const OF_CONVERSATIONS: [Code; 4] =
    [Code::NotFound, Code::ConversationNotFound, Code::ConversationDamaged, Code::ConversationDeleted];
const OF_RESPONSES: [Code; 4] =
    [Code::NotFound, Code::ResponseNotFound, Code::ConversationDamaged, Code::ConversationDeleted];

/// Every route and method.
pub(super) fn all() -> Vec<Operation> {
    let mut all = generating();
    all.extend(chats());
    all.extend(responses());
    all.extend(conversations());
    all.extend(beside());
    all
}

fn generating() -> Vec<Operation> {
    const CHUNKS: &str = "The answer; with `stream`, in chunks as events, then `data: [DONE]`.";
    vec![
        Operation::new("post", "/v1/chat/completions", "OpenAI", "Answers a transcript.")
            .takes(&[of::<ChatRequest>, GENERATION[0], GENERATION[1]])
            .answers(200, of::<Completion>, CHUNKS)
            .streams(CHUNKS)
            .keyed(false)
            .refuses(&OF_MODELS)
            .refuses(&OF_TURNS),
        Operation::new("post", "/v1/completions", "OpenAI", "Goes on with a text.")
            .takes(&[of::<CompletionRequest>, GENERATION[0], GENERATION[1]])
            .answers(200, of::<TextCompletion>, CHUNKS)
            .streams(CHUNKS)
            .keyed(false)
            .refuses(&OF_MODELS)
            .refuses(&OF_TURNS),
        Operation::new("post", "/v1/responses", "OpenAI", "Answers in a conversation, or beside any.")
            .takes(&[of::<CreateResponse>, GENERATION[0], GENERATION[1]])
            .answers(200, of::<Response>, "The response; with `stream`, its events.")
            .streams("The response; with `stream`, its events.")
            .keyed(false)
            .refuses(&OF_MODELS)
            .refuses(&OF_TURNS),
        Operation::new("post", "/v1/messages", "Anthropic", "Answers a transcript.")
            .takes(&[of::<MessagesRequest>, shapes::policies])
            .answers(200, of::<Message>, "The message; with `stream`, its events.")
            .streams("The message; with `stream`, its events.")
            .keyed(false)
            .refuses(&OF_MODELS)
            .refuses(&OF_TURNS),
        Operation::new("post", "/v1/messages/count_tokens", "Anthropic", "Counts the tokens of a prompt.")
            .takes(&[of::<MessagesRequest>])
            .answers(200, of::<TokenCount>, "How many.")
            .refuses(&OF_MODELS),
    ]
}

/// Completions that are kept.
fn chats() -> Vec<Operation> {
    let id = "/v1/chat/completions/{id}";
    let kept = [Code::NotFound, Code::ConversationDamaged, Code::ConversationDeleted];
    vec![
        Operation::new("get", "/v1/chat/completions", "OpenAI", "Completions that are kept.")
            .query(paging("asc"))
            .query([
                variable("model", shapes::word, "Only of this model."),
                variable("metadata", shapes::labels, "Only with these labels: `metadata[topic]=demo`."),
            ])
            .answers(200, of::<CompletionList>, "A page of completions.")
            .refuses(&[Code::NotFound]),
        Operation::new("get", id, "OpenAI", "Shows a completion that is kept.")
            .answers(200, of::<Completion>, "The completion.")
            .refuses(&kept),
        Operation::new("post", id, "OpenAI", "Replaces its labels.")
            .takes(&[of::<UpdateCompletion>])
            .answers(200, of::<Completion>, "The completion.")
            .refuses(&kept),
        Operation::new("delete", id, "OpenAI", "Deletes a completion that is kept.")
            .answers(200, shapes::deleted, "It is gone.")
            .refuses(&kept),
        Operation::new("get", "/v1/chat/completions/{id}/messages", "OpenAI", "What was asked.")
            .query(paging("asc"))
            .answers(200, of::<KeptMessageList>, "A page of messages.")
            .refuses(&kept),
    ]
}

fn responses() -> Vec<Operation> {
    let id = "/v1/responses/{id}";
    vec![
        socket("/v1/responses", "OpenAI", "Responses over a WebSocket."),
        Operation::new("get", id, "OpenAI", "Shows a response, or streams its events.")
            .query([
                variable("stream", shapes::flag, "Whether its events are streamed, from the first one."),
                variable("starting_after", shapes::number, "The last `sequence_number` that was seen."),
                variable("include_dispatch", shapes::flag, "Whether whole calls are events of their own."),
            ])
            .answers(200, of::<Response>, "The response; with `stream`, its events.")
            .streams("The response; with `stream`, its events.")
            .refuses(&OF_RESPONSES)
            .refuses(&[Code::CursorInFuture, Code::CursorExpired]),
        Operation::new("delete", id, "OpenAI", "Deletes a response; the transcript keeps what it said.")
            .answers(200, shapes::deleted, "It is gone.")
            .refuses(&OF_RESPONSES)
            .refuses(&[Code::ConversationBusy]),
        Operation::new("post", "/v1/responses/{id}/cancel", "OpenAI", "Cancels a response.")
            .may_take(of::<Cancel>)
            .query([variable("wait", shapes::flag, "Whether the answer waits for the end; the default.")])
            .keyed(false)
            .answers(200, of::<Response>, "The response, which has ended; `cancel` says who won, if not the cancel.")
            .answers(202, of::<Response>, "The response, which is about to end.")
            .refuses(&OF_RESPONSES)
            .refuses(&[Code::ResponseNotActive]),
        Operation::new("get", "/v1/responses/{id}/input_items", "OpenAI", "What joined the transcript with it.")
            .query(paging("desc"))
            .answers(200, of::<ItemList>, "A page of items.")
            .refuses(&OF_RESPONSES),
        Operation::new("get", "/v1/responses/{id}/prefix", "midstream", "How much of what was held its prompt kept.")
            .answers(200, shapes::prefix, "What is the same, and where they part.")
            .refuses(&OF_RESPONSES)
            .refuses(&OF_MODELS),
        Operation::new("post", "/v1/responses/{id}/interventions", "midstream", "Steers a running response.")
            .takes(&[of::<Intervene>])
            .keyed(true)
            .answers(202, of::<Intervention>, "It is accepted, and is not lost.")
            .refuses(&OF_RESPONSES)
            .refuses(&[
                Code::ResponseAlreadyCompleted,
                Code::ResponseNotActive,
                Code::TooManyPendingSteers,
                Code::ContextLengthExceeded,
                Code::ReasoningAlreadyEnded,
            ]),
        Operation::new("post", "/v1/responses/compact", "OpenAI", "Makes a transcript short.")
            .takes(&[of::<CreateResponse>, GENERATION[0], GENERATION[1]])
            .answers(200, shapes::compaction, "What stands for the transcript.")
            .refuses(&OF_MODELS)
            .refuses(&OF_TURNS)
            .refuses(&[Code::ResponseFailed, Code::IdempotencyKeyReused]),
        Operation::new("post", "/v1/responses/input_tokens", "OpenAI", "Counts the tokens of a prompt.")
            .takes(&[of::<CreateResponse>, GENERATION[0], GENERATION[1]])
            .answers(200, shapes::input_tokens, "How many.")
            .refuses(&OF_MODELS)
            .refuses(&OF_TURNS),
        Operation::new("get", "/v1/interventions/{id}", "midstream", "What became of an intervention.")
            .answers(200, of::<Intervention>, "The intervention.")
            .refuses(&OF_CONVERSATIONS)
            .refuses(&[Code::InterventionNotFound]),
        Operation::new("delete", "/v1/interventions/{id}", "midstream", "Withdraws an undecided intervention.")
            .answers(200, of::<Intervention>, "The intervention.")
            .refuses(&OF_CONVERSATIONS)
            .refuses(&[Code::InterventionNotFound, Code::InterventionDecided]),
    ]
}

fn conversations() -> Vec<Operation> {
    let id = "/v1/conversations/{id}";
    let item = "/v1/conversations/{id}/items/{item_id}";
    vec![
        Operation::new("post", "/v1/conversations", "OpenAI", "Opens a conversation.")
            .takes(&[of::<CreateConversation>, shapes::policies])
            .keyed(false)
            .answers(200, of::<Conversation>, "The conversation.")
            .refuses(&[Code::ConversationNotFound, Code::ConversationDamaged]),
        Operation::new("get", "/v1/conversations", "midstream", "The client's own conversations, by creation.")
            .query(paging("desc"))
            .answers(200, of::<ConversationList>, "A page of conversations.")
            .refuses(&[Code::ConversationNotFound]),
        Operation::new("get", id, "OpenAI", "Shows a conversation.")
            .answers(200, of::<Conversation>, "The conversation.")
            .refuses(&OF_CONVERSATIONS),
        Operation::new("post", id, "OpenAI", "Replaces its labels.")
            .takes(&[of::<UpdateConversation>])
            .answers(200, of::<Conversation>, "The conversation.")
            .refuses(&OF_CONVERSATIONS),
        Operation::new("delete", id, "OpenAI", "Deletes a conversation.")
            .answers(200, shapes::deleted, "It is gone.")
            .refuses(&OF_CONVERSATIONS),
        Operation::new("get", "/v1/conversations/{id}/items", "OpenAI", "Its transcript.")
            .query(paging("desc"))
            .answers(200, of::<ItemList>, "A page of items.")
            .refuses(&OF_CONVERSATIONS),
        Operation::new("post", "/v1/conversations/{id}/items", "OpenAI", "Adds items to the transcript.")
            .takes(&[of::<AddItems>])
            .answers(200, of::<ItemList>, "The items.")
            .refuses(&OF_CONVERSATIONS)
            .refuses(&[Code::ConversationBusy, Code::ResponseNotActive]),
        Operation::new("get", item, "OpenAI", "Shows an item.")
            .answers(200, of::<Item>, "The item.")
            .refuses(&OF_CONVERSATIONS),
        Operation::new("delete", item, "OpenAI", "Deletes an item.")
            .answers(200, of::<Conversation>, "The conversation.")
            .refuses(&OF_CONVERSATIONS)
            .refuses(&[Code::ConversationBusy]),
        Operation::new("get", "/v1/conversations/{id}/events", "midstream", "Its events, from the first one and on.")
            .query([
                variable("after", shapes::word, "The last event that was seen: `seq`, or `epoch-seq`."),
                variable("types", shapes::word, "The types that are wanted, with commas between them."),
            ])
            .streams("A snapshot, then its events; `Last-Event-ID` is taken as `after` is.")
            .refuses(&OF_CONVERSATIONS)
            .refuses(&[Code::CursorInFuture, Code::CursorExpired]),
        socket("/v1/conversations/{id}/ws", "midstream", "A conversation over a WebSocket.").refuses(&OF_CONVERSATIONS),
        Operation::new("post", "/v1/conversations/{id}/tool_results", "midstream", "Gives the result of a call.")
            .takes(&[of::<ToolResult>])
            .keyed(false)
            .answers(202, shapes::tool_result, "It is accepted, and is not lost.")
            .answers(200, shapes::tool_result, "The same result was there before.")
            .refuses(&OF_CONVERSATIONS)
            .refuses(&OF_CALLS),
        Operation::new(
            "post",
            "/v1/conversations/{id}/tool_calls/{call_id}/claim",
            "midstream",
            "Takes a call for a while, so that no other worker runs it.",
        )
        .takes(&[of::<ToolClaim>])
        .keyed(false)
        .answers(200, shapes::claim, "The call is the worker's.")
        .refuses(&OF_CONVERSATIONS)
        .refuses(&OF_CALLS),
    ]
}

/// What a route on a call may be refused with.
const OF_CALLS: [Code; 5] = [
    Code::ResponseNotFound,
    Code::ToolCallNotFound,
    Code::ToolCallClosed,
    Code::ToolCallClaimed,
    Code::ToolResultConflict,
];

fn beside() -> Vec<Operation> {
    let exposition = "text/plain";
    vec![
        Operation::new("get", "/v1/models", "OpenAI", "The models: Anthropic's list under `anthropic-version`.")
            .query([variable("client_version", shapes::word, "Codex's, for its catalogue in `models`.")])
            .answers(200, models, "The models."),
        Operation::new("get", "/v1/models/{*id}", "OpenAI", "One model.")
            .answers(200, model, "The model.")
            .refuses(&[Code::NotFound, Code::ModelNotFound]),
        Operation::new("post", "/v1/tokenize", "vLLM", "The tokens of a text, or of a transcript's prompt.")
            .takes(&[of::<Tokenize>])
            .answers(200, of::<Tokenized>, "The tokens.")
            .refuses(&OF_MODELS),
        Operation::new("post", "/v1/detokenize", "vLLM", "The text of tokens.")
            .takes(&[of::<Detokenize>])
            .answers(200, of::<Detokenized>, "The text.")
            .refuses(&OF_MODELS),
        Operation::new("post", "/v1/chat/render", "midstream", "A transcript's prompt.")
            .takes(&[of::<Tokenize>])
            .answers(200, of::<RenderedChat>, "The prompt and its tokens.")
            .refuses(&OF_MODELS),
        Operation::new("head", "/", "operations", "Whether anybody is here.").open().says(200, "", None, "Yes."),
        Operation::new("get", "/", "operations", "Nothing: the API is below `/v1`.").refuses(&[Code::NotFound]),
        Operation::new("get", "/api/hello", "operations", "Who is here.").open().answers(
            200,
            shapes::hello,
            "Its name.",
        ),
        Operation::new("get", "/healthz", "operations", "Whether the process lives.").open().answers(
            200,
            shapes::status,
            "It does.",
        ),
        Operation::new("get", "/readyz", "operations", "Whether requests can be served.")
            .open()
            .answers(200, shapes::status, "They can.")
            .refuses(&[Code::Overloaded, Code::Recovering, Code::Draining, Code::StorageUnavailable]),
        Operation::new("get", "/metrics", "operations", "What was counted and measured, for Prometheus.").says(
            200,
            exposition,
            Some(shapes::text),
            "The text format of Prometheus.",
        ),
        Operation::new("get", "/openapi.json", "operations", "This description.").open().answers(
            200,
            shapes::object,
            "OpenAPI 3.1.",
        ),
    ]
}

fn socket(path: &'static str, tag: &'static str, what: &'static str) -> Operation {
    Operation::new("get", path, tag, what).says(101, "", None, "Frames follow, see docs/protocol.md.").refuses(&[
        Code::MethodNotAllowed,
        Code::UpgradeRequired,
        Code::WebsocketStreamLimitReached,
        Code::WebsocketConnectionLimitReached,
    ])
}

fn variable(name: &'static str, schema: fn() -> serde_json::Value, what: &'static str) -> Variable {
    Variable { name, schema, what }
}

/// Which way a list goes unless the query says.
fn paging(order: &str) -> [Variable; 3] {
    let order = match order {
        "asc" => "Oldest or newest first; the default is `asc`.",
        _ => "Oldest or newest first; the default is `desc`.",
    };
    [
        variable("after", shapes::word, "The id of the last one that was seen."),
        variable("limit", || serde_json::json!({"type": "integer", "minimum": 1, "maximum": 100}), "How many at most."),
        variable("order", shapes::order, order),
    ]
}

fn models(generator: &mut SchemaGenerator) -> Schema {
    let shapes = [generator.subschema_for::<ModelList>(), generator.subschema_for::<AnthropicModelList>()];
    json_schema!({"anyOf": shapes})
}

fn model(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [generator.subschema_for::<Model>(), generator.subschema_for::<AnthropicModel>()]})
}
