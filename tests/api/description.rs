//! `/openapi.json`: the golden description, and that answers are as it says where no random request gets.

use serde_json::Value;

use crate::support::Server;

#[tokio::test]
async fn the_description_is_public_and_what_it_was() {
    let server = Server::start().await;
    let answer = server.get("/openapi.json").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.body["openapi"], "3.1.0");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/openapi.json");
    let described = format!("{:#}\n", answer.body);
    if std::env::var_os("MIDSTREAM_UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &described).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    // Without the lines themselves: there are thousands.
    let differs = described.lines().zip(golden.lines()).position(|(described, golden)| described != golden);
    let same = described == golden;
    assert!(same, "line {differs:?} differs; if it is meant, write it again with MIDSTREAM_UPDATE_GOLDEN=1");
}

#[tokio::test]
async fn every_error_code_that_is_answered_over_http_is_described_with_its_status() {
    let server = Server::start().await;
    let description = server.get("/openapi.json").await.body;
    let operations = description["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap());
    let said: Vec<String> = operations
        .flat_map(|(_, operation)| operation["responses"].as_object().unwrap())
        .map(|(status, response)| format!("{status} {}", response["description"].as_str().unwrap()))
        .collect();
    for code in midstream::error::Code::ALL {
        let (status, code) = (code.status().to_string(), format!("`{code}`"));
        // These are told as ends of responses and of interventions only.
        let is_no_answer = ["`response_cancelled`", "`disconnected`"].contains(&code.as_str());
        let is_said = said.iter().any(|text| text.starts_with(&status) && text.contains(&code));
        assert!(is_said || is_no_answer, "{code} {status}");
    }
}

/// A type that a client would make of each schema has its fields: none is empty by mistake.
#[tokio::test]
async fn the_schemas_of_requests_have_the_fields_that_the_server_reads() {
    let server = Server::start().await;
    let description = server.get("/openapi.json").await.body;
    let fields = |name: &str| description["components"]["schemas"][name]["properties"].clone();
    assert!(fields("ChatRequest")["messages"].is_object() && fields("GenerationParams")["temperature"].is_object());
    assert!(fields("CreateResponse")["previous_response_id"].is_object());
    assert!(fields("MessagesRequest")["thinking"].is_object());
    let content = fields("ChatMessage")["content"].clone();
    assert_eq!(content["anyOf"][0]["anyOf"][0]["type"], Value::from("string"), "{content}");
}
