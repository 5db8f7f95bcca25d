//! `/v1/chat/completions`: every request brings its whole transcript. Unless `store` is set, the conversation
//! lives as long as its request.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedSemaphorePermit;

use super::chat_stream::ChatStream;
use crate::actors::{ConversationHandle, Reader};
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{Admitted, JsonBody, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{OpenAiError, failed, in_progress, invalid, wrong_operation};
use crate::api::idempotency;
use crate::api::input::{self, Knobs};
use crate::api::stream::{finish, kept_end};
use crate::api::unserved;
use crate::conversation::ResponseStatus;
use crate::conversation::{self, Create, Ending, ItemBody, ItemStatus, Policy, Reject, ResponseConfig};
use crate::engine::ModelInfo;
use crate::error::Code;
use crate::ids::{FreshIds, ResponseId};
use crate::protocol::chat::{
    AnswerCall, AnswerMessage, ChatFunction, ChatRequest, Choice, Completion, CompletionDetails, PromptDetails, Usage,
};
use crate::store::{KeyedAnswer, Operation};

/// `POST /v1/chat/completions`
pub(crate) async fn create(
    State(app): State<App>,
    Principal(principal): Principal,
    Admitted(permit): Admitted,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, OpenAiError> {
    let request: ChatRequest = decode(&body)?;
    unserved::refuse(&body)?;
    let stored = request.store == Some(true);
    let key = idempotency::key(&headers)?;
    let fingerprint = idempotency::fingerprint(&body, Some("chat.completions"));
    let key = Key::new(&principal, None, Operation::Create, key, fingerprint);
    let claim = match create::claim(&app, key.as_ref())? {
        Claimed::Fresh(claim) => claim,
        Claimed::Replay(answer) => return replay(&app, &principal, answer, &request, permit).await,
    };
    let create = core_request(app.engine(request.model.as_deref())?.model(), &request)?;
    let id = create.response_id;
    let open = create::open(&principal, Vec::new());
    let (handle, reader) = if stored {
        app.directory.create_in_new(open, create, claim).await?
    } else {
        app.directory.ephemeral(open, create, claim).await?
    };
    answer(&app, &handle, reader, id, &request, permit).await
}

pub(crate) fn core_request(model: &ModelInfo, request: &ChatRequest) -> Result<Create, Reject> {
    if request.n.is_some_and(|n| n != 1) {
        return Err(invalid("n", "only one choice is given; leave n out, or set it to 1"));
    }
    let messages = request.messages.as_deref().unwrap_or_default();
    if messages.is_empty() {
        return Err(invalid("messages", "messages is empty; give at least one message"));
    }
    let fresh = &mut FreshIds::random();
    let input = input::chat_items(messages, fresh)?;
    let knobs = Knobs {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        seed: request.seed,
    };
    let thinking =
        request.reasoning_effort.as_ref().and_then(|word| input::effort(Some(&serde_json::json!({"effort": word}))));
    let old_limit = input::token_limit(request.max_tokens, "max_tokens")?;
    let limit = input::token_limit(request.max_completion_tokens, "max_completion_tokens")?;
    let config = ResponseConfig {
        model: model.id.clone(),
        fingerprint: model.fingerprint.clone(),
        instructions: None,
        tools: input::tools(request.tools.as_deref(), request.tool_choice.as_ref())?,
        sampling: knobs.sampling(model.sampling, fresh)?,
        max_output_tokens: limit.or(old_limit),
        stop: input::stops(request.stop.as_ref())?,
        template_kwargs: input::template_kwargs(request.chat_template_kwargs.as_ref(), thinking.as_ref()),
        background: false,
        store: request.store == Some(true),
        metadata: request.metadata.clone().unwrap_or_default(),
        echo: serde_json::Map::new(),
        policy: Policy::default(),
        tool_policies: BTreeMap::new(),
        max_parallel_tool_calls: None,
        thinking,
        strip_preamble: request.strip_preamble == Some(true),
        formats: Some(input::formats(model)),
        prompt_end: input::prompt_end(request.add_generation_prompt, request.continue_final_message, &input)?,
    };
    Ok(Create::new(ResponseId::draw(fresh), input, config))
}

async fn answer(
    app: &App,
    handle: &ConversationHandle,
    reader: Reader,
    id: ResponseId,
    request: &ChatRequest,
    permit: OwnedSemaphorePermit,
) -> Result<Response, OpenAiError> {
    if request.stream == Some(true) {
        let options = request.stream_options.as_ref();
        let with_usage = options.and_then(|options| options.include_usage).unwrap_or(false);
        let stream = ChatStream::new(reader, id, with_usage).begin(app.limits.silence).await?;
        return Ok(stream.answer(app.limits.silence, permit));
    }
    whole(&*finish(reader, handle, id).await?, id)
}

/// The answer as it ended.
fn whole(state: &conversation::State, id: ResponseId) -> Result<Response, OpenAiError> {
    let response = state.response(id).ok_or_else(|| super::responses::not_found(id))?;
    match &response.status {
        ResponseStatus::Ended(Ending::Failed { error }) => Err(failed(error, id).into()),
        _ => Ok(Json(completion(response)).into_response()),
    }
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
            whole(&*kept_end(&handle, response, expired).await?, response)
        }
        reader => self::answer(app, &handle, reader?, response, request, permit).await,
    };
    answer.map(idempotency::replayed)
}

/// The id of the answer: the response's digits.
pub(super) fn completion_id(id: ResponseId) -> String {
    id.to_string().replacen("resp_", "chatcmpl-", 1)
}

fn completion(response: &conversation::Response) -> Completion {
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
            _ => message.content.get_or_insert_default().push_str(&text),
        }
    }
    if message.tool_calls.is_empty() {
        message.content.get_or_insert_default();
    }
    Completion {
        id: completion_id(response.id),
        object: "chat.completion",
        created: response.created_ms / 1000,
        model: response.config.model.clone(),
        choices: [Choice { index: 0, message, logprobs: None, finish_reason: finish_reason(response) }],
        usage: usage(&response.usage),
        system_fingerprint: response.config.fingerprint.clone(),
    }
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

/// Tokens, in the words of Chat.
pub(super) fn usage(usage: &conversation::Usage) -> Usage {
    Usage {
        prompt_tokens: usage.input_tokens,
        completion_tokens: usage.output_tokens,
        total_tokens: usage.input_tokens + usage.output_tokens,
        prompt_tokens_details: PromptDetails { cached_tokens: usage.cached_tokens },
        completion_tokens_details: CompletionDetails { reasoning_tokens: usage.reasoning_tokens },
    }
}
