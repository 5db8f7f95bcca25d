//! What is answered from the first moment on, while models are loaded and the journal is opened: probes at once, and
//! whoever else comes once there are routes, or with the advice to come back.
//!
//! Knows no route but the probes. **Invariant:** once the routes are there, every request is theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::{any, get};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::errors::{NativeError, OWN_ROUTES, OpenAiError, in_the_form_of_the_route};
use super::operations::{healthz, refusal};
use super::{Phase, with_request_id};
use crate::conversation::Reject;
use crate::engine::LoadProgress;
use crate::error::Code;

/// How long a request waits for the routes: a client that comes back right after a restart need not try again.
const START_WAIT: Duration = Duration::from_secs(10);

/// What a start has to do, and how far that is.
#[derive(Clone, Debug, Default)]
pub struct StartProgress {
    models: Vec<(String, LoadProgress)>,
    is_journal_open: Arc<AtomicBool>,
}

impl StartProgress {
    /// These models are to be loaded.
    pub fn of<'a>(models: impl IntoIterator<Item = &'a str>) -> Self {
        let models = models.into_iter().map(|id| (id.to_owned(), LoadProgress::default())).collect();
        Self { models, ..Self::default() }
    }

    /// Where the loading of a model is told.
    pub fn of_model(&self, id: &str) -> LoadProgress {
        let found = self.models.iter().find(|(name, _)| name == id);
        found.map(|(_, progress)| progress.clone()).unwrap_or_default()
    }

    /// The journal is open.
    pub fn journal_opened(&self) {
        self.is_journal_open.store(true, Ordering::Relaxed);
    }

    fn shown(&self) -> Value {
        let journal = if self.is_journal_open.load(Ordering::Relaxed) { "open" } else { "opening" };
        // In hundredths: nobody wants more.
        let share = |progress: &LoadProgress| (progress.share() * 100.0).floor() / 100.0;
        let model = |(id, progress): &(String, LoadProgress)| json!({"id": id, "loaded": share(progress)});
        json!({"journal": journal, "models": self.models.iter().map(model).collect::<Vec<_>>()})
    }
}

/// How far the start is.
enum Stage {
    Starting,
    Serving(Router),
    /// It was told to stop before it served.
    Stopping,
}

/// Stands in front of the routes.
#[derive(Clone)]
pub struct Entrance {
    stage: Arc<watch::Sender<Stage>>,
    progress: StartProgress,
}

impl Entrance {
    /// Nothing is served yet.
    pub fn new(progress: StartProgress) -> Self {
        Self { stage: Arc::new(watch::Sender::new(Stage::Starting)), progress }
    }

    /// What is told to whoever asks how far the start is.
    pub fn progress(&self) -> &StartProgress {
        &self.progress
    }

    /// From now on every request goes to these routes; those that wait do too.
    pub fn open(&self, routes: Router) {
        self.stage.send_replace(Stage::Serving(routes));
    }

    /// There will be no routes any more.
    pub fn close(&self) {
        self.stage.send_replace(Stage::Stopping);
    }

    /// What connections are served with.
    pub fn router(&self) -> Router {
        let refuse = || any(refuse);
        let own = OWN_ROUTES.iter().fold(Router::new(), |routes, path| routes.route(path, refuse()));
        let waiting = own
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .fallback(refuse())
            .layer(from_fn(in_the_form_of_the_route))
            .layer(from_fn(with_request_id))
            .with_state(self.clone());
        Router::new().fallback(pass).with_state((self.clone(), waiting))
    }

    fn why_not(&self) -> Reject {
        match &*self.stage.borrow() {
            Stage::Stopping => refusal(Phase::Draining),
            Stage::Starting | Stage::Serving(_) => None,
        }
        .unwrap_or_else(|| {
            let text = "the server is starting: it loads its models and opens its journal; try again soon";
            Reject::new(Code::Recovering, text)
        })
    }
}

/// Hands a request to the routes, or to those of a server that has none yet.
async fn pass(State((entrance, waiting)): State<(Entrance, Router)>, request: Request) -> Response {
    if !matches!(request.uri().path(), "/healthz" | "/readyz") {
        let mut stages = entrance.stage.subscribe();
        let moved_on = stages.wait_for(|stage| !matches!(stage, Stage::Starting));
        // Whether the time ran out or not, the stage now decides.
        let _ = timeout(START_WAIT, moved_on).await.map(drop);
    }
    let routes = match &*entrance.stage.borrow() {
        Stage::Serving(routes) => routes.clone(),
        Stage::Starting | Stage::Stopping => waiting,
    };
    let Ok(response) = TowerToHyperService::new(routes).call(request).await;
    response
}

async fn readyz(State(entrance): State<Entrance>) -> NativeError {
    NativeError(entrance.why_not().detail("starting", entrance.progress.shown()))
}

async fn refuse(State(entrance): State<Entrance>) -> OpenAiError {
    OpenAiError(entrance.why_not())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::http::StatusCode;

    /// Asks, and gives status, when to come back, and the body.
    async fn ask(router: &Router, path: &str) -> (StatusCode, Option<String>, Value) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let Ok(response) = TowerToHyperService::new(router.clone()).call(request).await;
        let retry_after = response.headers().get("retry-after").map(|text| text.to_str().unwrap().to_owned());
        assert!(response.headers().contains_key("x-request-id") || response.status() == StatusCode::IM_A_TEAPOT);
        let status = response.status();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, retry_after, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_starts_lives_is_not_ready_and_sends_others_away_with_a_code_of_their_routes_form() {
        let entrance = Entrance::new(StartProgress::of(["small", "large"]));
        let router = entrance.router();
        assert_eq!(ask(&router, "/healthz").await.0, StatusCode::OK);
        let (status, retry_after, body) = ask(&router, "/readyz").await;
        assert_eq!((status.as_u16(), retry_after.as_deref()), (503, Some("1")));
        let models = json!([{"id": "small", "loaded": 0.0}, {"id": "large", "loaded": 0.0}]);
        assert_eq!(body["error"]["code"], "recovering");
        assert_eq!(body["starting"], json!({"journal": "opening", "models": models}));
        entrance.progress().journal_opened();
        assert_eq!(ask(&router, "/readyz").await.2["starting"]["journal"], "open");
        for (path, code) in [
            ("/v1/models", "/error/code"),
            ("/nothing", "/error/code"),
            ("/v1/conversations/conv_1/events", "/error/code"),
            ("/v1/messages", "/error/details/error_code"),
        ] {
            let (status, retry_after, body) = ask(&router, path).await;
            assert!(matches!(status.as_u16(), 503 | 529), "{path}: {status}");
            assert_eq!((retry_after.as_deref(), body.pointer(code)), (Some("1"), Some(&json!("recovering"))), "{path}");
        }
        let problem = ask(&router, "/v1/conversations/conv_1/events").await.2;
        assert_eq!(problem["status"], 503, "our own routes refuse with a problem");
    }

    #[tokio::test]
    async fn who_came_too_early_is_answered_by_the_routes_once_they_are_there_and_by_nobody_else_from_then_on() {
        let entrance = Entrance::new(StartProgress::default());
        let router = entrance.router();
        let early = tokio::spawn({
            let router = router.clone();
            async move { ask(&router, "/v1/models").await.0 }
        });
        tokio::task::yield_now().await;
        entrance.open(Router::new().fallback(async || StatusCode::IM_A_TEAPOT));
        assert_eq!(early.await.unwrap(), StatusCode::IM_A_TEAPOT);
        for path in ["/healthz", "/readyz", "/v1/models"] {
            assert_eq!(ask(&router, path).await.0, StatusCode::IM_A_TEAPOT, "{path}");
        }
    }

    #[tokio::test]
    async fn who_waits_is_told_when_the_start_is_given_up() {
        let entrance = Entrance::new(StartProgress::default());
        let router = entrance.router();
        let early = tokio::spawn(async move { ask(&router, "/v1/models").await });
        tokio::task::yield_now().await;
        entrance.close();
        let (status, _, body) = early.await.unwrap();
        assert_eq!((status.as_u16(), &body["error"]["code"]), (503, &json!("draining")));
    }
}
