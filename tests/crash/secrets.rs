//! Secrets are fed in everywhere, as the server is run by default, and looked for in everything that comes out.

use std::fs;
use std::path::Path;

use reqwest::{Client, Method};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::keys::{ask, create, hang_up, texts};
use crate::support::{Server, Site};

/// What a client says, and what the model says back; neither is anybody else's business.
const PROMPT: &str = "prompt-of-somebody";
const ANSWER: &str = "answer-to-somebody";
/// A key that nobody has, and what stands in addresses and headers.
const WRONG: &str = "ms_key-of-nobody";
const PLACE: &str = "place-of-somebody";

/// A server that answers, and in front of it another that has a key for it.
struct Sites {
    provider: Site,
    front: Site,
    log: tempfile::NamedTempFile,
    provider_key: String,
    client_key: String,
}

impl Sites {
    async fn start() -> (Self, Server, Server) {
        let script = json!([{"match": "break", "deltas": [], "finish": "error"}, {"deltas": [ANSWER]}]);
        let provider = Site::scripted(&script);
        let provider_key = create(&provider, &["front"]);
        let behind = provider.start().await;
        let log = tempfile::NamedTempFile::new().unwrap();
        let front = logging_to(log.path(), Site::upstream_of(&behind));
        let settings = front.path().join("midstream.toml");
        let text = fs::read_to_string(&settings).unwrap();
        fs::write(&settings, text.replace(" }", ", retries_max = 0, api_key_env = 'PROVIDER_KEY' }")).unwrap();
        let client_key = create(&front, &["ann"]);
        let server = front.try_start(&[("PROVIDER_KEY", &provider_key)]).await.unwrap();
        (Self { provider, front, log, provider_key, client_key }, server, behind)
    }
}

/// The site, whose log is added to this file.
fn logging_to(log: &Path, site: Site) -> Site {
    site.under(&["sh", "-c", &format!("exec \"$0\" \"$@\" 2>>{}", log.display())])
}

/// Asks in every way that says too much, and gives what is answered where that is a refusal.
async fn refusals(server: &Server, key: &str) -> Vec<String> {
    let prompt = |text: &str| format!("{text} {PROMPT}");
    let mut refused = Vec::new();
    for body in [
        json!({"input": prompt("hi"), "messages": [{"role": "user", "content": prompt("hi")}], "max_tokens": 9}),
        json!({"input": prompt("break"), "messages": [{"role": "user", "content": prompt("break")}], "max_tokens": 9}),
        json!({"input": prompt("hi"), "messages": [{"role": "user", "content": [{"type": 7, "text": PROMPT}]}]}),
        json!({"model": "nobody", "input": PROMPT, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 9}),
        json!({"previous_response_id": "resp_1", "input": PROMPT, "metadata": {"a": {"b": PROMPT}}}),
    ] {
        for path in ["/v1/responses", "/v1/chat/completions", "/v1/messages", "/v1/conversations"] {
            for shown in [key, WRONG] {
                let (status, answer) = ask(server, shown, path, Some(&body)).await;
                if status != 200 {
                    refused.push(answer.to_string());
                }
            }
        }
    }
    let client = Client::builder().no_proxy().build().unwrap();
    for (method, path, header) in [
        (Method::GET, format!("/v1/{PLACE}?key={WRONG}"), "user-agent"),
        (Method::GET, format!("/v1/models/{PLACE}?key={WRONG}"), "user-agent"),
        (Method::PATCH, format!("/v1/responses/{PLACE}"), "idempotency-key"),
        (Method::POST, format!("/v1/responses?{PLACE}"), "anthropic-version"),
        (Method::POST, "/v1/responses".to_owned(), "origin"),
    ] {
        for shown in [key, WRONG] {
            let request = client.request(method.clone(), format!("{}{path}", server.base)).header("x-api-key", shown);
            let request = request.header(header, PLACE);
            let body = format!("{{\"input\": \"{PROMPT}");
            refused.push(request.body(body).send().await.unwrap().text().await.unwrap());
        }
    }
    refused
}

async fn metrics(server: &Server, key: &str) -> String {
    let client = Client::builder().no_proxy().build().unwrap();
    let answer = client.get(format!("{}/metrics", server.base)).bearer_auth(key).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.text().await.unwrap()
}

#[tokio::test]
async fn nothing_that_is_secret_comes_out_in_logs_errors_or_metrics() {
    let (sites, server, behind) = Sites::start().await;
    let Sites { provider_key, client_key, .. } = &sites;
    let body = json!({"input": PROMPT});
    let (status, answer) = ask(&server, client_key, "/v1/responses", Some(&body)).await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer.to_string().contains(ANSWER), "the key is taken behind: {answer}");
    let mut errors = refusals(&server, client_key).await;
    // The provider takes the key no more, and then it is gone.
    sites.provider.run(&["keys", "revoke", "front"], b"");
    errors.push(ask(&server, client_key, "/v1/responses", Some(&body)).await.1.to_string());
    behind.kill();
    errors.push(ask(&server, client_key, "/v1/responses", Some(&body)).await.1.to_string());
    let measured = metrics(&server, client_key).await;
    let refused = r#"midstream_http_requests_total{route="/v1/models/{*id}",status="401"}"#;
    assert!(measured.contains(refused), "who is turned away is counted: {measured}");
    sites.front.run(&["keys", "revoke", "ann"], b"");
    hang_up(&server);
    errors.push(ask(&server, client_key, "/v1/models", None).await.1.to_string());
    while !fs::read_to_string(sites.log.path()).unwrap().contains("reading the API keys again") {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.terminate().await, Some(0));

    let log = fs::read_to_string(sites.log.path()).unwrap();
    assert!(errors.len() > 30 && errors.iter().all(|error| error.contains("error")), "{errors:?}");
    for secret in [provider_key, client_key, WRONG, PROMPT, ANSWER, PLACE] {
        assert!(!log.contains(secret), "{secret} is logged: {log}");
        assert!(!measured.contains(secret), "{secret} is measured: {measured}");
    }
    let folder = sites.front.path().display().to_string();
    for error in &errors {
        for secret in [provider_key, client_key, WRONG, PROMPT, ANSWER, "PROVIDER_KEY", &folder] {
            assert!(!error.contains(secret), "{secret}: {error}");
        }
    }
    for said in errors.iter().chain([&log]) {
        assert!(!said.contains("src/") && !said.contains("panicked") && !said.contains(".rs:"), "{said}");
    }
    // What the conversation is, is kept; keys are not.
    for secret in [provider_key, client_key, WRONG] {
        for (file, text) in texts(sites.front.path()) {
            assert!(!text.contains(secret), "{secret} is written to {file}");
        }
    }
}

/// An upstream that fails at everything, and quotes what it was asked.
async fn quoting() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut head, end) = (Vec::new(), b"\r\n\r\n");
            while !head.ends_with(end) {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
            let mut asked = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut asked).await.unwrap();
            let quoted = String::from_utf8(asked).unwrap();
            let error = json!({"error": {"message": format!("cannot answer {quoted}"), "code": "upstream_is_ill"}});
            let (status, body) = ("500 Internal Server Error\r\nconnection: close", error.to_string());
            let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
            let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await;
        }
    });
    format!("http://{address}/v1")
}

#[tokio::test]
async fn what_an_upstream_says_of_a_prompt_is_not_logged_but_its_status_and_code_are() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let site = Site::scripted(&json!([]));
    let settings = site.path().join("settings.toml");
    let upstream = format!("base_url = '{}', models = ['m'], kind = 'compatible', retries_max = 0", quoting().await);
    fs::write(&settings, format!("upstream.ill = {{ {upstream} }}\n")).unwrap();
    let settings = settings.display().to_string();
    let site = logging_to(log.path(), site.with(&["--config", &settings]));
    let server = site.try_start(&[("MIDSTREAM_LOG_FORMAT", "json")]).await.unwrap();
    let (status, answer) = server.post("/v1/responses", "one", &json!({"model": "m", "input": PROMPT})).await;
    assert_eq!((status, &answer["error"]["code"]), (500, &json!("engine_failed")), "{answer}");
    assert!(answer.to_string().contains(PROMPT), "whoever asked is told all of it");
    assert_eq!(server.terminate().await, Some(0));
    let log = fs::read_to_string(log.path()).unwrap();
    assert!(!log.contains(PROMPT), "{log}");
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let failed = lines.iter().find(|line| line["upstream"] == "ill").unwrap_or_else(|| panic!("{log}"));
    let told = ["level", "status", "code"].map(|name| failed[name].clone());
    assert_eq!(told, [json!("WARN"), json!(500), json!("upstream_is_ill")]);
}

#[tokio::test]
async fn a_certificates_key_and_a_settings_file_are_not_repeated_by_what_refuses_them() {
    let site = Site::scripted(&json!([]));
    let secret = "sk-in-a-file";
    let path = site.path().join("settings.toml");
    let file = |text: String| {
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    for text in [
        format!("api_key = '{secret}'"),
        format!("[upstream.a]\nbase_url = 'http://u:{secret}@h/v1'\nmodels = ['m']"),
        format!("[upstream.a]\nbase_url = 'http://h/v1?key={secret}'\nmodels = ['m']"),
        format!("[upstream.a]\nbase_url = 'http://h/v1'\nmodels = ['m']\napi_key = '{secret}'"),
    ] {
        let named = file(text.clone());
        for command in ["serve", "doctor"] {
            let refused = site.refused(&[command, "--config", &named]);
            assert!(refused.starts_with("midstream: ") && !refused.contains(secret), "{text}: {refused}");
        }
        for command in ["check", "show"] {
            let refused = site.refused(&["config", command, "--config", &named]);
            assert!(refused.starts_with("midstream: ") && !refused.contains(secret), "{text}: {refused}");
        }
    }
    let key = site.path().join("key.pem");
    fs::write(&key, format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n")).unwrap();
    let key = key.display().to_string();
    let refused = site.refused(&["serve", "--tls-cert-file", &key, "--tls-key-file", &key]);
    assert!(refused.contains("key.pem holds no certificate in PEM") && !refused.contains(secret), "{refused}");
}
