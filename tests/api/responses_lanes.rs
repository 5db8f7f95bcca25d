//! Several streams on one socket of `GET /v1/responses`: they run side by side, and in each one after the other.

use std::time::Duration;

use midstream::error::Code;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite;

use crate::support::{Server, Setup, Socket, text_of};

fn create(lane: &str, input: &str) -> Value {
    json!({"type": "response.create", "stream_id": lane, "input": input, "store": false})
}

fn is_end(frame: &Value) -> bool {
    let ends = ["response.completed", "response.incomplete", "response.failed"];
    frame["type"].as_str().is_some_and(|kind| ends.contains(&kind))
}

/// The frames up to the end of a response of this lane; its own first, then the others'.
async fn ended(socket: &mut Socket, lane: &Value) -> (Vec<Value>, Vec<Value>) {
    let frames = socket.until(|frame| is_end(frame) && frame["stream_id"] == *lane).await;
    frames.into_iter().partition(|frame| frame["stream_id"] == *lane)
}

async fn started(socket: &mut Socket, frame: Value) -> String {
    let lane = frame["stream_id"].clone();
    socket.send(frame).await;
    let says = |frame: &Value| frame["type"] == "response.output_text.delta" && frame["stream_id"] == lane;
    let frames = socket.until(says).await;
    let created = frames.iter().find(|frame| frame["type"] == "response.created" && frame["stream_id"] == lane);
    created.unwrap()["response"]["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn responses_of_several_lanes_run_at_once_and_every_frame_says_whose_it_is() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    started(&mut socket, create("a", "endless")).await;
    socket.send(json!({"type": "response.create", "input": "rain"})).await;
    let (unnamed, others) = ended(&mut socket, &Value::Null).await;
    assert_eq!(text_of(&unnamed), "Take an umbrella.");
    assert!(others.iter().all(|frame| frame["stream_id"] == "a"), "the endless one went on meanwhile");
    socket.send(create("b", "hi")).await;
    let (named, _) = ended(&mut socket, &json!("b")).await;
    assert_eq!(text_of(&named), "Hello, world");
    let numbers: Vec<_> = named.iter().filter_map(|frame| frame["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..named.len() as u64).collect::<Vec<_>>());
    socket.send(json!({"type": "response.cancel", "stream_id": "a"})).await;
    let (cancelled, _) = ended(&mut socket, &json!("a")).await;
    assert_eq!(cancelled.last().unwrap()["response"]["status"], "cancelled");
}

#[tokio::test]
async fn in_one_lane_responses_run_in_the_order_in_which_they_were_asked_for() {
    let server = Server::start().await;
    for lane in [Value::Null, json!("a")] {
        let mut socket = server.responses_socket().await;
        let ask = |input: &str| json!({"type": "response.create", "stream_id": lane, "input": input, "store": false});
        let first = started(&mut socket, ask("endless")).await;
        for input in ["hi", "no such field", "rain"] {
            let mut frame = ask(input);
            if input == "no such field" {
                frame["temperature"] = json!("hot");
            }
            socket.send(frame).await;
        }
        socket.send(json!({"type": "response.cancel", "response_id": first})).await;
        let (cancelled, _) = ended(&mut socket, &lane).await;
        assert!(cancelled.iter().all(|frame| frame["type"] != "response.created"), "the next one waits for the end");
        let (second, _) = ended(&mut socket, &lane).await;
        assert_eq!(text_of(&second), "Hello, world");
        let (third, _) = ended(&mut socket, &lane).await;
        assert_eq!((&third[0]["type"], &third[0]["error"]["param"]), (&json!("error"), &json!("temperature")));
        assert_eq!(text_of(&third), "Take an umbrella.");
    }
}

#[tokio::test]
async fn what_is_not_stored_is_forked_onto_another_lane_of_its_socket() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    socket.send(create("a", "hi")).await;
    let (first, _) = ended(&mut socket, &json!("a")).await;
    let first_id = first[0]["response"]["id"].clone();
    let told = |frames: &[Value]| frames.last().unwrap()["response"]["usage"]["input_tokens"].as_u64();
    let mut inputs = Vec::new();
    for lane in ["b", "c", "a"] {
        let mut next = create(lane, "rain");
        next["previous_response_id"] = first_id.clone();
        socket.send(next).await;
        let (frames, _) = ended(&mut socket, &json!(lane)).await;
        assert_eq!(text_of(&frames), "Take an umbrella.", "{lane}");
        inputs.push(told(&frames));
    }
    assert!(inputs.iter().all(|tokens| *tokens == inputs[0] && *tokens > told(&first)), "{inputs:?}");
}

#[tokio::test]
async fn a_steer_reaches_the_lane_of_its_response() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let id = started(&mut socket, create("a", "endless")).await;
    started(&mut socket, create("b", "endless")).await;
    socket.send(json!({"type": "response.interrupt", "response_id": id, "mode": "discard_partial_items"})).await;
    let (own, others) = ended(&mut socket, &json!("a")).await;
    assert!(own.iter().any(|frame| frame["type"] == "response.interrupt.accepted"), "{own:?}");
    assert!(others.iter().all(|frame| frame["stream_id"] == "b"));
    let slow = started(&mut socket, create("a", "slow")).await;
    let steer = json!({"type": "response.steer", "previous_response_id": slow, "input": "In French"});
    socket.send(steer).await;
    let accepted = |frame: &Value| frame["type"] == "response.steer.accepted";
    assert_eq!(socket.until(accepted).await.pop().unwrap()["stream_id"], "a");
    ended(&mut socket, &json!("a")).await;
    let (successor, _) = ended(&mut socket, &json!("a")).await;
    assert_eq!(successor[0]["response"]["previous_response_id"], json!(slow));
    assert_eq!(text_of(&successor), "Bonjour");
}

#[tokio::test]
async fn a_socket_has_so_many_lanes_and_responses_and_no_more() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let limit = Code::WebsocketStreamLimitReached.as_str();
    for number in 0..16 {
        socket.send(create(&format!("lane {}", number % 4), "endless")).await;
    }
    socket.send(create("lane 0", "hi")).await;
    let refused = |frame: &Value| frame["type"] == "error";
    let error = socket.until(refused).await.pop().unwrap();
    assert_eq!((&error["error"]["code"], &error["stream_id"]), (&json!(limit), &json!("lane 0")));
    // What was refused named no lane.
    socket.send(json!({"type": "response.cancel", "response_id": "resp_nobody", "stream_id": "lane 0"})).await;
    assert_eq!(socket.until(refused).await.pop().unwrap()["error"]["code"], "response_not_found");
    let mut socket = server.responses_socket().await;
    for number in 0..32 {
        let mut frame = create(&format!("lane {number}"), "hi");
        frame["temperature"] = json!("hot");
        socket.send(frame).await;
        assert_eq!(socket.next().await["error"]["param"], "temperature");
    }
    socket.send(create("one more", "hi")).await;
    let error = socket.next().await;
    assert_eq!((&error["error"]["code"], &error["error"]["param"]), (&json!(limit), &json!("stream_id")));
    socket.send(create("lane 31", "hi")).await;
    assert_eq!(text_of(&ended(&mut socket, &json!("lane 31")).await.0), "Hello, world");
}

#[tokio::test]
async fn a_socket_that_is_old_is_closed_when_nothing_runs_on_it() {
    let life = Some(Duration::from_millis(1));
    let server = Server::start_with(Setup { responses_ws_life: life, ..Setup::default() }).await;
    let mut socket = server.responses_socket().await;
    let last = socket.next().await;
    assert_eq!(last["error"]["code"], Code::WebsocketConnectionLimitReached.as_str());
    assert_eq!(socket.close_code().await, 1013);
}

#[tokio::test]
async fn where_websockets_are_switched_off_the_handshake_is_answered_426() {
    let server = Server::start_with(Setup { responses_ws: false, ..Setup::default() }).await;
    let refused = tokio_tungstenite::connect_async(format!("ws://{}/v1/responses", server.address)).await;
    let Err(tungstenite::Error::Http(answer)) = refused else { panic!("the handshake was taken") };
    assert_eq!(answer.status(), 426);
    let body: Value = serde_json::from_slice(answer.body().as_deref().unwrap()).unwrap();
    assert_eq!(body["error"]["code"], Code::UpgradeRequired.as_str());
    assert_eq!(text_of_answer(&server).await, "Hello, world", "POST works");
}

async fn text_of_answer(server: &Server) -> String {
    let answer = server.post("/v1/responses", json!({"input": "hi"})).await;
    answer.body["output"][0]["content"][0]["text"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_cancel_means_what_was_asked_for_in_front_of_it_in_its_lane() {
    let server = Server::start().await;
    for lane in [Value::Null, json!("a")] {
        let mut socket = server.responses_socket().await;
        socket.send(json!({"type": "response.create", "stream_id": lane, "input": "endless", "store": false})).await;
        socket.send(json!({"type": "response.cancel", "stream_id": lane})).await;
        let (frames, _) = ended(&mut socket, &lane).await;
        assert_eq!(
            (&frames[0]["type"], frames.last().unwrap()["response"]["status"].as_str()),
            (&json!("response.created"), Some("cancelled"))
        );
    }
}

#[tokio::test]
async fn results_that_are_injected_are_gone_on_with_in_the_lane_that_made_the_calls() {
    let server = Server::start().await;
    let mut socket = server.responses_socket().await;
    let tool = json!({"type": "function", "name": "weather", "parameters": {"type": "object"}});
    socket.send(json!({"type": "response.create", "stream_id": "a", "input": "weather", "tools": [tool]})).await;
    let (frames, _) = ended(&mut socket, &json!("a")).await;
    let response = &frames.last().unwrap()["response"];
    let call = response["output"].as_array().unwrap().iter().find(|item| item["type"] == "function_call").unwrap();
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "rain"});
    socket.send(json!({"type": "response.inject", "response_id": response["id"], "input": [result]})).await;
    let (own, others) = ended(&mut socket, &json!("a")).await;
    assert_eq!((text_of(&own).as_str(), others), ("Take an umbrella.", Vec::new()));
}
