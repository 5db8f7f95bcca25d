//! `/v1/chat/completions`: every request brings its whole transcript. Unless `store` is set, the conversation
//! lives as long as its request.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use super::chat_stream::ChatForm;
use super::{choices, functions};
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{Admitted, JsonBody, decode};
use crate::api::create::{self, Claimed, IGNORED_PARTS, IGNORED_TOOLS, Key, UNHELD_TOOLS};
use crate::api::errors::{OpenAiError, invalid};
use crate::api::idempotency;
use crate::api::input;
use crate::api::object;
use crate::api::tools;
use crate::api::unserved;
use crate::api::{constraint, sampling};
use crate::config::ReasoningField;
use crate::conversation::ResponseStatus;
use crate::conversation::{
    self, CallKind, Create, Ending, Item, ItemBody, ItemStatus, Reject, ResponseConfig, Toolbox, custom_input,
};
use crate::engine::ModelInfo;
use crate::engine::settings::units;
use crate::error::Code;
use crate::ids::{FreshIds, ResponseId};
use crate::protocol::chat::{
    AnswerCall, AnswerMessage, Called, ChatCustom, ChatFunction, ChatRequest, Choice, Completion, CompletionDetails,
    PromptDetails, Usage,
};
use crate::protocol::logprobs::ChoiceLogprobs;
use crate::protocol::sampling::GenerationParams;
use crate::store::Operation;

/// Most choices of one request, as OpenAI has it. Each takes the room of a request.
const CHOICES_MAX: u32 = 128;

/// What the answer to a request shows.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is asked for by itself")]
pub(super) struct Shown {
    pub(super) streams: bool,
    /// A last chunk with the usage.
    pub(super) usage: bool,
    /// The older way of calling functions.
    pub(super) functions: bool,
    /// Whole calls and whole reasoning beside the chunks.
    pub(super) dispatch: bool,
    pub(super) reasoning: ReasoningField,
}

impl Shown {
    fn of(app: &App, request: &ChatRequest, functions: bool) -> Self {
        let options = request.stream_options.clone().unwrap_or_default();
        Self {
            streams: request.stream == Some(true),
            usage: options.include_usage == Some(true),
            functions,
            dispatch: options.include_dispatch.unwrap_or(app.surface.dispatch),
            reasoning: app.surface.reasoning,
        }
    }
}

/// `POST /v1/chat/completions`
pub(crate) async fn create(
    State(app): State<App>,
    Principal(principal): Principal,
    Admitted(mut permit): Admitted,
    headers: HeaderMap,
    JsonBody(asked): JsonBody,
) -> Result<Response, OpenAiError> {
    let fingerprint = idempotency::fingerprint(&asked, Some("chat.completions"));
    let has_functions = functions::declared(&asked);
    let body = functions::with_tools(asked)?;
    let request: ChatRequest = decode(&body)?;
    unserved::refuse(&body)?;
    let form = ChatForm::new(Shown::of(&app, &request, has_functions));
    let key = idempotency::key(&headers)?;
    if key.is_some() && request.n.is_some_and(|n| n > 1) {
        let text = "a request with an Idempotency-Key is given one choice: leave the key out, or set n to 1";
        return Err(invalid("n", text).into());
    }
    let key = Key::new(&principal, None, Operation::Create, key, fingerprint);
    let claim = match create::claim(&app, key.as_ref())? {
        Claimed::Fresh(claim) => claim,
        Claimed::Replay(answer) => return choices::replay(&app, &principal, answer, form, permit).await,
    };
    let mut create = core_request(app.engine(request.model.as_deref())?.model(), &request, &body)?;
    create.config.extras.chat_of = create.config.store.then(|| principal.principal.clone());
    create::check_constraint(&app, &create, &body, &Toolbox::default()).await?;
    let creates = choices::of_one(create, request.n.unwrap_or(1));
    let asked = choices::ask(&app, &principal, creates, claim, &mut permit).await.map_err(of_messages)?;
    choices::answer(&app, asked, form, permit).await.map_err(|OpenAiError(reject)| of_messages(reject).into())
}

/// What the core says of its input is about the messages here. A result that answers no call is a mistake in them: who
/// reads that something was not found looks for the model.
pub(super) fn of_messages(reject: Reject) -> Reject {
    let code = if reject.code == Code::ToolCallNotFound { Code::InvalidInput } else { reject.code };
    let param = reject.param.map(|param| if param == "input" { "messages".to_owned() } else { param });
    Reject { code, param, ..reject }
}

/// What is asked for must be text.
fn check_output(request: &ChatRequest) -> Result<(), Reject> {
    let modalities = request.modalities.as_deref().unwrap_or_default();
    if let Some(other) = modalities.iter().find(|modality| *modality != "text") {
        return Err(invalid("modalities", format!("modalities: the answer is text, and no {other}; ask for text")));
    }
    if request.audio.as_ref().is_some_and(|audio| !audio.is_null()) {
        return Err(invalid("audio", "audio: the answer is text; leave audio out"));
    }
    Ok(())
}

/// The service tier of which the answer tells, where the request asked for one.
fn tier(body: &Value) -> Map<String, Value> {
    let used = body.get("service_tier").and_then(Value::as_str).map(|asked| match asked {
        "priority" | "flex" => asked,
        _ => "default",
    });
    used.map(|used| ("service_tier".to_owned(), used.into())).into_iter().collect()
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

/// The most tokens of the answer, by its name or by its older one.
fn token_limit(request: &ChatRequest) -> Result<Option<u32>, Reject> {
    let old = input::token_limit(request.max_tokens, "max_tokens")?;
    let limit = input::token_limit(request.max_completion_tokens, "max_completion_tokens")?;
    match (old, limit) {
        (Some(old), Some(limit)) if old != limit => {
            let text = format!("max_tokens is {old}, but max_completion_tokens is {limit}; give one of them");
            Err(invalid("max_tokens", text))
        }
        (old, limit) => Ok(limit.or(old)),
    }
}

/// The core's request for the first choice. `body` is what `request` was read from.
pub(crate) fn core_request(model: &ModelInfo, request: &ChatRequest, body: &Value) -> Result<Create, Reject> {
    check_choices(request)?;
    check_output(request)?;
    let messages = request.messages.as_deref().unwrap_or_default();
    if messages.is_empty() {
        return Err(invalid("messages", "messages is empty; give at least one message"));
    }
    let fresh = &mut FreshIds::random();
    let input = input::chat_items(messages, fresh)?;
    let mut params: GenerationParams = decode(body)?;
    let (word, kwargs) = (request.reasoning_effort.as_deref(), request.chat_template_kwargs.as_ref());
    let (thinking, template_kwargs) = input::thought(word, "reasoning_effort", kwargs, model)?;
    let template_kwargs = input::with_verbosity(template_kwargs, body.get("verbosity"));
    let (toolbox, ignored) = tools::of_chat(request.tools.as_deref(), request.tool_choice.as_ref())?;
    params.tool_choice = params.tool_choice.map(|choice| tools::visible_choice(&choice, &toolbox));
    let asked = messages.iter().filter(|message| message.role != "assistant");
    let parts = input::unknown_parts(asked.map(|message| message.content.as_ref()));
    let labels = request.metadata.clone().unwrap_or_default();
    let constraint = constraint::constraint(&params, &toolbox, model)?;
    let unheld = constraint::only_told(constraint.as_ref(), &toolbox, model);
    let notes = [(IGNORED_TOOLS, ignored), (IGNORED_PARTS, parts), (UNHELD_TOOLS, unheld)];
    let config = ResponseConfig {
        tools: toolbox.tools,
        tool_shapes: toolbox.shapes,
        sampling: sampling::sampling(&params, model, fresh)?,
        max_output_tokens: token_limit(request)?,
        stop: input::stops(request.stop.as_ref())?,
        template_kwargs,
        store: request.store == Some(true),
        metadata: create::with_notes(labels, notes),
        echo: tier(body),
        thinking,
        strip_preamble: request.strip_preamble == Some(true),
        formats: Some(input::formats(model, constraint.as_ref())),
        logprobs: sampling::logprobs(&params)?,
        constraint,
        prompt_end: input::prompt_end(request.add_generation_prompt, request.continue_final_message, &input)?,
        priority: input::priority(body)?,
        extras: input::extras(body)?,
        price: model.price,
        ..ResponseConfig::new(&model.id, &model.fingerprint)
    };
    Ok(Create::new(ResponseId::draw(fresh), input, config))
}

/// The id of the answer: the response's digits.
pub(super) fn completion_id(id: ResponseId) -> String {
    id.to_string().replacen("resp_", "chatcmpl-", 1)
}

/// The labels of an answer that say what of its request was left out, with the client's own; none where nothing was.
pub(super) fn notes(response: &conversation::Response) -> Option<Map<String, Value>> {
    let labels = &response.config.metadata;
    let is_noted = [IGNORED_TOOLS, IGNORED_PARTS, UNHELD_TOOLS].iter().any(|label| labels.contains_key(*label));
    is_noted.then(|| labels.clone())
}

/// The service tier that a response was given, where its request asked for one.
pub(super) fn tier_of(response: &conversation::Response) -> Option<String> {
    response.config.echo.get("service_tier").and_then(Value::as_str).map(str::to_owned)
}

/// The choices as they ended; there is one at least.
pub(super) fn whole(choices: &[conversation::Response], shown: Shown) -> Response {
    Json(choices.first().map(|first| completion(first, choices, shown))).into_response()
}

/// The answer with these choices.
pub(super) fn completion(
    first: &conversation::Response,
    choices: &[conversation::Response],
    shown: Shown,
) -> Completion {
    let usages: Vec<_> = choices.iter().map(|choice| choice.usage).collect();
    Completion {
        id: completion_id(first.id),
        object: "chat.completion",
        created: first.created_ms / 1000,
        model: first.config.model.clone(),
        choices: (0..).zip(choices).map(|(index, response)| choice(index, response, shown)).collect(),
        usage: usage(&usages),
        service_tier: tier_of(first),
        system_fingerprint: first.config.fingerprint.clone(),
        metadata: notes(first),
    }
}

fn choice(index: u32, response: &conversation::Response, shown: Shown) -> Choice {
    let mut logprobs = Vec::new();
    let mut message = AnswerMessage { role: "assistant", ..AnswerMessage::default() };
    let mut reasoning: Option<String> = None;
    for output in response.output.iter().filter(|output| output.is_kept()) {
        let text = output.item.text();
        match &output.item.body {
            ItemBody::Reasoning { .. } => reasoning.get_or_insert_default().push_str(&text),
            ItemBody::FunctionCall { name, .. } if shown.functions => {
                // There is room for one; a model that makes more is asked again with the first one's result.
                message.function_call.get_or_insert(ChatFunction { name: name.clone(), arguments: text });
            }
            ItemBody::FunctionCall { .. } => message.tool_calls.extend(call(&output.item)),
            _ => {
                message.content.get_or_insert_default().push_str(&text);
                logprobs.extend(object::logprobs(&output.logprobs));
            }
        }
    }
    if message.tool_calls.is_empty() && message.function_call.is_none() {
        message.content.get_or_insert_default();
    }
    (message.reasoning_content, message.reasoning) = in_fields(shown.reasoning, reasoning);
    let logprobs = response.config.logprobs.map(|_| ChoiceLogprobs { content: logprobs, refusal: None });
    Choice { index, message, logprobs, finish_reason: finish_reason(response, shown) }
}

/// A whole call, in the shape of its kind.
pub(super) fn call(item: &Item) -> Option<AnswerCall> {
    let ItemBody::FunctionCall { call_id, name, arguments, call_kind, .. } = &item.body else { return None };
    let (id, name) = (call_id.to_string(), name.clone());
    let called = match call_kind {
        CallKind::Custom => Called::Custom { custom: ChatCustom { name, input: custom_input(arguments) } },
        _ => Called::Function { function: ChatFunction { name, arguments: arguments.clone() } },
    };
    Some(AnswerCall { id, called })
}

/// Reasoning in the fields that it is shown in: `reasoning_content` and `reasoning`.
pub(super) fn in_fields(field: ReasoningField, text: Option<String>) -> (Option<String>, Option<String>) {
    match field {
        ReasoningField::ReasoningContent => (text, None),
        ReasoningField::Reasoning => (None, text),
        ReasoningField::Both => (text.clone(), text),
    }
}

/// Why the answer ended, in the words of Chat.
pub(super) fn finish_reason(response: &conversation::Response, shown: Shown) -> &'static str {
    let is_call = |output: &conversation::OutputItem| {
        matches!(output.item.body, ItemBody::FunctionCall { .. }) && output.item.status == ItemStatus::Completed
    };
    match &response.status {
        ResponseStatus::Ended(Ending::Incomplete { reason }) if reason == "max_output_tokens" => "length",
        ResponseStatus::Ended(Ending::Incomplete { reason }) if reason == "content_filter" => "content_filter",
        ResponseStatus::Ended(Ending::Completed) if response.output.iter().any(is_call) => {
            if shown.functions {
                "function_call"
            } else {
                "tool_calls"
            }
        }
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
    let cost_nanos = choices.iter().filter_map(|usage| usage.cost_nanos).reduce(u64::saturating_add);
    Usage {
        prompt_tokens,
        completion_tokens,
        total_tokens: prompt_tokens + completion_tokens,
        prompt_tokens_details: PromptDetails { cached_tokens },
        completion_tokens_details: CompletionDetails { reasoning_tokens },
        cost: cost_nanos.map(units),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bound_has_two_names_and_one_value() {
        let limit = |body: Value| token_limit(&serde_json::from_value(body).unwrap());
        assert_eq!(limit(json!({})).unwrap(), None);
        for same in [
            json!({"max_tokens": 5}),
            json!({"max_completion_tokens": 5}),
            json!({"max_tokens": 5, "max_completion_tokens": 5}),
            json!({"max_tokens": null, "max_completion_tokens": 5}),
        ] {
            assert_eq!(limit(same.clone()).unwrap(), Some(5), "{same}");
        }
        let refused = limit(json!({"max_tokens": 5, "max_completion_tokens": 6})).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("max_tokens"));
        assert!(refused.message.contains("max_completion_tokens"), "{}", refused.message);
        for (zero, param) in
            [(json!({"max_tokens": 0}), "max_tokens"), (json!({"max_completion_tokens": 0}), "max_completion_tokens")]
        {
            assert_eq!(limit(zero).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
