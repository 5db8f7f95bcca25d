//! An engine that plays a script: for tests, demonstrations and work on parsers.
//!
//! It keeps no state between requests: the reply follows from the transcript alone, so a resumed answer goes on
//! inside its reply. One thread of its own plays all replies; a delay is a timer on it, never a blocked thread.

mod script;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, watch};

use super::contract::{
    AbortHandle, Engine, EngineError, EngineEvent, FinishReason, Generation, GenerationRequest, Medium, ModelInfo,
    unwanted,
};
use super::settings::{Price, SamplingDefaults};
use super::tokenizer::Tokenizer;
use crate::clock::Clock;
use crate::prompt::{ChatTemplate, Effort, Efforts};
pub use script::ScriptError;
use script::{Finish, Reply, Script};

/// Requests that wait for the playing thread.
const INBOX_CAPACITY: usize = 256;
/// Replies that are played at the same time.
const PLAYS_MAX: usize = 4096;
/// Prompt and answer together, in bytes, which are the tokens here.
const CONTEXT_LENGTH: u32 = 1 << 20;

/// Plays the replies of a script.
#[derive(Debug)]
pub struct ScriptedEngine {
    model: ModelInfo,
    inbox: Option<mpsc::Sender<Play>>,
    thread: Option<JoinHandle<()>>,
}

/// One request on its way to the playing thread.
#[derive(Debug)]
struct Play {
    request: GenerationRequest,
    events: mpsc::Sender<EngineEvent>,
    aborted: watch::Receiver<bool>,
}

impl ScriptedEngine {
    /// Starts an engine that plays the script in `path`.
    pub fn from_file(path: &Path) -> Result<Self, ScriptError> {
        let name = path.display().to_string();
        let json = std::fs::read_to_string(path).map_err(|source| ScriptError::Read { path: name.clone(), source })?;
        Self::start(&json, name)
    }

    /// Says whether an answer that is nothing but a call of a declared tool is a call; without this it is.
    #[must_use]
    pub fn with_bare_calls(mut self, bare_calls: bool) -> Self {
        self.model.bare_calls = bare_calls;
        self
    }

    /// The same with words of its own for how hard it is to think.
    #[must_use]
    pub fn with_efforts(mut self, efforts: &BTreeMap<String, Effort>) -> Self {
        self.model.efforts = Arc::new(Efforts::with(efforts));
        self
    }

    /// The same with this price.
    #[must_use]
    pub fn with_price(mut self, price: Option<Price>) -> Self {
        self.model.price = price;
        self
    }

    /// The same with further names.
    #[must_use]
    pub fn with_aliases(mut self, aliases: Vec<String>) -> Self {
        self.model.aliases = aliases;
        self
    }

    /// Starts an engine that plays the script `json`.
    pub fn from_json(json: &str) -> Result<Self, ScriptError> {
        Self::start(json, "text".to_owned())
    }

    fn start(json: &str, name: String) -> Result<Self, ScriptError> {
        let script = Script::parse(json).map_err(|source| ScriptError::Invalid { name, source })?;
        let tokenizer = Arc::new(Tokenizer::bytes());
        let model = ModelInfo {
            id: "scripted".to_owned(),
            aliases: Vec::new(),
            owned_by: "scripted".to_owned(),
            medium: Medium::Tokens,
            created: Clock::System.unix_ms() / 1000,
            context_length: CONTEXT_LENGTH,
            fingerprint: format!("scripted-{:x}", Sha256::digest(json)),
            tokenizer: Arc::clone(&tokenizer),
            // Its tokens are given: nothing is chosen.
            sampling: SamplingDefaults { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
            template: Arc::new(ChatTemplate::chatml().map_err(ScriptError::Template)?),
            tool_format: script.tool_format,
            reasoning: script.reasoning,
            bare_calls: true,
            efforts: Arc::default(),
            price: None,
            grammars: None,
            exact_resume: true,
        };
        let end_of_turn = tokenizer.eos();
        let (inbox, plays) = mpsc::channel(INBOX_CAPACITY);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(ScriptError::Start)?;
        let thread = std::thread::Builder::new()
            .name("scripted-engine".to_owned())
            .spawn(move || runtime.block_on(play_all(&script, end_of_turn, plays)))
            .map_err(ScriptError::Start)?;
        Ok(Self { model, inbox: Some(inbox), thread: Some(thread) })
    }
}

impl Engine for ScriptedEngine {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn submit(&self, request: GenerationRequest) -> Result<Generation, EngineError> {
        let prompt_tokens = request.prompt.len() + request.resumed.len();
        if prompt_tokens >= CONTEXT_LENGTH as usize {
            return Err(EngineError::ContextLengthExceeded {
                prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
                context_length: CONTEXT_LENGTH,
            });
        }
        let inbox = self.inbox.as_ref().ok_or_else(|| EngineError::Unavailable("it was stopped".to_owned()))?;
        let (events, readable) = mpsc::channel(request.channel_capacity.max(1));
        let (abort, aborted) = watch::channel(false);
        inbox.try_send(Play { request, events, aborted }).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => EngineError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => EngineError::Unavailable("its thread has ended".to_owned()),
        })?;
        let abort = AbortHandle::new(move || {
            abort.send_replace(true);
        });
        Ok(Generation { events: readable, abort })
    }

    fn health(&self) -> Result<(), String> {
        match &self.thread {
            Some(thread) if !thread.is_finished() => Ok(()),
            _ => Err("the scripted engine's thread has ended".to_owned()),
        }
    }
}

impl Drop for ScriptedEngine {
    fn drop(&mut self) {
        // The closed inbox ends the thread; replies that still play end without `Finished`.
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Plays whatever comes until the engine is dropped.
async fn play_all(script: &Script, end_of_turn: Option<u32>, mut inbox: mpsc::Receiver<Play>) {
    let mut plays = FuturesUnordered::new();
    loop {
        tokio::select! {
            play = inbox.recv(), if plays.len() < PLAYS_MAX => match play {
                Some(play) => plays.push(run(script, end_of_turn, play)),
                None => return,
            },
            Some(()) = plays.next() => {}
        }
    }
}

/// Plays one reply to its end, or until nobody wants it any more.
async fn run(script: &Script, end_of_turn: Option<u32>, play: Play) {
    let Play { request, events, aborted } = play;
    let finish = tokio::select! {
        biased;
        () = unwanted(aborted, &events) => FinishReason::Aborted,
        finish = deliver(script, end_of_turn, &request, &events) => finish,
    };
    // Nobody to tell when the reader is gone.
    let _ = events.send(EngineEvent::Finished(finish)).await;
}

/// Sends the reply's tokens behind those that are durable already.
async fn deliver(
    script: &Script,
    end_of_turn: Option<u32>,
    request: &GenerationRequest,
    events: &mpsc::Sender<EngineEvent>,
) -> FinishReason {
    let mut out = Outlet { events, sent: 0, skip: request.resumed.len(), max: request.max_tokens as usize };
    let _ = events.send(EngineEvent::Started { cached_tokens: 0 }).await;
    let Some(reply) = script.reply(&request.messages) else {
        let last = request.messages.last().map_or("", |message| message.content.as_str());
        let shown: String = last.chars().take(80).collect();
        return FinishReason::Failed(format!(
            "no scripted reply matches the last message, which begins with {shown:?}"
        ));
    };
    match play_reply(reply, end_of_turn, &mut out).await {
        Some(finish) => finish,
        None => FinishReason::Length,
    }
}

/// None when there is no room for a token any more.
async fn play_reply(reply: &Reply, end_of_turn: Option<u32>, out: &mut Outlet<'_>) -> Option<FinishReason> {
    for delta in &reply.deltas {
        if out.sent + delta.len() > out.skip && reply.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(reply.delay_ms)).await;
        }
        for byte in delta.bytes() {
            out.send(u32::from(byte)).await?;
        }
    }
    Some(match reply.finish {
        Finish::Stop => {
            if let Some(token) = end_of_turn {
                out.send(token).await?;
            }
            FinishReason::Stop
        }
        Finish::Length => FinishReason::Length,
        Finish::Error => FinishReason::Failed("the scripted reply ends with an error".to_owned()),
    })
}

/// Counts tokens, leaves out those that are durable already, and stops at the limit.
struct Outlet<'a> {
    events: &'a mpsc::Sender<EngineEvent>,
    sent: usize,
    skip: usize,
    max: usize,
}

impl Outlet<'_> {
    fn send(&mut self, token: u32) -> impl Future<Output = Option<()>> {
        let number = self.sent;
        self.sent += 1;
        let (events, wanted, fits) = (self.events, number >= self.skip, number < self.max);
        async move {
            if !fits {
                return None;
            }
            if wanted {
                // A reader that is gone is noticed by whoever waits for it.
                let _ = events.send(EngineEvent::Token(token)).await;
            }
            Some(())
        }
    }
}

#[cfg(test)]
mod tests;
