//! Pages in browsers: which may use the server, and what they are told.

use reqwest::Method;
use serde_json::json;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::keys::Guarded;
use crate::support::{Answer, Server, Setup};

const APP: &str = "https://app.example.com";

#[tokio::test]
async fn browsers_hear_of_no_origin_unless_it_is_set() {
    let server = Server::start().await;
    let page = server.request(Method::GET, "/v1/models").header("origin", "http://localhost:3000");
    let answer = page.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(!answer.headers().contains_key("access-control-allow-origin"));

    let server = Server::start_with(Setup { allowed_origins: vec![APP.to_owned()], ..Setup::default() }).await;
    let page = |method: Method, origin| server.request(method, "/v1/models").header("origin", origin);
    let answer = page(Method::GET, APP).send().await.unwrap();
    assert_eq!(answer.headers()["access-control-allow-origin"], APP);
    assert_eq!(answer.headers()["vary"], "origin");
    let asked = page(Method::OPTIONS, APP).header("access-control-request-method", "POST");
    let asked = asked.header("access-control-request-headers", "authorization, idempotency-key").send().await.unwrap();
    assert_eq!(asked.status(), 204);
    assert_eq!(asked.headers()["access-control-allow-headers"], "authorization, idempotency-key");
    assert!(asked.headers()["access-control-allow-methods"].to_str().unwrap().contains("DELETE"));
    assert_eq!(page(Method::GET, "https://other.example.com").send().await.unwrap().status(), 403);
}

#[tokio::test]
async fn a_browser_asks_beforehand_without_a_key_and_is_told_of_a_refusal() {
    let guarded = Guarded::start_with(Setup { allowed_origins: vec!["*".to_owned()], ..Setup::default() }).await;
    let asked = guarded.server.request(Method::OPTIONS, "/v1/responses").header("origin", APP);
    let asked = asked.header("access-control-request-method", "POST").send().await.unwrap();
    assert_eq!((asked.status().as_u16(), asked.headers()["access-control-allow-origin"].to_str().unwrap()), (204, APP));
    let refused = guarded.server.request(Method::GET, "/v1/models").header("origin", APP).send().await.unwrap();
    assert_eq!(refused.headers()["access-control-allow-origin"], APP);
    Answer::read(refused).await.assert_error(401, "invalid_api_key");
}

#[tokio::test]
async fn a_page_whose_name_was_made_to_lead_here_is_refused_while_nobody_is_asked_for_a_key() {
    let server = Server::start().await;
    let ask = async |server: &Server, host: &str| {
        let request = server.request(Method::GET, "/v1/models").header("host", host);
        request.send().await.unwrap().status().as_u16()
    };
    for (host, status) in [("rebound.example.com", 403), ("10.0.0.1", 403), ("localhost:8080", 200), ("[::1]", 200)] {
        assert_eq!(ask(&server, host).await, status, "{host}");
    }
    let guarded = Guarded::start().await;
    assert_eq!(ask(&guarded.server, "box.example.com").await, 401, "with keys its name does not matter");
}

#[tokio::test]
async fn no_socket_opens_for_a_foreign_page() {
    let server = Server::start_with(Setup { allowed_origins: vec![APP.to_owned()], ..Setup::default() }).await;
    let conversation = server.conversation().await;
    for path in ["/v1/responses".to_owned(), format!("/v1/conversations/{conversation}/ws")] {
        for (origin, opens) in [(APP, true), ("https://example.com", false), ("null", false)] {
            let mut request = format!("ws://{}{path}", server.address).into_client_request().unwrap();
            request.headers_mut().insert("origin", origin.parse().unwrap());
            assert_eq!(tokio_tungstenite::connect_async(request).await.is_ok(), opens, "{path} {origin}");
        }
    }
    assert_eq!(server.post("/v1/conversations", json!({})).await.status, 200);
}
