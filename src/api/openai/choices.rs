//! Several answers to one request: each is the response of a conversation of its own, and the engine runs a prompt
//! that they have in common once. They are asked for, waited for and streamed together; what they look like on the
//! wire, a [`Form`] says.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response as HttpResponse;
use axum::response::sse::Event;
use futures_util::future::{select_all, try_join_all};
use futures_util::{Stream, stream};
use tokio::time::timeout;

use crate::access::Identity;
use crate::actors::{ConversationHandle, KeyClaim, Open, Reader};
use crate::api::App;
use crate::api::admission::Permit;
use crate::api::create;
use crate::api::errors::{OpenAiError, failed, in_progress, object, wrong_operation};
use crate::api::idempotency;
use crate::api::stream::{data, finish, interrupted, kept_end, sse};
use crate::conversation::{
    self, ChoiceOf, Create, Ending, Event as Fact, Recorded, Reject, Response, ResponseStatus, State,
};
use crate::error::Code;
use crate::ids::{FreshIds, ResponseId};
use crate::protocol::error::ErrorBody;
use crate::store::KeyedAnswer;

/// What the answers of a route look like.
pub(in crate::api) trait Form: Send + 'static {
    /// What is known of one choice while it is streamed.
    type Choice: Send;

    /// Whether the answer is a stream.
    fn streams(&self) -> bool;

    /// A choice that nothing was said of.
    fn choice(&mut self, index: u32, id: ResponseId) -> Self::Choice;

    /// Adds what is sent of an event of the choice's response, `response` as it stands behind it.
    fn show(&mut self, choice: &mut Self::Choice, response: &Response, event: &Fact, out: &mut VecDeque<Event>);

    /// What is sent when all choices have ended, in front of the last word.
    fn close(&self, spent: &[(u32, conversation::Usage)]) -> Option<Event>;

    /// The last word.
    fn last_word(&self) -> Option<Event> {
        Some(Event::default().data("[DONE]"))
    }

    /// What is sent where the stream breaks off.
    fn broken(&self, reject: Reject) -> Event {
        data(&ErrorBody { error: object(reject) })
    }

    /// What is sent after silence.
    fn sign_of_life(&self) -> Event;

    /// The choices as they ended; there is one at least.
    fn whole(&self, choices: &[Response]) -> HttpResponse;
}

/// One choice that was asked for: the reader stands in front of its response.
pub(in crate::api) struct Asked {
    id: ResponseId,
    handle: ConversationHandle,
    reader: Reader,
}

/// A request for each choice: they differ in which choice they are, so they draw other tokens from one seed.
pub(super) fn of_one(create: Create, n: u32) -> Vec<Create> {
    if n == 1 {
        return vec![create];
    }
    let first = create.response_id;
    let fresh = &mut FreshIds::random();
    let of = |index: u32| {
        let mut choice = create.clone();
        choice.config.choice = Some(ChoiceOf { first, index });
        if index > 0 {
            choice.response_id = ResponseId::draw(fresh);
        }
        choice
    };
    (0..n).map(of).collect()
}

/// Asks for the choices. Each is a sequence of its own, and takes the room of one.
pub(in crate::api) async fn ask(
    app: &App,
    principal: &Identity,
    creates: Vec<Create>,
    mut claim: Option<KeyClaim>,
    permit: &mut Permit,
) -> Result<Vec<Asked>, Reject> {
    for _ in 1..creates.len() {
        app.admit_more(principal, permit)?;
    }
    let mut asked = Vec::with_capacity(creates.len());
    for create in creates {
        let (id, stored) = (create.response_id, create.config.store);
        let open = Open { metadata: create.config.metadata.clone(), ..create::open(principal, Vec::new()) };
        let (handle, reader) = if stored {
            app.directory.create_in_new(open, create, claim.take()).await?
        } else {
            app.directory.ephemeral(open, create, claim.take()).await?
        };
        asked.push(Asked { id, handle, reader });
    }
    Ok(asked)
}

/// The answer with these choices.
pub(in crate::api) async fn answer<F: Form>(
    app: &App,
    asked: Vec<Asked>,
    form: F,
    permit: Permit,
) -> Result<HttpResponse, OpenAiError> {
    if form.streams() {
        let stream = ChoiceStream::new(asked, form).begin(app.limits.silence).await?;
        return Ok(stream.answer(app.limits.silence, permit));
    }
    // Where one fails, the others lose their readers and with them their reason to go on.
    Ok(form.whole(&try_join_all(asked.into_iter().map(ended)).await?))
}

/// Waits for the end of a choice.
async fn ended(Asked { id, handle, reader }: Asked) -> Result<Response, Reject> {
    let state = finish(reader, &handle, id).await?;
    ended_well(&state, id)
}

/// The response as it ended, unless it failed.
fn ended_well(state: &State, id: ResponseId) -> Result<Response, Reject> {
    let response = state.response(id).ok_or_else(|| super::responses::not_found(id))?;
    match &response.status {
        ResponseStatus::Ended(Ending::Failed { error }) => Err(failed(error, id)),
        _ => Ok(response.clone()),
    }
}

/// The one choice of a key's first request, found again.
pub(in crate::api) enum First {
    /// It can be read from its beginning.
    Kept(Box<Asked>),
    /// Its events are no longer kept, but how it ended is.
    Ended(Box<Response>),
}

/// Finds what a key's first request asked for, to be streamed or given whole.
pub(in crate::api) async fn first(
    app: &App,
    principal: &str,
    answer: KeyedAnswer,
    streams: bool,
) -> Result<First, Reject> {
    let KeyedAnswer::Created { conversation, response: id } = answer else { return Err(wrong_operation()) };
    let handle = create::created_before(app, principal, conversation, id).await?;
    let state = handle.state().await?;
    let has_ended = state.response(id).is_some_and(|response| response.status.is_terminal());
    if !streams && !has_ended {
        return Err(in_progress(Some(id)));
    }
    match handle.attach_response(id).await {
        Err(expired) if expired.code == Code::CursorExpired && !streams => {
            let state = kept_end(&handle, id, expired).await?;
            Ok(First::Ended(Box::new(ended_well(&state, id)?)))
        }
        reader => Ok(First::Kept(Box::new(Asked { id, reader: reader?, handle }))),
    }
}

/// Gives the first answer to a key again: the key's request had one choice.
pub(in crate::api) async fn replay<F: Form>(
    app: &App,
    principal: &str,
    answer: KeyedAnswer,
    form: F,
    permit: Permit,
) -> Result<HttpResponse, OpenAiError> {
    let first = first(app, principal, answer, form.streams()).await?;
    again(app, first, form, permit).await
}

/// Gives what was found again.
pub(in crate::api) async fn again<F: Form>(
    app: &App,
    first: First,
    form: F,
    permit: Permit,
) -> Result<HttpResponse, OpenAiError> {
    let answer = match first {
        First::Kept(asked) => answer(app, vec![*asked], form, permit).await?,
        First::Ended(response) => form.whole(&[*response]),
    };
    Ok(idempotency::replayed(answer))
}

/// Turns the events of a request's choices into what is sent. They come as they are generated.
struct ChoiceStream<F: Form> {
    form: F,
    /// The choices that have not ended. The one that was read last stands last, so that all get on.
    open: Vec<OpenChoice<F>>,
    /// Tokens of those that have ended.
    spent: Vec<(u32, conversation::Usage)>,
    waiting: VecDeque<Event>,
    /// Something was said.
    opened: bool,
    /// How a choice failed.
    failure: Option<Reject>,
}

struct OpenChoice<F: Form> {
    id: ResponseId,
    index: u32,
    reader: Reader,
    choice: F::Choice,
}

impl<F: Form> ChoiceStream<F> {
    /// The stream of these choices, one at least, in their order.
    fn new(asked: Vec<Asked>, mut form: F) -> Self {
        let open = (0..).zip(asked).map(|(index, Asked { id, reader, .. })| OpenChoice {
            id,
            index,
            reader,
            choice: form.choice(index, id),
        });
        let open = open.collect();
        Self { form, open, spent: Vec::new(), waiting: VecDeque::new(), opened: false, failure: None }
    }

    /// Waits until a choice shows a sign of life; one that fails before it is a refusal and not a stream. A client
    /// waits for the head of its answer no longer than for any other sign of life.
    async fn begin(mut self, silence: Duration) -> Result<Self, Reject> {
        let _ = timeout(silence, async {
            while self.waiting.is_empty() && !self.open.is_empty() {
                self.read().await;
            }
        })
        .await;
        match self.failure.take() {
            Some(reject) if !self.opened => Err(reject),
            _ => Ok(self),
        }
    }

    /// Takes in the next event of whichever open choice has one; there is one at least.
    async fn read(&mut self) {
        let events = self.open.iter_mut().map(|choice| Box::pin(choice.reader.next()));
        let (recorded, place, _) = select_all(events).await;
        let Some(recorded) = recorded else {
            self.break_off(interrupted());
            return;
        };
        let mut choice = self.open.remove(place);
        match self.take(&mut choice, &recorded) {
            None => self.open.push(choice),
            Some(Err(reject)) => self.break_off(reject),
            Some(Ok(usage)) => self.spent.push((choice.index, usage)),
        }
        if self.open.is_empty() && self.failure.is_none() {
            self.waiting.extend(self.form.close(&self.spent));
            self.waiting.extend(self.form.last_word());
        }
    }

    /// Shows one event. Gives, with the last one, what the choice took, or how it failed.
    fn take(&mut self, open: &mut OpenChoice<F>, recorded: &Recorded) -> Option<Result<conversation::Usage, Reject>> {
        if recorded.event.response_id() != Some(open.id) {
            return None;
        }
        let response = open.reader.state().response(open.id)?;
        if let Fact::ResponseEnded { ending: Ending::Failed { error }, .. } = &recorded.event {
            return Some(Err(failed(error, open.id)));
        }
        self.form.show(&mut open.choice, response, &recorded.event, &mut self.waiting);
        self.opened |= !self.waiting.is_empty();
        matches!(recorded.event, Fact::ResponseEnded { .. }).then_some(Ok(response.usage))
    }

    /// A choice cannot be given, so the others are not wanted any more.
    fn break_off(&mut self, reject: Reject) {
        self.open.clear();
        self.waiting.push_back(self.form.broken(reject.clone()));
        self.failure = Some(reject);
    }

    /// The HTTP answer.
    fn answer(self, silence: Duration, permit: Permit) -> HttpResponse {
        let sign_of_life = self.form.sign_of_life();
        sse(self.events(), silence, sign_of_life, Some(permit))
    }

    fn events(self) -> impl Stream<Item = Event> + Send {
        stream::unfold(self, |mut stream| async move {
            while stream.waiting.is_empty() && !stream.open.is_empty() {
                stream.read().await;
            }
            let event = stream.waiting.pop_front()?;
            Some((event, stream))
        })
    }
}
