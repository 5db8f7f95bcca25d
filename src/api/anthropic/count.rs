//! `/v1/messages/count_tokens`: how many tokens the prompt of a message would have. The way is a generation's, so the
//! count is exact; no engine is asked.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;

use super::messages::preview;
use crate::api::App;
use crate::api::body::{Admitted, JsonBody};
use crate::api::errors::OpenAiError;
use crate::protocol::messages::TokenCount;

/// `POST /v1/messages/count_tokens`
pub(crate) async fn count_tokens(
    State(app): State<App>,
    Admitted(_permit): Admitted,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Json<TokenCount>, OpenAiError> {
    Ok(Json(TokenCount { input_tokens: preview(&app, &headers, &body).await? }))
}
