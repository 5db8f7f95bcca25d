//! `/v1/tokenize`, `/v1/detokenize`, `/v1/chat/render`: what a request's prompt would be, token for token. The way is
//! a generation's, so the counts are exact.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::chat::of_messages;
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{Counting, JsonBody, decode};
use crate::api::create;
use crate::api::errors::{OpenAiError, invalid};
use crate::api::input::{self, Known};
use crate::api::references;
use crate::conversation::Reject;
use crate::engine::tokenizer::Tokenizer;
use crate::engine::{Engine, ModelInfo};
use crate::error::Code;
use crate::parse::{ReasoningFormat, ends_in_reasoning, text_ends_in_reasoning};
use crate::prompt::{Built, PromptEnd};
use crate::protocol::responses::CreateResponse;
use crate::protocol::tokenize::{Detokenize, Detokenized, RenderedChat, Tokenize, Tokenized};

/// `POST /v1/tokenize`
pub(crate) async fn tokenize(
    State(app): State<App>,
    Principal(principal): Principal,
    Counting(_permit): Counting,
    JsonBody(body): JsonBody,
) -> Result<Json<Tokenized>, OpenAiError> {
    let request: Tokenize = decode(&body)?;
    let engine = app.engine(request.model.as_deref())?.clone();
    let tokens = match (&request.prompt, has_conversation(&body)) {
        (Some(prompt), false) => {
            let (prompt, begins) = (prompt.clone(), request.add_special_tokens.unwrap_or(true));
            refuse_hopeless(engine.model(), prompt.len())?;
            let engine = engine.clone();
            app.directory.compute(move || encode(&engine.model().tokenizer, &prompt, begins)).await?
        }
        (None, true) => render(&app, &principal, &engine, &body).await?.0.tokens,
        _ => return Err(invalid("prompt", "give either prompt, a text, or messages (or input)").into()),
    };
    let model = engine.model();
    Ok(Json(Tokenized {
        count: tokens.len(),
        max_model_len: model.context_length,
        token_strs: asked_strings(&request, &model.tokenizer, &tokens),
        tokens,
    }))
}

/// `POST /v1/responses/input_tokens`: how many tokens the prompt of a response would have.
pub(crate) async fn input_tokens(
    State(app): State<App>,
    Principal(principal): Principal,
    Counting(_permit): Counting,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, OpenAiError> {
    let request: CreateResponse = input::decode_with_items(&body, "input")?;
    create::check(&request, &body)?;
    let engine = app.engine(request.model.as_deref())?.clone();
    let behind = create::continues(&app, &principal, &request).await?;
    let before = create::tools_before(behind.as_ref());
    let seal = app.seal.of(&principal);
    let referred = references::of_input(&app, &principal, request.input.as_ref(), behind.as_ref()).await?;
    let known = Known { seal: Some(&seal), referred: Some(&referred) };
    let create = create::create(engine.model(), known, &request, &body, &before)?;
    if behind.is_none() && create.input.is_empty() {
        return Err(invalid("input", "the input is empty; give at least one message").into());
    }
    let count = app.directory.count(behind, create, &engine).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": count})))
}

/// `POST /v1/chat/render`
pub(crate) async fn render_chat(
    State(app): State<App>,
    Principal(principal): Principal,
    Counting(_permit): Counting,
    JsonBody(body): JsonBody,
) -> Result<Json<RenderedChat>, OpenAiError> {
    let request: Tokenize = decode(&body)?;
    let engine = app.engine(request.model.as_deref())?.clone();
    if !has_conversation(&body) {
        return Err(invalid("messages", "messages is missing; give what would be sent for an answer").into());
    }
    let (Built { tokens, text, .. }, starts_in_reasoning) = render(&app, &principal, &engine, &body).await?;
    let model = engine.model();
    Ok(Json(RenderedChat {
        object: "chat.render",
        model: model.id.clone(),
        starts_in_reasoning,
        prompt: text,
        count: tokens.len(),
        max_model_len: model.context_length,
        token_strs: asked_strings(&request, &model.tokenizer, &tokens),
        tokens,
    }))
}

/// `POST /v1/detokenize`
pub(crate) async fn detokenize(
    State(app): State<App>,
    Counting(_permit): Counting,
    JsonBody(body): JsonBody,
) -> Result<Json<Detokenized>, OpenAiError> {
    let request: Detokenize = decode(&body)?;
    let tokenizer = &app.engine(request.model.as_deref())?.model().tokenizer;
    let size = tokenizer.vocab_size();
    if let Some(place) = request.tokens.iter().position(|&id| id as usize >= size) {
        let text = format!("tokens[{place}] is {}, but the vocabulary has {size} tokens", request.tokens[place]);
        return Err(invalid(format!("tokens[{place}]"), text).into());
    }
    Ok(Json(Detokenized { prompt: tokenizer.spell(&request.tokens) }))
}

/// Whether the answer to a prompt begins inside reasoning: its end says so, else the format.
fn starts_in_reasoning(format: ReasoningFormat, prompt: &str) -> bool {
    ends_in_reasoning(format, prompt).unwrap_or(format.starts_inside())
}

/// What is certain to be longer than the context is not worth the memory that counting takes.
pub(super) fn refuse_hopeless(model: &ModelInfo, bytes: usize) -> Result<(), Reject> {
    let tokens_min = bytes / model.tokenizer.longest_token_bytes().max(1);
    if tokens_min <= model.context_length as usize {
        return Ok(());
    }
    let text = format!(
        "the prompt has {bytes} bytes, at least {tokens_min} tokens, but the model's context holds {}; give a \
         shorter one, or parts of it",
        model.context_length
    );
    Err(Reject::new(Code::ContextLengthExceeded, text).param("prompt"))
}

fn has_conversation(body: &Value) -> bool {
    ["messages", "input"].iter().any(|name| body.get(*name).is_some_and(|value| !value.is_null()))
}

/// The prompt, and whether its answer begins inside reasoning.
async fn render(app: &App, principal: &str, engine: &Arc<dyn Engine>, body: &Value) -> Result<(Built, bool), Reject> {
    let create = create::to_render(engine.model(), Some(&app.seal.of(principal)), body)?;
    let last = create.input.last().filter(|_| create.config.prompt_end == PromptEnd::Message);
    let reasoning = engine.model().reasoning;
    let inside = last.map(|last| text_ends_in_reasoning(reasoning, &last.text()));
    let built = app.directory.preview(None, create, engine).await;
    let built = if body["messages"].is_null() { built? } else { built.map_err(of_messages)? };
    let starts_in_reasoning = inside.unwrap_or_else(|| starts_in_reasoning(reasoning, &built.text));
    Ok((built, starts_in_reasoning))
}

pub(super) fn encode(tokenizer: &Tokenizer, text: &str, begins: bool) -> Vec<u32> {
    let mut tokens = tokenizer.encode(text, true);
    if let Some(bos) = tokenizer.bos().filter(|bos| begins && tokenizer.add_bos() && tokens.first() != Some(bos)) {
        tokens.insert(0, bos);
    }
    tokens
}

fn asked_strings(request: &Tokenize, tokenizer: &Tokenizer, tokens: &[u32]) -> Option<Vec<String>> {
    let text = |&id: &u32| tokenizer.spell(&[id]);
    (request.return_token_strs == Some(true)).then(|| tokens.iter().map(text).collect())
}

#[cfg(test)]
mod tests {
    use super::starts_in_reasoning;

    #[test]
    fn an_answer_begins_in_reasoning_where_its_format_does_unless_the_prompt_says_otherwise() {
        for (format, prompt, inside) in [
            ("deepseek_r1", "<|assistant|>", true),
            ("deepseek_r1", "<|assistant|><think>\n\n</think>\n\n", false),
            ("qwen3", "<|assistant|>", false),
            ("qwen3", "<|assistant|><think>\n", true),
            ("none", "<|assistant|><think>\n", false),
        ] {
            assert_eq!(starts_in_reasoning(format.parse().unwrap(), prompt), inside, "{format} {prompt}");
        }
    }
}
