//! What is counted and measured, as Prometheus reads it.

use std::collections::HashMap;

use reqwest::Method;
use serde_json::json;

use crate::support::Server;

/// The series, by name and labels.
async fn scraped(server: &Server) -> HashMap<String, f64> {
    let answer = server.request(Method::GET, "/metrics").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    let text = answer.text().await.unwrap();
    let series = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    series
        .map(|line| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse().unwrap())).unwrap())
        .collect()
}

/// A whole number of a series.
fn count(value: f64) -> u64 {
    value as u64
}

#[tokio::test]
async fn what_is_done_is_counted_under_the_names_that_dashboards_have() {
    midstream::telemetry::install();
    let server = Server::start().await;
    let answer = server.post("/v1/responses", json!({"input": "plain words"})).await;
    let usage = &answer.body["usage"];
    let id = server.running("endless").await;
    let steer = json!({"input": "hi", "when": "now"});
    assert_eq!(server.post_keyed(&format!("/v1/responses/{id}/interventions"), "k", steer).await.status, 202);
    server.ended(&id).await;
    server.get("/v1/responses/resp_nobody").await.assert_error(404, "response_not_found");
    server.get("/nowhere").await;
    // Its successor answers in a moment, and is counted when it has ended.
    let series = loop {
        let series = scraped(&server).await;
        if series.get(r#"midstream_responses_total{status="completed"}"#) == Some(&2.0) {
            break series;
        }
        tokio::task::yield_now().await;
    };
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
    assert_eq!((series[&finished("stop")], series[&finished("abort")]), (2.0, 1.0));
    for (name, count) in [
        (r#"midstream_responses_total{status="steered"}"#, 1.0),
        (r#"midstream_interventions_total{outcome="accepted"}"#, 1.0),
        (r#"midstream_interventions_total{outcome="committed"}"#, 1.0),
        (r#"midstream_http_requests_total{route="/v1/responses/{id}",status="404"}"#, 1.0),
        ("midstream_requests_in_flight", 0.0),
    ] {
        assert_eq!(series.get(name), Some(&count), "{name}: {series:?}");
    }
    assert!(series["midstream_journal_commit_seconds_count"] > 0.0);
    assert!(series["midstream_journal_batches_total"] > 0.0);
    assert!(series.keys().all(|name| !name.contains("resp_") && !name.contains("nowhere")), "{series:?}");
}
