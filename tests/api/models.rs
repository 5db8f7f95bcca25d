//! `/v1/models`: to each client in the shape that it reads.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup};

#[tokio::test]
async fn models_are_listed_with_what_they_take_in_and_found_by_their_ids() {
    let server = Server::start().await;
    let list = server.get("/v1/models").await.body;
    let model = &list["data"][0];
    assert_eq!(
        (&list["object"], &model["object"], &model["id"]),
        (&json!("list"), &json!("model"), &json!("scripted"))
    );
    assert!(model["context_length"].as_u64() > Some(0) && model["max_output_tokens"].as_u64() > Some(0), "{model}");
    assert!(list.get("models").is_none());
    assert_eq!(server.get("/v1/models/scripted").await.body, *model);
    server.get("/v1/models/org/of/slashes").await.assert_error(404, "model_not_found");
}

#[tokio::test]
async fn a_model_with_slashes_in_its_name_is_found_however_they_are_written_and_answers() {
    let server = Server::start_with(Setup { aliases: &["org/of/big-model"], ..Setup::default() }).await;
    for path in ["/v1/models/org/of/big-model", "/v1/models/org%2Fof%2Fbig-model"] {
        let model = server.get(path).await;
        assert_eq!((model.status, &model.body["id"]), (200, &json!("org/of/big-model")), "{path}");
    }
    let answer = server.post("/v1/responses", json!({"model": "org/of/big-model", "input": "hi"})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test]
async fn anthropics_clients_get_anthropics_shape() {
    let server = Server::start().await;
    let get = async |path: &str| {
        let request = server.request(Method::GET, path).header("anthropic-version", "2023-06-01");
        Answer::read(request.send().await.unwrap()).await
    };
    let list = get("/v1/models?limit=1000").await.body;
    let model = &list["data"][0];
    assert_eq!(
        (&model["type"], &model["id"], &model["display_name"]),
        (&json!("model"), &json!("scripted"), &json!("scripted"))
    );
    assert!(model["created_at"].as_str().unwrap().ends_with('Z') && model["max_input_tokens"].as_u64() > Some(0));
    assert_eq!((&list["has_more"], &list["first_id"]), (&json!(false), &json!("scripted")));
    assert_eq!(get("/v1/models/scripted").await.body, *model);
    let none = get("/v1/models?after_id=scripted&limit=1").await.body;
    assert_eq!((&none["data"], &none["has_more"], &none["last_id"]), (&json!([]), &json!(false), &Value::Null));
    let wrong = get("/v1/models?limit=0").await;
    assert_eq!((wrong.status, &wrong.body["error"]["type"]), (400, &json!("invalid_request_error")));
    let unknown = get("/v1/models/claude").await;
    assert_eq!((unknown.status, &unknown.body["error"]["type"]), (404, &json!("not_found_error")));
}

#[tokio::test]
async fn codex_gets_its_catalogue_beside_the_list() {
    let server = Server::start().await;
    let list = server.get("/v1/models?client_version=0.171.0").await.body;
    let model = &list["models"][0];
    assert_eq!((&list["data"][0]["id"], &model["slug"]), (&json!("scripted"), &json!("scripted")));
    for field in [
        "display_name",
        "supported_reasoning_levels",
        "shell_type",
        "visibility",
        "supported_in_api",
        "priority",
        "base_instructions",
        "support_verbosity",
        "truncation_policy",
        "experimental_supported_tools",
    ] {
        assert_ne!(model[field], Value::Null, "Codex reads no model without {field}");
    }
    assert_eq!(model["context_window"], list["data"][0]["context_length"]);
}

#[tokio::test]
async fn claude_code_finds_models_under_names_that_it_offers_and_can_ask_for_them() {
    let server = Server::start().await;
    let request = server.request(Method::GET, "/v1/models?limit=1000").header("anthropic-version", "2023-06-01");
    let list = Answer::read(request.header("user-agent", "claude-code/2.1.332").send().await.unwrap()).await.body;
    let model = &list["data"][0];
    assert_eq!((&model["id"], &model["display_name"]), (&json!("claude-local-scripted"), &json!("scripted")));
    let body = json!({"model": model["id"], "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(server.post("/v1/messages", body).await.body["content"][0]["text"], "Hello, world");
}
