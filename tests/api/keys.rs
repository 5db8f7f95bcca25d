//! API keys: who is let in, and who is not any more.

use midstream::access::{Gate, Key, KeyFile, Limits, NewKey, Secret, create, revoke};
use midstream::ids::FreshIds;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::{Answer, Server, Setup, Socket};

/// A server that asks for keys, and their file.
pub(crate) struct Guarded {
    pub(crate) server: Server,
    folder: TempDir,
    gate: Gate,
}

impl Guarded {
    /// Without a key nobody is let in.
    pub(crate) async fn start() -> Self {
        Self::start_with(Setup::default()).await
    }

    pub(crate) async fn start_with(setup: Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        KeyFile::of(folder.path()).change(|_| Ok(())).unwrap();
        let gate = Gate::open(folder.path()).unwrap();
        let server = Server::start_with(Setup { gate: gate.clone(), ..setup }).await;
        Self { server, folder, gate }
    }

    /// Gives out a key.
    pub(crate) fn key(&self, new: NewKey) -> (String, Key) {
        let secret = Secret::draw().unwrap();
        let created = self.file().change(|keys| create(keys, new, &secret, 7, &mut FreshIds::random())).unwrap();
        (secret.reveal().to_owned(), created)
    }

    pub(crate) fn named(&self, name: &str) -> String {
        self.key(NewKey { name: name.to_owned(), ..NewKey::default() }).0
    }

    pub(crate) fn limited(&self, name: &str, limits: Limits) -> String {
        self.key(NewKey { name: name.to_owned(), limits, ..NewKey::default() }).0
    }

    fn file(&self) -> KeyFile {
        KeyFile::of(self.folder.path())
    }

    fn revoke(&self, name: &str) {
        self.file().change(|keys| revoke(keys, name)).unwrap();
    }

    pub(crate) fn request(&self, key: &str, method: Method, path: &str) -> RequestBuilder {
        self.server.request(method, path).bearer_auth(key)
    }

    pub(crate) async fn ask(&self, key: &str, method: Method, path: &str, body: &Value) -> Answer {
        Answer::read(self.request(key, method, path).json(body).send().await.unwrap()).await
    }

    pub(crate) async fn get(&self, key: &str, path: &str) -> Answer {
        Answer::read(self.request(key, Method::GET, path).send().await.unwrap()).await
    }

    pub(crate) async fn post(&self, key: &str, path: &str, body: Value) -> Answer {
        self.ask(key, Method::POST, path, &body).await
    }

    /// A socket, or the status of what refused it.
    pub(crate) async fn socket(&self, key: &str, path: &str) -> Result<Socket, u16> {
        let mut request = format!("ws://{}{path}", self.server.address).into_client_request().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        match tokio_tungstenite::connect_async(request).await {
            Ok((socket, _)) => Ok(Socket(socket)),
            Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => Err(answer.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Every route of the server, as its router writes them.
pub(crate) fn routes() -> Vec<String> {
    let router = include_str!("../../src/api/mod.rs");
    let starts = router.split(".route(").skip(1);
    let paths = starts.map(|rest| rest.split('"').nth(1).unwrap().to_owned());
    let paths: Vec<_> = paths.collect();
    assert!(paths.len() > 20, "the router is written in another way: {paths:?}");
    paths
}

#[tokio::test]
async fn every_route_asks_for_a_key_but_those_that_say_nothing_of_anybody() {
    const OPEN: [&str; 5] = ["/", "/api/hello", "/healthz", "/readyz", "/openapi.json"];
    let guarded = Guarded::start().await;
    let key = guarded.named("ann");
    let mut asked = 0;
    for route in routes() {
        if OPEN.contains(&route.as_str()) {
            continue;
        }
        let path = route.replace("{*id}", "x").replace(['{', '}'], "");
        for method in [Method::GET, Method::POST, Method::DELETE] {
            for shown in [None, Some("ms_wrong")] {
                let request = guarded.server.request(method.clone(), &path).body("{}");
                let request = if let Some(shown) = shown { request.bearer_auth(shown) } else { request };
                let answer = Answer::read(request.send().await.unwrap()).await;
                let code = answer.body.pointer("/error/code").or(answer.body.pointer("/error/details/error_code"));
                assert_eq!((answer.status, code), (401, Some(&json!("invalid_api_key"))), "{method} {path}");
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
                asked += 1;
            }
        }
        let let_in = guarded.get(&key, &path).await;
        assert_ne!(let_in.status, 401, "{path}");
    }
    assert!(asked > 100);
    for path in ["/healthz", "/readyz", "/api/hello", "/openapi.json"] {
        assert_eq!(guarded.server.get(path).await.status, 200, "{path}");
    }
    let head = guarded.server.request(Method::HEAD, "/").send().await.unwrap();
    assert_eq!(head.status(), 200);
}

#[tokio::test]
async fn a_key_is_taken_from_either_header_and_a_refusal_has_the_form_of_the_api() {
    let guarded = Guarded::start().await;
    let key = guarded.named("ann");
    for (name, value) in [("authorization", format!("Bearer {key}")), ("x-api-key", key.clone())] {
        let request = guarded.server.request(Method::GET, "/v1/models").header(name, value);
        assert_eq!(request.send().await.unwrap().status(), 200, "{name}");
    }
    let answer = guarded.server.post("/v1/responses", json!({"input": "hi"})).await;
    assert_eq!(answer.assert_error(401, "invalid_api_key")["type"], "authentication_error");
    let answer = guarded.server.post("/v1/messages", json!({"messages": []})).await;
    assert_eq!((answer.status, &answer.body["error"]["type"]), (401, &json!("authentication_error")));
    assert_eq!(answer.body["type"], "error");
    let answer = guarded.server.get("/v1/interventions/steer_1").await;
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    answer.assert_error(401, "invalid_api_key");
    assert_eq!(guarded.socket("ms_wrong", "/v1/responses").await.err(), Some(401));
}

#[tokio::test]
async fn a_key_that_is_revoked_opens_nothing_and_ends_what_it_opened() {
    let guarded = Guarded::start().await;
    let (key, other) = (guarded.named("ann"), guarded.named("bob"));
    let conversation = guarded.post(&key, "/v1/conversations", json!({})).await.id();
    let events = format!("/v1/conversations/{conversation}/events");
    let mut stream = guarded.server.stream(guarded.request(&key, Method::GET, &events)).await;
    stream.next().await.unwrap();
    let mut own = guarded.socket(&key, &format!("/v1/conversations/{conversation}/ws")).await.unwrap();
    let mut openais = guarded.socket(&key, "/v1/responses").await.unwrap();
    let mut untouched = guarded.socket(&other, "/v1/responses").await.unwrap();

    guarded.revoke("ann");
    guarded.get(&key, "/v1/models").await.assert_error(401, "invalid_api_key");
    // It would never end by itself.
    stream.rest().await;
    for socket in [&mut own, &mut openais] {
        let last = socket.until_type("error").await;
        assert_eq!((&last["status"], &last["error"]["code"]), (&json!(401), &json!("invalid_api_key")));
        assert_eq!(socket.close_code().await, 1008);
    }
    untouched.send(json!({"type": "response.create", "input": "hi"})).await;
    untouched.until_type("response.completed").await;
}

#[tokio::test]
async fn the_first_key_locks_a_server_that_runs_and_may_own_what_was_there_before() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::open(folder.path()).unwrap();
    let server = Server::start_with(Setup { gate: gate.clone(), ..Setup::default() }).await;
    let mut socket = server.responses_socket().await;
    let conversation = server.conversation().await;
    let guarded = Guarded { server, folder, gate };
    let new = NewKey { name: "me".to_owned(), principal: Some("local".to_owned()), ..NewKey::default() };
    let (me, stranger) = (guarded.key(new).0, guarded.named("other"));
    let path = format!("/v1/conversations/{conversation}");
    guarded.server.get(&path).await.assert_error(401, "invalid_api_key");
    assert_eq!(socket.until_type("error").await["status"], 401, "what was open closes");
    assert_eq!(guarded.get(&me, &path).await.status, 200);
    guarded.get(&stranger, &path).await.assert_error(404, "conversation_not_found");
    guarded.gate.reload();
    assert_eq!(guarded.get(&me, &path).await.status, 200);
}
