//! A server on a free port, and small clients for its streams.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use midstream::access::Gate;
use midstream::actors::{self, Foresight, Keys, KvKeeper, Parts, RootHandle, Running, Unstored};
use midstream::api::{self, App, Doors, Limits, Phase, Seal, Surface};
use midstream::clock::Clock;
use midstream::config::{Config, UpstreamConfig, UpstreamKind};
use midstream::engine::settings::Price;
use midstream::engine::{Catalog, Engine, ScriptedEngine};
use midstream::prompt::Effort;
use midstream::store::{Failure, MemoryJournal, Writer, WriterHandle};
use midstream::upstream::UpstreamEngine;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Nothing here takes this long, unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What the scripted model says. Every text is several deltas; `slow` takes its time, `silent` says nothing, `endless`
/// never ends by itself, `muse` does not either but thinks first, `typhoon` writes a long call.
fn script() -> Value {
    let endless: Vec<String> = (0..4000).map(|number| format!("{number} ")).collect();
    let mut ponder: Vec<String> = (0..2_000).map(|number| format!("{number}? ")).collect();
    ponder.insert(0, "<think>".to_owned());
    ponder.push("</think>Done".to_owned());
    let call =
        |city: &str| format!(r#"<tool_call>{{"name": "weather", "arguments": {{"city": "{city}"}}}}</tool_call>"#);
    let behind =
        |first: &[&str], rest: &[String]| [first.iter().map(|it| (*it).to_owned()).collect(), rest.to_vec()].concat();
    let musing = behind(&["<think>", "hm", "</think>"], &endless);
    let opening = r#"<tool_call>{"name": "weather", "arguments": {"city": ""#;
    let typing = [behind(&[opening], &vec!["O".to_owned(); 20]), behind(&[r#""}}</tool_call>"#], &[])].concat();
    json!([
        {"match": "muse", "deltas": musing, "delay_ms": 5},
        {"match": "typhoon", "deltas": typing, "delay_ms": 10},
        {"match": "endless", "deltas": endless, "delay_ms": 5},
        {"match": "slow", "deltas": ["one ", "two ", "three ", "four"], "delay_ms": 60},
        {"match": "think", "deltas": ["<think>", "hm, ", "well", "</think>", "so ", "it is"]},
        {"match": "ponder", "deltas": ponder, "delay_ms": 5},
        {"match": "silent", "deltas": ["at last"], "delay_ms": 600_000},
        {"match": "broken", "deltas": [], "finish": "error"},
        {"match": "breaks late", "deltas": ["so ", "far"], "finish": "error"},
        {"match": "long", "deltas": ["cut ", "off"], "finish": "length"},
        {"match": "weather", "deltas": ["Let me see. ", call("Oslo")]},
        {"match": "stroll", "deltas": [call("Oslo"), "and ", "while ", "we ", "wait"], "delay_ms": 60},
        {"match": "twice", "deltas": [call("Oslo"), call("Rome")]},
        {"match": "rain", "deltas": ["Take an umbrella."]},
        {"match": "French", "deltas": ["Bon", "jour"]},
        {"deltas": ["Hello", ", ", "world"]},
    ])
}

/// A running server.
pub(crate) struct Server {
    pub(crate) address: String,
    client: Client,
    phase: watch::Sender<Phase>,
    pub(crate) root: RootHandle,
    pub(crate) running: Running,
    writer: WriterHandle,
    journal: Arc<MemoryJournal>,
}

/// Settings that tests change.
pub(crate) struct Setup {
    /// What the model says, where it is not the usual.
    pub(crate) script: Option<Value>,
    /// Further names of the scripted model.
    pub(crate) aliases: &'static [&'static str],
    /// The server whose model it serves, in the place of a script.
    pub(crate) upstream: Vec<UpstreamConfig>,
    /// What the scripted model's tokens cost.
    pub(crate) price: Option<Price>,
    pub(crate) body_bytes_max: usize,
    pub(crate) body_timeout: Duration,
    /// Who may connect, and how long a client may take.
    pub(crate) doors: Doors,
    pub(crate) ws_frame_bytes_max: usize,
    pub(crate) responses_ws: bool,
    pub(crate) responses_ws_life: Option<Duration>,
    pub(crate) requests_in_flight_max: usize,
    pub(crate) readers_max: usize,
    /// Events that a reader may be behind.
    pub(crate) reader_queue_events: usize,
    pub(crate) silence: Duration,
    pub(crate) surface: Surface,
    /// Who is let in.
    pub(crate) gate: Gate,
    pub(crate) allowed_origins: Vec<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            script: None,
            aliases: &[],
            upstream: Vec::new(),
            price: None,
            body_bytes_max: 2 << 20,
            body_timeout: PATIENCE,
            doors: Doors::new(&Config::default()),
            ws_frame_bytes_max: 1 << 16,
            responses_ws: true,
            responses_ws_life: None,
            requests_in_flight_max: 100,
            readers_max: 100,
            reader_queue_events: Config::default().reader_queue_events,
            silence: Duration::from_secs(15),
            surface: (&Config::default()).into(),
            gate: Gate::default(),
            allowed_origins: Vec::new(),
        }
    }
}

/// The model of another server, over HTTP.
pub(crate) fn behind(address: &str, kind: UpstreamKind) -> UpstreamConfig {
    UpstreamConfig {
        kind: Some(kind),
        base_url: format!("http://{address}/v1"),
        models: vec!["scripted".to_owned()],
        retries_max: 0,
        ..UpstreamConfig::default()
    }
}

/// The engine of these upstreams' model.
fn upstreams(configs: Vec<UpstreamConfig>) -> UpstreamEngine {
    let names = ["other", "another"].map(str::to_owned);
    UpstreamEngine::open(&names.into_iter().zip(configs).collect(), |_| None).unwrap().remove(0)
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(Setup::default()).await
    }

    pub(crate) async fn start_with(setup: Setup) -> Self {
        let journal = Arc::new(MemoryJournal::new());
        let (silence_ms, reader_queue_events) = (setup.silence.as_millis() as u64, setup.reader_queue_events);
        let config = Config { silence_ms, reader_queue_events, ..Config::default() };
        let writer = Writer::start(journal.clone(), config.journal_queue_batches).unwrap();
        let engine: Arc<dyn Engine> = if setup.upstream.is_empty() {
            let engine = ScriptedEngine::from_json(&setup.script.unwrap_or_else(script).to_string()).unwrap();
            let briefly = Effort { budget_tokens: Some(4), ..Effort::default() };
            let aliases = setup.aliases.iter().map(|alias| (*alias).to_owned()).collect();
            let engine = engine.with_efforts(&[("briefly".to_owned(), briefly)].into()).with_aliases(aliases);
            Arc::new(engine.with_price(setup.price))
        } else {
            Arc::new(upstreams(setup.upstream))
        };
        let catalog = Arc::new(Catalog::new(vec![engine]));
        let keys = Keys::new(journal.clone());
        let limits = Limits {
            body_bytes_max: setup.body_bytes_max,
            body_timeout: setup.body_timeout,
            ws_frame_bytes_max: setup.ws_frame_bytes_max,
            responses_ws: setup.responses_ws,
            responses_ws_life: setup.responses_ws_life,
            control_body_bytes_max: 1 << 18,
            requests_in_flight_max: setup.requests_in_flight_max,
            readers_max: setup.readers_max,
            silence: setup.silence,
            tool_lease_ms: 60_000,
            tool_lease_ms_max: 3_600_000,
        };
        let running = Running::default();
        let parts = Parts {
            journal: journal.clone(),
            writer: writer.clone(),
            catalog: catalog.clone(),
            clock: Clock::System,
            config: Arc::new(config),
            running: running.clone(),
            unstored: Unstored::default(),
            foresight: Foresight::default(),
            kv: KvKeeper::default(),
        };
        let root = actors::start(parts).await.unwrap();
        let (phase, phases) = watch::channel(Phase::Ready);
        let app = App::new(root.directory(), catalog, keys, Seal::new([7; 32]), (limits, setup.surface), phases);
        let app = app.guarded(setup.gate, &setup.allowed_origins);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(api::serve(listener, api::router(app), setup.doors, std::future::pending()));
        let client = Client::builder().no_proxy().build().unwrap();
        Self { address, client, phase, root, running, writer, journal }
    }

    /// Trims the events in front of this response's first, as the journal's keeper does; gives the oldest seq.
    pub(crate) async fn trim_before(&self, response: &str) -> u64 {
        let id = response.parse().unwrap();
        let home = self.root.directory().of_response(id, "local").await.unwrap();
        let oldest_seq = home.state().await.unwrap().response(id).unwrap().created_seq;
        self.writer.trim(home.id(), oldest_seq).await.unwrap();
        oldest_seq
    }

    /// Lets no write reach the journal any more.
    pub(crate) fn fill_the_disk(&self) {
        self.journal.fail(Failure::Append);
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address)).timeout(PATIENCE)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::read(self.request(Method::GET, path).send().await.unwrap()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        Answer::read(self.request(Method::DELETE, path).send().await.unwrap()).await
    }

    /// The response object once it has ended, without reading its stream.
    pub(crate) async fn ended(&self, id: &str) -> Value {
        let response = id.parse().unwrap();
        let home = self.root.directory().of_response(response, "local").await.unwrap();
        timeout(PATIENCE, home.ended(response)).await.expect("it ends").unwrap();
        self.get(&format!("/v1/responses/{id}")).await.body
    }

    /// Waits until the conversation's response is paused, without reading its stream, and names it.
    pub(crate) async fn paused(&self, conversation: &str) -> String {
        let id = conversation.parse().unwrap();
        let paused = timeout(PATIENCE, async {
            loop {
                let state = self.root.directory().conversation(id, "local").await.unwrap().state().await.unwrap();
                if state.phase() == Some("paused") {
                    return state.active().unwrap().id.to_string();
                }
                tokio::task::yield_now().await;
            }
        });
        paused.await.expect("it is paused")
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        Answer::read(self.request(Method::POST, path).json(&body).send().await.unwrap()).await
    }

    pub(crate) async fn post_keyed(&self, path: &str, key: &str, body: Value) -> Answer {
        let request = self.request(Method::POST, path).header("Idempotency-Key", key).json(&body);
        Answer::read(request.send().await.unwrap()).await
    }

    /// A stream of server-sent events.
    pub(crate) async fn stream(&self, request: RequestBuilder) -> Sse {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Sse { response, buffer: String::new(), first_id: None }
    }

    pub(crate) async fn post_stream(&self, path: &str, body: Value) -> Sse {
        self.stream(self.request(Method::POST, path).json(&body)).await
    }

    pub(crate) async fn get_stream(&self, path: &str) -> Sse {
        self.stream(self.request(Method::GET, path)).await
    }

    /// A new conversation's id.
    pub(crate) async fn conversation(&self) -> String {
        let answer = self.post("/v1/conversations", json!({})).await;
        answer.body["id"].as_str().unwrap().to_owned()
    }

    /// A background response that is being generated.
    pub(crate) async fn running(&self, input: &str) -> String {
        let body = json!({"input": input, "background": true, "stream": true});
        let mut stream = self.post_stream("/v1/responses", body).await;
        let event = stream.until("response.output_text.delta").await;
        assert_eq!(event["type"], "response.output_text.delta");
        let id = stream.first_id.clone();
        id.unwrap()
    }

    pub(crate) async fn socket(&self, conversation: &str) -> Socket {
        let url = format!("ws://{}/v1/conversations/{conversation}/ws", self.address);
        Socket(tokio_tungstenite::connect_async(url).await.unwrap().0)
    }

    /// OpenAI's socket.
    pub(crate) async fn responses_socket(&self) -> Socket {
        let url = format!("ws://{}/v1/responses", self.address);
        Socket(tokio_tungstenite::connect_async(url).await.unwrap().0)
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) async fn read(response: Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or_else(|_| panic!("status {status}, no JSON: {text}"));
        Self { status, headers, body }
    }

    pub(crate) fn id(&self) -> String {
        self.body["id"].as_str().unwrap_or_else(|| panic!("no id: {}", self.body)).to_owned()
    }

    /// Checks an error's status and code, and that it says something.
    #[track_caller]
    pub(crate) fn assert_error(&self, status: u16, code: &str) -> &Value {
        let error = &self.body["error"];
        assert_eq!((self.status, error["code"].as_str()), (status, Some(code)), "{}", self.body);
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", self.body);
        assert!(error["type"].is_string(), "{}", self.body);
        error
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// One event of a stream.
#[derive(Clone, Debug)]
pub(crate) struct SseEvent {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) data: String,
}

impl SseEvent {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|_| panic!("no JSON: {}", self.data))
    }
}

/// A stream of server-sent events.
pub(crate) struct Sse {
    response: Response,
    buffer: String,
    first_id: Option<String>,
}

impl Sse {
    /// The next block, comments too; `None` at the end.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.find("\n\n") {
                let block = self.buffer[..end].to_owned();
                self.buffer.drain(..end + 2);
                return Some(block);
            }
            let chunk = timeout(PATIENCE, self.response.chunk()).await.expect("the stream says nothing").unwrap()?;
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<SseEvent> {
        loop {
            let block = self.block().await?;
            let mut event = SseEvent { id: None, event: None, data: String::new() };
            for line in block.lines() {
                match line.split_once(": ") {
                    Some(("id", text)) => event.id = Some(text.to_owned()),
                    Some(("event", text)) => event.event = Some(text.to_owned()),
                    Some(("data", text)) => event.data.push_str(text),
                    _ => {}
                }
            }
            if !event.data.is_empty() {
                if self.first_id.is_none()
                    && let Ok(value) = serde_json::from_str::<Value>(&event.data)
                {
                    self.first_id = value["response"]["id"].as_str().map(str::to_owned);
                }
                return Some(event);
            }
        }
    }

    /// Waits for a comment, as it comes after silence.
    pub(crate) async fn comment(&mut self) -> String {
        loop {
            let block = self.block().await.expect("the stream ended");
            if block.starts_with(':') {
                return block;
            }
        }
    }

    /// Reads up to the first event of this type.
    pub(crate) async fn until(&mut self, kind: &str) -> Value {
        while let Some(event) = self.next().await {
            let value = event.json();
            if value["type"] == kind {
                return value;
            }
        }
        panic!("the stream ended without {kind}")
    }

    /// All events to the end.
    pub(crate) async fn rest(&mut self) -> Vec<SseEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// The data of all events to the end.
    pub(crate) async fn rest_json(&mut self) -> Vec<Value> {
        self.rest().await.iter().filter(|event| event.data != "[DONE]").map(SseEvent::json).collect()
    }
}

/// A conversation's socket.
pub(crate) struct Socket(pub(crate) WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    pub(crate) async fn send(&mut self, frame: Value) {
        self.send_text(frame.to_string()).await;
    }

    pub(crate) async fn send_text(&mut self, text: String) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    /// The next frame; pings are no sign that one comes.
    pub(crate) async fn next(&mut self) -> Value {
        timeout(PATIENCE, self.next_text()).await.expect("the socket says nothing")
    }

    async fn next_text(&mut self) -> Value {
        loop {
            match self.0.next().await.expect("the socket closed").unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Close(frame) => panic!("the socket was closed: {frame:?}"),
                _ => {}
            }
        }
    }

    /// Reads up to the first frame that is wanted, and gives all of them.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut frames = Vec::new();
        loop {
            let frame = self.next().await;
            let found = wanted(&frame);
            frames.push(frame);
            if found {
                return frames;
            }
        }
    }

    /// Reads up to the first frame of this type and gives it.
    pub(crate) async fn until_type(&mut self, kind: &str) -> Value {
        self.until(|frame| frame["type"] == kind).await.pop().unwrap()
    }

    /// Waits for the close frame and gives its code.
    pub(crate) async fn close_code(&mut self) -> u16 {
        loop {
            match timeout(PATIENCE, self.0.next()).await.expect("the socket stays open") {
                Some(Ok(Message::Close(Some(frame)))) => return frame.code.into(),
                Some(Ok(_)) => {}
                end => panic!("no close frame but {end:?}"),
            }
        }
    }

    /// Reads up to the frame that answers this request.
    pub(crate) async fn answer_to(&mut self, event_id: &str) -> Value {
        self.until(|frame| frame["event_id"] == event_id).await.pop().unwrap()
    }
}

/// All text deltas of a Responses stream, joined.
pub(crate) fn text_of(events: &[Value]) -> String {
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    deltas.map(|event| event["delta"].as_str().unwrap()).collect()
}
