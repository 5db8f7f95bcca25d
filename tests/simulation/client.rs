//! Clients: requests with keys as the API makes them, and readers that are quick, slow, or gone.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use midstream::actors::{Cancelled, Claim, ConversationHandle, Cursor, DirectoryHandle, KeyClaim, Keys, Open, Reader};
use midstream::conversation::{
    CallKind, CallRef, CancelOutcome, Create, Input, Intervene, Item, ItemBody, ItemStatus, Reject, ResponseConfig,
    Thinking, ToolPolicy,
};
use midstream::error::Code;
use midstream::ids::{CallId, ConversationId, FreshIds, InterventionId, ItemId, ResponseId};
use midstream::prompt::Role;
use midstream::store::{EventRetention, ExpiredEvents, KeyScope, WriterHandle, expired_events};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::requests::{Ask, How, Place, Request, answered, cancelled, claimed, injected, intervened, replayed};
use crate::world::World;

/// Whose conversations these are: some are the one's, some the other's.
pub(crate) const PRINCIPALS: [&str; 2] = ["ann", "bob"];

/// Who does not own what this principal does.
pub(crate) fn other_than(principal: &str) -> &'static str {
    PRINCIPALS[usize::from(principal == PRINCIPALS[0])]
}

/// A client's side of one server process.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) world: Arc<World>,
    pub(crate) directory: DirectoryHandle,
    pub(crate) keys: Keys,
    pub(crate) writer: WriterHandle,
    pub(crate) model: (String, String),
}

impl Client {
    /// Sends a request and notes what came of it.
    pub(crate) async fn send(&self, request: Request, dice: Dice) {
        let number = self.world.number();
        self.world.note(json!({
            "kind": "request",
            "request": number,
            "principal": request.principal,
            "operation": request.name(),
            "conversation": request.conversation().map(|id| id.to_string()),
            "key": request.key,
            "input": request.text(),
        }));
        let answered = self.answer(&request, dice).await;
        if request.about().is_some_and(|id| self.world.owner(id) != request.principal) {
            let code = answered.as_ref().expect_err("somebody else's conversation took a request").code;
            if code == Code::ConversationNotFound {
                self.world.note(json!({"kind": "hidden"}));
            }
        }
        match answered {
            Ok(answer) => self.world.note(json!({"kind": "answer", "request": number, "answer": answer})),
            Err(reject) => {
                let (status, code) = (reject.code.status(), reject.code.as_str());
                self.world.note(json!({"kind": "refused", "request": number, "status": status, "code": code}));
            }
        }
    }

    fn claim(&self, request: &Request) -> Result<Claim, Reject> {
        let (Some(key), Some(operation)) = (request.key.clone(), request.operation()) else {
            return Ok(Claim::InProgress);
        };
        let conversation = request.conversation();
        let scope = KeyScope { principal: request.principal.to_owned(), conversation, operation, key };
        self.keys.claim(scope, request.fingerprint())
    }

    async fn answer(&self, request: &Request, dice: Dice) -> Result<Value, Reject> {
        let claim = match self.claim(request)? {
            Claim::Fresh(claim) => Some(claim),
            Claim::Replay(answer) => return Ok(replayed(request, &answer)),
            Claim::InProgress if request.key.is_some() && request.operation().is_some() => {
                return Err(Reject::new(Code::IdempotencyInProgress, "the first request runs"));
            }
            Claim::InProgress => None,
        };
        self.perform(request, claim, dice).await
    }

    /// To somebody else neither the conversation nor its last response is there, whatever happens to it meanwhile.
    async fn check_hidden(&self, handle: &ConversationHandle, owner: &str) {
        let stranger = other_than(owner);
        let seen = self.directory.conversation(handle.id(), stranger).await;
        assert!(seen.is_err(), "{stranger} sees {}, which is {owner}'s", handle.id());
        let Ok(state) = handle.state().await else { return };
        if let Some(last) = state.responses.last() {
            let seen = self.directory.of_response(last.id, stranger).await;
            assert!(seen.is_err(), "{stranger} sees {}, which is {owner}'s", last.id);
        }
    }

    /// A conversation as its owner finds it, who may not have heard that it was created.
    async fn reach(&self, id: ConversationId) -> Option<(ConversationHandle, &'static str)> {
        for principal in PRINCIPALS {
            if let Ok(handle) = self.directory.conversation(id, principal).await {
                return Some((handle, principal));
            }
        }
        None
    }

    async fn perform(&self, request: &Request, claim: Option<KeyClaim>, dice: Dice) -> Result<Value, Reject> {
        if let Ask::Create { place, text, results, max_tokens, policies } = &request.what {
            let mut create = self.create(text, results, *max_tokens, dice.clone());
            create.policies = *policies;
            create.in_conversation = matches!(place, Place::In(_));
            return self.place(request, *place, create, claim, dice).await;
        }
        let Some(conversation) = request.conversation() else {
            let open = Open { principal: request.principal.to_owned(), ..Open::default() };
            let handle = self.directory.open(open, claim).await?;
            self.created(request, handle.id(), None);
            return Ok(json!({"conversation": handle.id().to_string()}));
        };
        let handle = self.directory.conversation(conversation, request.principal).await?;
        self.check_hidden(&handle, request.principal).await;
        let call = |call_id: &CallId| CallRef { response_id: None, call_id: call_id.clone(), attempt: None };
        match &request.what {
            Ask::Intervene { response, text, how, .. } => {
                let (intervention_id, items) = (InterventionId::draw(&mut FreshIds::random()), vec![said(text)]);
                let How { when, on_multiple, on_late, tools } = *how;
                let now = Intervene::now(intervention_id, *response, items);
                let receipt = handle.intervene(Intervene { when, on_multiple, on_late, tools, ..now }, claim).await?;
                let successor = receipt.successor_id;
                self.created(request, conversation, successor);
                self.world.clients.lock().unwrap().steers.push((conversation, receipt.intervention_id));
                Ok(intervened(conversation, *response, receipt.intervention_id, successor, receipt.seq))
            }
            Ask::Think { response, budget_tokens, .. } => {
                let now = Intervene::now(InterventionId::draw(&mut FreshIds::random()), *response, Vec::new());
                let thinking = Some(Thinking { budget_tokens: Some(*budget_tokens), effort: None });
                let receipt = handle.intervene(Intervene { thinking, ..now }, claim).await?;
                let successor = receipt.successor_id;
                Ok(intervened(conversation, *response, receipt.intervention_id, successor, receipt.seq))
            }
            Ask::Cancel { response, cascade, .. } => {
                let done = handle.cancel(*response, *cascade, claim).await?;
                Ok(cancelled(conversation, done.response_id, self.outcome(&done)))
            }
            Ask::Claim { call: id, lease_ms, .. } => {
                Ok(claimed(conversation, id, &handle.claim_call(call(id), *lease_ms, claim).await?))
            }
            Ask::Result { call: id, output, .. } => {
                let done = handle.answer_call(call(id), output.clone(), false, claim).await?;
                self.created(request, conversation, done.successor_id);
                Ok(answered(conversation, id, &done))
            }
            Ask::Inject { response, results, .. } => {
                let items = results.iter().map(|(call_id, output)| result(call_id, output)).collect();
                let done = handle.answer_calls(*response, items, claim).await?;
                self.created(request, conversation, done.successor_id);
                Ok(injected(conversation, results, &done))
            }
            _ => {
                handle.change(change(&request.what)).await?;
                Ok(done(conversation, &request.what))
            }
        }
    }

    fn outcome(&self, done: &Cancelled) -> &'static str {
        if done.cascaded.is_some() {
            self.world.note(json!({"kind": "cascaded"}));
        }
        match &done.outcome {
            CancelOutcome::Requested => "requested",
            CancelOutcome::AlreadyCancelled => "already_cancelled",
            CancelOutcome::TooLate { successor_id, .. } => {
                if successor_id.is_some() {
                    self.world.note(json!({"kind": "cancel_behind_a_steer"}));
                }
                "too_late"
            }
        }
    }

    fn create(
        &self,
        text: &str,
        results: &[(CallId, String)],
        max_output_tokens: Option<u32>,
        mut dice: Dice,
    ) -> Create {
        let mut input: Vec<Item> = results.iter().map(|(call_id, output)| result(call_id, output)).collect();
        input.push(said(text));
        let timeout_ms = dice.chance(30).then(|| 500 + dice.below(20_000));
        let policy = ToolPolicy { timeout_ms, max_attempts: 3, idempotent: dice.chance(50) };
        let config = ResponseConfig {
            max_output_tokens,
            background: true,
            tool_policies: BTreeMap::from([("look".to_owned(), policy)]),
            ..ResponseConfig::new(&self.model.0, &self.model.1)
        };
        Create::new(ResponseId::draw(&mut FreshIds::random()), input, config)
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
                let handle = self.directory.conversation(id, request.principal).await?;
                let reader = handle.create(create, claim).await?;
                (handle, reader)
            }
            Place::Behind(id, previous) => {
                let handle = self.directory.conversation(id, request.principal).await?;
                let state = handle.state().await?;
                if state.responses.last().is_some_and(|last| last.id == previous) {
                    create.previous = Some(previous);
                    match handle.create(create.clone(), claim).await {
                        Err(reject) if reject.code == Code::ResponseNotActive => {
                            self.world.note(json!({"kind": "lost_the_end"}));
                            let Claim::Fresh(claim) = self.claim(request)? else {
                                return Err(Reject::new(Code::IdempotencyInProgress, "another was faster"));
                            };
                            self.directory.fork(request.principal, previous, create, Some(claim)).await?
                        }
                        created => (handle, created?),
                    }
                } else {
                    self.directory.fork(request.principal, previous, create, claim).await?
                }
            }
        };
        self.created(request, handle.id(), Some(response));
        let conversation = handle.id();
        self.follow(request.principal, handle, reader, dice);
        Ok(json!({"conversation": conversation.to_string(), "response": response.to_string()}))
    }

    /// A client remembers what it was told.
    fn created(&self, request: &Request, conversation: ConversationId, response: Option<ResponseId>) {
        let mut clients = self.world.clients.lock().unwrap();
        let owner = clients.owners.insert(conversation, request.principal);
        assert!(owner.is_none_or(|owner| owner == request.principal), "{conversation} was given to both");
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
        let Some((handle, owner)) = self.reach(conversation).await else { return };
        let Ok(state) = handle.state().await else { return };
        let after = dice.below(state.last_seq + 2);
        match handle.attach(Cursor { epoch: None, seq: after }).await {
            Ok(reader) => {
                let stream = self.world.attached(owner, conversation, after);
                self.read(owner, handle, reader, (stream, after), dice).await;
            }
            Err(reject) if reject.code == Code::CursorExpired => {
                self.world.note(json!({"kind": "cursor_expired"}));
                self.read_all(owner, handle, dice).await;
            }
            Err(reject) => {
                // Events may have come since the look: then the cursor is no longer in the future.
                let known = [Code::CursorInFuture, Code::ConversationNotFound].contains(&reject.code);
                assert!(known || reject.code.status() == 503, "a cursor within the journal was refused: {reject:?}");
            }
        }
    }

    /// Reads from the oldest event on.
    async fn read_all(&self, owner: &'static str, handle: ConversationHandle, dice: Dice) {
        if let Ok(reader) = handle.attach_all().await {
            let after = reader.oldest_seq() - 1;
            let stream = self.world.attached(owner, handle.id(), after);
            self.read(owner, handle, reader, (stream, after), dice).await;
        }
    }

    /// As the journal's keeper does, whenever an operator's settings say so.
    pub(crate) async fn trim(&self, mut dice: Dice) {
        let bytes_max = Some([500, 3_000, 10_000][dice.place(3)]);
        let retention = EventRetention { before_ms: 0, bytes_max };
        let Ok((expired, _)) = expired_events(&*self.world.disk, retention, None, u64::MAX) else { return };
        for ExpiredEvents { conversation, oldest_seq } in expired {
            // It waits for the writer, which may have failed.
            let _ = self.writer.trim(conversation, oldest_seq).await;
        }
    }

    fn follow(&self, owner: &'static str, handle: ConversationHandle, reader: Reader, dice: Dice) {
        let (client, after) = (self.clone(), reader.attached().last_seq);
        // It began with the answer's creation: what was trimmed since, before this client heard of it, is its still.
        let stream = self.world.attached_since(owner, handle.id(), after, Some(reader.oldest_seq()));
        tokio::spawn(async move { client.read(owner, handle, reader, (stream, after), dice).await });
    }

    /// Reads at its own pace, comes back when it was too slow, and leaves when it likes.
    async fn read(
        &self,
        owner: &'static str,
        handle: ConversationHandle,
        mut reader: Reader,
        place: (u64, u64),
        mut dice: Dice,
    ) {
        let (mut stream, mut after) = place;
        let (pace_ms, patience) = (if dice.chance(25) { 12 } else { 0 }, 1 + dice.below(60));
        for _ in 0..patience {
            if pace_ms > 0 {
                tokio::time::sleep(Duration::from_millis(dice.below(pace_ms))).await;
            }
            if let Some(recorded) = reader.next().await {
                after = recorded.seq;
                self.world.saw(stream, after, &serde_json::to_string(&*recorded).unwrap());
            } else {
                match handle.attach(Cursor { epoch: None, seq: after }).await {
                    Ok(next) => reader = next,
                    Err(reject) => {
                        if reject.code == Code::CursorExpired {
                            self.world.note(json!({"kind": "cut_reader"}));
                        }
                        return;
                    }
                }
                stream = self.world.attached(owner, handle.id(), after);
                self.world.note(json!({"kind": "dropped_reader"}));
            }
        }
    }

    /// A reader that stays, and comes back when a batch was larger than its queue.
    pub(crate) async fn stay(self, conversation: ConversationId) {
        let Some((handle, _)) = self.reach(conversation).await else { return };
        let Ok(mut reader) = handle.attach_all().await else { return };
        let mut cursor = Cursor::default();
        loop {
            while let Some(recorded) = reader.next().await {
                cursor.seq = recorded.seq;
            }
            reader = match handle.attach(cursor).await {
                Err(reject) if reject.code == Code::CursorExpired => match handle.attach_all().await {
                    Ok(reader) => reader,
                    Err(_) => return,
                },
                Ok(reader) => reader,
                Err(_) => return,
            };
        }
    }

    /// Reads everything, after all has settled.
    pub(crate) async fn replay(&self, conversation: ConversationId) {
        let (handle, owner) = self.reach(conversation).await.unwrap();
        let last_seq = handle.state().await.unwrap().last_seq;
        let mut reader = handle.attach_all().await.unwrap();
        let oldest_seq = reader.oldest_seq();
        let stream = self.world.attached(owner, conversation, oldest_seq - 1);
        for _ in oldest_seq..=last_seq {
            let recorded = reader.next().await.unwrap();
            self.world.saw(stream, recorded.seq, &serde_json::to_string(&*recorded).unwrap());
        }
    }
}

fn said(text: &str) -> Item {
    Item::message(ItemId::draw(&mut FreshIds::random()), Role::User, text)
}

fn result(call_id: &CallId, output: &str) -> Item {
    let body = ItemBody::FunctionCallOutput {
        call_id: call_id.clone(),
        output: output.to_owned(),
        synthetic: false,
        is_error: false,
        call_kind: CallKind::Function,
    };
    Item { id: ItemId::draw(&mut FreshIds::random()), status: ItemStatus::Completed, body }
}

/// A request that is answered with nothing but that it is done, as the core's input.
fn change(what: &Ask) -> Input {
    match *what {
        Ask::Withdraw { intervention: intervention_id, .. } => Input::Withdraw { intervention_id },
        Ask::Interrupt { response: response_id, .. } => Input::Interrupt { response_id },
        Ask::AddItem { ref text, .. } => Input::AddItems { items: vec![said(text)] },
        Ask::DeleteItem { item: item_id, .. } => Input::DeleteItem { item_id },
        Ask::DeleteResponse { response: response_id, .. } => Input::DeleteResponse { response_id },
        Ask::Delete { .. } => Input::Delete,
        ref other => panic!("{other:?} has an answer of its own"),
    }
}

fn done(conversation: ConversationId, what: &Ask) -> Value {
    let intervention = match what {
        Ask::Withdraw { intervention, .. } => Some(intervention.to_string()),
        _ => None,
    };
    json!({"conversation": conversation.to_string(), "intervention": intervention})
}
