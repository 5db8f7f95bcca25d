//! What is wrong is said in JSON, with a stable code, on every route.

use midstream::api::Phase;
use reqwest::Method;
use serde_json::json;

use crate::support::{Answer, Server, Setup};

async fn send_raw(server: &Server, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    Answer::read(server.request(Method::POST, path).body(body).send().await.unwrap()).await
}

#[tokio::test]
async fn unknown_routes_and_methods_are_errors_in_json() {
    let server = Server::start().await;
    server.get("/v1/nothing").await.assert_error(404, "not_found");
    server.get("/").await.assert_error(404, "not_found");
    server.get("/v1/responses").await.assert_error(405, "method_not_allowed");
    server.post("/healthz", json!({})).await.assert_error(405, "method_not_allowed");
}

#[tokio::test]
async fn an_id_that_was_never_issued_is_not_found_however_it_is_formed() {
    let server = Server::start().await;
    for id in ["x", "resp_1", "resp_00000000000000000000000000000000", "%FF", "a%20b", "conv_%2F"] {
        let found = |code: &'static str| if id == "%FF" { "not_found" } else { code };
        server.get(&format!("/v1/responses/{id}")).await.assert_error(404, found("response_not_found"));
        let cancel = server.post(&format!("/v1/responses/{id}/cancel"), json!({})).await;
        cancel.assert_error(404, found("response_not_found"));
        server.get(&format!("/v1/conversations/{id}")).await.assert_error(404, found("conversation_not_found"));
        server.get(&format!("/v1/conversations/{id}/ws")).await.assert_error(404, found("conversation_not_found"));
        let path = format!("/v1/interventions/{id}");
        server.get(&path).await.assert_error(404, found("intervention_not_found"));
    }
    let answer = server.post("/v1/responses", json!({"input": "a", "conversation": "conv_1"})).await;
    answer.assert_error(404, "conversation_not_found");
}

#[tokio::test]
async fn what_is_no_json_is_refused_and_nothing_is_lost() {
    let server = Server::start().await;
    for path in ["/v1/responses", "/v1/chat/completions", "/v1/conversations"] {
        for body in ["{", "[]", "\"a\"", "{\"input\": \u{1}}", "nul"] {
            send_raw(&server, path, body).await.assert_error(400, "invalid_input");
        }
        send_raw(&server, path, vec![0xff, 0xfe]).await.assert_error(400, "invalid_input");
        send_raw(&server, path, "[".repeat(100_000)).await.assert_error(400, "invalid_input");
    }
    assert_eq!(server.post("/v1/responses", json!({"input": "hi"})).await.status, 200);
}

#[tokio::test]
async fn what_this_version_does_not_do_is_refused_and_not_ignored() {
    let server = Server::start().await;
    let format = json!({"type": "json_schema"});
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "response_format": format});
    server.post("/v1/chat/completions", chat).await.assert_error(400, "invalid_input");
    let response = json!({"input": "a", "text": {"format": format}});
    server.post("/v1/responses", response).await.assert_error(400, "invalid_input");
    server.post("/v1/conversations", json!({"on_disconnect": "explode"})).await.assert_error(400, "invalid_input");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_by_its_size() {
    let server = Server::start_with(Setup { body_bytes_max: 1000, ..Setup::default() }).await;
    for size in [1001, 2000, 20_000_000] {
        let body = json!({"input": "x".repeat(size)}).to_string();
        send_raw(&server, "/v1/responses", body).await.assert_error(413, "request_too_large");
    }
}

#[tokio::test]
async fn our_own_routes_answer_with_a_problem_and_openais_with_their_object() {
    let server = Server::start().await;
    let native = server.get("/v1/interventions/steer_1").await;
    assert_eq!(native.header("content-type"), Some("application/problem+json"));
    assert_eq!((&native.body["status"], &native.body["detail"]), (&json!(404), &native.body["error"]["message"]));
    let openai = server.get("/v1/responses/resp_1").await;
    assert_eq!(openai.header("content-type"), Some("application/json"));
    assert_eq!(openai.body["error"]["type"], "invalid_request_error");
}

#[tokio::test]
async fn our_own_routes_answer_with_a_problem_whoever_refuses() {
    let server = Server::start_with(Setup { body_bytes_max: 1000, ..Setup::default() }).await;
    let (own, theirs) = (
        [
            (Method::POST, "/v1/responses/resp_1/interventions"),
            (Method::GET, "/v1/responses/resp_1/prefix"),
            (Method::GET, "/v1/interventions/steer_1"),
            (Method::GET, "/v1/conversations/conv_1/events"),
            (Method::GET, "/v1/conversations/conv_1/ws"),
            (Method::POST, "/v1/conversations/conv_1/tool_results"),
            (Method::POST, "/v1/conversations/conv_1/tool_calls/call1/claim"),
        ],
        [
            (Method::POST, "/v1/responses/resp_1/cancel"),
            (Method::GET, "/v1/responses/resp_1"),
            (Method::GET, "/v1/conversations/conv_1"),
            (Method::POST, "/v1/conversations/conv_1/items"),
            (Method::GET, "/v1/models/x"),
        ],
    );
    let refusals = async |routes: &[(Method, &str)], kind: &str| {
        for (method, path) in routes {
            let path_of_bytes = path.replace("_1", "_%FF").replace("/x", "/%FF");
            let big = || server.request(method.clone(), path).body("x".repeat(2_000));
            let asks = [
                server.request(method.clone(), path).header("idempotency-key", "k").body("{\"items\": [{}]}"),
                server.request(method.clone(), &path_of_bytes),
                server.request(Method::PATCH, path),
                server.request(method.clone(), path).header("origin", "https://example.com"),
                if *method == Method::POST { big() } else { server.request(Method::PUT, path) },
            ];
            for ask in asks {
                let answer = Answer::read(ask.send().await.unwrap()).await;
                assert!(answer.status >= 400, "{method} {path}");
                assert_eq!(answer.header("content-type"), Some(kind), "{method} {path}: {}", answer.body);
                assert!(answer.body["error"]["code"].is_string() && answer.header("x-request-id").is_some());
            }
        }
    };
    for phase in [Phase::Ready, Phase::Draining] {
        server.enter(phase);
        refusals(&own, "application/problem+json").await;
        refusals(&theirs, "application/json").await;
    }
}

#[tokio::test]
async fn readiness_follows_the_phase_and_requests_wait_for_it() {
    let server = Server::start().await;
    assert_eq!(server.get("/readyz").await.status, 200);
    for (phase, code) in [(Phase::Recovering, "recovering"), (Phase::Draining, "draining")] {
        server.enter(phase);
        for path in ["/readyz", "/v1/models"] {
            let answer = server.get(path).await;
            answer.assert_error(503, code);
            assert!(answer.header("retry-after").is_some());
        }
        assert_eq!(server.get("/healthz").await.status, 200);
    }
}

#[tokio::test]
async fn once_one_client_was_told_that_nothing_can_be_written_every_route_says_so() {
    let server = Server::start().await;
    server.fill_the_disk();
    let request = server.request(Method::POST, "/v1/conversations").json(&json!({}));
    Answer::read(request.send().await.unwrap()).await.assert_error(503, "storage_unavailable");
    // Nothing happens in between that the server could still hear of.
    for path in ["/readyz", "/v1/models"] {
        server.get(path).await.assert_error(503, "storage_unavailable");
    }
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_page_of_another_site_cannot_use_the_server() {
    let server = Server::start().await;
    for (origin, status) in [("https://example.com", 403), ("null", 403), ("http://localhost:3000", 200)] {
        let request = server.request(Method::POST, "/v1/conversations").header("Origin", origin).json(&json!({}));
        assert_eq!(request.send().await.unwrap().status(), status, "{origin}");
    }
}
