//! A client that writes down what it asked, was told and saw, lives on when the server dies, and has it all audited.

use serde_json::{Value, json};

use crate::audit::{self, History, Journal, Run};
use crate::support::{Frames, Server, Site, is_terminal};

/// Whose conversations an unprotected server serves.
const PRINCIPAL: &str = "local";

/// The client.
#[derive(Default)]
pub(crate) struct Witness {
    history: History,
    requests: u64,
}

/// A request that can be repeated.
pub(crate) struct Ask<'a> {
    pub(crate) operation: &'a str,
    pub(crate) path: &'a str,
    pub(crate) key: &'a str,
    /// Where what it names lives.
    pub(crate) conversation: Option<&'a str>,
    /// Its text, where it says something.
    pub(crate) input: Option<&'a str>,
    pub(crate) body: Value,
}

impl Witness {
    /// Asks, and gives the answer, null when it was refused; none when the server died.
    pub(crate) async fn ask(&mut self, server: &Server, ask: &Ask<'_>) -> Option<Value> {
        self.requests += 1;
        let request = self.requests;
        self.history.note(json!({
            "kind": "request",
            "request": request,
            "principal": PRINCIPAL,
            "operation": ask.operation,
            "key": format!("{} {}", ask.path, ask.key),
            "input": ask.input,
        }));
        let (status, body) = server.try_post(ask.path, ask.key, &ask.body).await?;
        if status >= 400 {
            let code = body["error"]["code"].clone();
            self.history.note(json!({"kind": "refused", "request": request, "status": status, "code": code}));
            return Some(Value::Null);
        }
        self.history.note(json!({"kind": "answer", "request": request, "answer": answer(ask, &body)}));
        Some(body)
    }

    /// Whether a deletion was asked for, whatever came of it.
    pub(crate) fn is_deleting(&self, conversation: &str) -> bool {
        let asked = |seen: &Value| seen["operation"] == "delete" && seen["conversation"] == conversation;
        self.history.observations.iter().any(asked)
    }

    /// Deletes a conversation; none when the server died. One that is gone already is a refusal.
    pub(crate) async fn delete(&mut self, server: &Server, conversation: &str) -> Option<Value> {
        self.requests += 1;
        let request = self.requests;
        self.history.note(json!({
            "kind": "request",
            "request": request,
            "principal": PRINCIPAL,
            "operation": "delete",
            "conversation": conversation,
        }));
        let (status, body) = server.try_delete(&format!("/v1/conversations/{conversation}")).await?;
        let told = if status == 200 {
            json!({"kind": "answer", "request": request, "answer": {"conversation": conversation}})
        } else {
            json!({"kind": "refused", "request": request, "status": status})
        };
        self.history.note(told);
        Some(body)
    }

    /// Reads a conversation's events behind `after` until `enough`, the end, or the server's.
    pub(crate) async fn read(
        &mut self,
        server: &Server,
        conversation: &str,
        after: u64,
        mut enough: impl FnMut(&Value) -> bool,
    ) -> bool {
        self.requests += 1;
        let stream = self.requests;
        let path = format!("/v1/conversations/{conversation}/events?after={after}");
        let Some(mut frames) = server.try_follow(&path).await else { return false };
        self.history.note(json!({
            "kind": "attach",
            "stream": stream,
            "principal": PRINCIPAL,
            "conversation": conversation,
            "after": after,
        }));
        while let Some(frame) = Frames::next(&mut frames).await {
            let is_enough = enough(&frame);
            self.history.note(json!({"kind": "frame", "stream": stream, "frame": frame}));
            if is_enough {
                return true;
            }
        }
        false
    }

    /// Reads until a response has ended.
    pub(crate) async fn until_ended(&mut self, server: &Server, conversation: &str, response: &str) -> bool {
        let ended = |frame: &Value| is_terminal(frame) && frame["response"]["id"] == response;
        self.read(server, conversation, 0, ended).await
    }

    /// Ends the server in good order, and has what it left audited.
    pub(crate) async fn audit(&self, site: &Site, server: Server) -> Result<(), String> {
        let code = server.terminate().await;
        if code != Some(0) {
            return Err(format!("the server ended with {code:?}"));
        }
        let dump = String::from_utf8(site.run(&["conversations", "dump"], b"")).unwrap();
        let run = Run { settled: true, answers: None, reads_prompts: true };
        let found = audit::audit(&Journal::read(&dump), &self.history, run);
        if found.is_empty() { Ok(()) } else { Err(audit::report(&found)) }
    }
}

/// What an answer acknowledges. The rest of it may differ from time to time.
fn answer(ask: &Ask<'_>, body: &Value) -> Value {
    match ask.operation {
        "open" => json!({"conversation": body["id"]}),
        "create" => json!({"conversation": body["conversation"]["id"], "response": body["id"]}),
        "claim_call" => json!({
            "conversation": ask.conversation,
            "call": body["call_id"],
            "attempt": body["attempt"],
            "lease_until": body["lease_until"],
        }),
        "answer_call" => json!({
            "conversation": ask.conversation,
            "call": ask.body["call_id"],
            "seq": body["accepted_seq"],
            "successor": body["successor_id"],
        }),
        "intervene" => json!({
            "conversation": ask.conversation,
            "response": body["response_id"],
            "intervention": body["id"],
            "successor": body["successor_id"],
            "seq": body["seq"],
        }),
        _ => json!({
            "conversation": ask.conversation,
            "response": body["id"],
            "outcome": body["cancel"]["outcome"].as_str().unwrap_or("requested"),
        }),
    }
}
