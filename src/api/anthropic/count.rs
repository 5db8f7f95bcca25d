//! `/v1/messages/count_tokens`: how many tokens the prompt of a message would have. The way is a generation's, so the
//! count is exact; no engine is asked.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;

use super::edits;
use super::messages::version;
use super::request::{self, Prepared};
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{Counting, JsonBody, decode};
use crate::api::errors::OpenAiError;
use crate::protocol::messages::{MessagesRequest, TokenCount, UneditedCount};

/// `POST /v1/messages/count_tokens`
pub(crate) async fn count_tokens(
    State(app): State<App>,
    Principal(principal): Principal,
    Counting(_permit): Counting,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Json<TokenCount>, OpenAiError> {
    let request: MessagesRequest = decode(&body)?;
    let engine = app.engine(request.model.as_deref())?;
    let strict = request::is_strict(version(&headers));
    let Prepared { mut create, .. } =
        request::prepare(engine.model(), Some(&app.seal.of(&principal)), &request, &body, strict)?;
    let edited = edits::apply(&app, engine, &request, &mut create).await?;
    let input_tokens = edits::count(&app, engine, &create).await?;
    let context_management =
        edited.map(|edited| UneditedCount { original_input_tokens: edited.original_tokens.unwrap_or(input_tokens) });
    Ok(Json(TokenCount { input_tokens, context_management }))
}
