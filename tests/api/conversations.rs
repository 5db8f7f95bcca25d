//! `/v1/conversations`: open, get, items, events.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Server, Setup, text_of};

/// Events of a conversation's stream up to and including the first of this type.
async fn upto(server: &Server, path: &str, kind: &str) -> Vec<Value> {
    let mut stream = server.get_stream(path).await;
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        let value = event.json();
        assert_eq!(event.event.as_deref(), value["type"].as_str());
        assert_eq!(event.id, value["seq"].as_u64().map(|seq| format!("0-{seq}")));
        events.push(value);
        if events.last().unwrap()["type"] == kind {
            return events;
        }
    }
    panic!("the stream ended without {kind}")
}

fn seqs(events: &[Value]) -> Vec<u64> {
    events.iter().filter_map(|event| event["seq"].as_u64()).collect()
}

#[tokio::test]
async fn a_conversation_is_opened_with_metadata_and_items_and_found_again() {
    let server = Server::start().await;
    let body = json!({"metadata": {"topic": "a"}, "items": [{"role": "system", "content": "Be brief."}]});
    let opened = server.post("/v1/conversations", body).await;
    assert_eq!(opened.status, 200, "{}", opened.body);
    assert_eq!((&opened.body["object"], &opened.body["metadata"]), (&json!("conversation"), &json!({"topic": "a"})));
    let path = format!("/v1/conversations/{}", opened.id());
    assert_eq!(server.get(&path).await.body, opened.body);
    let items = server.get(&format!("{path}/items")).await.body;
    assert_eq!((&items["object"], &items["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!(items["data"][0]["content"], json!([{"type": "input_text", "text": "Be brief."}]));
}

#[tokio::test]
async fn conversations_are_listed_newest_first_in_pages_with_titles_and_times() {
    let server = Server::start().await;
    let list = async |query: &str| server.get(&format!("/v1/conversations{query}")).await;
    let none = list("").await.body;
    assert_eq!((&none["data"], &none["has_more"], &none["first_id"]), (&json!([]), &json!(false), &json!(null)));
    let mut opened = Vec::new();
    for title in ["one", "two", "three"] {
        let body = json!({"metadata": {"title": title}});
        opened.push(server.post("/v1/conversations", body).await.body);
    }
    let spoken = server.post("/v1/responses", json!({"input": "Tell me of trains.\nAll of them."})).await.body;
    let id = spoken["conversation"]["id"].as_str().unwrap();
    let all = list("").await.body;
    let titles =
        |page: &Value| page["data"].as_array().unwrap().iter().map(|it| it["title"].clone()).collect::<Vec<_>>();
    // Those that were opened in one millisecond are in any order.
    let mut sorted = titles(&all);
    sorted.sort_by_key(ToString::to_string);
    assert_eq!(sorted, ["Tell me of trains.", "one", "three", "two"]);
    let times: Vec<_> = all["data"].as_array().unwrap().iter().map(|it| it["created_at"].as_u64().unwrap()).collect();
    assert!(times.is_sorted_by(|newer, older| newer >= older), "{times:?}");
    let of_trains = all["data"].as_array().unwrap().iter().find(|it| it["id"] == id).unwrap();
    assert!(of_trains["updated_at"].as_u64() >= of_trains["created_at"].as_u64(), "{of_trains}");
    assert_eq!(of_trains["object"], "conversation");

    let first = list("?limit=3").await.body;
    assert_eq!((first["data"].as_array().unwrap().len(), &first["has_more"]), (3, &json!(true)));
    let rest = list(&format!("?limit=3&after={}", first["last_id"].as_str().unwrap())).await.body;
    assert_eq!((rest["data"].as_array().unwrap().len(), &rest["has_more"]), (1, &json!(false)));
    assert_eq!(titles(&all), [titles(&first), titles(&rest)].concat());
    let mut ascending = titles(&list("?order=asc").await.body);
    ascending.reverse();
    assert_eq!(ascending, titles(&all));

    server.post(&format!("/v1/conversations/{id}"), json!({"metadata": {"title": "Trains"}})).await;
    assert!(titles(&list("").await.body).contains(&json!("Trains")), "a title that changes is shown");
    server.delete(&format!("/v1/conversations/{id}")).await;
    assert_eq!(list("").await.body["data"].as_array().unwrap().len(), 3);
    list("?limit=0").await.assert_error(400, "invalid_input");
    list("?order=up").await.assert_error(400, "invalid_input");
    list(&format!("?after={id}")).await.assert_error(404, "conversation_not_found");
    list("?after=nonsense").await.assert_error(404, "conversation_not_found");
}

#[tokio::test]
async fn items_come_in_pages() {
    let server = Server::start().await;
    let items: Vec<_> = (0..5).map(|number| json!({"role": "user", "content": number.to_string()})).collect();
    let id = server.post("/v1/conversations", json!({"items": items})).await.id();
    let page = |query: String| {
        let path = format!("/v1/conversations/{id}/items?{query}");
        let server = &server;
        async move { server.get(&path).await.body }
    };
    let texts = |page: &Value| -> Vec<String> {
        let items = page["data"].as_array().unwrap().iter();
        items.map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect()
    };
    let first = page("limit=2".to_owned()).await;
    assert_eq!((texts(&first), &first["has_more"]), (vec!["4".to_owned(), "3".to_owned()], &json!(true)));
    let second = page(format!("limit=2&after={}", first["last_id"].as_str().unwrap())).await;
    assert_eq!(texts(&second), ["2", "1"]);
    assert_eq!(texts(&page("order=asc&limit=1".to_owned()).await), ["0"]);
}

#[tokio::test]
async fn every_reader_sees_a_snapshot_and_then_a_gapless_slice() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let body = json!({"input": "slow", "conversation": conversation, "background": true});
    let response = server.post("/v1/responses", body).await;
    let path = format!("/v1/conversations/{conversation}/events");
    let all = upto(&server, &path, "response.completed").await;
    assert_eq!(all[0]["type"], "conversation.snapshot");
    assert_eq!(seqs(&all), (1..all.len() as u64).collect::<Vec<_>>());
    assert_eq!(all[1]["type"], "conversation.created");
    assert_eq!(text_of(&all), "one two three four");
    let of_response = all.iter().filter(|event| event["type"].as_str().unwrap().starts_with("response."));
    for event in of_response {
        assert_eq!((&event["response_id"], &event["durable"]), (&response.body["id"], &json!(true)), "{event}");
    }
    for after in [1, 4, all.len() - 2] {
        for query in [format!("after={after}"), format!("after=0-{after}")] {
            let tail = upto(&server, &format!("{path}?{query}"), "response.completed").await;
            assert_eq!(tail[1..], all[after + 1..], "{query}");
        }
    }
}

#[tokio::test]
async fn a_browser_that_reconnects_goes_on_behind_its_last_event() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await;
    let path = format!("/v1/conversations/{conversation}/events?after=0");
    let mut stream = server.stream(server.request(Method::GET, &path).header("Last-Event-ID", "3")).await;
    assert_eq!(stream.next().await.unwrap().json()["type"], "conversation.snapshot");
    assert_eq!(stream.next().await.unwrap().id.as_deref(), Some("0-4"));
}

#[tokio::test]
async fn the_snapshot_says_where_the_conversation_stands() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let path = format!("/v1/conversations/{conversation}/events?after=0");
    let snapshot = async || server.get_stream(&path).await.next().await.unwrap().json();
    let idle = snapshot().await;
    assert_eq!(
        (&idle["status"], &idle["active_response"], &idle["last_seq"]),
        (&json!("idle"), &Value::Null, &json!(1))
    );
    assert_eq!((&idle["oldest_seq"], &idle["epoch"]), (&json!(1), &json!(0)));
    let body = json!({"input": "endless", "conversation": conversation, "background": true});
    let running = server.post("/v1/responses", body).await;
    let busy = snapshot().await;
    assert_eq!((&busy["status"], &busy["active_response"]), (&json!("running"), &running.body["id"]));
    server.post(&format!("/v1/responses/{}/cancel", running.id()), json!({})).await;
    let body = json!({"input": "weather", "conversation": conversation,
        "tools": [{"type": "function", "name": "weather"}]});
    let call = server.post("/v1/responses", body).await.body["output"][1]["call_id"].clone();
    let waiting = snapshot().await;
    assert_eq!((&waiting["status"], &waiting["open_calls"][0]["call_id"]), (&json!("requires_action"), &call));
}

#[tokio::test]
async fn a_cursor_that_cannot_be_is_refused() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let path = format!("/v1/conversations/{conversation}/events");
    let future = server.get(&format!("{path}?after=2")).await;
    assert_eq!(future.assert_error(400, "cursor_in_future")["last_seq"], 1);
    server.get(&format!("{path}?after=x")).await.assert_error(400, "invalid_input");
    server.get("/v1/conversations/conv_1/events").await.assert_error(404, "conversation_not_found");
    // A page begins behind an item, and an id that was never issued is not found.
    let unknown = server.get(&format!("/v1/conversations/{conversation}/items?after=item_1")).await;
    assert_eq!(unknown.assert_error(404, "not_found")["param"], "after");
}

#[tokio::test]
async fn silence_on_events_is_broken_by_a_comment() {
    let server = Server::start_with(Setup { silence: Duration::from_millis(20), ..Setup::default() }).await;
    let conversation = server.conversation().await;
    let mut stream = server.get_stream(&format!("/v1/conversations/{conversation}/events")).await;
    assert!(stream.comment().await.contains("ping"));
}

#[tokio::test]
async fn what_was_added_to_a_conversation_is_before_whatever_goes_on_from_its_end() {
    let server = Server::start().await;
    let conversation = server.conversation().await;
    let first = server.post("/v1/responses", json!({"input": "hi", "conversation": conversation})).await.id();
    let items = json!({"items": [{"role": "user", "content": "It is raining, and I have no umbrella."}]});
    server.post(&format!("/v1/conversations/{conversation}/items"), items).await;
    let mut tokens = Vec::new();
    for store in [false, true] {
        let body = json!({"input": "hi", "previous_response_id": first, "store": store});
        let answer = server.post("/v1/responses", body).await;
        tokens.push(answer.body["usage"]["input_tokens"].as_u64().unwrap());
    }
    assert_eq!(tokens[0], tokens[1], "both read what was added");
}
