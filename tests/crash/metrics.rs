//! What is counted and measured, as Prometheus reads it.

use std::collections::HashMap;

use serde_json::json;
use tokio::time::timeout;

use crate::support::{Frames, PATIENCE, Server, Site};

/// The series, by name and labels.
async fn scraped(server: &Server) -> HashMap<String, f64> {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.get(format!("{}/metrics", server.base)).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    let text = answer.text().await.unwrap();
    let series = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let series = series.map(|line| line.rsplit_once(' ').unwrap());
    series.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

/// The series once so many responses were completed.
async fn behind(server: &Server, completed: f64) -> HashMap<String, f64> {
    loop {
        let series = scraped(server).await;
        if series.get(r#"midstream_responses_total{status="completed"}"#) == Some(&completed) {
            return series;
        }
        tokio::task::yield_now().await;
    }
}

/// A whole number of a series.
fn count(value: f64) -> u64 {
    value as u64
}

#[tokio::test]
async fn what_is_done_is_counted_under_the_names_that_dashboards_have() {
    let words: Vec<String> = (0..4_000).map(|number| format!("{number} ")).collect();
    let script = json!([{"match": "endless", "deltas": words, "delay_ms": 5}, {"deltas": ["It ", "is ", "so."]}]);
    let site = Site::scripted(&script);
    let server = site.start().await;
    let (_, first) = server.post("/v1/responses", "first", &json!({"input": "plain words"})).await;
    let usage = &first["usage"];
    let (_, second) = server.post("/v1/responses", "second", &json!({"input": "endless", "background": true})).await;
    let conversation = second["conversation"]["id"].as_str().unwrap();
    let mut events = server.try_follow(&format!("/v1/conversations/{conversation}/events")).await.unwrap();
    while Frames::next(&mut events).await.unwrap()["type"] != "response.output_text.delta" {}
    let path = format!("/v1/responses/{}/interventions", second["id"].as_str().unwrap());
    assert_eq!(server.post(&path, "steer", &json!({"input": "hi", "when": "now"})).await.0, 202);
    assert_eq!(server.get("/v1/responses/resp_nobody").await["error"]["code"], "response_not_found");
    server.get("/nowhere").await;
    // Its successor answers in a moment.
    let series = timeout(PATIENCE, behind(&server, 2.0)).await.expect("its successor answers");

    let of_model = |name: &str| series[&format!(r#"{name}{{model_name="scripted"}}"#)];
    assert!(of_model("vllm:prompt_tokens_total") > usage["input_tokens"].as_f64().unwrap());
    let generated = of_model("vllm:generation_tokens_total");
    assert!(generated > usage["output_tokens"].as_f64().unwrap());
    for name in ["time_to_first_token_seconds", "request_queue_time_seconds", "e2e_request_latency_seconds"] {
        assert_eq!(count(of_model(&format!("vllm:{name}_count"))), 3, "{name}");
        assert!(of_model(&format!("vllm:{name}_sum")) > 0.0, "{name}");
    }
    assert_eq!(count(of_model("vllm:inter_token_latency_seconds_count")), count(generated) - 3);
    for name in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"] {
        assert_eq!(count(of_model(&format!("vllm:{name}"))), 0, "{name}");
    }
    let finished =
        |reason: &str| format!(r#"vllm:request_success_total{{model_name="scripted",finished_reason="{reason}"}}"#);
    assert_eq!((count(series[&finished("stop")]), count(series[&finished("abort")])), (2, 1));
    for (name, times) in [
        (r#"midstream_responses_total{status="steered"}"#, 1),
        (r#"midstream_interventions_total{outcome="accepted"}"#, 1),
        (r#"midstream_interventions_total{outcome="committed"}"#, 1),
        (r#"midstream_http_requests_total{route="/v1/responses/{id}",status="404"}"#, 1),
        ("midstream_requests_in_flight", 0),
    ] {
        assert_eq!(series.get(name).copied().map(count), Some(times), "{name}: {series:?}");
    }
    assert!(series["midstream_journal_commit_seconds_count"] > 0.0);
    assert!(series["midstream_journal_batches_total"] > 0.0);
    assert!(series.keys().all(|name| !name.contains("resp_") && !name.contains("nowhere")), "{series:?}");
    server.kill();
}
