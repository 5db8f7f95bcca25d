//! Creating a response: the same steps for `POST /v1/responses`, for `response.create` on a socket, and for Chat.

use serde_json::{Map, Value};

use super::App;
use super::Seal;
use super::body::decode;
use super::errors::invalid;
use super::idempotency::fingerprint;
use super::input::{self, Known};
use super::references;
use super::tools::{self, Declared, Noted};
use super::unserved;
use super::{constraint, sampling};
use crate::access::{DEFAULT_TENANT, Identity};
use crate::actors::{Claim, ConversationHandle, KeyClaim, Open, Reader, offload};
use crate::conversation::{
    Create, Extras, Item, Purpose, Reject, ResponseConfig, State, Toolbox, ToolsAllowed, brought,
};
use crate::engine::ModelInfo;
use crate::error::Code;
use crate::ids::{ConversationId, FreshIds, ResponseId};
use crate::prompt::PromptEnd;
use crate::protocol::TextOr;
use crate::protocol::responses::{ConversationParam, CreateResponse};
use crate::protocol::sampling::GenerationParams;
use crate::protocol::tokenize::Tokenize;
use crate::store::{KeyScope, KeyedAnswer, Operation};

/// Fields that the response object repeats and nothing here interprets.
const ECHOED: [&str; 11] = [
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "truncation",
    "service_tier",
    "top_logprobs",
    "max_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "user",
];

/// What a request includes for its reasoning to be sealed.
const SEALED_REASONING: &str = "reasoning.encrypted_content";

/// Labels of a response that say which kinds of tools, of input items and of their parts were left out.
pub(crate) const IGNORED_TOOLS: &str = "midstream_ignored_tools";
const IGNORED_ITEMS: &str = "midstream_ignored_items";
pub(crate) const IGNORED_PARTS: &str = "midstream_ignored_parts";
/// And the custom tools whose grammar the model is told of, but not held to.
pub(crate) const UNHELD_TOOLS: &str = "midstream_unheld_tools";

/// An idempotency key with its place and the request it stands for.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) scope: KeyScope,
    pub(crate) fingerprint: [u8; 32],
}

impl Key {
    /// The key of an operation.
    pub(crate) fn new(
        principal: &str,
        conversation: Option<ConversationId>,
        operation: Operation,
        key: Option<String>,
        fingerprint: [u8; 32],
    ) -> Option<Self> {
        key.map(|key| Self {
            scope: KeyScope { principal: principal.to_owned(), conversation, operation, key },
            fingerprint,
        })
    }
}

/// What the key says: go on, or give the first answer again.
pub(crate) enum Claimed {
    Fresh(Option<KeyClaim>),
    Replay(KeyedAnswer),
}

/// Looks the key up, before anything else is.
pub(crate) fn claim(app: &App, key: Option<&Key>) -> Result<Claimed, Reject> {
    let Some(key) = key else {
        return Ok(Claimed::Fresh(None));
    };
    match app.keys.claim(key.scope.clone(), key.fingerprint)? {
        Claim::Fresh(claim) => Ok(Claimed::Fresh(Some(claim))),
        Claim::Replay(answer) => Ok(Claimed::Replay(answer)),
        Claim::InProgress => Err(super::errors::in_progress(None)),
    }
}

/// Checks what the fields say together, and refuses what is not done.
pub(crate) fn check(request: &CreateResponse, body: &Value) -> Result<(), Reject> {
    unserved::refuse(body)?;
    let store = request.store.unwrap_or(true);
    if request.background == Some(true) && !store {
        let text = "a background response is kept until it is asked for: leave store out, or set it to true";
        return Err(invalid("background", text));
    }
    if request.conversation.is_some() && !store {
        let text = "a response of a conversation is always stored: leave store out, or set it to true";
        return Err(invalid("store", text));
    }
    if request.conversation.is_some() && request.previous_response_id.is_some() {
        let text = "conversation and previous_response_id exclude each other; give one of them";
        return Err(invalid("previous_response_id", text));
    }
    Ok(())
}

/// The core's request. Without a seal nothing is sealed or opened. `before` are the tools that items of earlier turns
/// brought.
pub(crate) fn create(
    model: &ModelInfo,
    known: Known<'_>,
    request: &CreateResponse,
    body: &Value,
    before: &Toolbox,
) -> Result<Create, Reject> {
    let fresh = &mut FreshIds::random();
    let response_id = ResponseId::draw(fresh);
    let mut params: GenerationParams = decode(body)?;
    let Declared { mut toolbox, mut ignored, policies, .. } = tools::declared(request.tools.as_deref())?;
    tools::note_choice(params.tool_choice.as_ref(), &mut ignored);
    let input = input::items(request.input.as_ref(), "input", known, fresh)?;
    let mut callable = toolbox.clone();
    callable.take(before);
    callable.take(&brought(input.iter()));
    params.tool_choice = params.tool_choice.map(|choice| tools::visible_choice(&choice, &callable));
    let tools_allowed = tools::allowed(params.tool_choice.as_ref());
    if tools_allowed == ToolsAllowed::None {
        toolbox = Toolbox::default();
    }
    let echo = echoed(request, body, &toolbox);
    let word = body.get("reasoning").and_then(|reasoning| reasoning.get("effort")).and_then(Value::as_str);
    let (thinking, template_kwargs) =
        input::thought(word, "reasoning.effort", request.chat_template_kwargs.as_ref(), model)?;
    let template_kwargs = input::with_verbosity(template_kwargs, body.pointer("/text/verbosity"));
    let purpose = match request.generate {
        Some(false) => Purpose::Prefill,
        _ if input::compacts(request.input.as_ref()) => Purpose::Summary,
        _ => Purpose::Answer,
    };
    let compacts = purpose == Purpose::Summary;
    let constraint = if compacts { None } else { constraint::constraint(&params, &callable, model)? };
    let unheld = constraint::only_told(constraint.as_ref(), &callable, model);
    let config = ResponseConfig {
        instructions: request.instructions.clone(),
        tools: toolbox.tools,
        tool_shapes: toolbox.shapes,
        sampling: sampling::sampling(&params, model, fresh)?,
        max_output_tokens: input::token_limit(request.max_output_tokens, "max_output_tokens")?,
        stop: input::stops(request.stop.as_ref())?,
        template_kwargs,
        background: request.background.unwrap_or(false),
        store: request.store.unwrap_or(true),
        metadata: noted(request, ignored, unheld),
        echo,
        tool_policies: policies,
        max_parallel_tool_calls: input::parallel_limit(body)?,
        thinking,
        strip_preamble: request.strip_preamble == Some(true),
        formats: Some(input::formats(model, constraint.as_ref())),
        logprobs: sampling::logprobs(&params)?,
        constraint,
        prompt_end: if purpose == Purpose::Prefill { PromptEnd::Nothing } else { PromptEnd::Answer },
        priority: input::priority(body)?,
        purpose,
        seal: known.seal.filter(|_| compacts || params.includes(SEALED_REASONING)).map(|seal| seal.key(response_id)),
        tools_allowed,
        extras: extras(body)?,
        price: model.price,
        ..ResponseConfig::new(&model.id, &model.fingerprint)
    };
    Ok(Create {
        policies: input::policies(body)?,
        in_conversation: request.conversation.is_some(),
        ..Create::new(response_id, input, config)
    })
}

/// What few requests ask for.
fn extras(body: &Value) -> Result<Extras, Reject> {
    const CALLS: &str = "max_tool_calls";
    let truncates = match body.get("truncation") {
        None | Some(Value::Null) => false,
        Some(word) if word == "disabled" => false,
        Some(word) if word == "auto" => true,
        Some(other) => {
            return Err(invalid("truncation", format!("truncation is {other}, but must be auto or disabled")));
        }
    };
    let max_tool_calls = match body.get(CALLS) {
        None | Some(Value::Null) => None,
        Some(most) => {
            let most = most.as_u64().and_then(|most| u32::try_from(most).ok());
            Some(most.ok_or_else(|| invalid(CALLS, format!("{CALLS} must be a whole number of calls")))?)
        }
    };
    Ok(Extras { truncates, max_tool_calls, ..input::extras(body)? })
}

/// What the response object repeats of the request.
fn echoed(request: &CreateResponse, body: &Value, toolbox: &Toolbox) -> Map<String, Value> {
    let mut echo: Map<String, Value> = ECHOED
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), body.get(name).filter(|value| !value.is_null())?.clone())))
        .collect();
    // None is made: the reasoning itself is shown.
    if let Some(summary) = echo.get_mut("reasoning").and_then(|reasoning| reasoning.get_mut("summary")) {
        *summary = Value::Null;
    }
    // What the model does not see is repeated all the same.
    let is_plain = |all: &&Vec<Value>| all.len() == toolbox.tools.len() && toolbox.shapes.is_empty();
    if let Some(all) = request.tools.as_ref().filter(|all| !is_plain(all)) {
        echo.insert("tools".to_owned(), all.iter().cloned().map(tools::declared_whole).collect());
    }
    echo
}

/// The client's labels, and what of its request means nothing here.
fn noted(request: &CreateResponse, ignored_tools: Noted, unheld_tools: Noted) -> Map<String, Value> {
    let contents = match &request.input {
        Some(TextOr::List(list)) => list.as_slice(),
        _ => &[],
    };
    // A model's own parts that nobody knows were made elsewhere.
    let asked = contents.iter().filter(|item| item.role.as_deref().is_some_and(|role| role != "assistant"));
    let parts = input::unknown_parts(asked.map(|item| item.content.as_ref()));
    let items = input::unknown_kinds(request.input.as_ref());
    with_notes(
        request.metadata.clone().unwrap_or_default(),
        [(IGNORED_TOOLS, ignored_tools), (IGNORED_ITEMS, items), (IGNORED_PARTS, parts), (UNHELD_TOOLS, unheld_tools)],
    )
}

/// A client's labels with those that say what is left out.
pub(crate) fn with_notes<const N: usize>(
    mut labels: Map<String, Value>,
    notes: [(&str, Noted); N],
) -> Map<String, Value> {
    for (label, kinds) in notes.into_iter().filter(|(_, kinds)| !kinds.0.is_empty()) {
        labels.insert(label.to_owned(), kinds.0.join(", ").into());
    }
    labels
}

/// The core's request for the body of a chat completion or of a response, whichever it is, to be rendered only.
pub(crate) fn to_render(model: &ModelInfo, seal: Option<&Seal>, body: &Value) -> Result<Create, Reject> {
    // What is not rendered, such as how to sample, is checked as well: the answer is for a request that works.
    if body.get("messages").is_some_and(|messages| !messages.is_null()) {
        let body = &super::openai::functions::with_tools(body.clone())?;
        return super::openai::chat::core_request(model, &decode(body)?, body);
    }
    let request: CreateResponse = input::decode_with_items(body, "input")?;
    for (name, given) in [
        ("previous_response_id", request.previous_response_id.is_some()),
        ("conversation", request.conversation.is_some()),
    ] {
        if given {
            return Err(invalid(name, format!("{name} is not taken here; send the whole transcript as input")));
        }
    }
    let mut create = create(model, Known { seal, referred: None }, &request, body, &Toolbox::default())?;
    let asked: Tokenize = decode(body)?;
    create.config.prompt_end =
        input::prompt_end(asked.add_generation_prompt, asked.continue_final_message, &create.input)?;
    Ok(create)
}

/// A conversation that begins with these items.
pub(crate) fn open(who: &Identity, items: Vec<Item>) -> Open {
    let tenant = tenant(who).map(str::to_owned);
    Open { principal: who.principal.clone(), tenant, items, ..Open::default() }
}

/// The tenant, unless it is everybody's.
pub(crate) fn tenant(who: &Identity) -> Option<&str> {
    Some(who.tenant.as_str()).filter(|tenant| *tenant != DEFAULT_TENANT)
}

/// Refuses what its answer cannot be held to, away from the async threads. `before` are the tools that items of earlier
/// turns brought.
pub(crate) async fn check_constraint(app: &App, create: &Create, body: &Value, before: &Toolbox) -> Result<(), Reject> {
    if create.config.constraint.is_none() {
        return Ok(());
    }
    let model = app.engine(Some(&create.config.model))?.model().clone();
    let params = decode::<GenerationParams>(body)?;
    let config = as_begun(create, before);
    let checked = offload(move || constraint::check(&model, &config, &params)).await;
    checked.unwrap_or_else(|_| Err(Reject::new(Code::Internal, "checking the answer's form failed")))
}

/// The settings of a response as the core will have them, as far as tools go.
pub(crate) fn as_begun(create: &Create, before: &Toolbox) -> ResponseConfig {
    let mut config = create.config.clone();
    let known = |name: &str| create.config.tools.iter().any(|tool| tool.name == name);
    config.tools.extend(before.tools.iter().filter(|tool| !known(&tool.name)).cloned());
    config.take_tools(create.input.iter());
    config
}

/// The tools that the turns of a conversation brought.
pub(crate) fn tools_before(state: Option<&State>) -> Toolbox {
    let turns = state.iter().flat_map(|state| &state.responses);
    brought(turns.flat_map(|turn| &turn.input).chain(state.iter().flat_map(|state| &state.staged)))
}

/// What came of a request for a response.
pub(crate) enum Done {
    /// It was created; the reader stands in front of it.
    Created { id: ResponseId, handle: ConversationHandle, reader: Box<Reader> },
    /// The key had been used before; this was its answer.
    Replay(KeyedAnswer),
}

/// Creates a response wherever the request wants it. The key is looked up before anything of the state.
pub(crate) async fn perform(
    app: &App,
    principal: &Identity,
    request: &CreateResponse,
    body: &Value,
    key: Option<String>,
) -> Result<Done, Reject> {
    check(request, body)?;
    let conversation = request.conversation.as_ref();
    let conversation = conversation.map(|it| conversation_id(it.id()).map_err(of_conversation)).transpose()?;
    let key = Key::new(principal, conversation, Operation::Create, key, fingerprint(body, None));
    let claim = match claim(app, key.as_ref())? {
        Claimed::Fresh(claim) => claim,
        Claimed::Replay(answer) => return Ok(Done::Replay(answer)),
    };
    let model = app.engine(request.model.as_deref())?.model();
    // Where there is nothing to continue, that is said when it is tried.
    let behind = continues(app, principal, request).await.ok().flatten();
    let before = tools_before(behind.as_ref());
    let seal = app.seal.of(principal);
    let referred = references::of_input(app, principal, request.input.as_ref(), behind.as_ref()).await?;
    let create = create(model, Known { seal: Some(&seal), referred: Some(&referred) }, request, body, &before)?;
    check_constraint(app, &create, body, &before).await?;
    let id = create.response_id;
    let (handle, reader) = place(app, principal, request, create, key.as_ref(), claim).await?;
    Ok(Done::Created { id, handle, reader: Box::new(reader) })
}

/// The conversation of a response that a key's first request created.
pub(crate) async fn created_before(
    app: &App,
    principal: &str,
    conversation: ConversationId,
    response: ResponseId,
) -> Result<ConversationHandle, Reject> {
    match app.directory.of_response(response, principal).await {
        // Deleted since; or it was not stored and has just ended, and the key is free again.
        Err(reject) if reject.code == Code::ResponseNotFound => {
            app.directory.conversation(conversation, principal).await
        }
        found => found,
    }
}

/// Puts the response where the request wants it: a new conversation, the end of one, or a fork.
async fn place(
    app: &App,
    principal: &Identity,
    request: &CreateResponse,
    create: Create,
    key: Option<&Key>,
    claim: Option<KeyClaim>,
) -> Result<(ConversationHandle, Reader), Reject> {
    if let Some(conversation) = &request.conversation {
        let handle = joined(app, principal, conversation).await?;
        let reader = handle.create(create, claim).await?;
        return Ok((handle, reader));
    }
    if let Some(previous) = &request.previous_response_id {
        return continued(app, principal, previous, create, key, claim).await;
    }
    if create.input.is_empty() && create.config.purpose != Purpose::Prefill {
        return Err(invalid("input", "the input is empty; give at least one message"));
    }
    let open = open(principal, Vec::new());
    if create.config.store {
        app.directory.create_in_new(open, create, claim).await
    } else {
        app.directory.ephemeral(open, create, claim).await
    }
}

/// The conversation that a request would continue, as it would stand before the request; none for a new one.
pub(crate) async fn continues(app: &App, principal: &str, request: &CreateResponse) -> Result<Option<State>, Reject> {
    if let Some(conversation) = &request.conversation {
        let handle = joined(app, principal, conversation).await?;
        return Ok(Some(State::clone(&*handle.state().await?)));
    }
    let Some(previous) = &request.previous_response_id else { return Ok(None) };
    let unknown = || unknown_previous(previous);
    let id: ResponseId = previous.parse().map_err(|_| unknown())?;
    let handle = app.directory.of_response(id, principal).await.map_err(|_| unknown())?;
    let mut state = State::clone(&*handle.state().await?);
    let place = state.responses.iter().position(|response| response.id == id).ok_or_else(unknown)?;
    // What came behind it is another branch.
    if place + 1 < state.responses.len() {
        state.responses.truncate(place + 1);
        state.staged.clear();
        state.calls.clear();
    }
    Ok(Some(state))
}

/// The conversation that a request joins.
async fn joined(app: &App, principal: &str, named: &ConversationParam) -> Result<ConversationHandle, Reject> {
    let id = conversation_id(named.id()).map_err(of_conversation)?;
    app.directory.conversation(id, principal).await.map_err(of_conversation)
}

fn of_conversation(reject: Reject) -> Reject {
    if reject.code == Code::ConversationNotFound { reject.param("conversation") } else { reject }
}

/// The response that a request continues is not known, or not where it looked.
pub(crate) fn unknown_previous(previous: &str) -> Reject {
    let text = format!("the previous response {previous:?} is not known here; send the whole transcript as input");
    Reject::new(Code::PreviousResponseNotFound, text).param("previous_response_id")
}

/// Continues the conversation of `previous` if that is its last response; else forks it.
async fn continued(
    app: &App,
    principal: &str,
    previous: &str,
    mut create: Create,
    key: Option<&Key>,
    claim: Option<KeyClaim>,
) -> Result<(ConversationHandle, Reader), Reject> {
    let unknown = || unknown_previous(previous);
    let id: ResponseId = previous.parse().map_err(|_| unknown())?;
    let handle = match app.directory.of_response(id, principal).await {
        Err(reject) if reject.code == Code::ResponseNotFound => return Err(unknown()),
        found => found?,
    };
    let state = handle.state().await?;
    if let Some(waiting) = state.queue.iter().find(|waiting| waiting.id == id) {
        return Err(busy_with(waiting.id));
    }
    if state.unbegun.iter().any(|unbegun| unbegun.id == id) {
        // It never was part of a transcript: there is nothing to continue.
        return Err(unknown());
    }
    if state.response(id).is_none_or(|response| !response.config.store) {
        // Its object was deleted; or it can be found while it lives, but nothing that continues it could be kept.
        return Err(unknown());
    }
    if create.config.store && state.responses.last().is_some_and(|last| last.id == id) {
        create.previous = Some(id);
        match handle.create(create.clone(), claim).await {
            // Another request was faster and continued it: this one forks.
            Err(reject) if reject.code == Code::ResponseNotActive => create.previous = None,
            created => return Ok((handle, created?)),
        }
        let claim = match self::claim(app, key)? {
            Claimed::Fresh(claim) => claim,
            Claimed::Replay(_) => return Err(super::errors::in_progress(None)),
        };
        return app.directory.fork(principal, id, create, claim).await;
    }
    app.directory.fork(principal, id, create, claim).await
}

fn busy_with(id: ResponseId) -> Reject {
    let text = format!("{id} has not ended; wait for it, steer it, or cancel it first");
    Reject::new(Code::ConversationBusy, text).detail("active_id", id.to_string())
}

/// A conversation's id; what is none is not found.
pub(crate) fn conversation_id(text: &str) -> Result<ConversationId, Reject> {
    text.parse().map_err(|_| Reject::no_conversation(format_args!("{text:?}")))
}

/// A response's id; what is none is not found.
pub(crate) fn response_id(text: &str) -> Result<ResponseId, Reject> {
    text.parse().map_err(|_| Reject::no_response(format_args!("{text:?}")))
}
