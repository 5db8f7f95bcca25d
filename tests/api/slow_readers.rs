//! A reader that falls behind is cut, is told where to go on, and misses nothing.

use serde_json::{Value, json};

use crate::support::{Server, Setup, Sse};

/// Fewer than a steer's decision has: whoever reads along is behind it at once.
const QUEUE_EVENTS: usize = 6;

/// Places in the journal of the frames that have one.
fn seqs(frames: &[Value]) -> Vec<u64> {
    frames.iter().filter_map(|frame| frame["seq"].as_u64()).collect()
}

/// Checks that what was seen before the cut and what comes behind the cursor are one journal without a gap.
#[track_caller]
fn assert_one(before: &[Value], resume_after: &Value, behind: &[Value]) {
    let (before, behind) = (seqs(before), seqs(behind));
    assert_eq!(before.last().copied(), resume_after.as_u64(), "the last event that was seen");
    let all = [before, behind].concat();
    assert_eq!(all, (all[0]..all[0] + all.len() as u64).collect::<Vec<_>>());
}

/// All frames up to this one of this response.
async fn read(stream: &mut Sse, kind: &str, response: &Value) -> Vec<Value> {
    let mut frames = Vec::new();
    loop {
        let frame = stream.next().await.expect("the stream ended").json();
        let found = frame["type"] == kind && (response.is_null() || frame["response_id"] == *response);
        frames.push(frame);
        if found {
            return frames;
        }
    }
}

#[tokio::test]
async fn a_reader_that_is_cut_goes_on_where_it_is_told_to() {
    let server = Server::start_with(Setup { reader_queue_events: QUEUE_EVENTS, ..Setup::default() }).await;
    let conversation = server.conversation().await;
    let events = format!("/v1/conversations/{conversation}/events");
    let mut socket = server.socket(&conversation).await;
    socket.send(json!({"type": "response.create", "event_id": "e1", "input": "endless"})).await;
    let mut on_socket = socket.until(|frame| frame["event_id"] == "e1").await;
    let id = on_socket.last().unwrap()["response_id"].as_str().unwrap().to_owned();
    on_socket.extend(socket.until(|frame| frame["type"] == "response.output_text.delta").await);
    let mut stream = server.get_stream(&events).await;
    let mut on_stream = vec![stream.next().await.unwrap().json()];

    let path = format!("/v1/responses/{id}/interventions");
    let steered = server.post_keyed(&path, "k", json!({"input": "In French"})).await;
    let successor = steered.body["successor_id"].clone();
    assert_eq!(server.ended(successor.as_str().unwrap()).await["status"], "completed");

    on_socket.extend(socket.until(|frame| frame["type"] == "error").await);
    let cut = on_socket.pop().unwrap();
    assert_eq!(socket.close_code().await, 1013);
    let mut socket = server.socket(&conversation).await;
    socket.send(json!({"type": "conversation.subscribe", "after": cut["resume_after"]})).await;
    let last = |frame: &Value| frame["type"] == "response.completed" && frame["response_id"] == successor;
    assert_one(&on_socket, &cut["resume_after"], &socket.until(last).await);

    on_stream.extend(read(&mut stream, "error", &Value::Null).await);
    let cut = on_stream.pop().unwrap();
    assert!(stream.next().await.is_none(), "nothing comes behind it");
    let mut stream = server.get_stream(&format!("{events}?after={}", cut["resume_after"])).await;
    assert_one(&on_stream, &cut["resume_after"], &read(&mut stream, "response.completed", &successor).await);
}
