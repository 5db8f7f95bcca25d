//! What clients do next: drawn by chance from what they know, sent at once or overtaken by later requests.

use std::time::Duration;

use midstream::conversation::{
    FlushPolicy, IfBusy, OnDisconnect, OnLate, OnMultiple, OnRestart, Policies, State, ToolsOnSteer, When,
};
use midstream::ids::{CallId, ConversationId, ResponseId};

use crate::client::{Client, PRINCIPALS, other_than};
use crate::dice::Dice;
use crate::requests::{Ask, How, Place, Request};

/// Conversations that are opened before anything else.
const CONVERSATIONS_MIN: usize = 3;
/// Conversations at most; forks come on top.
const CONVERSATIONS_MAX: usize = 8;

/// One command.
pub(crate) fn command(client: &Client, dice: &mut Dice) {
    let (client, mut dice) = (client.clone(), dice.fork());
    let (opened, sent) = {
        let clients = client.world.clients.lock().unwrap();
        (clients.conversations.clone(), clients.sent.clone())
    };
    if opened.len() < CONVERSATIONS_MIN || opened.len() < CONVERSATIONS_MAX && dice.chance(6) {
        let request = opening(&client, &mut dice);
        return send_request(client, request, dice);
    }
    let (id, responses) = opened[dice.place(opened.len())].clone();
    let (last, some) = (responses.last().copied(), responses.get(dice.place(responses.len())).copied());
    let target = if dice.chance(75) { last } else { some };
    match (dice.below(100), target) {
        (0..22, _) | (_, None) => {
            let ask = create(&client, Place::In(id), &mut dice);
            send(client, ask, dice);
        }
        (22..27, Some(response)) => {
            let ask = create(&client, Place::Behind(id, response), &mut dice);
            send(client, ask, dice);
        }
        (27..52, Some(response)) => {
            let (text, how) = (text(&client, &mut dice), how(&mut dice));
            send(client, Ask::Intervene { conversation: id, response, text, how }, dice);
        }
        (52..60, response) => {
            let (response, cascade) = (response.filter(|_| dice.chance(80)), dice.chance(40));
            send(client, Ask::Cancel { conversation: id, response, cascade }, dice);
        }
        (60..76, _) => drop(tokio::spawn(about_what_is_there(client, id, dice))),
        (76..84, _) => drop(tokio::spawn(async move { client.attach(id, dice).await })),
        (84..93, _) if !sent.is_empty() => {
            let request = sent[dice.place(sent.len())].clone();
            tokio::spawn(async move { client.send(request, dice).await });
        }
        (93..94, Some(response)) => send(client, Ask::Interrupt { conversation: id, response }, dice),
        (94..95, Some(response)) => {
            let budget_tokens = dice.below(6) as u32;
            send(client, Ask::Think { conversation: id, response, budget_tokens }, dice);
        }
        (95..96, _) => client.world.set_clock(|now_ms| now_ms + 3_600_000),
        (96..97, _) => client.world.set_clock(|now_ms| now_ms - 600_000),
        (97..98, _) => client.world.disk.damage(id),
        (98..99, _) => drop(tokio::spawn(async move { client.trim(dice).await })),
        _ => {
            let text = format!("item {}", client.world.number());
            send(client, Ask::AddItem { conversation: id, text }, dice);
        }
    }
}

/// Sends a request, now or a little later.
fn send(client: Client, what: Ask, mut dice: Dice) {
    let request = keyed(&client, what, &mut dice);
    send_request(client, request, dice);
}

fn send_request(client: Client, request: Request, mut dice: Dice) {
    let delay = Duration::from_millis(if dice.chance(30) { dice.below(15) } else { 0 });
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        client.send(request, dice).await;
    });
}

/// A request for a conversation, sometimes with a key that the other principal has used for one.
fn opening(client: &Client, dice: &mut Dice) -> Request {
    let principal = PRINCIPALS[dice.place(PRINCIPALS.len())];
    let sent = client.world.clients.lock().unwrap().sent.clone();
    let mut opened = sent.into_iter().filter(|request| matches!(request.what, Ask::Open));
    let request = match opened.find(|request| request.principal != principal && request.key.is_some()) {
        Some(request) if dice.chance(40) => Request { principal, ..request },
        _ => with_key(client, principal, Ask::Open, dice),
    };
    remembered(client, request)
}

/// A request that may be repeated later; now and then it is not its conversation's owner who sends it.
fn keyed(client: &Client, what: Ask, dice: &mut Dice) -> Request {
    let mut request = with_key(client, PRINCIPALS[0], what, dice);
    if let Some(id) = request.about() {
        let owner = client.world.owner(id);
        request.principal = if dice.chance(3) { other_than(owner) } else { owner };
    }
    remembered(client, request)
}

/// A request with a key, mostly.
fn with_key(client: &Client, principal: &'static str, what: Ask, dice: &mut Dice) -> Request {
    let number = client.world.number();
    Request { principal, key: dice.chance(80).then(|| format!("k{number}")), what }
}

fn remembered(client: &Client, request: Request) -> Request {
    client.world.clients.lock().unwrap().sent.push(request.clone());
    request
}

/// What is said, and with it what the model does.
fn text(client: &Client, dice: &mut Dice) -> String {
    let kinds = ["", "call", "long", "call think", "think", "fail", "nan", "stall", "long call", "call call"];
    // Calls and plain answers are what most races are about.
    let kind = kinds[if dice.chance(50) { dice.place(4) } else { dice.place(kinds.len()) }];
    format!("m{} {kind}", client.world.number())
}

fn create(client: &Client, place: Place, dice: &mut Dice) -> Ask {
    let max_tokens = dice.chance(8).then(|| 1 + dice.below(12) as u32);
    Ask::Create { place, text: text(client, dice), results: vec![], max_tokens, policies: policies(dice) }
}

fn policies(dice: &mut Dice) -> Policies {
    Policies {
        durability: [None, None, Some(FlushPolicy::Sync), Some(FlushPolicy::Relaxed)][dice.place(4)],
        on_disconnect: [None, None, None, Some(OnDisconnect::Pause), Some(OnDisconnect::Cancel)][dice.place(5)],
        grace_ms: Some([0, 20, 500][dice.place(3)]),
        on_restart: dice.chance(8).then_some(OnRestart::Fail),
        max_unattended_tokens: dice.chance(8).then(|| 4 + dice.below(20) as u32),
        max_conversation_tokens: dice.chance(6).then(|| 10 + dice.below(200)),
        if_busy: [None, Some(IfBusy::Fail), Some(IfBusy::Enqueue), Some(IfBusy::Steer)][dice.place(4)],
    }
}

fn how(dice: &mut Dice) -> How {
    How {
        when: [When::Now, When::Item, When::After][dice.place(3)],
        on_multiple: if dice.chance(20) { OnMultiple::Replace } else { OnMultiple::Merge },
        on_late: if dice.chance(30) { OnLate::Enqueue } else { OnLate::Fail },
        tools: if dice.chance(50) { ToolsOnSteer::Await } else { ToolsOnSteer::Cancel },
    }
}

/// Requests that name what only a look at the conversation tells.
async fn about_what_is_there(client: Client, id: ConversationId, mut dice: Dice) {
    let Ok(handle) = client.directory.conversation(id, client.world.owner(id)).await else { return };
    let Ok(state) = handle.state().await else { return };
    let Some(what) = named(&client, id, &state, &mut dice) else { return };
    let request = keyed(&client, what, &mut dice);
    client.send(request, dice).await;
}

fn named(client: &Client, id: ConversationId, state: &State, dice: &mut Dice) -> Option<Ask> {
    let calls: Vec<CallId> = state.calls.iter().map(|call| call.call_id.clone()).collect();
    let open: Vec<CallId> = state.open_calls().map(|call| call.call_id.clone()).collect();
    // Mostly what takes it, sometimes what does not any more.
    let some = if dice.chance(80) && !open.is_empty() { &open } else { &calls };
    let call = some.get(dice.place(some.len())).cloned();
    match dice.below(100) {
        0..8 => inject(client, id, state, &call?, dice),
        8..38 => {
            let output = format!("result {}", client.world.number());
            Some(Ask::Result { conversation: id, call: call?, output })
        }
        38..60 => {
            let lease_ms = if dice.chance(40) { 50 } else { 4_000 + dice.below(60_000) };
            Some(Ask::Claim { conversation: id, call: call?, lease_ms })
        }
        60..72 => Some(answer_in_next(client, id, open, call, dice)),
        72..78 => Some(answer_in_fork(client, id, state, &call?, dice)),
        78..88 => {
            let steers = client.world.clients.lock().unwrap().steers.clone();
            let here: Vec<_> = steers.into_iter().filter(|(place, _)| *place == id).collect();
            let (_, intervention) = *here.get(here.len().checked_sub(1 + dice.place(here.len().min(3)))?)?;
            Some(Ask::Withdraw { conversation: id, intervention })
        }
        88..95 => {
            let made = state.responses.iter().flat_map(|response| &response.output).map(|output| output.item.id);
            let given = state.responses.iter().flat_map(|response| &response.input).map(|item| item.id);
            let all: Vec<_> = made.chain(given).collect();
            let item = *all.get(dice.place(all.len()))?;
            Some(Ask::DeleteItem { conversation: id, item })
        }
        95..99 => {
            let all: Vec<ResponseId> = state.responses.iter().map(|response| response.id).collect();
            let response = *all.get(dice.place(all.len()))?;
            Some(Ask::DeleteResponse { conversation: id, response })
        }
        _ => Some(Ask::Delete { conversation: id }),
    }
}

/// Results together for the calls of one response, mostly those that wait.
fn inject(client: &Client, id: ConversationId, state: &State, call: &CallId, dice: &mut Dice) -> Option<Ask> {
    let response = state.call(call)?.response_id;
    let calls = state.calls.iter().filter(|call| call.response_id == response);
    let calls = calls.filter(|call| dice.chance(if call.status.is_open() { 90 } else { 10 }));
    let results = calls.map(|call| (call.call_id.clone(), format!("result {}", client.world.number()))).collect();
    Some(Ask::Inject { conversation: id, response, results })
}

/// Goes on behind the response that made a call, with results for some of its calls, as a client does that sends what
/// it has again.
fn answer_in_fork(client: &Client, id: ConversationId, state: &State, call: &CallId, dice: &mut Dice) -> Ask {
    let made_by = state.call(call).map(|call| call.response_id);
    let calls = state.calls.iter().filter(|call| Some(call.response_id) == made_by && dice.chance(60));
    let calls: Vec<CallId> = calls.map(|call| call.call_id.clone()).collect();
    let place = made_by.map_or(Place::In(id), |response| Place::Behind(id, response));
    answering(client, place, calls, dice)
}

/// Answers some of the open calls in the next request, and sometimes one that takes no result any more.
fn answer_in_next(
    client: &Client,
    id: ConversationId,
    open: Vec<CallId>,
    other: Option<CallId>,
    dice: &mut Dice,
) -> Ask {
    let mut calls: Vec<CallId> = open.into_iter().filter(|_| dice.chance(85)).collect();
    if dice.chance(15) {
        calls.extend(other);
    }
    answering(client, Place::In(id), calls, dice)
}

fn answering(client: &Client, place: Place, calls: Vec<CallId>, dice: &mut Dice) -> Ask {
    let results = calls.into_iter().map(|call_id| (call_id, format!("result {}", client.world.number()))).collect();
    let Ask::Create { place, text, max_tokens, policies, .. } = create(client, place, dice) else {
        unreachable!("a request for a response is one");
    };
    Ask::Create { place, text, results, max_tokens, policies }
}
