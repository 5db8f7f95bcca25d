//! From generated pieces to events: items open, grow and close in the order in which they were generated.
//!
//! Recording breaks off at the end of an item where an instruction waits for one, and in front of a call that is one
//! too many: what comes behind is dropped.

use std::ops::ControlFlow;

use super::decide::Draft;
use super::event::{Event, TokenLogprob};
use super::input::Output;
use super::item::{Item, ItemBody, ItemStatus, Made};
use super::purpose::Purpose;
use super::state::{OutputItem, Response};
use super::tools::{ToolShape, ToolShapes, shape_of};
use crate::ids::{CallId, ItemId, ResponseId};
use crate::parse::Piece;
use crate::prompt::Role;

/// What kind of output item a piece belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    Call,
}

impl Kind {
    fn of(body: &ItemBody) -> Self {
        match body {
            ItemBody::Reasoning { .. } => Self::Reasoning,
            ItemBody::FunctionCall { .. } => Self::Call,
            ItemBody::Message { .. }
            | ItemBody::Compaction { .. }
            | ItemBody::FunctionCallOutput { .. }
            | ItemBody::AdditionalTools { .. } => Self::Message,
        }
    }
}

/// Why nothing more is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// An instruction waits for the end of an item.
    Steered,
    /// The model made all calls that it may.
    CallsSpent,
}

impl Draft {
    /// Records what was generated. A token is in exactly one event: the first delta of its group.
    pub(super) fn record_outputs(&mut self, response_id: ResponseId, outputs: Vec<Output>) -> ControlFlow<Halt> {
        let mut grown = Grown::default();
        for output in outputs {
            grown.begin_group(output.tokens, output.logprobs);
            for piece in output.pieces {
                self.record_piece(response_id, piece, &mut grown)?;
            }
        }
        grown.own_group();
        self.flush(response_id, &mut grown);
        ControlFlow::Continue(())
    }

    fn record_piece(&mut self, response_id: ResponseId, piece: Piece, grown: &mut Grown) -> ControlFlow<Halt> {
        match piece {
            Piece::Reasoning(text) => {
                self.open_text(response_id, Kind::Reasoning, grown)?;
                grown.push(&text);
            }
            Piece::Text(text) => {
                self.open_text(response_id, Kind::Message, grown)?;
                grown.push(&text);
            }
            Piece::ToolCallStarted { .. } if self.has_spent_calls(response_id) => {
                self.flush(response_id, grown);
                return ControlFlow::Break(Halt::CallsSpent);
            }
            Piece::ToolCallStarted { name, id: native_id, .. } => {
                let call_id = CallId::draw(&mut self.now.fresh);
                let ToolShape { name, namespace, kind: call_kind } = self.shape_of(response_id, name);
                let arguments = String::new();
                let body = ItemBody::FunctionCall { call_id, native_id, name, arguments, call_kind, namespace };
                self.open_item(response_id, body, grown)?;
            }
            Piece::ToolCallArguments { fragment, .. } => grown.push(&fragment),
            Piece::ToolCallDone { id, complete, .. } => {
                grown.own_group();
                self.flush(response_id, grown);
                self.end_call(response_id, id, complete);
                return self.boundary(response_id);
            }
            Piece::Thought { maker, text, native } => {
                self.open_text(response_id, Kind::Reasoning, grown)?;
                grown.own_group();
                self.flush(response_id, grown);
                let made = Made { fingerprint: maker, tokens: Vec::new(), native: Some(native) };
                self.end_thought(response_id, &text, made);
                return self.boundary(response_id);
            }
            Piece::Stopped { .. } => {}
        }
        ControlFlow::Continue(())
    }

    /// Whether the response may make no further call.
    fn has_spent_calls(&self, response_id: ResponseId) -> bool {
        let Some(response) = self.state.response(response_id) else { return false };
        let calls = response.output.iter().filter(|output| Kind::of(&output.item.body) == Kind::Call).count();
        response.config.extras.max_tool_calls.is_some_and(|most| calls >= most as usize)
    }

    /// What the function that the model calls stands for.
    fn shape_of(&self, response_id: ResponseId, name: String) -> ToolShape {
        match self.state.response(response_id) {
            Some(response) => shape_of(&response.config.tool_shapes, name),
            None => shape_of(&ToolShapes::new(), name),
        }
    }

    /// An item has ended: nothing more is recorded if an instruction waits for that.
    fn boundary(&self, response_id: ResponseId) -> ControlFlow<Halt> {
        if self.waits_for_item(response_id) { ControlFlow::Break(Halt::Steered) } else { ControlFlow::Continue(()) }
    }

    /// Makes sure that the open item is of this kind.
    fn open_text(&mut self, response_id: ResponseId, kind: Kind, grown: &mut Grown) -> ControlFlow<Halt> {
        let open = self.state.response(response_id).and_then(Response::open_item);
        if open.is_some_and(|output| Kind::of(&output.item.body) == kind) {
            return ControlFlow::Continue(());
        }
        let compacts =
            self.state.response(response_id).is_some_and(|response| response.config.purpose == Purpose::Summary);
        let body = match kind {
            Kind::Reasoning => ItemBody::Reasoning { text: String::new(), made: None },
            // It has no parts.
            _ if compacts => {
                let body = ItemBody::Compaction { text: String::new() };
                return self.open_item(response_id, body, grown).map_continue(drop);
            }
            _ => ItemBody::Message { role: Role::Assistant, content: Vec::new() },
        };
        let item_id = self.open_item(response_id, body, grown)?;
        self.push(Event::ContentPartAdded { response_id, item_id });
        ControlFlow::Continue(())
    }

    /// Whether nothing was written that could stand for the transcript.
    pub(super) fn lacks_summary(&self, response_id: ResponseId) -> bool {
        let says =
            |output: &OutputItem| matches!(&output.item.body, ItemBody::Compaction { text } if !text.trim().is_empty());
        let response = self.state.response(response_id);
        response.is_some_and(|it| it.config.purpose == Purpose::Summary && !it.output.iter().any(says))
    }

    /// Ends the item before and begins a new one.
    fn open_item(&mut self, response_id: ResponseId, body: ItemBody, grown: &mut Grown) -> ControlFlow<Halt, ItemId> {
        // The group's tokens stay with what begins here, unless the item before got text from them.
        self.flush(response_id, grown);
        if self.state.response(response_id).and_then(Response::open_item).is_some() {
            self.close_item(response_id, ItemStatus::Completed);
            self.boundary(response_id)?;
        }
        let first_token = self.state.response(response_id).map_or(0, |response| response.usage.output_tokens);
        let item = Item { id: ItemId::draw(&mut self.now.fresh), status: ItemStatus::InProgress, body };
        let item_id = item.id;
        self.push(Event::OutputItemAdded { response_id, item, first_token });
        ControlFlow::Continue(item_id)
    }

    /// Writes what has grown as one delta of the open item.
    fn flush(&mut self, response_id: ResponseId, grown: &mut Grown) {
        let Grown { text, tokens, logprobs, .. } = grown;
        let (text, tokens, logprobs) = (std::mem::take(text), std::mem::take(tokens), std::mem::take(logprobs));
        let open = self.state.response(response_id).and_then(Response::open_item);
        if let Some(item_id) = open.map(|output| output.item.id)
            && !(text.is_empty() && tokens.is_empty())
        {
            self.push(Event::OutputDelta { response_id, item_id, text, tokens, logprobs });
        }
    }

    fn end_call(&mut self, response_id: ResponseId, id: Option<String>, complete: bool) {
        let open = self.state.response(response_id).and_then(Response::open_item);
        let Some(ItemBody::FunctionCall { call_id, native_id, .. }) = open.map(|output| output.item.body.clone())
        else {
            return;
        };
        let status = if complete { ItemStatus::Completed } else { ItemStatus::Incomplete };
        // What stood in front of the arguments is in the item already.
        self.close_item_as(response_id, status, id.filter(|_| native_id.is_none()), None);
        if complete {
            self.push(Event::ToolCallRequested { response_id, call_id, attempt: 1 });
        }
    }

    /// Ends the open reasoning. What its maker signed is kept where that is all there is of it, and not where a part of
    /// it was thought before, and broke off.
    fn end_thought(&mut self, response_id: ResponseId, text: &str, made: Made) {
        let open = self.state.response(response_id).and_then(Response::open_item);
        let is_all = open.is_some_and(|output| output.item.text() == text);
        self.close_item_as(response_id, ItemStatus::Completed, None, Some(made).filter(|_| is_all));
    }

    /// Ends the open item, if there is one. A call that is still open is unfinished, however the response ended.
    pub(super) fn close_item(&mut self, response_id: ResponseId, status: ItemStatus) {
        let open = self.state.response(response_id).and_then(Response::open_item);
        let is_call = open.is_some_and(|output| Kind::of(&output.item.body) == Kind::Call);
        self.close_item_as(response_id, if is_call { ItemStatus::Incomplete } else { status }, None, None);
    }

    fn close_item_as(
        &mut self,
        response_id: ResponseId,
        status: ItemStatus,
        native_id: Option<String>,
        made: Option<Made>,
    ) {
        let Some(open) = self.state.response(response_id).and_then(Response::open_item) else { return };
        let has_part = matches!(open.item.body, ItemBody::Message { .. } | ItemBody::Reasoning { .. });
        let item_id = open.item.id;
        self.push(Event::OutputDone { response_id, item_id });
        if has_part {
            self.push(Event::ContentPartDone { response_id, item_id });
        }
        self.push(Event::OutputItemDone { response_id, item_id, status, native_id, made });
    }
}

/// Text and tokens that are not in an event yet.
#[derive(Default)]
struct Grown {
    /// Text for the open item.
    text: String,
    /// Tokens that belong to the open item.
    tokens: Vec<u32>,
    /// How likely they were, where that is told.
    logprobs: Vec<TokenLogprob>,
    /// Tokens of the group at hand, until it is clear which item they belong to; and how likely they were.
    group: (Vec<u32>, Vec<TokenLogprob>),
}

impl Grown {
    /// A group that said nothing belongs to the item that is open.
    fn begin_group(&mut self, tokens: Vec<u32>, logprobs: Vec<TokenLogprob>) {
        self.own_group();
        self.group = (tokens, logprobs);
    }

    fn own_group(&mut self) {
        self.tokens.append(&mut self.group.0);
        self.logprobs.append(&mut self.group.1);
    }

    fn push(&mut self, text: &str) {
        self.own_group();
        self.text.push_str(text);
    }
}
