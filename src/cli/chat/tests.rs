//! The session by tables of frames, and the chat against a server that plays frames and breaks off.

use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::ws::{Message as Frame, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::{any, get, post};
use serde_json::{Value, json};

use super::*;

fn joined(ending: bool) -> Session {
    let mut session = Session::new("m".to_owned(), FreshIds::from_seed(1), ending);
    let snapshot = json!({"type": "conversation.snapshot", "last_seq": 0, "active_response": null});
    assert_eq!(session.on_frame(&snapshot), []);
    session
}

fn sent(outputs: &[Output]) -> Vec<Value> {
    let frames = outputs.iter().filter_map(|output| match output {
        Output::Send(frame) => Some(frame.clone()),
        _ => None,
    });
    frames.collect()
}

fn created(seq: u64, id: &str) -> Value {
    json!({"type": "response.created", "seq": seq, "response_id": id, "response": {"id": id}})
}

fn text(seq: u64, id: &str, delta: &str) -> Value {
    json!({"type": "response.output_text.delta", "seq": seq, "response_id": id, "delta": delta})
}

fn completed(seq: u64, id: &str) -> Value {
    json!({"type": "response.completed", "seq": seq, "response": {"id": id, "status": "completed"}})
}

fn incomplete(seq: u64, id: &str, status: &str, reason: &str) -> Value {
    let response = json!({"id": id, "status": status, "incomplete_details": {"reason": reason}});
    json!({"type": "response.incomplete", "seq": seq, "response": response})
}

#[test]
fn answers_are_as_long_as_the_command_line_lets_them_be() {
    let asked = sent(&joined(false).limited(Some(7)).on_line("hello"));
    assert_eq!(asked[0]["max_output_tokens"], 7);
    assert!(sent(&joined(false).on_line("hello"))[0]["max_output_tokens"].is_null());
}

#[test]
fn a_line_asks_and_a_line_during_the_answer_steers() {
    let mut session = joined(false);
    let asked = sent(&session.on_line("hello"));
    assert_eq!((&asked[0]["type"], &asked[0]["input"]), (&json!("response.create"), &json!("hello")));
    session.on_frame(&created(1, "resp_a"));
    assert_eq!(session.on_frame(&text(2, "resp_a", "Hi")), [Output::Text("Hi".to_owned())]);
    let steer = &sent(&session.on_line("shorter"))[0];
    assert_eq!(steer["type"], "conversation.intervene");
    assert_eq!((&steer["response_id"], &steer["when"]), (&json!("resp_a"), &json!("now")));

    assert_eq!(session.on_frame(&incomplete(3, "resp_a", "incomplete", "steered")), [Output::EndOfAnswer]);
    session.on_frame(&created(4, "resp_b"));
    assert_eq!(session.on_frame(&text(5, "resp_b", "Hm")), [Output::Text("Hm".to_owned())]);
    assert_eq!(session.on_frame(&completed(6, "resp_b")), [Output::EndOfAnswer]);
    assert!(session.is_idle());
}

#[test]
fn a_line_typed_before_the_answer_began_waits_and_then_steers() {
    let mut session = joined(false);
    session.on_line("hello");
    assert_eq!(session.on_line("and more"), []);
    let steer = sent(&session.on_frame(&created(1, "resp_a")));
    assert_eq!((steer.len(), &steer[0]["input"]), (1, &json!("and more")));
}

#[test]
fn a_steer_that_came_too_late_is_the_next_message() {
    let mut session = joined(false);
    session.on_line("hello");
    session.on_frame(&created(1, "resp_a"));
    let steer = sent(&session.on_line("and more")).remove(0);
    session.on_frame(&completed(2, "resp_a"));
    let refusal = json!({
        "type": "error", "event_id": steer["event_id"], "status": 409,
        "error": {"code": "response_already_completed", "message": "too late"},
    });
    let asked = sent(&session.on_frame(&refusal));
    assert_eq!((&asked[0]["type"], &asked[0]["input"]), (&json!("response.create"), &json!("and more")));
}

#[test]
fn the_first_interrupt_cancels_and_the_second_leaves() {
    let mut session = joined(false);
    session.on_line("hello");
    session.on_frame(&created(1, "resp_a"));
    let cancel = sent(&session.on_interrupt());
    assert_eq!((&cancel[0]["type"], &cancel[0]["response_id"]), (&json!("response.cancel"), &json!("resp_a")));
    let outputs = session.on_frame(&incomplete(2, "resp_a", "cancelled", "cancelled"));
    assert_eq!(outputs, [Output::EndOfAnswer, Output::Notice("the answer was cancelled".to_owned())]);
    assert_eq!(session.on_interrupt(), [Output::Quit(Ok(()))]);
}

#[test]
fn a_second_interrupt_leaves_even_if_the_cancel_is_not_answered() {
    let mut session = joined(false);
    session.on_line("hello");
    session.on_frame(&created(1, "resp_a"));
    session.on_interrupt();
    assert_eq!(session.on_interrupt(), [Output::Quit(Err("interrupted".to_owned()))]);
}

#[test]
fn an_interrupt_before_the_answer_has_begun_cancels_it_when_it_begins() {
    let mut session = joined(false);
    session.on_line("hello");
    assert_eq!(session.on_interrupt(), []);
    let cancel = sent(&session.on_frame(&created(1, "resp_a")));
    assert_eq!((&cancel[0]["type"], &cancel[0]["response_id"]), (&json!("response.cancel"), &json!("resp_a")));
}

#[test]
fn an_interrupt_between_a_steer_and_its_successor_cancels_the_successor() {
    let mut session = joined(false);
    session.on_line("hello");
    session.on_frame(&created(1, "resp_a"));
    session.on_frame(&incomplete(2, "resp_a", "incomplete", "steered"));
    let needless = sent(&session.on_interrupt()).remove(0);
    let refusal = json!({
        "type": "error", "event_id": needless["event_id"], "status": 409,
        "error": {"code": "response_already_completed", "message": "too late"},
    });
    assert_eq!(session.on_frame(&refusal), []);
    let cancel = sent(&session.on_frame(&created(3, "resp_b")));
    assert_eq!((&cancel[0]["type"], &cancel[0]["response_id"]), (&json!("response.cancel"), &json!("resp_b")));
}

#[test]
fn one_who_leaves_cancels_the_answer_first() {
    let mut session = joined(true);
    session.on_line("hello");
    session.on_frame(&created(1, "resp_a"));
    let cancel = sent(&session.on_leave(Ok(())));
    assert_eq!((&cancel[0]["type"], &cancel[0]["response_id"]), (&json!("response.cancel"), &json!("resp_a")));
    let outputs = session.on_frame(&incomplete(2, "resp_a", "cancelled", "cancelled"));
    assert_eq!(outputs, [Output::EndOfAnswer, Output::Quit(Ok(()))]);
    assert_eq!(joined(true).on_leave(Ok(())), [Output::Quit(Ok(()))]);
}

#[test]
fn a_steer_is_shown_where_it_cut_the_answer() {
    let mut session = joined(false);
    session.on_line("hello");
    session.on_frame(&created(1, "resp_a"));
    let input = json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "shorter"}]}]);
    let accepted = json!({
        "type": "intervention.accepted", "seq": 2, "response_id": "resp_a", "intervention_id": "int_1", "input": input,
    });
    assert_eq!(session.on_frame(&accepted), []);
    assert_eq!(session.on_frame(&incomplete(3, "resp_a", "incomplete", "steered")), [Output::EndOfAnswer]);
    let mut committed = json!({
        "type": "intervention.committed", "seq": 4, "response_id": "resp_a", "intervention_id": "int_1",
    });
    assert_eq!(session.on_frame(&committed), [Output::Steered("shorter".to_owned())]);
    committed["event_id"] = json!("repeated");
    assert_eq!(session.on_frame(&committed), []);
}

#[test]
fn a_stopping_server_that_refuses_or_cuts_the_subscription_is_not_worth_a_word() {
    let mut session = joined(false);
    for code in ["draining", "overloaded"] {
        let refusal = json!({"type": "error", "status": 503, "error": {"code": code, "message": "stopping"}});
        assert_eq!(session.on_frame(&refusal), [], "{code}");
    }
}

#[test]
fn after_a_reconnect_it_subscribes_behind_what_was_seen_and_repeats_what_was_not_answered() {
    let mut session = joined(false);
    session.on_line("hello");
    session.on_frame(&created(1, "resp_a"));
    session.on_frame(&text(2, "resp_a", "Hi"));
    let steer = sent(&session.on_line("shorter"));
    let repeated = sent(&session.on_connected());
    assert_eq!(repeated[0], json!({"type": "conversation.subscribe", "after": 2}));
    assert_eq!(repeated[1..], steer[..]);

    let accepted = json!({"type": "intervention.accepted", "seq": 3, "event_id": steer[0]["event_id"]});
    session.on_frame(&accepted);
    assert_eq!(sent(&session.on_connected()).len(), 1);
}

#[test]
fn the_answer_to_a_repeated_request_does_not_start_again_what_has_ended() {
    let mut session = joined(false);
    let asked = sent(&session.on_line("hello")).remove(0);
    session.on_frame(&created(1, "resp_a"));
    session.on_frame(&completed(2, "resp_a"));
    let mut replayed = created(1, "resp_a");
    replayed["event_id"] = asked["event_id"].clone();
    replayed["replayed"] = json!(true);
    assert_eq!(session.on_frame(&replayed), []);
    assert!(session.is_idle());
}

#[test]
fn what_was_seen_is_not_shown_again() {
    let mut session = joined(false);
    session.on_line("hello");
    session.on_frame(&created(1, "resp_a"));
    session.on_frame(&text(2, "resp_a", "Hi"));
    assert_eq!(session.on_frame(&text(2, "resp_a", "Hi")), []);
    assert_eq!(session.on_frame(&text(3, "resp_a", "!")), [Output::Text("!".to_owned())]);
}

#[test]
fn an_answer_to_a_frame_does_not_move_the_cursor() {
    let mut session = joined(false);
    session.on_line("hello");
    session.on_frame(&created(1, "resp_a"));
    let steer = sent(&session.on_line("shorter")).remove(0);
    session.on_frame(&json!({"type": "intervention.accepted", "seq": 9, "event_id": steer["event_id"]}));
    assert_eq!(session.on_frame(&text(2, "resp_a", "Hi")), [Output::Text("Hi".to_owned())]);
}

#[test]
fn joining_shows_the_running_answer_from_its_beginning_and_nothing_older() {
    let mut session = Session::new("m".to_owned(), FreshIds::from_seed(1), false);
    session.on_frame(&json!({"type": "conversation.snapshot", "last_seq": 5, "active_response": "resp_b"}));
    session.on_frame(&created(1, "resp_a"));
    assert_eq!(session.on_frame(&text(2, "resp_a", "old")), []);
    assert_eq!(session.on_frame(&completed(3, "resp_a")), []);
    session.on_frame(&created(4, "resp_b"));
    assert_eq!(session.on_frame(&text(5, "resp_b", "now")), [Output::Text("now".to_owned())]);
    assert_eq!(session.on_frame(&text(6, "resp_b", "!")), [Output::Text("!".to_owned())]);
}

#[test]
fn with_one_message_it_leaves_at_the_end_and_says_how_it_went() {
    let failed = json!({
        "type": "response.failed", "seq": 2,
        "response": {"id": "resp_a", "status": "failed", "error": {"code": "engine_failed", "message": "broke"}},
    });
    let table = [
        (completed(2, "resp_a"), Ok(())),
        (incomplete(2, "resp_a", "incomplete", "max_output_tokens"), Ok(())),
        (incomplete(2, "resp_a", "cancelled", "cancelled"), Err("the answer was cancelled".to_owned())),
        (failed, Err("the answer failed: broke".to_owned())),
    ];
    for (frame, outcome) in table {
        let mut session = joined(true);
        session.on_line("hello");
        session.on_frame(&created(1, "resp_a"));
        assert_eq!(session.on_frame(&frame), [Output::EndOfAnswer, Output::Quit(outcome)], "{frame}");
    }
}

#[test]
fn a_refused_message_is_the_error() {
    let mut session = joined(true);
    let asked = sent(&session.on_line("hello")).remove(0);
    let refusal = json!({
        "type": "error", "event_id": asked["event_id"], "status": 404,
        "error": {"code": "model_not_found", "message": "no model m"},
    });
    assert_eq!(session.on_frame(&refusal), [Output::Quit(Err("no model m".to_owned()))]);
}

/// A server that answers `hello` over two connections: the first breaks off in the middle of the answer.
#[derive(Clone, Default)]
struct Breaking(Arc<Mutex<Vec<Value>>>);

impl Breaking {
    async fn start(&self) -> String {
        let this = self.clone();
        let upgrade = move |socket: WebSocketUpgrade| async move {
            let answer: Response = socket.on_upgrade(move |socket| this.play(socket));
            answer
        };
        let routes = axum::Router::new()
            .route("/v1/models", get(|| async { Json(json!({"data": [{"id": "scripted"}]})) }))
            .route("/v1/conversations", post(|| async { Json(json!({"id": "conv_1"})) }))
            .route("/v1/conversations/conv_1/ws", any(upgrade));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        format!("http://{address}")
    }

    async fn play(self, mut socket: WebSocket) {
        let subscribe = self.receive(&mut socket).await;
        let snapshot = json!({"type": "conversation.snapshot", "last_seq": 0, "active_response": null});
        socket.send(Frame::text(snapshot.to_string())).await.unwrap();
        let frames = if subscribe["after"] == 0 {
            self.receive(&mut socket).await;
            [created(1, "resp_a"), text(2, "resp_a", "Hel")]
        } else {
            [text(3, "resp_a", "lo"), completed(4, "resp_a")]
        };
        for frame in frames {
            socket.send(Frame::text(frame.to_string())).await.unwrap();
        }
    }

    async fn receive(&self, socket: &mut WebSocket) -> Value {
        let frame = serde_json::from_str(socket.recv().await.unwrap().unwrap().to_text().unwrap()).unwrap();
        self.0.lock().unwrap().push(frame);
        self.0.lock().unwrap().last().unwrap().clone()
    }
}

/// Asks one message; the answer and the notes as they were written.
async fn ask(url: &str) -> (Result<()>, String, String) {
    let client = Client::new(url, None).unwrap();
    let url = Some(url.to_owned());
    let arguments = Arguments { url, model: None, conversation: None, max_tokens: None, message: Vec::new() };
    let (model, conversation) = match join(&client, &arguments).await {
        Ok(joined) => joined,
        Err(error) => return (Err(error), String::new(), String::new()),
    };
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let session = Session::new(model, FreshIds::from_seed(1), true);
    let screen = Screen::new(&mut out, &mut notes, false);
    let signals = Signals::new().unwrap();
    let (_inputs, typed) = mpsc::channel(1);
    let (is_typing_over, is_lost) = (true, false);
    let chat = Chat { client, conversation, session, screen, typed, is_typing_over, is_lost, signals };
    let outcome = chat.run(Some("hello".to_owned())).await;
    (outcome, String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap())
}

#[tokio::test]
async fn a_lost_connection_leaves_no_gap_and_no_duplicate() {
    let server = Breaking::default();
    let url = server.start().await;
    let (outcome, out, notes) = ask(&url).await;
    outcome.unwrap();
    assert_eq!((out.as_str(), notes.as_str()), ("Hello\n", ""));
    let received = server.0.lock().unwrap().clone();
    let kinds: Vec<_> = received.iter().map(|frame| frame["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["conversation.subscribe", "response.create", "conversation.subscribe"]);
    assert_eq!(received[1]["model"], "scripted");
    assert_eq!(received[2]["after"], 2);
}

#[tokio::test]
async fn without_a_server_it_says_what_to_start() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = format!("{:#}", ask(&url).await.0.unwrap_err());
    assert!(error.starts_with(&format!("cannot reach {url} (")), "{error}");
    assert!(error.ends_with("is `midstream serve` running there?"), "{error}");
}

#[test]
fn an_address_that_cannot_be_used_is_refused() {
    let refused = |url: &str| format!("{:#}", Client::new(url, None).unwrap_err());
    assert!(refused("ftp://example.com").contains("must begin with http:// or https://"));
    assert!(refused("localhost").contains("must begin with http://"));
    assert!(refused("http://").contains("http://"));
    assert_eq!(Client::new("http://[::1]:8080/v1/", None).unwrap().to_string(), "http://[::1]:8080");
}

#[test]
fn notices_and_answers_do_not_share_a_line() {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut screen = Screen::new(&mut out, &mut notes, true);
    screen.prompt().unwrap();
    screen.on_typed_line();
    screen.text("answer").unwrap();
    screen.notice("note").unwrap();
    screen.prompt().unwrap();
    screen.prompt().unwrap();
    screen.text("unasked").unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "> answer\n> \nunasked");
    assert_eq!(String::from_utf8(notes).unwrap(), "midstream: note\n");
}

#[test]
fn a_steer_stands_on_lines_of_its_own_and_only_on_a_terminal() {
    for (is_interactive, wanted) in [(true, "A ship\n> a train\nA train"), (false, "A shipA train")] {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, Vec::new(), is_interactive);
        screen.text("A ship").unwrap();
        screen.steered("a train").unwrap();
        screen.text("A train").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }
}

#[test]
fn leaving_by_an_interrupt_ends_the_line() {
    let mut out = Vec::new();
    let mut screen = Screen::new(&mut out, Vec::new(), true);
    screen.prompt().unwrap();
    screen.on_interrupt();
    screen.leave().unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "> \n");
}

#[tokio::test]
async fn quit_and_help_are_not_sent_and_other_lines_are() {
    let url = Breaking::default().start().await;
    let client = Client::new(&url, None).unwrap();
    let (_inputs, typed) = mpsc::channel(1);
    let (mut notes, signals) = (Vec::new(), Signals::new().unwrap());
    let screen = Screen::new(Vec::new(), &mut notes, true);
    let (conversation, session) = ("conv_1".to_owned(), joined(false));
    let mut chat = Chat { client, conversation, session, screen, typed, is_typing_over: true, is_lost: false, signals };
    assert_eq!(chat.on_input(Input::Line("/help".to_owned())).unwrap(), []);
    assert_eq!(sent(&chat.on_input(Input::Line("/etc is what?".to_owned())).unwrap())[0]["input"], "/etc is what?");
    chat.session = joined(false);
    assert_eq!(chat.on_input(Input::Line("/quit ".to_owned())).unwrap(), [Output::Quit(Ok(()))]);
    drop(chat);
    assert!(String::from_utf8(notes).unwrap().contains("/quit leaves"));
}
