//! `/v1/completions`: text that goes on behind a prompt as it is given, without a chat template. Each choice is the
//! response of a conversation that lives as long as its request; nothing of its text is read as reasoning or as calls.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;

use super::choices;
use super::completions_form::{CompletionForm, Count};
use super::tokenize::{encode, refuse_hopeless};
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{Admitted, JsonBody, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{OpenAiError, invalid};
use crate::api::idempotency;
use crate::api::input;
use crate::api::unserved;
use crate::api::{constraint, sampling};
use crate::conversation::{ChoiceOf, Create, Extras, Formats, Item, Reject, ResponseConfig, Toolbox, ToolsAllowed};
use crate::engine::{Engine, Medium, ModelInfo};
use crate::ids::{FreshIds, ItemId, ResponseId};
use crate::parse::{ReasoningFormat, ToolFormat};
use crate::prompt::{PromptEnd, Role};
use crate::protocol::completions::CompletionRequest;
use crate::protocol::sampling::GenerationParams;
use crate::store::Operation;

/// Most choices of all prompts of one request.
const CHOICES_MAX: usize = 128;
/// Tokens of an answer where the request says nothing, as OpenAI has it.
const MAX_TOKENS: u32 = 16;
/// Most of the likeliest tokens that are told.
const LOGPROBS_MAX: u8 = 20;

/// A prompt as it is given.
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// `POST /v1/completions`
pub(crate) async fn create(
    State(app): State<App>,
    Principal(principal): Principal,
    Admitted(mut permit): Admitted,
    headers: HeaderMap,
    JsonBody(asked): JsonBody,
) -> Result<Response, OpenAiError> {
    let request: CompletionRequest = decode(&asked)?;
    let body = generation(&request, &asked)?;
    unserved::refuse(&body)?;
    let engine = app.engine(request.model.as_deref())?.clone();
    let prompts = prompts(request.prompt.as_ref(), engine.model())?;
    let count = check_choices(&request, prompts.len())?;
    let key = idempotency::key(&headers)?;
    if key.is_some() && prompts.len() * count.made as usize > 1 {
        let text = "a request with an Idempotency-Key is given one choice: leave the key out, or ask for one";
        return Err(invalid("n", text).into());
    }
    let fingerprint = idempotency::fingerprint(&asked, Some("completions"));
    let key = Key::new(&principal, None, Operation::Create, key, fingerprint);
    let claimed = create::claim(&app, key.as_ref())?;
    let prompts = encoded(&app, &engine, prompts, request.add_special_tokens.unwrap_or(true)).await?;
    let form = CompletionForm::new(&request, count, &prompts, &engine.model().tokenizer);
    let claim = match claimed {
        Claimed::Fresh(claim) => claim,
        Claimed::Replay(answer) => return choices::replay(&app, &principal, answer, form, permit).await,
    };
    let creates = creates(engine.model(), &request, &body, prompts, count)?;
    if let Some(create) = creates.first() {
        create::check_constraint(&app, create, &body, &Toolbox::default()).await?;
    }
    let asked = choices::ask(&app, &principal, creates, claim, &mut permit).await?;
    choices::answer(&app, asked, form, permit).await.map_err(|OpenAiError(reject)| of_prompt(reject).into())
}

/// What is said of the input is about the prompt here.
fn of_prompt(reject: Reject) -> Reject {
    let param = reject.param.map(|param| if param == "input" { "prompt".to_owned() } else { param });
    Reject { param, ..reject }
}

/// The fields that say how is generated, in the words of the other routes.
fn generation(request: &CompletionRequest, asked: &Value) -> Result<Value, Reject> {
    if request.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(invalid("suffix", "suffix is not supported by this version: give the text in front as the prompt"));
    }
    let mut body = asked.clone();
    let Some(fields) = body.as_object_mut() else { return Ok(body) };
    for name in ["prompt", "logprobs", "top_logprobs", "tools", "tool_choice", "functions"] {
        fields.shift_remove(name);
    }
    if let Some(count) = request.logprobs {
        if count > LOGPROBS_MAX {
            let text = format!("logprobs is {count}, but must be between 0 and {LOGPROBS_MAX}");
            return Err(invalid("logprobs", text));
        }
        if request.echo == Some(true) {
            let text = "logprobs with echo would tell of the prompt's tokens, which are not weighed; leave out one";
            return Err(invalid("logprobs", text));
        }
        fields.insert("logprobs".to_owned(), true.into());
        fields.insert("top_logprobs".to_owned(), count.into());
    }
    Ok(body)
}

/// How many choices each prompt is given.
fn check_choices(request: &CompletionRequest, prompts: usize) -> Result<Count, Reject> {
    let shown = request.n.unwrap_or(1);
    let made = request.best_of.unwrap_or(shown);
    for (name, asked) in [("n", shown), ("best_of", made)] {
        let all = prompts.saturating_mul(asked as usize);
        if !(1..=CHOICES_MAX).contains(&all) {
            let text = format!("{name} and prompt ask for {all} choices, but between 1 and {CHOICES_MAX} are made");
            return Err(invalid(name, text));
        }
    }
    if made < shown {
        return Err(invalid("best_of", format!("best_of is {made}, but must be at least n, which is {shown}")));
    }
    let count = Count { shown, made };
    if count.chooses() && request.stream == Some(true) {
        let text = "best_of chooses among whole answers, which no stream can: leave stream out, or set best_of to n";
        return Err(invalid("best_of", text));
    }
    Ok(count)
}

/// The prompts; without any, an empty text.
fn prompts(given: Option<&Value>, model: &ModelInfo) -> Result<Vec<Prompt>, Reject> {
    let wrong = |at: String| {
        let text = format!("{at} must be a text, token ids, or a list of either");
        invalid(at, text)
    };
    match given {
        None | Some(Value::Null) => Ok(vec![Prompt::Text(String::new())]),
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text.clone())]),
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => {
            Ok(vec![Prompt::Tokens(tokens(list, "prompt", model)?)])
        }
        Some(Value::Array(list)) if !list.is_empty() => {
            let prompt = |(place, prompt): (usize, &Value)| match prompt {
                Value::String(text) => Ok(Prompt::Text(text.clone())),
                Value::Array(list) => Ok(Prompt::Tokens(tokens(list, &format!("prompt[{place}]"), model)?)),
                _ => Err(wrong(format!("prompt[{place}]"))),
            };
            list.iter().enumerate().map(prompt).collect()
        }
        Some(_) => Err(wrong("prompt".to_owned())),
    }
}

fn tokens(list: &[Value], at: &str, model: &ModelInfo) -> Result<Vec<u32>, Reject> {
    let size = model.tokenizer.vocab_size();
    let token = |(place, id): (usize, &Value)| {
        let known = id.as_u64().filter(|id| *id < size as u64);
        known.map(|id| id as u32).ok_or_else(|| {
            let at = format!("{at}[{place}]");
            invalid(at.clone(), format!("{at} is {id}, but must be a token's id, below {size}"))
        })
    };
    list.iter().enumerate().map(token).collect()
}

/// The prompts as tokens. Of nothing no text can go on: then it begins as all texts of the model do.
async fn encoded(
    app: &App,
    engine: &Arc<dyn Engine>,
    prompts: Vec<Prompt>,
    begins: bool,
) -> Result<Vec<Arc<[u32]>>, Reject> {
    for prompt in &prompts {
        if let Prompt::Text(text) = prompt {
            refuse_hopeless(engine.model(), text.len())?;
        }
    }
    let engine = engine.clone();
    let encode = move || {
        let tokenizer = &engine.model().tokenizer;
        let prompt = |prompt| {
            let tokens = match prompt {
                Prompt::Text(text) => encode(tokenizer, &text, begins),
                Prompt::Tokens(tokens) => tokens,
            };
            let first = || tokenizer.bos().or(tokenizer.eos());
            if tokens.is_empty() { first().into_iter().collect() } else { tokens }
        };
        prompts.into_iter().map(prompt).map(Arc::from).collect::<Vec<Arc<[u32]>>>()
    };
    let encoded = app.directory.compute(encode).await?;
    if encoded.iter().any(|tokens| tokens.is_empty()) {
        return Err(invalid("prompt", "the prompt is empty; give a text that goes on"));
    }
    Ok(encoded)
}

/// The core's requests, in the order of their choices.
fn creates(
    model: &ModelInfo,
    request: &CompletionRequest,
    body: &Value,
    prompts: Vec<Arc<[u32]>>,
    count: Count,
) -> Result<Vec<Create>, Reject> {
    let fresh = &mut FreshIds::random();
    let mut config = config(model, request, body, fresh)?;
    if count.chooses() {
        if model.medium == Medium::Messages {
            let text = format!("best_of: the engine of {} does not say how likely tokens were; leave it out", model.id);
            return Err(invalid("best_of", text));
        }
        config.logprobs.get_or_insert(0);
    }
    let first = ResponseId::draw(fresh);
    let several = prompts.len() > 1 || count.made > 1;
    let mut creates = Vec::with_capacity(prompts.len() * count.made as usize);
    for prompt in prompts {
        for index in 0..count.made {
            let id = if creates.is_empty() { first } else { ResponseId::draw(fresh) };
            let mut config = config.clone();
            config.choice = several.then_some(ChoiceOf { first, index });
            config.extras = Extras { prompt: Some(prompt.clone()), ..config.extras };
            // What it says is never rendered; a conversation that says nothing has no answer.
            let said = Item::message(ItemId::draw(fresh), Role::User, "");
            creates.push(Create::new(id, vec![said], config));
        }
    }
    Ok(creates)
}

fn config(
    model: &ModelInfo,
    request: &CompletionRequest,
    body: &Value,
    fresh: &mut FreshIds,
) -> Result<ResponseConfig, Reject> {
    let params: GenerationParams = decode(body)?;
    let (tool, reasoning) = (ToolFormat::NONE.name().to_owned(), ReasoningFormat::NONE.name().to_owned());
    Ok(ResponseConfig {
        sampling: sampling::sampling(&params, model, fresh)?,
        max_output_tokens: input::token_limit(request.max_tokens, "max_tokens")?.or(Some(MAX_TOKENS)),
        stop: input::stops(request.stop.as_ref())?,
        store: false,
        formats: Some(Formats { tool, reasoning, bare_calls: false }),
        prompt_end: PromptEnd::Nothing,
        logprobs: sampling::logprobs(&params)?,
        constraint: constraint::constraint(&params, &Toolbox::default(), model)?,
        priority: input::priority(body)?,
        tools_allowed: ToolsAllowed::None,
        extras: input::extras(body)?,
        price: model.price,
        ..ResponseConfig::new(&model.id, &model.fingerprint)
    })
}
