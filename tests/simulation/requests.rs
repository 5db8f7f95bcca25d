//! What clients ask for, and the form in which an answer is noted.

use std::hash::{DefaultHasher, Hash, Hasher};

use midstream::actors::{AnsweredCall, Claimed};
use midstream::conversation::{OnLate, OnMultiple, Policies, ToolsOnSteer, When};
use midstream::ids::{CallId, ConversationId, InterventionId, ItemId, ResponseId};
use midstream::store::{KeyedAnswer, Operation};
use serde_json::{Value, json};

/// Something that a client asks for; sent again it is the same request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Who asks.
    pub(crate) principal: &'static str,
    pub(crate) key: Option<String>,
    pub(crate) what: Ask,
}

#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Open,
    Create { place: Place, text: String, results: Vec<(CallId, String)>, max_tokens: Option<u32>, policies: Policies },
    Intervene { conversation: ConversationId, response: ResponseId, text: String, how: How },
    Think { conversation: ConversationId, response: ResponseId, budget_tokens: u32 },
    Cancel { conversation: ConversationId, response: Option<ResponseId>, cascade: bool },
    Claim { conversation: ConversationId, call: CallId, lease_ms: u64 },
    Result { conversation: ConversationId, call: CallId, output: String },
    Inject { conversation: ConversationId, response: ResponseId, results: Vec<(CallId, String)> },
    Withdraw { conversation: ConversationId, intervention: InterventionId },
    Interrupt { conversation: ConversationId, response: ResponseId },
    AddItem { conversation: ConversationId, text: String },
    DeleteItem { conversation: ConversationId, item: ItemId },
    DeleteResponse { conversation: ConversationId, response: ResponseId },
    Delete { conversation: ConversationId },
}

/// How an instruction cuts in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) when: When,
    pub(crate) on_multiple: OnMultiple,
    pub(crate) on_late: OnLate,
    pub(crate) tools: ToolsOnSteer,
}

/// Where a response is to stand.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// At the end of a conversation.
    In(ConversationId),
    /// Behind a response: at the end of its conversation, or in a fork of it.
    Behind(ConversationId, ResponseId),
}

impl Request {
    /// The operation of its key; none takes a key where there is none.
    pub(crate) fn operation(&self) -> Option<Operation> {
        Some(match self.what {
            Ask::Open => Operation::Open,
            Ask::Create { .. } => Operation::Create,
            Ask::Intervene { .. } | Ask::Think { .. } => Operation::Intervene,
            Ask::Cancel { .. } => Operation::Cancel,
            Ask::Claim { .. } => Operation::ClaimCall,
            Ask::Result { .. } | Ask::Inject { .. } => Operation::AnswerCall,
            _ => return None,
        })
    }

    /// The operation as the auditor knows it.
    pub(crate) fn name(&self) -> &'static str {
        match self.what {
            Ask::Open => "open",
            Ask::Create { .. } => "create",
            Ask::Intervene { .. } | Ask::Think { .. } => "intervene",
            Ask::Cancel { .. } => "cancel",
            Ask::Claim { .. } => "claim_call",
            Ask::Result { .. } => "answer_call",
            Ask::Inject { .. } => "answer_calls",
            Ask::Withdraw { .. } => "withdraw",
            Ask::Interrupt { .. } => "interrupt",
            Ask::AddItem { .. } | Ask::DeleteItem { .. } => "items",
            Ask::DeleteResponse { .. } => "delete_response",
            Ask::Delete { .. } => "delete",
        }
    }

    /// The conversation that it names.
    pub(crate) fn conversation(&self) -> Option<ConversationId> {
        match self.what {
            Ask::Open | Ask::Create { place: Place::Behind(..), .. } => None,
            Ask::Create { place: Place::In(conversation), .. }
            | Ask::Intervene { conversation, .. }
            | Ask::Think { conversation, .. }
            | Ask::Cancel { conversation, .. }
            | Ask::Claim { conversation, .. }
            | Ask::Result { conversation, .. }
            | Ask::Inject { conversation, .. }
            | Ask::Withdraw { conversation, .. }
            | Ask::Interrupt { conversation, .. }
            | Ask::AddItem { conversation, .. }
            | Ask::DeleteItem { conversation, .. }
            | Ask::DeleteResponse { conversation, .. }
            | Ask::Delete { conversation } => Some(conversation),
        }
    }

    /// The conversation that it is about, named or known by a response of it.
    pub(crate) fn about(&self) -> Option<ConversationId> {
        match self.what {
            Ask::Create { place: Place::Behind(conversation, _), .. } => Some(conversation),
            _ => self.conversation(),
        }
    }

    /// What it says to the model, if it says something.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.what {
            Ask::Create { text, .. } | Ask::Intervene { text, .. } => Some(text),
            _ => None,
        }
    }

    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = DefaultHasher::new();
        format!("{:?}", self.what).hash(&mut hasher);
        let mut fingerprint = [0; 32];
        fingerprint[..8].copy_from_slice(&hasher.finish().to_be_bytes());
        fingerprint
    }
}

pub(crate) fn intervened(
    conversation: ConversationId,
    response: ResponseId,
    intervention: InterventionId,
    successor: Option<ResponseId>,
    seq: u64,
) -> Value {
    json!({
        "conversation": conversation.to_string(),
        "response": response.to_string(),
        "intervention": intervention.to_string(),
        "successor": successor.map(|id| id.to_string()),
        "seq": seq,
    })
}

pub(crate) fn cancelled(conversation: ConversationId, response: ResponseId, outcome: &str) -> Value {
    json!({"conversation": conversation.to_string(), "response": response.to_string(), "outcome": outcome})
}

pub(crate) fn claimed(conversation: ConversationId, call: &CallId, claimed: &Claimed) -> Value {
    json!({
        "conversation": conversation.to_string(),
        "response": claimed.response_id.to_string(),
        "call": call.to_string(),
        "attempt": claimed.attempt,
        "lease_until_ms": claimed.lease_until_ms,
    })
}

pub(crate) fn answered(conversation: ConversationId, call: &CallId, answered: &AnsweredCall) -> Value {
    let open: Vec<String> = answered.open_calls.iter().map(ToString::to_string).collect();
    json!({
        "conversation": conversation.to_string(),
        "call": call.to_string(),
        "seq": answered.accepted_seq,
        "open_calls": open,
        "successor": answered.successor_id.map(|id| id.to_string()),
    })
}

pub(crate) fn injected(conversation: ConversationId, results: &[(CallId, String)], done: &AnsweredCall) -> Value {
    let mut answer = answered(conversation, &CallId(String::new()), done);
    answer["calls"] = results.iter().map(|(call, _)| call.to_string()).collect();
    answer
}

/// The first answer again, in the form in which it was given.
pub(crate) fn replayed(request: &Request, answer: &KeyedAnswer) -> Value {
    let call = match &request.what {
        Ask::Claim { call, .. } | Ask::Result { call, .. } => call.clone(),
        _ => CallId(String::new()),
    };
    match answer.clone() {
        KeyedAnswer::Opened { conversation } => json!({"conversation": conversation.to_string()}),
        KeyedAnswer::Created { conversation, response } => {
            json!({"conversation": conversation.to_string(), "response": response.to_string()})
        }
        KeyedAnswer::Intervened { conversation, response, intervention, successor, seq } => {
            intervened(conversation, response, intervention, successor, seq)
        }
        KeyedAnswer::Cancelled { conversation, response, outcome, .. } => cancelled(conversation, response, &outcome),
        KeyedAnswer::Claimed { conversation, response: response_id, attempt, lease_until_ms } => {
            claimed(conversation, &call, &Claimed { response_id, attempt, lease_until_ms })
        }
        KeyedAnswer::Answered { conversation, accepted_seq, open_calls, successor: successor_id } => {
            let again = AnsweredCall { accepted_seq, open_calls, successor_id, replayed: true };
            match &request.what {
                Ask::Inject { results, .. } => injected(conversation, results, &again),
                _ => answered(conversation, &call, &again),
            }
        }
    }
}
