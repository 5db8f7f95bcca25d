//! The prompt of a response: the tokens of the turns before it, and what is new.
//!
//! A turn's prompt is a pure function of the transcript: rendering turn after turn, each on the tokens of the one
//! before, gives the same tokens in a running process and after a restart. What was built last is kept, and what was
//! run is recorded: only the new turn is rendered. Turns of older journals, and of other models, are rendered again.

use std::sync::{Arc, Mutex, PoisonError};

use super::chat::{BYTES_PER_TOKEN, as_messages, estimated_tokens};
use super::reading::Reading;
use super::shorten::{leave_out, prompt_tokens_max, shortened};
use crate::config::Config;
use crate::conversation::{
    self, Create, Event, HeldTokens, Item, ItemBody, ItemStatus, NewResponse, Now, RecordedPrompt, Response, State,
    held_tokens, known_runs, messages_with_answer, messages_within, recorded_prompt, turns,
};
use crate::engine::{Medium, ModelInfo};
use crate::ids::{FreshIds, ItemId, ResponseId};
use crate::parse::{ends_in_reasoning, text_ends_in_reasoning};
use crate::prompt::{
    Built, Known, Message, PrefixReport, PromptEnd, Rendering, Role, Side, TemplateError, build_within, compare,
    template_kwargs,
};

/// What tools or people say in an imagined turn: texts that have no first token in common, with what is before them
/// or without.
const STAND_INS: [&str; 2] = ["a", "\n1"];

/// The prompt that was built last in this conversation.
#[derive(Default)]
pub(super) struct HeldPrompt(Mutex<Option<Held>>);

struct Held {
    response_id: ResponseId,
    model: String,
    tokens: Vec<u32>,
}

/// What the operator says about prompts. It must not change while a response waits to be resumed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PromptSettings {
    pub(super) strip_preamble: bool,
    pub(super) reasoning_cleared_after_ms: u64,
}

impl From<&Config> for PromptSettings {
    fn from(config: &Config) -> Self {
        let Config { strip_preamble, reasoning_cleared_after_ms, .. } = *config;
        Self { strip_preamble, reasoning_cleared_after_ms }
    }
}

/// Why there is no prompt; the texts are fit for the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unrendered {
    /// The template refuses the conversation.
    Template(String),
    /// It cannot fit into the model's context, however it is cut into tokens.
    TooLong(String),
    /// The answer cannot be held to its form.
    Constraint(String),
}

/// A prompt, ready for an engine.
pub(super) struct Rendered {
    pub(super) tokens: Vec<u32>,
    pub(super) messages: Vec<Message>,
    /// Whether the answer begins inside reasoning, if the prompt's end says.
    pub(super) starts_in_reasoning: Option<bool>,
    /// What is to be recorded of it, unless that was done.
    pub(super) record: Option<RecordedPrompt>,
    /// So many of the last messages are the answer's beginning. Of tokens the prompt itself says so.
    pub(super) begun: usize,
    /// The answer so far breaks off inside of a call. Of tokens the answer's own say so.
    pub(super) is_in_call: bool,
}

impl Rendered {
    /// Tokens, for an engine that takes them.
    fn tokens(tokens: Vec<u32>, messages: Vec<Message>, starts_in_reasoning: Option<bool>) -> Self {
        Self { tokens, messages, starts_in_reasoning, record: None, begun: 0, is_in_call: false }
    }

    /// Tokens of the prompt; of messages that an engine renders itself, about as many as they will be.
    pub(super) fn length(&self) -> u32 {
        if self.tokens.is_empty() { estimated_tokens(&self.messages) } else { self.tokens.len() as u32 }
    }
}

impl HeldPrompt {
    /// Builds the prompt of a response, or gives the one that it began with.
    pub(super) fn render(
        &self,
        state: &State,
        id: ResponseId,
        model: &ModelInfo,
        settings: PromptSettings,
    ) -> Result<Rendered, Unrendered> {
        let turns: Vec<&Response> = turns(state, id).collect();
        let Some((turn, before)) = turns.split_last() else {
            return Err(Unrendered::Template(format!("no response {id}")));
        };
        if model.medium == Medium::Messages {
            return Ok(as_messages(state, turn, model, settings));
        }
        if let Some(given) = &turn.config.extras.prompt {
            return Ok(as_given(given, model));
        }
        let rendered = match recorded_prompt(&turns, &model.fingerprint) {
            Some(tokens) => {
                let mut messages = messages_within(state, turn, settings.reasoning_cleared_after_ms);
                leave_out(&mut messages, turn.prompt.as_ref().map_or(0, |prompt| prompt.left_out as usize));
                let prompt = model.tokenizer.spell(&tokens);
                let starts_in_reasoning = starts_in_reasoning(turn, model, &messages, &prompt);
                Rendered::tokens(tokens, messages, starts_in_reasoning)
            }
            None => self.build(state, turn, before, model, settings)?,
        };
        let held = Held { response_id: id, model: model.id.clone(), tokens: rendered.tokens.clone() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
        Ok(rendered)
    }

    /// Builds the prompts of the turns behind the last one whose tokens are held, each on the one before it.
    fn build(
        &self,
        state: &State,
        turn: &Response,
        before: &[&Response],
        model: &ModelInfo,
        settings: PromptSettings,
    ) -> Result<Rendered, Unrendered> {
        let begin = self.begin(before, model).or_else(|| held_tokens(before, &model.fingerprint));
        let (mut held, first) = begin.map_or((None, 0), |held| (Some(held.tokens), held.place + 1));
        for turn in &before[first..] {
            let mut tokens = build_turn(state, turn, model, settings, held.as_deref())?.built.tokens;
            tokens.extend(turn.kept_tokens());
            held = Some(tokens);
        }
        let Prompt { messages, left_out, built } = build_turn(state, turn, model, settings, held.as_deref())?;
        let starts_in_reasoning = starts_in_reasoning(turn, model, &messages, &built.text);
        let is_new = turn.prompt.is_none() && turn.config.store;
        let record = is_new.then(|| RecordedPrompt {
            left_out: left_out as u32,
            ..RecordedPrompt::of(&built.tokens, turn, before, &model.fingerprint)
        });
        Ok(Rendered { record, ..Rendered::tokens(built.tokens, messages, starts_in_reasoning) })
    }

    /// The tokens that every prompt behind this response begins with, whatever its calls give or its reader says: as
    /// far as two agree that have nothing else in common.
    pub(super) fn certain(
        &self,
        state: &State,
        id: ResponseId,
        model: &ModelInfo,
        settings: PromptSettings,
    ) -> Result<Vec<u32>, Unrendered> {
        let mut one = self.imagined(state, id, STAND_INS[0], true, model, settings)?;
        let other = self.imagined(state, id, STAND_INS[1], false, model, settings)?;
        let common = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
        one.truncate(common);
        Ok(one)
    }

    /// The prompt of the turn behind this response, if this were what its calls gave or its reader said.
    fn imagined(
        &self,
        state: &State,
        id: ResponseId,
        said: &str,
        reasons: bool,
        model: &ModelInfo,
        settings: PromptSettings,
    ) -> Result<Vec<u32>, Unrendered> {
        let (state, next) = followed(state.clone(), id, said);
        let turns: Vec<&Response> = turns(&state, next).collect();
        let Some((turn, before)) = turns.split_last() else { return Ok(Vec::new()) };
        if turn.config.store {
            return Ok(self.build(&state, turn, before, model, settings)?.tokens);
        }
        // Its client keeps the conversation and sends it again as text: with its reasoning or without, with our ids.
        let mut messages = messages_within(&state, turn, settings.reasoning_cleared_after_ms);
        let asked = before.last().map_or(0, |turn| messages_within(&state, turn, 0).len());
        for message in messages.iter_mut().skip(asked) {
            message.reasoning_content.take_if(|_| !reasons && turn.config.seal.is_none());
            message.tool_calls.iter_mut().for_each(|call| call.native_id = None);
        }
        let mut runs = known_runs(&state, turn, &model.fingerprint);
        let answer = before.last().filter(|answer| answer.config.seal.is_some());
        let reasoning = answer.into_iter().flat_map(|answer| &answer.output);
        // What it sealed comes back as it was, reasoning and all.
        let reasoning = reasoning.filter(|output| matches!(output.item.body, ItemBody::Reasoning { .. }));
        runs.extend(reasoning.map(|output| output.tokens.as_slice()));
        let known = Known { held: None, runs: &runs };
        Ok(build_messages(&state, turn, model, settings, messages, &known)?.built.tokens)
    }

    /// The tokens of the turn that was built last, with its answer.
    fn begin(&self, before: &[&Response], model: &ModelInfo) -> Option<HeldTokens> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = held.as_ref().filter(|held| held.model == model.id)?;
        let place = before.iter().position(|turn| turn.id == held.response_id)?;
        let mut tokens = held.tokens.clone();
        tokens.extend(before[place].kept_tokens());
        Some(HeldTokens { place, tokens })
    }
}

/// A prompt that a client gave token for token. The scripted engine sees its text as what a user said.
fn as_given(tokens: &[u32], model: &ModelInfo) -> Rendered {
    let messages = vec![Message::text(Role::User, model.tokenizer.spell(tokens))];
    Rendered::tokens(tokens.to_vec(), messages, Some(false))
}

/// The conversation with one more turn: this is what the calls of `id` gave, or what came behind it.
fn followed(mut state: State, id: ResponseId, said: &str) -> (State, ResponseId) {
    let fresh = &mut FreshIds::random();
    let next = ResponseId::draw(fresh);
    let Some(response) = state.response(id) else { return (state, next) };
    let (mut config, now_ms) = (response.config.clone(), response.ended_ms.unwrap_or(response.created_ms));
    (config.prompt_end, config.constraint) = (PromptEnd::Answer, None);
    let mut events = Vec::new();
    for call in state.open_calls() {
        let (call_id, call_kind) = (call.call_id.clone(), state.call_kind(&call.call_id));
        let (output, synthetic, is_error) = (said.to_owned(), false, false);
        let body = ItemBody::FunctionCallOutput { call_id, output, synthetic, is_error, call_kind };
        let output = Item { id: ItemId::draw(fresh), status: ItemStatus::Completed, body };
        let (response_id, call_id, attempt) = (call.response_id, call.call_id.clone(), call.attempt);
        events.push(Event::ToolResultAccepted { response_id, call_id, attempt, output });
    }
    let input = if events.is_empty() { vec![Item::message(ItemId::draw(fresh), Role::User, said)] } else { Vec::new() };
    let new = NewResponse { id: next, previous: Some(id), input, config, enqueued: false };
    events.push(Event::ResponseCreated(Box::new(new)));
    for event in events {
        let recorded = state.number(event, now_ms);
        state.apply(&recorded);
    }
    (state, next)
}

/// Whether the answer begins inside reasoning, if the message that it goes on with or the text of its prompt says.
fn starts_in_reasoning(turn: &Response, model: &ModelInfo, messages: &[Message], prompt: &str) -> Option<bool> {
    let reasoning = Reading::of(&turn.config, model).reasoning;
    match turn.config.prompt_end.continued(messages) {
        Some(text) => Some(text_ends_in_reasoning(reasoning, text)),
        None => ends_in_reasoning(reasoning, prompt),
    }
}

/// Where the prompt of a response left the tokens that were held for it, and which response they were held of. The
/// first response of a conversation has none before it.
pub(super) fn explain(
    state: &State,
    id: ResponseId,
    model: &ModelInfo,
    settings: PromptSettings,
) -> Result<(Option<ResponseId>, PrefixReport), Unrendered> {
    let mut held: Option<(&Response, usize, Vec<u32>)> = None;
    for turn in turns(state, id) {
        let before = held.as_ref().map(|(.., tokens)| tokens.as_slice());
        let Prompt { messages, left_out, built } = build_turn(state, turn, model, settings, before)?;
        if turn.id == id {
            let prompt = Side { tokens: &built.tokens, messages: &messages, tools: &turn.config.tools };
            let report = |held: Side<'_>| compare(&model.tokenizer, model.template.capabilities(), held, prompt);
            return Ok(match &held {
                None => (None, report(Side { tokens: &[], messages: &[], tools: &[] })),
                Some((previous, left_out, tokens)) => {
                    let mut answered = messages_with_answer(state, previous, settings.reasoning_cleared_after_ms);
                    leave_out(&mut answered, *left_out);
                    let tools = &previous.config.tools;
                    (Some(previous.id), report(Side { tokens, messages: &answered, tools }))
                }
            });
        }
        let mut tokens = built.tokens;
        tokens.extend(turn.kept_tokens());
        held = Some((turn, left_out, tokens));
    }
    Err(Unrendered::Template(format!("{id} has no place in the transcript")))
}

/// A prompt, the messages that it was made from, and how many were left out of it.
struct Prompt {
    messages: Vec<Message>,
    left_out: usize,
    built: Built,
}

fn build_turn(
    state: &State,
    turn: &Response,
    model: &ModelInfo,
    settings: PromptSettings,
    held: Option<&[u32]>,
) -> Result<Prompt, Unrendered> {
    let messages = messages_within(state, turn, settings.reasoning_cleared_after_ms);
    let runs = known_runs(state, turn, &model.fingerprint);
    build_messages(state, turn, model, settings, messages, &Known { held, runs: &runs })
}

/// Builds a prompt of these messages; where the turn allows it, without the oldest of too many.
fn build_messages(
    state: &State,
    turn: &Response,
    model: &ModelInfo,
    settings: PromptSettings,
    mut messages: Vec<Message>,
    known: &Known<'_>,
) -> Result<Prompt, Unrendered> {
    let kwargs = template_kwargs(&turn.config.template_kwargs, model.template.capabilities());
    let build = |messages: &[Message]| {
        refuse_hopeless(messages, model)?;
        let rendering = Rendering {
            messages,
            tools: &turn.config.tools,
            end: turn.config.prompt_end,
            kwargs: &kwargs,
            // The transcript's own time, so that a template that shows the date gives the same prompt every day.
            now_unix_ms: state.template_ms,
            strip_preamble: settings.strip_preamble && turn.config.strip_preamble,
        };
        let built = build_within(&model.template, &model.tokenizer, &rendering, known, context_of(model));
        built.map_err(|error| match error {
            TemplateError::TooLong { .. } => Unrendered::TooLong(error.to_string()),
            error => Unrendered::Template(error.to_string()),
        })
    };
    // An upstream's tokens are not counted here.
    if !turn.config.extras.truncates || model.medium == Medium::Messages {
        let built = build(&messages)?;
        return Ok(Prompt { messages, left_out: 0, built });
    }
    let tokens_max = prompt_tokens_max(model.context_length, turn.config.max_output_tokens);
    let (left_out, built) = shortened(&messages, tokens_max, build)?;
    leave_out(&mut messages, left_out);
    Ok(Prompt { messages, left_out, built })
}

/// A request whose prompt is asked for.
pub(super) struct Asked {
    pub(super) create: Create,
    /// The tokens of the prompt that this one is the beginning of, where something follows.
    pub(super) begins: Option<Arc<[u32]>>,
}

/// The messages and the prompt that a request would be given behind this state's last turn, by a generation's way.
pub(super) fn preview(
    state: State,
    Asked { create, begins }: Asked,
    now_ms: u64,
    model: &ModelInfo,
    settings: PromptSettings,
) -> Result<(Vec<Message>, Built), Unrendered> {
    let id = create.response_id;
    let whole = begins.is_none();
    let state = conversation::imagined(state, create, whole, Now { unix_ms: now_ms, fresh: FreshIds::random() });
    let turn = state.response(id).ok_or_else(|| Unrendered::Template(format!("no response {id}")))?;
    let messages = messages_within(&state, turn, settings.reasoning_cleared_after_ms);
    let runs = known_runs(&state, turn, &model.fingerprint);
    let known = Known { held: begins.as_deref(), runs: &runs };
    let Prompt { messages, built, .. } = build_messages(&state, turn, model, settings, messages, &known)?;
    Ok((messages, built))
}

/// Tokens that fit; where an upstream's tokens are not known, so many bytes as they would be about.
fn context_of(model: &ModelInfo) -> usize {
    let context = model.context_length as usize;
    if model.medium == Medium::Messages { context.saturating_mul(BYTES_PER_TOKEN) } else { context }
}

/// Refuses what is certain to be too long before it is rendered: megabytes of text take more memory than they are
/// worth. What a template may leave out, such as reasoning, tools and arguments, is counted once it is rendered.
fn refuse_hopeless(messages: &[Message], model: &ModelInfo) -> Result<(), Unrendered> {
    let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
    let tokens_min = bytes / model.tokenizer.longest_token_bytes().max(1);
    let context = context_of(model);
    if tokens_min <= context {
        return Ok(());
    }
    let tokens_max = context;
    Err(Unrendered::TooLong(TemplateError::TooLong { bytes, tokens_min, tokens_max }.to_string()))
}
