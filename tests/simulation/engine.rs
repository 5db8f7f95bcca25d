//! An engine whose reply follows from what was said last, and whose pace and faults follow from the seed.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use midstream::engine::{
    AbortHandle, Engine, EngineError, EngineEvent, FinishReason, Generation, GenerationRequest, ModelInfo,
    ScriptedEngine,
};
use midstream::prompt::{ChatTemplate, Message, Role};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::dice::Dice;
use crate::world::World;

/// A stall is longer than anybody waits.
const STALL: Duration = Duration::from_secs(90);

/// The engine of one process.
pub(crate) struct SimEngine {
    model: ModelInfo,
    world: Arc<World>,
    dice: Mutex<Dice>,
    /// Neither stalls nor refuses.
    calm: bool,
}

impl SimEngine {
    pub(crate) fn new(world: Arc<World>, dice: Dice, calm: bool) -> Self {
        let model = model().clone();
        Self { model, world, dice: Mutex::new(dice), calm }
    }
}

impl Engine for SimEngine {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn submit(&self, request: GenerationRequest) -> Result<Generation, EngineError> {
        let mut dice = self.dice.lock().unwrap().fork();
        let calm = self.calm;
        if !calm && dice.chance(1) {
            return Err(EngineError::Overloaded);
        }
        let messages: Vec<Value> = request.messages.iter().map(shown).collect();
        self.world.note(json!({"kind": "model_input", "messages": messages}));
        let (events, readable) = mpsc::channel(request.channel_capacity.max(1));
        let (abort, aborted) = watch::channel(false);
        tokio::spawn(play(request, events, aborted, dice, calm));
        let abort = AbortHandle::new(move || {
            abort.send_replace(true);
        });
        Ok(Generation { events: readable, abort })
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }
}

/// What the engine serves.
fn model() -> &'static ModelInfo {
    static MODEL: OnceLock<ModelInfo> = OnceLock::new();
    MODEL.get_or_init(|| {
        // The description is the scripted engine's; its thread plays nothing. What it answers follows from the
        // messages: a long prompt would only take time.
        let model = ScriptedEngine::from_json("[]").unwrap().model().clone();
        ModelInfo { template: Arc::new(ChatTemplate::new("{{ messages | length }}", "", "").unwrap()), ..model }
    })
}

/// A message as the auditor reads it.
fn shown(message: &Message) -> Value {
    let calls = message.tool_calls.iter().map(|call| json!({"id": call.id, "arguments": call.arguments}));
    json!({
        "role": serde_json::to_value(message.role).unwrap(),
        "content": message.content,
        "reasoning_content": message.reasoning_content,
        "tool_calls": calls.collect::<Vec<_>>(),
        "tool_call_id": message.tool_call_id,
    })
}

/// What is said to a text, and how it ends.
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) fault: Option<&'static str>,
    stalls: bool,
}

/// The reply to what was said last: words in it choose its kind, its number the rest.
pub(crate) fn reply(said: &str) -> Reply {
    let number = said.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let has = |word: &str| said.split_whitespace().any(|it| it == word);
    let mut text = String::new();
    if has("think") {
        text.push_str("<think>\nhm\n</think>\n\n");
    }
    let words = if has("long") { 9 } else { 1 + number % 4 };
    for word in 0..words {
        write!(text, "w{}é ", (number + word) % 10).unwrap();
    }
    let calls = if has("call") { 1 + usize::from(number.is_multiple_of(3)) } else { 0 };
    for call in 0..calls {
        let arguments = json!({"at": call});
        write!(text, "<tool_call>\n{{\"name\": \"look\", \"arguments\": {arguments}}}\n</tool_call>\n").unwrap();
    }
    let fault = match () {
        () if has("fail") => Some("the device is lost"),
        () if has("nan") => Some("the logits are not finite"),
        () => None,
    };
    Reply { text, fault, stalls: has("stall") }
}

/// The tokens of the whole reply, with the one that ends it.
pub(crate) fn tokens(said: &str) -> Vec<u64> {
    let stop = model().tokenizer.end_of_generation()[0];
    reply(said).text.bytes().map(u64::from).chain([u64::from(stop)]).collect()
}

async fn play(
    request: GenerationRequest,
    events: mpsc::Sender<EngineEvent>,
    mut aborted: watch::Receiver<bool>,
    mut dice: Dice,
    calm: bool,
) {
    // An abort takes effect with the step that is under way.
    let step = Duration::from_millis(if calm { 0 } else { dice.below(8) });
    let stopped = async {
        if aborted.wait_for(|aborted| *aborted).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let reason = tokio::select! {
        biased;
        () = stopped => {
            tokio::time::sleep(step).await;
            FinishReason::Aborted
        }
        () = events.closed() => FinishReason::Aborted,
        reason = deliver(&request, &events, dice, calm) => reason,
    };
    let _ = events.send(EngineEvent::Finished(reason)).await;
}

async fn deliver(
    request: &GenerationRequest,
    events: &mpsc::Sender<EngineEvent>,
    mut dice: Dice,
    calm: bool,
) -> FinishReason {
    tokio::time::sleep(Duration::from_millis(dice.below(6))).await;
    let _ = events.send(EngineEvent::Started { cached_tokens: 0 }).await;
    let last = request.messages.iter().rev().find(|message| matches!(message.role, Role::User | Role::Tool));
    let reply = reply(last.map_or("", |message| &message.content));
    let half = reply.text.len() / 2;
    for (place, byte) in reply.text.bytes().enumerate() {
        if place >= request.max_tokens as usize {
            return FinishReason::Length;
        }
        if let Some(fault) = reply.fault.filter(|_| place == half) {
            return FinishReason::Failed(fault.to_owned());
        }
        if place < request.resumed.len() {
            continue;
        }
        if reply.stalls && place == half && !calm {
            tokio::time::sleep(STALL).await;
        }
        if dice.chance(25) {
            tokio::time::sleep(Duration::from_millis(1 + dice.below(4))).await;
        }
        let _ = events.send(EngineEvent::Token(u32::from(byte))).await;
    }
    if let Some(stop) = request.stop_tokens.first() {
        let _ = events.send(EngineEvent::Token(*stop)).await;
    }
    FinishReason::Stop
}
