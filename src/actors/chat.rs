//! What engines get that take messages in the place of tokens: the conversation, and what belongs to it.
//!
//! Such an engine renders and reads for itself, so nothing is tokenised here. An answer that was begun goes along as
//! the last message, as far as it stays in the transcript, for the engine to go on with it.

use std::sync::Arc;

use super::prompt::{PromptSettings, Rendered};
use crate::conversation::{
    GenerationEnd, ItemBody, Output, OutputItem, Response, ResponseConfig, State, Usage, messages_with_answer,
    messages_within,
};
use crate::engine::{Chat, Counted, Medium, ModelInfo};
use crate::error::Code;
use crate::parse::Piece;
use crate::prompt::{Message, Role, strip_preamble};

/// Stands in the journal for a piece of an answer whose tokens nobody told. It has no text.
pub(super) const PIECE_TOKEN: u32 = 0;

/// About so many bytes of text are a token, until an engine says how many there were.
pub(super) const BYTES_PER_TOKEN: usize = 4;

/// The conversation that this response answers, and its answer so far. The text of a prompt that a client gave token
/// for token is what a user said.
pub(super) fn as_messages(state: &State, turn: &Response, model: &ModelInfo, settings: PromptSettings) -> Rendered {
    let rest_ms = settings.reasoning_cleared_after_ms;
    let asked = messages_within(state, turn, rest_ms);
    // A beginning that the client gave is one message with what follows.
    let given = usize::from(turn.config.prompt_end.continued(&asked).is_some());
    let (mut messages, begun) = match summary_of(turn) {
        Some(summary) => {
            let answer = [Message::text(Role::Assistant, summary)];
            (asked.into_iter().chain(answer).collect(), 1)
        }
        None if turn.output.iter().any(OutputItem::is_kept) => {
            let answered = messages_with_answer(state, turn, rest_ms);
            let own = answered.len().saturating_sub(asked.len()) + given;
            (answered, own)
        }
        None => (asked, given),
    };
    if let Some(given) = &turn.config.extras.prompt {
        messages.insert(0, Message::text(Role::User, model.tokenizer.spell(given)));
    }
    if settings.strip_preamble && turn.config.strip_preamble {
        without_preamble(&mut messages);
    }
    let open = turn.open_item().map(|output| &output.item.body);
    Rendered {
        tokens: Vec::new(),
        begun,
        is_in_call: matches!(open, Some(ItemBody::FunctionCall { .. })),
        messages,
        starts_in_reasoning: None,
        record: None,
    }
}

/// The summary of the transcript as far as it is written, where that is what the response writes.
fn summary_of(turn: &Response) -> Option<String> {
    let text = |output: &OutputItem| match &output.item.body {
        ItemBody::Compaction { text } => Some(text.clone()),
        _ => None,
    };
    let text: String = turn.output.iter().filter_map(text).collect();
    Some(text).filter(|text| !text.is_empty())
}

fn without_preamble(messages: &mut Vec<Message>) {
    let is_system = |message: &Message| message.role == Role::System;
    for message in messages.iter_mut().filter(|message| is_system(message)) {
        message.content = strip_preamble(&message.content).to_owned();
    }
    messages.retain(|message| !is_system(message) || !message.content.is_empty());
}

/// About how many tokens these messages are to a model.
pub(super) fn estimated_tokens(messages: &[Message]) -> u32 {
    let of_calls =
        |message: &Message| message.tool_calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
    let reasoning = |message: &Message| message.reasoning_content.as_ref().map_or(0, String::len);
    let bytes = messages.iter().map(|message| message.content.len() + reasoning(message) + of_calls(message));
    (bytes.sum::<usize>() / BYTES_PER_TOKEN) as u32
}

/// What goes along with the messages.
pub(super) fn chat(config: &ResponseConfig, model: &ModelInfo, begun: usize) -> Arc<Chat> {
    if model.medium == Medium::Tokens {
        return Arc::default();
    }
    Arc::new(Chat {
        begun,
        tools: config.known_tools().into_owned(),
        stop: config.stop.clone(),
        constraint: config.constraint.clone(),
        effort: config.thinking.as_ref().and_then(|thinking| thinking.effort.clone()),
        thinking_tokens: config.thinking.as_ref().and_then(|thinking| thinking.budget_tokens),
        template_kwargs: config.template_kwargs.clone(),
    })
}

/// Refuses what can only be told of tokens.
pub(super) fn refuse_untellable(config: &ResponseConfig, model: &ModelInfo) -> Result<(), GenerationEnd> {
    if model.medium == Medium::Tokens || config.logprobs.is_none() {
        return Ok(());
    }
    let message = format!("the engine of {} does not say how likely tokens were; leave logprobs out", model.id);
    Err(GenerationEnd::Failed { code: Code::InvalidInput, message })
}

/// What is told of a call that was open when its process died: no engine goes on inside of a call, so it is closed as
/// what it is, and the answer goes on from in front of it.
pub(super) fn unfinished_call() -> Output {
    let piece = Piece::ToolCallDone { index: 0, id: None, arguments: String::new(), complete: false };
    Output { tokens: Vec::new(), logprobs: Vec::new(), pieces: vec![piece] }
}

/// What an engine counted, in the core's words.
pub(super) fn usage_of(counted: Counted) -> Usage {
    let Counted { input_tokens, cached_tokens, output_tokens, reasoning_tokens } = counted;
    Usage { input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost_nanos: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Event, Item, ItemStatus, NewResponse, Purpose, Recorded};
    use crate::engine::{Engine, ScriptedEngine};
    use crate::ids::{ConversationId, FreshIds, ItemId, ResponseId};

    /// A response to this input that has begun these items, each with this much of its text.
    fn begun(config: ResponseConfig, input: &[(Role, &str)], output: Vec<(ItemBody, &str)>) -> (State, ResponseId) {
        let fresh = &mut FreshIds::from_seed(7);
        let (id, response_id) = (ConversationId::draw(fresh), ResponseId::draw(fresh));
        let items = input.iter().map(|(role, text)| Item::message(ItemId::draw(fresh), *role, *text)).collect();
        let new = NewResponse { id: response_id, previous: None, input: items, config, enqueued: false };
        let created = Event::ConversationCreated {
            id,
            principal: "local".to_owned(),
            tenant: None,
            metadata: serde_json::Map::new(),
            forked_from: None,
            defaults: crate::conversation::Policies::default(),
            template_ms: None,
        };
        let mut events = vec![created, Event::ResponseCreated(Box::new(new))];
        for (body, text) in output {
            let item = Item { id: ItemId::draw(fresh), status: ItemStatus::InProgress, body };
            let (item_id, text) = (item.id, text.to_owned());
            events.push(Event::OutputItemAdded { response_id, item, first_token: 0 });
            let (tokens, logprobs) = (vec![PIECE_TOKEN], Vec::new());
            events.push(Event::OutputDelta { response_id, item_id, text, tokens, logprobs });
        }
        let mut state = State::default();
        for (seq, event) in (1..).zip(events) {
            state.apply(&Recorded { seq, number: None, at_ms: 1_000, event });
        }
        (state, response_id)
    }

    /// The roles and texts that an engine gets, how many of them are the answer's, and whether a call is open.
    fn got(config: ResponseConfig, output: Vec<(ItemBody, &str)>) -> (Vec<(Role, String)>, usize, bool) {
        let engine = ScriptedEngine::from_json(r#"[{"deltas": ["a"]}]"#).unwrap();
        let input = [(Role::User, "Count."), (Role::Assistant, "one")];
        let (state, id) = begun(config, &input, output);
        let settings = PromptSettings { strip_preamble: true, reasoning_cleared_after_ms: 0 };
        let rendered = as_messages(&state, state.response(id).unwrap(), engine.model(), settings);
        assert!(rendered.tokens.is_empty());
        let said = rendered.messages.into_iter().map(|message| (message.role, message.content)).collect();
        (said, rendered.begun, rendered.is_in_call)
    }

    fn config() -> ResponseConfig {
        ResponseConfig::new("m", "f")
    }

    fn text() -> ItemBody {
        ItemBody::Message { role: Role::Assistant, content: Vec::new() }
    }

    fn messages(texts: &[(Role, &str)]) -> Vec<(Role, String)> {
        texts.iter().map(|(role, text)| (*role, (*text).to_owned())).collect()
    }

    #[test]
    fn an_answer_that_was_begun_goes_along_and_is_told_apart_from_what_a_client_brought() {
        let brought = [(Role::User, "Count."), (Role::Assistant, "one")];
        assert_eq!(got(config(), vec![]), (messages(&brought), 0, false));
        let begun = [brought[0], brought[1], (Role::Assistant, "two")];
        assert_eq!(got(config(), vec![(text(), "two")]), (messages(&begun), 1, false));
        // A beginning that the client gave is one message with what follows.
        let goes_on = || ResponseConfig { prompt_end: crate::prompt::PromptEnd::Message, ..config() };
        assert_eq!(got(goes_on(), vec![]), (messages(&brought), 1, false));
        let one = [brought[0], (Role::Assistant, "one two")];
        assert_eq!(got(goes_on(), vec![(text(), " two")]), (messages(&one), 1, false));
    }

    #[test]
    fn a_summary_that_was_begun_is_gone_on_with_though_the_transcript_does_not_show_it() {
        let config = ResponseConfig { purpose: Purpose::Summary, ..config() };
        let summary = ItemBody::Compaction { text: String::new() };
        let (said, begun, _) = got(config, vec![(summary, "They coun")]);
        assert_eq!((said.last().unwrap(), begun), (&(Role::Assistant, "They coun".to_owned()), 1));
    }

    #[test]
    fn a_call_that_is_open_is_told() {
        let call = ItemBody::FunctionCall {
            call_id: crate::ids::CallId("c".to_owned()),
            native_id: None,
            name: "f".to_owned(),
            arguments: String::new(),
            call_kind: crate::conversation::CallKind::Function,
            namespace: None,
        };
        let (_, begun, is_in_call) = got(config(), vec![(text(), "two"), (call, "{")]);
        assert!(is_in_call && begun > 0);
    }
}
