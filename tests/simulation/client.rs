//! Clients: requests with keys as the API makes them, and readers that are quick, slow, or gone.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use midstream::actors::{Claim, ConversationHandle, DirectoryHandle, KeyClaim, Keys, Open, Reader};
use midstream::conversation::{
    CancelOutcome, Create, Intervene, Item, ItemBody, ItemStatus, Reject, ResponseConfig, SamplingConfig,
};
use midstream::error::Code;
use midstream::ids::{CallId, ConversationId, FreshIds, InterventionId, ItemId, ResponseId};
use midstream::prompt::Role;
use midstream::store::{KeyScope, KeyedAnswer, Operation};
use serde_json::{Map, Value, json};

use crate::dice::Dice;
use crate::world::World;

/// Whose conversations these are.
pub(crate) const PRINCIPAL: &str = "ann";

/// Something that a client asks for; sent again it is the same request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) key: Option<String>,
    pub(crate) what: Ask,
}

#[derive(Clone, Debug, Hash)]
pub(crate) enum Ask {
    Open,
    Create { place: Place, text: String, results: Vec<(CallId, String)>, max_tokens: Option<u32> },
    Intervene { conversation: ConversationId, response: ResponseId, text: String },
    Cancel { conversation: ConversationId, response: Option<ResponseId> },
}

/// Where a response is to stand.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Place {
    /// At the end of a conversation.
    In(ConversationId),
    /// Behind a response: at the end of its conversation, or in a fork of it.
    Behind(ConversationId, ResponseId),
}

/// A client's side of one server process.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) world: Arc<World>,
    pub(crate) directory: DirectoryHandle,
    pub(crate) keys: Keys,
    pub(crate) model: (String, String),
}

impl Request {
    fn operation(&self) -> Operation {
        match self.what {
            Ask::Open => Operation::Open,
            Ask::Create { .. } => Operation::Create,
            Ask::Intervene { .. } => Operation::Intervene,
            Ask::Cancel { .. } => Operation::Cancel,
        }
    }

    /// The conversation that the key is unique in.
    fn conversation(&self) -> Option<ConversationId> {
        match self.what {
            Ask::Open | Ask::Create { place: Place::Behind(..), .. } => None,
            Ask::Create { place: Place::In(id), .. } => Some(id),
            Ask::Intervene { conversation, .. } | Ask::Cancel { conversation, .. } => Some(conversation),
        }
    }

    fn text(&self) -> Option<&str> {
        match &self.what {
            Ask::Create { text, .. } | Ask::Intervene { text, .. } => Some(text),
            Ask::Open | Ask::Cancel { .. } => None,
        }
    }

    fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = DefaultHasher::new();
        self.what.hash(&mut hasher);
        let mut fingerprint = [0; 32];
        fingerprint[..8].copy_from_slice(&hasher.finish().to_be_bytes());
        fingerprint
    }
}

impl Client {
    /// Sends a request and notes what came of it.
    pub(crate) async fn send(&self, request: Request, dice: Dice) {
        let number = self.world.number();
        self.world.note(json!({
            "kind": "request",
            "request": number,
            "principal": PRINCIPAL,
            "operation": serde_json::to_value(request.operation()).unwrap(),
            "conversation": request.conversation().map(|id| id.to_string()),
            "key": request.key,
            "input": request.text(),
        }));
        match self.answer(&request, dice).await {
            Ok(answer) => self.world.note(json!({"kind": "answer", "request": number, "answer": answer})),
            Err(reject) => {
                let (status, code) = (reject.code.status(), reject.code.as_str());
                self.world.note(json!({"kind": "refused", "request": number, "status": status, "code": code}));
            }
        }
    }

    fn claim(&self, request: &Request) -> Result<Claim, Reject> {
        let Some(key) = request.key.clone() else { return Ok(Claim::InProgress) };
        let (conversation, operation) = (request.conversation(), request.operation());
        let scope = KeyScope { principal: PRINCIPAL.to_owned(), conversation, operation, key };
        self.keys.claim(scope, request.fingerprint())
    }

    async fn answer(&self, request: &Request, dice: Dice) -> Result<Value, Reject> {
        let claim = match self.claim(request)? {
            Claim::Fresh(claim) => Some(claim),
            Claim::Replay(answer) => return Ok(replayed(&answer)),
            Claim::InProgress if request.key.is_some() => {
                return Err(Reject::new(Code::IdempotencyInProgress, "the first request runs"));
            }
            Claim::InProgress => None,
        };
        match &request.what {
            Ask::Open => {
                let open = Open { principal: PRINCIPAL.to_owned(), ..Open::default() };
                let handle = self.directory.open(open, claim).await?;
                self.created(handle.id(), None);
                Ok(json!({"conversation": handle.id().to_string()}))
            }
            Ask::Create { place, text, results, max_tokens } => {
                let create = self.create(text, results, *max_tokens);
                self.place(request, *place, create, claim, dice).await
            }
            Ask::Intervene { conversation, response, text } => {
                let handle = self.directory.conversation(*conversation, PRINCIPAL).await?;
                let (intervention_id, items) = (InterventionId::draw(&mut FreshIds::random()), vec![said(text)]);
                let intervene = Intervene { intervention_id, response_id: *response, items };
                let receipt = handle.intervene(intervene, claim).await?;
                let successor = receipt.successor_id;
                self.created(*conversation, successor);
                Ok(intervened(*conversation, *response, receipt.intervention_id, successor, receipt.seq))
            }
            Ask::Cancel { conversation, response } => {
                let handle = self.directory.conversation(*conversation, PRINCIPAL).await?;
                let (response, outcome) = handle.cancel(*response, claim).await?;
                let (outcome, successor) = match outcome {
                    CancelOutcome::Requested => ("requested", None),
                    CancelOutcome::TooLate { successor_id } => ("too_late", successor_id),
                    CancelOutcome::AlreadyCancelled => ("already_cancelled", None),
                };
                if successor.is_some() {
                    self.world.note(json!({"kind": "cancel_behind_a_steer"}));
                }
                Ok(cancelled(*conversation, response, outcome))
            }
        }
    }

    fn create(&self, text: &str, results: &[(CallId, String)], max_output_tokens: Option<u32>) -> Create {
        let mut input: Vec<Item> = results.iter().map(|(call_id, output)| result(call_id, output)).collect();
        input.push(said(text));
        let config = ResponseConfig {
            model: self.model.0.clone(),
            fingerprint: self.model.1.clone(),
            instructions: None,
            tools: vec![],
            sampling: SamplingConfig { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 },
            max_output_tokens,
            stop: vec![],
            template_kwargs: Map::new(),
            background: true,
            store: true,
            metadata: Map::new(),
            echo: Map::new(),
        };
        Create { response_id: ResponseId::draw(&mut FreshIds::random()), input, config, previous: None }
    }

    /// As `POST /v1/responses` does: the end of a conversation, else a fork.
    async fn place(
        &self,
        request: &Request,
        place: Place,
        mut create: Create,
        claim: Option<KeyClaim>,
        dice: Dice,
    ) -> Result<Value, Reject> {
        let response = create.response_id;
        let (handle, reader) = match place {
            Place::In(id) => {
                let handle = self.directory.conversation(id, PRINCIPAL).await?;
                let reader = handle.create(create, claim).await?;
                (handle, reader)
            }
            Place::Behind(id, previous) => {
                let handle = self.directory.conversation(id, PRINCIPAL).await?;
                let state = handle.state().await?;
                if state.responses.last().is_some_and(|last| last.id == previous) {
                    create.previous = Some(previous);
                    match handle.create(create.clone(), claim).await {
                        Err(reject) if reject.code == Code::ResponseNotActive => {
                            self.world.note(json!({"kind": "lost_the_end"}));
                            let Claim::Fresh(claim) = self.claim(request)? else {
                                return Err(Reject::new(Code::IdempotencyInProgress, "another was faster"));
                            };
                            self.directory.fork(PRINCIPAL, previous, create, Some(claim)).await?
                        }
                        created => (handle, created?),
                    }
                } else {
                    self.directory.fork(PRINCIPAL, previous, create, claim).await?
                }
            }
        };
        self.created(handle.id(), Some(response));
        let conversation = handle.id();
        self.follow(handle, reader, dice);
        Ok(json!({"conversation": conversation.to_string(), "response": response.to_string()}))
    }

    /// A client remembers what it was told.
    fn created(&self, conversation: ConversationId, response: Option<ResponseId>) {
        let mut clients = self.world.clients.lock().unwrap();
        if !clients.conversations.iter().any(|(id, _)| *id == conversation) {
            clients.conversations.push((conversation, Vec::new()));
        }
        let known = clients.conversations.iter_mut().find(|(id, _)| *id == conversation);
        if let Some((_, responses)) = known {
            responses.extend(response);
        }
    }

    /// Attaches a reader at a random place.
    pub(crate) async fn attach(&self, conversation: ConversationId, mut dice: Dice) {
        let Ok(handle) = self.directory.conversation(conversation, PRINCIPAL).await else { return };
        let Ok(state) = handle.state().await else { return };
        let after = dice.below(state.last_seq + 2);
        match handle.attach(after).await {
            Ok(reader) => self.read(handle, reader, after, dice).await,
            Err(reject) => {
                // Events may have come since the look: then the cursor is no longer in the future.
                let expected = [Code::CursorInFuture, Code::Recovering, Code::StorageUnavailable];
                let known = expected.contains(&reject.code) || reject.code == Code::ConversationDamaged;
                assert!(known, "a cursor within the journal was refused: {reject:?}");
            }
        }
    }

    fn follow(&self, handle: ConversationHandle, reader: Reader, dice: Dice) {
        let (client, after) = (self.clone(), reader.attached().last_seq);
        tokio::spawn(async move { client.read(handle, reader, after, dice).await });
    }

    /// Reads at its own pace, comes back when it was too slow, and leaves when it likes.
    async fn read(&self, handle: ConversationHandle, mut reader: Reader, mut after: u64, mut dice: Dice) {
        let (pace_ms, patience) = (if dice.chance(25) { 12 } else { 0 }, 1 + dice.below(60));
        let mut stream = self.world.attached(handle.id(), after);
        for _ in 0..patience {
            if pace_ms > 0 {
                tokio::time::sleep(Duration::from_millis(dice.below(pace_ms))).await;
            }
            if let Some(recorded) = reader.next().await {
                after = recorded.seq;
                self.world.saw(stream, after, &serde_json::to_string(&*recorded).unwrap());
            } else {
                let Ok(next) = handle.attach(after).await else { return };
                self.world.note(json!({"kind": "dropped_reader"}));
                reader = next;
                stream = self.world.attached(handle.id(), after);
            }
        }
    }

    /// Reads everything, after all has settled.
    pub(crate) async fn replay(&self, conversation: ConversationId) {
        let handle = self.directory.conversation(conversation, PRINCIPAL).await.unwrap();
        let last_seq = handle.state().await.unwrap().last_seq;
        let mut reader = handle.attach(0).await.unwrap();
        let stream = self.world.attached(conversation, 0);
        for _ in 0..last_seq {
            let recorded = reader.next().await.unwrap();
            self.world.saw(stream, recorded.seq, &serde_json::to_string(&*recorded).unwrap());
        }
    }
}

fn said(text: &str) -> Item {
    Item::message(ItemId::draw(&mut FreshIds::random()), Role::User, text)
}

fn result(call_id: &CallId, output: &str) -> Item {
    let body = ItemBody::FunctionCallOutput { call_id: call_id.clone(), output: output.to_owned(), synthetic: false };
    Item { id: ItemId::draw(&mut FreshIds::random()), status: ItemStatus::Completed, body }
}

fn intervened(
    conversation: ConversationId,
    response: ResponseId,
    intervention: InterventionId,
    successor: Option<ResponseId>,
    seq: u64,
) -> Value {
    json!({
        "conversation": conversation.to_string(),
        "response": response.to_string(),
        "intervention": intervention.to_string(),
        "successor": successor.map(|id| id.to_string()),
        "seq": seq,
    })
}

fn cancelled(conversation: ConversationId, response: ResponseId, outcome: &str) -> Value {
    json!({"conversation": conversation.to_string(), "response": response.to_string(), "outcome": outcome})
}

/// The first answer again, in the form in which it was given.
fn replayed(answer: &KeyedAnswer) -> Value {
    match answer {
        KeyedAnswer::Opened { conversation } => json!({"conversation": conversation.to_string()}),
        KeyedAnswer::Created { conversation, response } => {
            json!({"conversation": conversation.to_string(), "response": response.to_string()})
        }
        KeyedAnswer::Intervened { conversation, response, intervention, successor, seq } => {
            intervened(*conversation, *response, *intervention, *successor, *seq)
        }
        KeyedAnswer::Cancelled { conversation, response, outcome } => cancelled(*conversation, *response, outcome),
    }
}
