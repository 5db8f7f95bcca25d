//! `/v1/chat/completions`: every request brings its whole transcript. Unless `store` is set, the conversation
//! lives as long as its request. Each of several choices is the response of a conversation of its own; the engine runs
//! their common prompt once.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::chat_stream::ChatStream;
use crate::actors::{ConversationHandle, Reader};
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{Admitted, JsonBody, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{OpenAiError, failed, in_progress, invalid, wrong_operation};
use crate::api::idempotency;
use crate::api::input;
use crate::api::object;
use crate::api::stream::{finish, kept_end};
use crate::api::tools;
use crate::api::unserved;
use crate::api::{constraint, sampling};
use crate::conversation::ResponseStatus;
use crate::conversation::{self, ChoiceOf, Create, Ending, ItemBody, ItemStatus, Reject, ResponseConfig};
use crate::engine::ModelInfo;
use crate::error::Code;
use crate::ids::{FreshIds, ResponseId};
use crate::protocol::chat::{
    AnswerCall, AnswerMessage, ChatFunction, ChatRequest, Choice, Completion, CompletionDetails, PromptDetails, Usage,
};
use crate::protocol::logprobs::ChoiceLogprobs;
use crate::protocol::sampling::GenerationParams;
use crate::store::{KeyedAnswer, Operation};

/// Most choices of one request.
const CHOICES_MAX: u32 = 8;

/// One choice that was asked for: the reader stands in front of its response.
pub(super) struct Asked {
    pub(super) id: ResponseId,
    pub(super) handle: ConversationHandle,
    pub(super) reader: Reader,
}

/// `POST /v1/chat/completions`
pub(crate) async fn create(
    State(app): State<App>,
    Principal(principal): Principal,
    Admitted(mut permit): Admitted,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, OpenAiError> {
    let request: ChatRequest = decode(&body)?;
    unserved::refuse(&body)?;
    let stored = request.store == Some(true);
    let key = idempotency::key(&headers)?;
    if key.is_some() && request.n.is_some_and(|n| n > 1) {
        let text = "a request with an Idempotency-Key is given one choice: leave the key out, or set n to 1";
        return Err(invalid("n", text).into());
    }
    let fingerprint = idempotency::fingerprint(&body, Some("chat.completions"));
    let key = Key::new(&principal, None, Operation::Create, key, fingerprint);
    let mut claim = match create::claim(&app, key.as_ref())? {
        Claimed::Fresh(claim) => claim,
        Claimed::Replay(answer) => return replay(&app, &principal, answer, &request, permit).await,
    };
    let create = core_request(app.engine(request.model.as_deref())?.model(), &request, &body)?;
    create::check_constraint(&app, &create, &body).await?;
    // Each choice is a sequence of its own, and takes the room of one.
    for _ in 1..request.n.unwrap_or(1) {
        permit.merge(app.admit()?);
    }
    let mut asked = Vec::new();
    for create in choices(create, request.n.unwrap_or(1)) {
        let id = create.response_id;
        let open = create::open(&principal, Vec::new());
        let (handle, reader) = if stored {
            app.directory.create_in_new(open, create, claim.take()).await?
        } else {
            app.directory.ephemeral(open, create, claim.take()).await?
        };
        asked.push(Asked { id, handle, reader });
    }
    answer(&app, asked, &request, permit).await
}

/// A request for each choice: they differ in which choice they are, so they draw other tokens from one seed.
fn choices(create: Create, n: u32) -> Vec<Create> {
    if n == 1 {
        return vec![create];
    }
    let first = create.response_id;
    let fresh = &mut FreshIds::random();
    let of = |index: u32| {
        let mut choice = create.clone();
        choice.config.choice = Some(ChoiceOf { first, index });
        if index > 0 {
            choice.response_id = ResponseId::draw(fresh);
        }
        choice
    };
    (0..n).map(of).collect()
}

/// How many choices can be given.
fn check_choices(request: &ChatRequest) -> Result<(), Reject> {
    let n = request.n.unwrap_or(1);
    if !(1..=CHOICES_MAX).contains(&n) {
        return Err(invalid("n", format!("n is {n}, but must be between 1 and {CHOICES_MAX}")));
    }
    if n > 1 && request.store == Some(true) {
        return Err(invalid("n", "a conversation that is kept has one choice: leave store out, or set n to 1"));
    }
    Ok(())
}

/// The core's request for the first choice. `body` is what `request` was read from.
pub(crate) fn core_request(model: &ModelInfo, request: &ChatRequest, body: &Value) -> Result<Create, Reject> {
    check_choices(request)?;
    let messages = request.messages.as_deref().unwrap_or_default();
    if messages.is_empty() {
        return Err(invalid("messages", "messages is empty; give at least one message"));
    }
    let fresh = &mut FreshIds::random();
    let input = input::chat_items(messages, fresh)?;
    let params: GenerationParams = decode(body)?;
    let (word, kwargs) = (request.reasoning_effort.as_deref(), request.chat_template_kwargs.as_ref());
    let (thinking, template_kwargs) = input::thought(word, "reasoning_effort", kwargs, model)?;
    let old_limit = input::token_limit(request.max_tokens, "max_tokens")?;
    let limit = input::token_limit(request.max_completion_tokens, "max_completion_tokens")?;
    let tools = tools::functions(request.tools.as_deref(), request.tool_choice.as_ref())?;
    let constraint = constraint::constraint(&params, &tools, model)?;
    let config = ResponseConfig {
        tools,
        sampling: sampling::sampling(&params, model, fresh)?,
        max_output_tokens: limit.or(old_limit),
        stop: input::stops(request.stop.as_ref())?,
        template_kwargs,
        store: request.store == Some(true),
        metadata: request.metadata.clone().unwrap_or_default(),
        thinking,
        strip_preamble: request.strip_preamble == Some(true),
        formats: Some(input::formats(model, constraint.as_ref())),
        logprobs: sampling::logprobs(&params)?,
        constraint,
        prompt_end: input::prompt_end(request.add_generation_prompt, request.continue_final_message, &input)?,
        priority: input::priority(body)?,
        ..ResponseConfig::new(&model.id, &model.fingerprint)
    };
    Ok(Create::new(ResponseId::draw(fresh), input, config))
}

async fn answer(
    app: &App,
    asked: Vec<Asked>,
    request: &ChatRequest,
    permit: OwnedSemaphorePermit,
) -> Result<Response, OpenAiError> {
    if request.stream == Some(true) {
        let options = request.stream_options.as_ref();
        let with_usage = options.and_then(|options| options.include_usage).unwrap_or(false);
        let stream = ChatStream::new(asked, with_usage).begin(app.limits.silence).await?;
        return Ok(stream.answer(app.limits.silence, permit));
    }
    // Where one fails, the others lose their readers and with them their reason to go on.
    Ok(whole(&try_join_all(asked.into_iter().map(ended)).await?))
}

/// Waits for the end of a choice.
async fn ended(Asked { id, handle, reader }: Asked) -> Result<conversation::Response, Reject> {
    let state = finish(reader, &handle, id).await?;
    ended_well(&state, id)
}

/// The response as it ended, unless it failed.
fn ended_well(state: &conversation::State, id: ResponseId) -> Result<conversation::Response, Reject> {
    let response = state.response(id).ok_or_else(|| super::responses::not_found(id))?;
    match &response.status {
        ResponseStatus::Ended(Ending::Failed { error }) => Err(failed(error, id)),
        _ => Ok(response.clone()),
    }
}

/// The choices as they ended; there is one at least.
fn whole(choices: &[conversation::Response]) -> Response {
    Json(choices.first().map(|first| completion(first, choices))).into_response()
}

async fn replay(
    app: &App,
    principal: &str,
    answer: KeyedAnswer,
    request: &ChatRequest,
    permit: OwnedSemaphorePermit,
) -> Result<Response, OpenAiError> {
    let KeyedAnswer::Created { conversation, response } = answer else {
        return Err(wrong_operation().into());
    };
    let handle = create::created_before(app, principal, conversation, response).await?;
    let state = handle.state().await?;
    let has_ended = state.response(response).is_some_and(|response| response.status.is_terminal());
    if request.stream != Some(true) && !has_ended {
        return Err(in_progress(Some(response)).into());
    }
    let answer = match handle.attach_response(response).await {
        // Its events are no longer kept; all but a stream can be given again.
        Err(expired) if expired.code == Code::CursorExpired && request.stream != Some(true) => {
            let state = kept_end(&handle, response, expired).await?;
            Ok(whole(&[ended_well(&state, response)?]))
        }
        reader => {
            let asked = Asked { id: response, reader: reader?, handle };
            self::answer(app, vec![asked], request, permit).await
        }
    };
    answer.map(idempotency::replayed)
}

/// The id of the answer: the response's digits.
pub(super) fn completion_id(id: ResponseId) -> String {
    id.to_string().replacen("resp_", "chatcmpl-", 1)
}

fn completion(first: &conversation::Response, choices: &[conversation::Response]) -> Completion {
    let usages: Vec<_> = choices.iter().map(|choice| choice.usage).collect();
    Completion {
        id: completion_id(first.id),
        object: "chat.completion",
        created: first.created_ms / 1000,
        model: first.config.model.clone(),
        choices: (0..).zip(choices).map(|(index, response)| choice(index, response)).collect(),
        usage: usage(&usages),
        system_fingerprint: first.config.fingerprint.clone(),
    }
}

fn choice(index: u32, response: &conversation::Response) -> Choice {
    let mut logprobs = Vec::new();
    let mut message = AnswerMessage {
        role: "assistant",
        content: None,
        refusal: None,
        reasoning_content: None,
        tool_calls: Vec::new(),
    };
    for output in response.output.iter().filter(|output| output.is_kept()) {
        let text = output.item.text();
        match &output.item.body {
            ItemBody::Reasoning { .. } => message.reasoning_content.get_or_insert_default().push_str(&text),
            ItemBody::FunctionCall { call_id, name, .. } => message.tool_calls.push(AnswerCall {
                id: call_id.to_string(),
                kind: "function",
                function: ChatFunction { name: name.clone(), arguments: text },
            }),
            _ => {
                message.content.get_or_insert_default().push_str(&text);
                logprobs.extend(object::logprobs(&output.logprobs));
            }
        }
    }
    if message.tool_calls.is_empty() {
        message.content.get_or_insert_default();
    }
    let logprobs = response.config.logprobs.map(|_| ChoiceLogprobs { content: logprobs, refusal: None });
    Choice { index, message, logprobs, finish_reason: finish_reason(response) }
}

/// Why the answer ended, in the words of Chat.
pub(super) fn finish_reason(response: &conversation::Response) -> &'static str {
    let is_call = |output: &conversation::OutputItem| {
        matches!(output.item.body, ItemBody::FunctionCall { .. }) && output.item.status == ItemStatus::Completed
    };
    match &response.status {
        ResponseStatus::Ended(Ending::Incomplete { reason }) if reason == "max_output_tokens" => "length",
        ResponseStatus::Ended(Ending::Completed) if response.output.iter().any(is_call) => "tool_calls",
        _ => "stop",
    }
}

/// Tokens of all choices together, in the words of Chat. They have one prompt; one of them runs what of it was not
/// cached, and the others find it.
pub(super) fn usage(choices: &[conversation::Usage]) -> Usage {
    let prompt_tokens = choices.iter().map(|usage| usage.input_tokens).max().unwrap_or(0);
    let cached_tokens = choices.iter().map(|usage| usage.cached_tokens).min().unwrap_or(0);
    let completion_tokens = choices.iter().map(|usage| usage.output_tokens).sum();
    let reasoning_tokens = choices.iter().map(|usage| usage.reasoning_tokens).sum();
    Usage {
        prompt_tokens,
        completion_tokens,
        total_tokens: prompt_tokens + completion_tokens,
        prompt_tokens_details: PromptDetails { cached_tokens },
        completion_tokens_details: CompletionDetails { reasoning_tokens },
    }
}
