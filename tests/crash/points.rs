//! The process dies at each named point, the first, the second and the last time that it comes there, and is started
//! again on the same folder. Then everything that was acknowledged or seen must hold, and everything must end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::audit::{self, History, Journal, Run};
use crate::support::{Server, Site, is_terminal, journaled};
use crate::witness::{Ask, Witness};

/// Points that a server comes to while it serves.
const SERVING: &[&str] = &[
    "key_claimed",
    "other_decided",
    "other_journaled",
    "other_published",
    "other_performed",
    "steer_decided",
    "append_before",
    "batch_applied",
    "batch_flushed",
    "batch_synced",
    "batch_counted",
    "append_after",
    "append_acknowledged",
    "steer_journaled",
    "steer_published",
    "generation_aborting",
    "generation_starting",
    "steer_performed",
    "claim_decided",
    "claim_journaled",
    "claim_published",
    "result_decided",
    "result_journaled",
    "result_performed",
    "deletion_decided",
    "deletion_journaled",
    "deletion_performed",
    "purge_before",
    "purge_after",
    "purge_burying",
    "fold_before",
    "prompt_rendered",
    "sequence_submitted",
    "prefill_started",
    "token_sampled",
    "generation_ended",
];

/// Points that a server comes to before it serves again.
const RECOVERING: &[&str] = &["journal_opened", "recovery_waking", "recovery_done"];

/// Points of a trim, which a start brings.
const TRIMMING: &[&str] = &["trim_keeping", "trim_before", "trim_after"];

/// Points of a real model's engine and of its KV files.
const WITH_A_MODEL: &[&str] = &["prefill_middle", "kv_file_synced", "kv_file_placed"];

/// Cases that run at the same time; most of their time they wait for a disk or a timer.
const AT_ONCE: usize = 4;

fn site() -> Site {
    let words: Vec<String> = (0..80).map(|index| format!("word{index} ")).collect();
    let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>";
    Site::scripted(&json!({"tool_format": "hermes", "replies": [
        {"match": "changed my mind", "deltas": words, "delay_ms": 3},
        {"match": "never mind", "deltas": ["fine"], "delay_ms": 1},
        {"match": "rain", "deltas": ["it ", "rains"], "delay_ms": 1},
        {"match": "look", "deltas": ["let me see ", call], "delay_ms": 1},
        {"match": "bye", "deltas": ["bye"]},
        {"deltas": words, "delay_ms": 3},
    ]}))
}

/// What clients do, step by step; each step can be repeated with its key until it is answered.
#[derive(Default)]
struct Workload {
    witness: Witness,
    /// Answers so far, by key.
    answers: BTreeMap<&'static str, Value>,
    /// What was begun, to see it end.
    begun: Vec<(String, String)>,
}

impl Workload {
    /// What an answer names; empty when it was a refusal.
    fn id(&self, key: &str, field: &str) -> String {
        self.answers[key][field].as_str().unwrap_or_default().to_owned()
    }

    fn conversation(&self, key: &str) -> String {
        self.answers[key]["conversation"]["id"].as_str().unwrap_or_default().to_owned()
    }

    /// Asks unless it was answered before. None: the server is dead.
    async fn once(&mut self, server: &Server, key: &'static str, ask: &Ask<'_>) -> Option<()> {
        if !self.answers.contains_key(key) {
            let answer = self.witness.ask(server, ask).await?;
            self.answers.insert(key, answer);
        }
        Some(())
    }

    async fn create(
        &mut self,
        server: &Server,
        key: &'static str,
        input: &str,
        place: Option<(&str, String)>,
    ) -> Option<()> {
        let tools = json!([{"type": "function", "name": "look", "x_midstream": {"idempotent": true}}]);
        let mut body = json!({"input": input, "background": true, "tools": tools});
        if let Some((field, id)) = place {
            body[field] = json!(id);
        }
        let ask = Ask { operation: "create", path: "/v1/responses", key, conversation: None, input: Some(input), body };
        self.once(server, key, &ask).await?;
        self.begins(self.conversation(key), self.id(key, "id"));
        Some(())
    }

    /// Claims a call, and gives its result.
    async fn answer(&mut self, server: &Server, conversation: &str, call: &str) -> Option<()> {
        let place = Some(conversation);
        let path = format!("/v1/conversations/{conversation}/tool_calls/{call}/claim");
        let (operation, key, input, body) = ("claim_call", "k1", None, json!({"lease_ms": 60_000}));
        self.once(server, key, &Ask { operation, path: &path, key, conversation: place, input, body }).await?;
        let path = format!("/v1/conversations/{conversation}/tool_results");
        let (operation, key, body) = ("answer_call", "r1", json!({"call_id": call, "output": "rain"}));
        self.once(server, key, &Ask { operation, path: &path, key, conversation: place, input, body }).await?;
        self.begins(conversation.to_owned(), self.id(key, "successor_id"));
        Some(())
    }

    /// Its end is waited for. A steer that came too late has no successor.
    fn begins(&mut self, conversation: String, response: String) {
        if !response.is_empty() {
            self.begun.push((conversation, response));
        }
    }

    async fn steer(&mut self, server: &Server, key: &'static str, target: [&str; 2], input: &str) -> Option<()> {
        let [conversation, response] = target;
        let (path, body) = (format!("/v1/responses/{response}/interventions"), json!({"input": input}));
        let (operation, conversation) = ("intervene", Some(conversation));
        let ask = Ask { operation, path: &path, key, conversation, input: Some(input), body };
        self.once(server, key, &ask).await
    }

    /// All of it. None: the server died on the way.
    async fn run(&mut self, server: &Server) -> Option<()> {
        self.create(server, "c1", "tell", None).await?;
        let (conversation, first) = (self.conversation("c1"), self.id("c1", "id"));
        self.some(server, &conversation, 6).await?;
        self.steer(server, "s1", [&conversation, &first], "I changed my mind").await?;
        let successor =
            Some(self.id("s1", "successor_id")).filter(|id| !id.is_empty()).unwrap_or_else(|| first.clone());
        self.begins(conversation.clone(), successor.clone());
        self.create(server, "d1", "look", None).await?;
        self.some(server, &conversation, 20).await?;
        let path = format!("/v1/responses/{successor}/cancel?wait=false");
        let (place, body) = (Some(conversation.as_str()), json!({}));
        let cancel = Ask { operation: "cancel", path: &path, key: "x1", conversation: place, input: None, body };
        self.once(server, "x1", &cancel).await?;
        // Another way to go on behind the response that was cut.
        self.create(server, "f1", "rain elsewhere", Some(("previous_response_id", first))).await?;
        self.tools(server).await?;
        let begun = std::mem::take(&mut self.begun).into_iter();
        let begun: Vec<_> = begun.filter(|(conversation, _)| !self.witness.is_deleting(conversation)).collect();
        for (conversation, response) in begun {
            self.witness.until_ended(server, &conversation, &response).await.then_some(())?;
        }
        self.deletion(server).await
    }

    /// A call is claimed and answered; another one is open when a steer comes.
    async fn tools(&mut self, server: &Server) -> Option<()> {
        let (other, asked) = (self.conversation("d1"), self.id("d1", "id"));
        let call = self.call(server, &other, &asked).await?;
        self.answer(server, &other, &call).await?;
        let successor = self.id("r1", "successor_id");
        if !successor.is_empty() {
            self.witness.until_ended(server, &other, &successor).await.then_some(())?;
        }
        self.create(server, "d2", "look again", Some(("conversation", other.clone()))).await?;
        let again = self.id("d2", "id");
        if !again.is_empty() {
            self.call(server, &other, &again).await?;
            self.steer(server, "s2", [&other, &again], "never mind").await?;
            self.begins(other, self.id("s2", "successor_id"));
        }
        Some(())
    }

    /// A short answer of a real model to a prompt of several steps.
    async fn story(&mut self, server: &Server) -> Option<()> {
        let input = "A lighthouse keeper lives alone on a small island. ".repeat(60);
        if !self.answers.contains_key("m1") {
            let body = json!({"input": input, "background": true, "max_output_tokens": 8, "temperature": 0});
            let (operation, path, input) = ("create", "/v1/responses", Some(input.as_str()));
            let ask = Ask { operation, path, key: "m1", conversation: None, input, body };
            self.once(server, "m1", &ask).await?;
        }
        let (conversation, response) = (self.conversation("m1"), self.id("m1", "id"));
        self.witness.until_ended(server, &conversation, &response).await.then_some(())
    }

    /// A conversation that is deleted once it has ended.
    async fn deletion(&mut self, server: &Server) -> Option<()> {
        if self.answers.contains_key("delete") {
            return Some(());
        }
        if !self.answers.contains_key("e1") {
            self.create(server, "e1", "bye", None).await?;
        }
        let (conversation, response) = (self.conversation("e1"), self.id("e1", "id"));
        if !self.witness.is_deleting(&conversation) {
            self.witness.until_ended(server, &conversation, &response).await.then_some(())?;
        }
        let answer = self.witness.delete(server, &conversation).await?;
        self.answers.insert("delete", answer);
        Some(())
    }

    /// Reads some frames, fewer when a response ends before.
    async fn some(&mut self, server: &Server, conversation: &str, count: usize) -> Option<()> {
        let mut seen = 0;
        let enough = |frame: &Value| {
            seen += 1;
            seen == count || is_terminal(frame)
        };
        self.witness.read(server, conversation, 0, enough).await.then_some(())
    }

    /// Waits for the end of a response that makes a call, and gives the call's id.
    async fn call(&mut self, server: &Server, conversation: &str, response: &str) -> Option<String> {
        let mut call = None;
        let enough = |frame: &Value| {
            if frame["type"] == "tool_call.requested" && frame["response_id"] == response {
                call = frame["call_id"].as_str().map(str::to_owned);
            }
            frame["type"] == "response.completed" && frame["response_id"] == response
        };
        self.witness.read(server, conversation, 0, enough).await.then_some(())?;
        call
    }
}

/// How often each point is come to, undisturbed and in a recovery.
async fn counted() -> BTreeMap<String, u64> {
    let site = site();
    let log = site.path().join("log");
    std::fs::write(&log, "").unwrap();
    let path = log.display().to_string();
    let server = site.try_start(&[("MIDSTREAM_CRASH_LOG", &path)]).await.unwrap();
    let mut workload = Workload::default();
    workload.run(&server).await.expect("nothing disturbs it");
    let (fork, parent) = (workload.conversation("f1"), workload.conversation("c1"));
    assert!(!fork.is_empty() && fork != parent, "an older response is gone on from in a fork");
    // What is folded is folded behind the last acknowledgement.
    server.terminate().await;
    let mut counts = BTreeMap::new();
    for name in std::fs::read_to_string(log).unwrap().lines() {
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

/// Dies at the n-th time at a point; then the workload is finished on the same folder.
async fn dies_at(point: &str, nth: u64) -> Result<(), String> {
    let (site, mut workload) = (site(), Workload::default());
    let plan = format!("{point}:{nth}");
    if let Some(server) = site.try_start(&[("MIDSTREAM_CRASH", &plan)]).await {
        // The last time may not come again: then it is killed at the end.
        workload.run(&server).await;
        server.kill();
    }
    finish(&site, workload).await.map_err(|why| format!("MIDSTREAM_CRASH={plan}: {why}"))
}

/// Killed in the middle, then dies three times in its recovery.
async fn dies_recovering(point: &str) -> Result<(), String> {
    let (site, mut workload) = (site(), Workload::default());
    let server = site.start().await;
    workload.create(&server, "c1", "tell", None).await.unwrap();
    let conversation = workload.conversation("c1");
    workload.some(&server, &conversation, 6).await.unwrap();
    server.kill();
    let plan = format!("{point}:1");
    for _ in 0..3 {
        if site.try_start(&[("MIDSTREAM_CRASH", &plan)]).await.is_some() {
            return Err(format!("{point} is not on the way to serving"));
        }
    }
    finish(&site, workload).await.map_err(|why| format!("three times MIDSTREAM_CRASH={plan}: {why}"))
}

async fn finish(site: &Site, mut workload: Workload) -> Result<(), String> {
    let server = site.start().await;
    workload.run(&server).await.ok_or("the workload did not come to its end after the restart")?;
    workload.witness.audit(site, server).await
}

#[tokio::test]
async fn dead_at_any_point_nothing_that_was_acknowledged_or_seen_is_lost() {
    let counts = counted().await;
    let mut cases = Vec::new();
    for point in SERVING {
        let last = counts.get(*point).copied().unwrap_or_default();
        assert!(last > 0, "the workload never comes to {point}");
        let times = BTreeSet::from([1, 2.min(last), last]);
        cases.extend(times.into_iter().map(|nth| (*point, nth)));
    }
    let mut broken = Vec::new();
    let mut running: JoinSet<Result<(), String>> = JoinSet::new();
    for (point, nth) in cases {
        if running.len() == AT_ONCE {
            broken.extend(running.join_next().await.unwrap().unwrap().err());
        }
        running.spawn(dies_at(point, nth));
    }
    broken.extend(running.join_all().await.into_iter().filter_map(Result::err));
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[tokio::test]
async fn dead_three_times_in_its_recovery_it_recovers() {
    let broken: Vec<String> = futures_util::future::join_all(RECOVERING.iter().map(|point| dies_recovering(point)))
        .await
        .into_iter()
        .filter_map(Result::err)
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The oldest event that can be read, once that is not the first.
pub(crate) async fn trimmed(server: &Server, conversation: &str) -> u64 {
    loop {
        let mut frames = server.follow(&format!("/v1/conversations/{conversation}/events")).await;
        let oldest_seq = frames.next().await.unwrap()["oldest_seq"].as_u64().unwrap();
        if oldest_seq > 1 {
            return oldest_seq;
        }
        tokio::task::yield_now().await;
    }
}

/// Two turns; killed at a point of the trim that takes the events of the first.
async fn dies_trimming(point: &str) -> Result<(), String> {
    let site = site();
    let server = site.start().await;
    let (first, conversation) = server.begin("1", json!({"input": "rain"})).await;
    let mut before = server.until_ended(&conversation, &first, 0).await;
    let (second, _) = server.begin("2", json!({"input": "bye", "conversation": conversation})).await;
    before.extend(server.until_ended(&conversation, &second, before.last().unwrap()["seq"].as_u64().unwrap()).await);
    let objects = [first, second].map(|id| format!("/v1/responses/{id}"));
    let shown = [server.get(&objects[0]).await, server.get(&objects[1]).await];
    server.kill();
    let settings = ("MIDSTREAM_CONVERSATION_EVENTS_BYTES_MAX", "1");
    let plan = format!("{point}:1");
    if let Some(server) = site.try_start(&[settings, ("MIDSTREAM_CRASH", &plan)]).await {
        server.dead().await;
    }
    let server = site.try_start(&[settings]).await.ok_or("it does not start again")?;
    let oldest_seq = trimmed(&server, &conversation).await;
    assert_eq!([server.get(&objects[0]).await, server.get(&objects[1]).await], shown, "{point}");
    let gone = server.get(&format!("/v1/conversations/{conversation}/events?after=0")).await;
    assert_eq!(gone["error"]["code"], "cursor_expired", "{gone}");
    let second = shown[1]["id"].as_str().unwrap();
    let after = server.until_ended(&conversation, second, oldest_seq - 1).await;
    let before = journaled(&before.into_iter().filter(|it| it["seq"].as_u64() >= Some(oldest_seq)).collect::<Vec<_>>());
    assert_eq!(journaled(&after), before, "{point}");
    server.terminate().await;
    let dump = String::from_utf8(site.run(&["conversations", "dump"], b"")).unwrap();
    let run = Run { settled: true, answers: None, reads_prompts: true };
    let found = audit::audit(&Journal::read(&dump), &History::default(), run);
    if found.is_empty() { Ok(()) } else { Err(audit::report(&found)) }
}

#[tokio::test]
async fn dead_at_any_point_of_a_trim_the_conversation_is_what_it_was() {
    for point in TRIMMING {
        dies_trimming(point).await.unwrap_or_else(|why| panic!("{point}: {why}"));
    }
}

#[tokio::test]
async fn dead_while_a_real_model_reads_its_prompt_or_its_kv_is_written_it_goes_on() {
    let mut broken = Vec::new();
    for point in WITH_A_MODEL {
        let site = Site::real_model();
        let settings = site.path().join("settings.toml");
        // A prompt of several steps, and a file as soon as the conversation rests.
        std::fs::write(&settings, "kv_file_idle_ms = 1\n").unwrap();
        let settings = settings.display().to_string();
        let site = site.with(&["--config", &settings]);
        let (mut workload, plan) = (Workload::default(), format!("{point}:1"));
        let server = site.try_start(&[("MIDSTREAM_CRASH", &plan)]).await.unwrap();
        // The KV is written behind the end: the server dies while nobody asks for anything.
        if workload.story(&server).await.is_some() {
            server.dead().await;
        }
        let server = site.start().await;
        let told = workload.story(&server).await;
        let done = if told.is_some() { workload.witness.audit(&site, server).await } else { Err("no end".to_owned()) };
        broken.extend(done.err().map(|why| format!("MIDSTREAM_CRASH={plan}: {why}")));
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
