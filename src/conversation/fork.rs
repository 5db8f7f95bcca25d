//! Forks: a transcript taken over into a conversation of its own, token for token.
//!
//! What is copied renders to the tokens that the parent has for the same turns, so that nothing of it is tokenised
//! anew and its KV blocks are shared. It belongs to the fork: what becomes of the parent changes nothing here.
//!
//! **Invariant:** a copied response is a turn of the transcript and nothing else; no request can name it here.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::decide::Draft;
use super::event::{Ending, Event, NewResponse, Recorded};
use super::extras::Extras;
use super::input::{Create, Reject};
use super::item::Item;
use super::policy::ToolPolicy;
use super::prompts::RecordedPrompt;
use super::response_config::ResponseConfig;
use super::state::{Call, CallStatus, OutputItem, Response, ResponseStatus, State};
use crate::error::Code;
use crate::ids::{CallId, FreshIds, ItemId, ResponseId};

/// Bytes of copied turns in one event, unless a single turn has more: a long transcript is neither one huge frame
/// nor more events than a reader's queue holds.
const EVENT_BYTES: usize = 256 << 10;

/// A transcript to begin a conversation with.
#[derive(Clone, Debug)]
pub struct Fork {
    /// The response that the transcript ends with.
    pub from: ResponseId,
    /// The time that templates see, as in the parent.
    pub template_ms: u64,
    /// Its turns, in order.
    pub turns: Vec<CopiedTurn>,
}

/// A response of another conversation as a turn of this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopiedTurn {
    /// The response; its object stays in the other conversation.
    pub response_id: ResponseId,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When it ended: what the model forgets while a conversation rests follows from both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// What its prompt is rendered with; absent where it is as for the turn before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Box<ResponseConfig>>,
    /// What joined the transcript since the response before it.
    pub input: Vec<Item>,
    /// What it said, as far as it stays in the transcript.
    pub output: Vec<CopiedOutput>,
    /// Its tokens behind the last shown text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tail_tokens: Vec<u32>,
    /// The prompt that it began with, where that is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<RecordedPrompt>,
    /// The calls that it made for the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CopiedCall>,
}

/// An output item and the tokens it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedOutput {
    /// The item.
    pub item: Item,
    /// Its tokens; none behind a call that was cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<u32>,
}

/// A call of a copied turn, as it stood in the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedCall {
    /// Which call.
    pub call_id: CallId,
    /// The function's name.
    pub name: String,
    /// From 1.
    pub attempt: u32,
    /// Where it stood.
    pub status: CallStatus,
    /// Why it was closed without a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// Its result, where no copied turn has it in its input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Item>,
}

/// The transcript up to and including the response `from`, for a conversation that goes on with `create`. A call of
/// the last turn takes the result that `create` brings, else the one it has in the parent, where a later turn
/// may have taken it.
pub fn fork(parent: &State, from: ResponseId, create: &Create, fresh: &mut FreshIds) -> Result<Fork, Reject> {
    let upto: Vec<&Response> = super::turns(parent, from).collect();
    let Some(last) = upto.last().filter(|last| !last.deleted) else {
        let text = format!("the response {from} was deleted, or is no turn of its conversation; go on from another");
        return Err(Reject::new(Code::ResponseNotFound, text).param("previous_response_id"));
    };
    if !last.status.is_terminal() {
        return Err(super::decide::busy(from));
    }
    let own =
        ResponseConfig { metadata: serde_json::Map::new(), echo: serde_json::Map::new(), ..create.config.clone() };
    let mut turns: Vec<CopiedTurn> = Vec::with_capacity(upto.len());
    let mut before: Option<ResponseConfig> = None;
    for response in &upto {
        let config = rendered_with(&response.config, &own);
        let is_new = before.as_ref() != Some(&config);
        turns.push(CopiedTurn {
            response_id: response.id,
            created_ms: response.created_ms,
            ended_ms: response.ended_ms,
            config: is_new.then(|| Box::new(config.clone())),
            input: response.input.iter().map(|item| again(item, fresh)).collect(),
            output: kept_output(response, fresh),
            tail_tokens: if is_whole(response) { response.tail_tokens.clone() } else { Vec::new() },
            prompt: response.prompt.clone(),
            calls: copied_calls(parent, response.id, |_| None),
        });
        before = Some(config);
    }
    if let Some(turn) = turns.last_mut() {
        let brought = |call_id: &CallId| create.input.iter().any(|item| item.answers() == Some(call_id));
        turn.calls = copied_calls(parent, from, |call| {
            let result = result_of(parent, call).filter(|_| !brought(&call.call_id));
            Some(result.map(|item| again(item, fresh)))
        });
    }
    Ok(Fork { from, template_ms: parent.template_ms, turns })
}

/// The part of a config that prompts are rendered from; the rest is as for the fork's own response.
fn rendered_with(config: &ResponseConfig, own: &ResponseConfig) -> ResponseConfig {
    ResponseConfig {
        model: config.model.clone(),
        fingerprint: config.fingerprint.clone(),
        instructions: config.instructions.clone(),
        tools: config.tools.clone(),
        template_kwargs: config.template_kwargs.clone(),
        strip_preamble: config.strip_preamble,
        prompt_end: config.prompt_end,
        purpose: config.purpose,
        extras: Extras { truncates: config.extras.truncates, found_tools: Vec::new(), ..own.extras.clone() },
        ..own.clone()
    }
}

/// Whether all that it said stays in the transcript.
fn is_whole(response: &Response) -> bool {
    response.output.iter().all(OutputItem::is_kept)
}

/// The items that stay, with tokens up to the first that does not: as [`Response::kept_tokens`] has them.
fn kept_output(response: &Response, fresh: &mut FreshIds) -> Vec<CopiedOutput> {
    let mut has_tokens = true;
    let mut kept = Vec::with_capacity(response.output.len());
    for output in &response.output {
        has_tokens &= output.is_kept();
        if output.is_kept() {
            let tokens = if has_tokens { output.tokens.clone() } else { Vec::new() };
            kept.push(CopiedOutput { item: again(&output.item, fresh), tokens });
        }
    }
    kept
}

/// The calls of a response. `result` gives a call's result, or that it is to be open again; without either the call
/// stays as it is, and a later turn has its result.
fn copied_calls(
    parent: &State,
    response_id: ResponseId,
    mut result: impl FnMut(&Call) -> Option<Option<Item>>,
) -> Vec<CopiedCall> {
    let made = parent.calls.iter().filter(|call| call.response_id == response_id);
    made.map(|call| {
        let result = result(call);
        let reopened = matches!(result, Some(None)) && !call.status.is_open();
        CopiedCall {
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            attempt: call.attempt,
            status: if reopened { CallStatus::Requested } else { call.status },
            closed: call.closed.clone().filter(|_| !reopened),
            output: result.flatten(),
        }
    })
    .collect()
}

/// The result of a call, whether a turn has taken it or not.
fn result_of<'a>(state: &'a State, call: &'a Call) -> Option<&'a Item> {
    let taken = state.responses.iter().flat_map(|response| &response.input);
    call.output.iter().chain(taken).find(|item| item.answers() == Some(&call.call_id))
}

/// An item under an id of its own.
fn again(item: &Item, fresh: &mut FreshIds) -> Item {
    Item { id: ItemId::draw(fresh), ..item.clone() }
}

impl CopiedTurn {
    /// About as many bytes as it takes.
    fn bytes(&self) -> usize {
        let item = |item: &Item| 128 + item.text().len();
        let config = self.config.as_ref().map_or(0, |config| {
            let tools = config.tools.iter().map(|tool| tool.parameters.to_string().len()).sum::<usize>();
            512 + tools + config.instructions.as_ref().map_or(0, String::len)
        });
        let output = self.output.iter().map(|output| item(&output.item) + 6 * output.tokens.len()).sum::<usize>();
        let prompt = self.prompt.as_ref().map_or(0, |prompt| 6 * prompt.tokens.len());
        config + output + prompt + self.input.iter().map(item).sum::<usize>()
    }
}

impl Draft {
    /// Takes the turns over, in as few events as their size allows.
    pub(super) fn copy_turns(&mut self, turns: Vec<CopiedTurn>) {
        let (mut part, mut bytes) = (Vec::new(), 0);
        for turn in turns {
            let size = turn.bytes();
            if bytes + size > EVENT_BYTES && !part.is_empty() {
                self.push(Event::TurnsCopied { turns: std::mem::take(&mut part) });
                bytes = 0;
            }
            bytes += size;
            part.push(turn);
        }
        if !part.is_empty() {
            self.push(Event::TurnsCopied { turns: part });
        }
    }
}

impl State {
    /// Turns of another conversation join the transcript. One that nothing says how to render is left out.
    pub(super) fn apply_copied(&mut self, turns: &[CopiedTurn], recorded: &Recorded) {
        for turn in turns {
            let before = self.responses.last().map(|last| &last.config);
            let Some(config) = turn.config.as_deref().or(before).cloned() else { continue };
            let previous = self.responses.last().map(|last| last.id);
            let (id, input) = (turn.response_id, turn.input.clone());
            let mut response = Response::new(&NewResponse { id, previous, input, config, enqueued: false }, recorded);
            let mut first_token = 0;
            for CopiedOutput { item, tokens } in &turn.output {
                let (item, tokens) = (item.clone(), tokens.clone());
                let count = tokens.len() as u32;
                // How likely they were is with the response that they were generated for.
                let logprobs = Vec::new();
                response.output.push(OutputItem { item, first_token, tokens, logprobs, discarded: false });
                first_token += count;
            }
            response.tail_tokens.clone_from(&turn.tail_tokens);
            response.prompt.clone_from(&turn.prompt);
            response.status = ResponseStatus::Ended(Ending::Completed);
            (response.created_ms, response.ended_ms) = (turn.created_ms, turn.ended_ms);
            response.ended_seq = Some(recorded.seq);
            response.deleted = true;
            self.responses.push(Arc::new(response));
            self.calls.extend(turn.calls.iter().map(|call| call.here(id, recorded.seq)));
        }
    }
}

impl CopiedCall {
    /// The call as this conversation knows it. Nobody runs it for this one: it has no timer.
    fn here(&self, response_id: ResponseId, seq: u64) -> Call {
        Call {
            response_id,
            call_id: self.call_id.clone(),
            name: self.name.clone(),
            attempt: self.attempt,
            status: self.status,
            policy: ToolPolicy::default(),
            due_ms: None,
            output: self.output.clone(),
            seq,
            closed: self.closed.clone(),
            discarded_attempt: 0,
        }
    }
}
