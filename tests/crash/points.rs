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

/// Points that a server comes to before it serves again, with how often where three conversations go on.
const RECOVERING: &[(&str, u64)] = &[("journal_opened", 1), ("recovery_waking", 3), ("recovery_done", 1)];

/// Points of a trim, which a start brings.
const TRIMMING: &[&str] = &["trim_keeping", "trim_before", "trim_after"];

/// Conversations that are trimmed, each of which comes to each of these points once.
const TRIMMED: u64 = 3;

/// Cases that run at the same time; most of their time they wait for a disk or a timer.
const AT_ONCE: usize = 4;

fn site() -> Site {
    let words: Vec<String> = (0..80).map(|index| format!("word{index} ")).collect();
    let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>";
    Site::scripted(&json!({"tool_format": "hermes", "replies": [
        {"match": "changed my mind", "deltas": words, "delay_ms": 3},
        {"match": "never mind", "deltas": ["fine"], "delay_ms": 1},
        {"match": "take your time", "deltas": words, "delay_ms": 40},
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

    /// A short answer of a real model to each of these prompts, in conversations of their own.
    async fn stories(&mut self, server: &Server, prompts: &[Prompt]) -> Option<()> {
        for (key, sentences) in prompts {
            let input = "A lighthouse keeper lives alone on a small island. ".repeat(*sentences);
            if !self.answers.contains_key(key) {
                let body = json!({"input": input, "background": true, "max_output_tokens": 8, "temperature": 0});
                let (operation, path, input) = ("create", "/v1/responses", Some(input.as_str()));
                self.once(server, key, &Ask { operation, path, key, conversation: None, input, body }).await?;
            }
            let (conversation, response) = (self.conversation(key), self.id(key, "id"));
            self.witness.until_ended(server, &conversation, &response).await.then_some(())?;
        }
        Some(())
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

/// Killed in the middle of three conversations; then dies at the n-th time at a point of its recovery, so many times.
async fn dies_recovering(point: &str, nth: u64, times: usize) -> Result<(), String> {
    let (site, mut workload) = (site(), Workload::default());
    let server = site.start().await;
    for key in ["w1", "w2"] {
        workload.create(&server, key, "take your time", None).await.unwrap();
    }
    workload.create(&server, "c1", "tell", None).await.unwrap();
    let conversation = workload.conversation("c1");
    workload.some(&server, &conversation, 6).await.unwrap();
    server.kill();
    let plan = format!("{point}:{nth}");
    for _ in 0..times {
        if site.try_start(&[("MIDSTREAM_CRASH", &plan)]).await.is_some() {
            return Err(format!("{plan} is not on the way to serving"));
        }
    }
    finish(&site, workload).await.map_err(|why| format!("{times} times MIDSTREAM_CRASH={plan}: {why}"))
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
async fn dead_at_any_point_of_its_recovery_and_three_times_at_the_first_it_recovers() {
    let cases = RECOVERING.iter().flat_map(|(point, last)| {
        // Three times behind the waking of a conversation, its response would be given up.
        (1..=*last).map(|nth| dies_recovering(point, nth, if nth == 1 { 3 } else { 1 }))
    });
    let broken: Vec<String> = futures_util::future::join_all(cases).await.into_iter().filter_map(Result::err).collect();
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

/// A conversation of two turns, the first of which is to be trimmed.
struct TwoTurns {
    conversation: String,
    events: Vec<Value>,
    /// Where its responses are, and what is there.
    objects: Vec<(String, Value)>,
}

impl TwoTurns {
    async fn taken(server: &Server, number: u64) -> Self {
        let (first, conversation) = server.begin(&format!("1 {number}"), json!({"input": "rain"})).await;
        let mut events = server.until_ended(&conversation, &first, 0).await;
        let body = json!({"input": "bye", "conversation": conversation});
        let (second, _) = server.begin(&format!("2 {number}"), body).await;
        let behind = events.last().unwrap()["seq"].as_u64().unwrap();
        events.extend(server.until_ended(&conversation, &second, behind).await);
        let mut objects = Vec::new();
        for path in [first, second].map(|id| format!("/v1/responses/{id}")) {
            let shown = server.get(&path).await;
            objects.push((path, shown));
        }
        Self { conversation, events, objects }
    }

    /// Once it is trimmed, nothing but its oldest events is missing.
    async fn check(&self, server: &Server, plan: &str) {
        let oldest_seq = trimmed(server, &self.conversation).await;
        for (path, shown) in &self.objects {
            assert_eq!(server.get(path).await, *shown, "{plan}");
        }
        let gone = server.get(&format!("/v1/conversations/{}/events?after=0", self.conversation)).await;
        assert_eq!(gone["error"]["code"], "cursor_expired", "{plan}: {gone}");
        let second = self.objects[1].1["id"].as_str().unwrap();
        let after = server.until_ended(&self.conversation, second, oldest_seq - 1).await;
        let is_left = |event: &&Value| event["seq"].as_u64() >= Some(oldest_seq);
        let left: Vec<Value> = self.events.iter().filter(is_left).cloned().collect();
        assert_eq!(journaled(&after), journaled(&left), "{plan}");
    }
}

/// Three conversations; killed at the n-th time at a point of the trims that take the events of their first turns.
async fn dies_trimming(plan: &str) -> Result<(), String> {
    let site = site();
    let server = site.start().await;
    let mut conversations = Vec::new();
    for number in 0..TRIMMED {
        conversations.push(TwoTurns::taken(&server, number).await);
    }
    server.kill();
    let settings = ("MIDSTREAM_CONVERSATION_EVENTS_BYTES_MAX", "1");
    if let Some(server) = site.try_start(&[settings, ("MIDSTREAM_CRASH", plan)]).await {
        server.dead().await;
    }
    let server = site.try_start(&[settings]).await.ok_or("it does not start again")?;
    for conversation in &conversations {
        conversation.check(&server, plan).await;
    }
    server.terminate().await;
    let dump = String::from_utf8(site.run(&["conversations", "dump"], b"")).unwrap();
    let run = Run { settled: true, answers: None, reads_prompts: true };
    let found = audit::audit(&Journal::read(&dump), &History::default(), run);
    if found.is_empty() { Ok(()) } else { Err(audit::report(&found)) }
}

#[tokio::test]
async fn dead_at_any_point_of_a_trim_the_conversation_is_what_it_was() {
    let plans = TRIMMING.iter().flat_map(|point| (1..=TRIMMED).map(move |nth| format!("{point}:{nth}")));
    for plan in plans {
        dies_trimming(&plan).await.unwrap_or_else(|why| panic!("{plan}: {why}"));
    }
}

/// A real model that runs prompts in several steps, and writes a file as soon as a conversation rests.
fn site_with_a_model() -> Site {
    let site = Site::real_model();
    let settings = site.path().join("settings.toml");
    std::fs::write(&settings, "kv_file_idle_ms = 1\n").unwrap();
    let settings = settings.display().to_string();
    site.with(&["--config", &settings])
}

/// A key, and how many sentences the prompt has.
type Prompt = (&'static str, usize);

/// One that is run in several steps.
const LONG: &[Prompt] = &[("m1", 60)];

/// Conversations that each have a file.
const SHORT: &[Prompt] = &[("m1", 2), ("m2", 3)];

/// How often a long prompt is in its middle.
async fn middles() -> u64 {
    let (site, mut workload) = (site_with_a_model(), Workload::default());
    let log = site.path().join("log");
    std::fs::write(&log, "").unwrap();
    let server = site.try_start(&[("MIDSTREAM_CRASH_LOG", &log.display().to_string())]).await.unwrap();
    workload.stories(&server, LONG).await.expect("nothing disturbs it");
    server.kill();
    std::fs::read_to_string(log).unwrap().lines().filter(|name| *name == "prefill_middle").count() as u64
}

/// `is_behind_the_end` says that the point comes when the answers have ended.
async fn dies_with_a_model(point: &str, nth: u64, prompts: &[Prompt], is_behind_the_end: bool) -> Result<(), String> {
    let (site, mut workload) = (site_with_a_model(), Workload::default());
    let plan = format!("{point}:{nth}");
    let server = site.try_start(&[("MIDSTREAM_CRASH", &plan)]).await.unwrap();
    let ended = workload.stories(&server, prompts).await.is_some();
    match (ended, is_behind_the_end) {
        (false, _) => {}
        // The server dies while nobody asks for anything.
        (true, true) => drop(server.dead().await),
        // In how many steps a prompt is run follows how long they take: this time there were fewer.
        (true, false) => server.kill(),
    }
    let server = site.start().await;
    let told = workload.stories(&server, prompts).await;
    let done = if told.is_some() { workload.witness.audit(&site, server).await } else { Err("no end".to_owned()) };
    done.map_err(|why| format!("MIDSTREAM_CRASH={plan}: {why}"))
}

#[tokio::test]
async fn dead_while_a_real_model_reads_its_prompt_or_its_kv_is_written_it_goes_on() {
    let last = middles().await;
    assert!(last > 2, "the prompt is run in {last} steps before its last");
    let cases =
        [("prefill_middle", last, LONG, false), ("kv_file_synced", 2, SHORT, true), ("kv_file_placed", 2, SHORT, true)];
    let mut broken = Vec::new();
    for (point, last, prompts, is_behind_the_end) in cases {
        for nth in BTreeSet::from([1, 2, last]) {
            broken.extend(dies_with_a_model(point, nth, prompts, is_behind_the_end).await.err());
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
