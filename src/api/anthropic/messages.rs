//! `/v1/messages`: every request brings its whole transcript, and its conversation lives as long as it does.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::future::join;
use serde_json::Value;

use super::answer::Shown;
use super::edits;
use super::marks::Marked;
use super::request::{self, Prepared};
use super::stream::MessageForm;
use crate::access::Identity;
use crate::api::App;
use crate::api::auth::Principal;
use crate::api::body::{Admitted, JsonBody, decode};
use crate::api::create::{self, Claimed, Key};
use crate::api::errors::{OpenAiError, RequestId, invalid};
use crate::api::idempotency;
use crate::api::openai::choices;
use crate::conversation::{Reject, Toolbox};
use crate::protocol::messages::{AppliedEdits, MessagesRequest};
use crate::store::Operation;

/// `POST /v1/messages`
pub(crate) async fn create(
    State(app): State<App>,
    Principal(principal): Principal,
    Admitted(mut permit): Admitted,
    Extension(RequestId(request_id)): Extension<RequestId>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Response, OpenAiError> {
    let request: MessagesRequest = decode(&body)?;
    let mut form = form(&app, &request, request_id);
    let fingerprint = idempotency::fingerprint(&body, Some("messages"));
    let key = Key::new(&principal, None, Operation::Create, idempotency::key(&headers)?, fingerprint);
    let claim = match create::claim(&app, key.as_ref())? {
        Claimed::Fresh(claim) => claim,
        Claimed::Replay(answer) => {
            let first = choices::first(&app, &principal, answer, form.streams).await?;
            // Where it cannot be told any more, the answer is the first one all the same.
            if let Ok((edits, marked)) = told_again(&app, &principal, &request, &body, &headers).await {
                (form.shown.edits, form.shown.marked) = (edits, marked);
            }
            return choices::again(&app, first, form, permit).await;
        }
    };
    if request.max_tokens.is_none() {
        return Err(invalid("max_tokens", "max_tokens is missing; it says how many tokens the answer may have").into());
    }
    let engine = app.engine(request.model.as_deref())?;
    let strict = request::is_strict(version(&headers));
    let prepared = request::prepare(engine.model(), Some(&app.seal.of(&principal)), &request, &body, strict)?;
    let Prepared { mut create, params, marks } = prepared;
    create::check_constraint(&app, &create, &params, &Toolbox::default()).await.map_err(request::in_own_words)?;
    let edited = edits::apply(&app, engine, &request, &mut create).await?;
    form.shown.edits = edited.map(|edited| edited.applied);
    let counted = create.clone();
    let asking = choices::ask(&app, &principal, vec![create], claim, &mut permit);
    // Nobody waits for the count: the prompt is being computed meanwhile. What cannot be rendered says so there.
    let (asked, marked) = join(asking, marks.keep(&app, &principal, engine, &counted)).await;
    form.shown.marked = marked.unwrap_or_default();
    choices::answer(&app, asked?, form, permit).await
}

/// What an answer tells of its request, once more: what was left out of the prompt, and what of it is marked.
async fn told_again(
    app: &App,
    who: &Identity,
    request: &MessagesRequest,
    body: &Value,
    headers: &HeaderMap,
) -> Result<(Option<AppliedEdits>, Marked), Reject> {
    let engine = app.engine(request.model.as_deref())?;
    let (seal, strict) = (app.seal.of(who), request::is_strict(version(headers)));
    let Prepared { mut create, marks, .. } = request::prepare(engine.model(), Some(&seal), request, body, strict)?;
    let edited = edits::apply(app, engine, request, &mut create).await?;
    Ok((edited.map(|edited| edited.applied), marks.count(app, engine, &create).await?))
}

/// The version that the client says it speaks.
pub(super) fn version(headers: &HeaderMap) -> Option<&str> {
    headers.get("anthropic-version")?.to_str().ok()
}

/// What the client wants of the answer.
fn form(app: &App, request: &MessagesRequest, request_id: String) -> MessageForm {
    let display = request.thinking.as_ref().and_then(|thinking| thinking.display.as_deref());
    let dispatches = request.stream_options.and_then(|options| options.include_dispatch);
    let dispatches = dispatches.unwrap_or(app.surface.dispatch);
    let shown = Shown { omits_thinking: display == Some("omitted"), dispatches, request_id, ..Shown::default() };
    MessageForm { streams: request.stream == Some(true), shown }
}
