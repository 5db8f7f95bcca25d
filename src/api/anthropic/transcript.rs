//! From messages to the transcript's items: blocks in their order, results behind their calls.
//!
//! How something is spelled does not change what the model reads: a text is the same as one block of it, and marks for
//! a cache say nothing to a model.

use std::collections::HashSet;

use serde_json::Value;

use super::marks::{self, Marks};
use super::text::{self, Joined, joined, missing, reading};
use super::thinking::checked;
use super::tool_changes::Changes;
use super::tools::Declared;
use crate::api::errors::invalid;
use crate::api::seal::{Kept, Seal};
use crate::conversation::{CallKind, Content, Item, ItemBody, ItemStatus, Reject};
use crate::ids::{CallId, FreshIds, ItemId};
use crate::prompt::Role;
use crate::protocol::TextOr;
use crate::protocol::messages::{CacheControl, InputBlock, InputMessage, MessagesRequest};

/// How long a system message is shown that holds for one turn.
const UNTIL_THE_NEXT: &str = "next_user_message";

/// What the messages say.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    pub(super) items: Vec<Item>,
    /// The last effort that a message said.
    pub(super) effort: Option<String>,
    /// How the tools changed.
    pub(super) changes: Changes,
    /// Up to where the prompt is to be kept in the cache.
    pub(super) marks: Marks,
}

/// What reading depends on besides the messages.
pub(super) struct Setting<'a> {
    /// Without it nothing is opened.
    pub(super) seal: Option<&'a Seal>,
    /// Whether the rules of the newer version hold.
    pub(super) strict: bool,
    /// The tools that messages can name.
    pub(super) tools: &'a Declared,
}

/// Reads the system text and the messages.
pub(super) fn transcript(
    request: &MessagesRequest,
    setting: Setting<'_>,
    fresh: &mut FreshIds,
) -> Result<Transcript, Reject> {
    let messages = request.messages.as_deref().unwrap_or_default();
    if messages.is_empty() {
        return Err(invalid("messages", "messages: at least one message is required"));
    }
    let effort = request.output_config.as_ref().and_then(|config| config.effort.clone());
    let (items, open, closed, changes) = (Vec::new(), Vec::new(), HashSet::new(), Changes::default());
    let mut reader = Reader { setting, fresh, items, head: 0, open, closed, effort, changes, marks: Marks::default() };
    if let Some(system) = &request.system {
        reader.say_marked(Role::System, self::system(system)?);
        reader.head = reader.items.len();
    }
    // Templates show tools and the system text as one.
    for tool in request.tools.iter().flatten() {
        reader.mark(tool.cache_control.as_ref());
    }
    let last_user = messages.iter().rposition(|message| message.role == "user");
    let mut effort = None;
    for (position, message) in messages.iter().enumerate() {
        let path = format!("messages.{position}");
        match message.role.as_str() {
            "user" => reader.user(message, &path)?,
            "assistant" => reader.assistant(message, &path)?,
            "system" => {
                let is_over = message.clear_at.as_deref() == Some(UNTIL_THE_NEXT) && last_user > Some(position);
                effort = reader.system(message, is_over, &path)?.or(effort);
            }
            role => {
                let at = format!("{path}.role");
                return Err(invalid(at.clone(), format!("{at}: {role:?} is none of user, assistant, system")));
            }
        }
    }
    reader.mark(request.cache_control.as_ref());
    Ok(Transcript { items: reader.items, effort, changes: reader.changes, marks: reader.marks })
}

/// The system text as one.
fn system(content: &TextOr<InputBlock>) -> Result<Joined, Reject> {
    let mut said = Joined::default();
    match content {
        TextOr::Text(text) => said.add(text, None),
        TextOr::List(blocks) => {
            for (place, block) in blocks.iter().enumerate() {
                said.add(&text::text(block, &format!("system.{place}"))?, block.cache_control.as_ref());
            }
        }
    }
    Ok(said)
}

struct Reader<'a> {
    setting: Setting<'a>,
    fresh: &'a mut FreshIds,
    items: Vec<Item>,
    /// Items of the system text in front of all messages.
    head: usize,
    /// Calls of the last turn of the assistant that have no result yet.
    open: Vec<String>,
    /// Calls that have theirs.
    closed: HashSet<String>,
    /// The effort in force.
    effort: Option<String>,
    changes: Changes,
    marks: Marks,
}

impl Reader<'_> {
    /// What was read so far is marked, if there is a mark.
    fn mark(&mut self, mark: Option<&CacheControl>) {
        self.marks.add(self.items.last().map(|last| last.id), marks::ALL, marks::time(mark));
    }

    /// Says what several blocks say together, unless that is nothing, and marks what is marked of it.
    fn say_marked(&mut self, role: Role, Joined { text, marks }: Joined) {
        let says = !text.is_empty();
        if says {
            self.say(role, text);
        }
        let item = self.items.last().map(|last| last.id);
        for (bytes, time) in marks {
            self.marks.add(item, if says { bytes } else { marks::ALL }, Some(time));
        }
    }

    fn item(&mut self, body: ItemBody) -> Item {
        Item { id: ItemId::draw(self.fresh), status: ItemStatus::Completed, body }
    }

    fn add(&mut self, body: ItemBody) {
        let item = self.item(body);
        self.items.push(item);
    }

    fn say(&mut self, role: Role, text: String) {
        self.add(ItemBody::Message { role, content: vec![Content::Text { text }] });
    }

    fn user(&mut self, message: &InputMessage, path: &str) -> Result<(), Reject> {
        let (mut said, mut results) = (Joined::default(), Vec::new());
        match &message.content {
            None => return Err(missing(path, "content")),
            Some(TextOr::Text(text)) => said.add(text, None),
            Some(TextOr::List(blocks)) => {
                for (place, block) in blocks.iter().enumerate() {
                    let (at, mark) = (format!("{path}.content.{place}"), block.cache_control.as_ref());
                    match block.kind.as_str() {
                        "tool_result" => results.push(self.result(block, &at)?),
                        "compaction" => said.add(&self.compaction(block, &at)?.unwrap_or_default(), mark),
                        _ => said.add(&self.said(block, &at)?, mark),
                    }
                }
            }
        }
        if said.text.is_empty() && results.is_empty() {
            return Err(invalid(path, format!("{path}: all messages must have non-empty content")));
        }
        // A result stands behind its call, whatever came in between.
        results.extend(self.found());
        let is_system = |item: &Item| matches!(item.body, ItemBody::Message { role: Role::System, .. });
        let place = self.items.iter().rposition(|item| !is_system(item)).map_or(0, |place| place + 1);
        self.items.splice(place..place, results);
        // Results may come in several messages, one behind the other. Behind a text the calls are closed.
        if !said.text.is_empty() {
            self.open.clear();
        }
        self.say_marked(Role::User, said);
        Ok(())
    }

    /// The text of a user's block.
    fn said(&self, block: &InputBlock, path: &str) -> Result<String, Reject> {
        match block.kind.as_str() {
            "text" => {
                let cited = block.citations.as_ref().and_then(Value::as_array).is_some_and(|list| !list.is_empty());
                if self.setting.strict && cited {
                    let at = format!("{path}.citations");
                    return Err(invalid(at.clone(), format!("{at}: a user's text has no citations; leave them out")));
                }
                text::text(block, path)
            }
            "document" | "search_result" => reading(block, path),
            "image" | "container_upload" => {
                let at = format!("{path}.type");
                let text = format!("{at}: the model reads text, and no blocks of the type {:?}; send text", block.kind);
                Err(invalid(at, text))
            }
            _ => Err(unknown(block, path, "a user")),
        }
    }

    /// What results named of tools that the model did not see before: they can be called from here on.
    fn found(&mut self) -> Option<Item> {
        let toolbox = self.changes.found(self.setting.tools)?;
        Some(self.item(ItemBody::AdditionalTools { toolbox, found: true }))
    }

    fn result(&mut self, block: &InputBlock, path: &str) -> Result<Item, Reject> {
        let id = block.tool_use_id.clone().ok_or_else(|| missing(path, "tool_use_id"))?;
        let Some(place) = self.open.iter().position(|open| *open == id) else {
            let text = if self.closed.contains(&id) {
                format!("{path}: the call {id} has two results; each `tool_use` must have a single result")
            } else {
                format!(
                    "{path}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block \
                     must have a corresponding `tool_use` block in the previous message."
                )
            };
            return Err(invalid(format!("{path}.tool_use_id"), text));
        };
        self.open.remove(place);
        self.closed.insert(id.clone());
        let (at, mut shown) = (format!("{path}.content"), Joined::default());
        match text::blocks(block.content.as_ref(), &at)? {
            TextOr::Text(text) => shown.add(&text, None),
            TextOr::List(blocks) => {
                for (place, block) in blocks.iter().enumerate() {
                    shown.add(&self.shown(block, &format!("{at}.{place}"))?, block.cache_control.as_ref());
                }
            }
        }
        let (call_id, is_error, call_kind) = (CallId(id), block.is_error == Some(true), CallKind::Function);
        let Joined { text: output, marks } = shown;
        let item = self.item(ItemBody::FunctionCallOutput { call_id, output, synthetic: false, is_error, call_kind });
        let marks = marks.into_iter().map(|(bytes, time)| (bytes, Some(time)));
        for (bytes, time) in marks.chain([(marks::ALL, marks::time(block.cache_control.as_ref()))]) {
            self.marks.add(Some(item.id), bytes, time);
        }
        Ok(item)
    }

    /// The text of a block of a result.
    fn shown(&mut self, block: &InputBlock, path: &str) -> Result<String, Reject> {
        match block.kind.as_str() {
            "text" => text::text(block, path),
            "document" | "search_result" => Ok(reading(block, path).unwrap_or_else(|_| text::left_out(block))),
            "tool_reference" => {
                let name = block.tool_name.as_deref().ok_or_else(|| missing(path, "tool_name"))?;
                self.changes.refer(name, self.setting.tools, path)
            }
            _ => Ok(text::left_out(block)),
        }
    }

    /// A summary stands for all messages that came before it; one that failed stands for nothing. Gives what is to be
    /// said of the tools that changed meanwhile.
    fn compaction(&mut self, block: &InputBlock, path: &str) -> Result<Option<String>, Reject> {
        let Some(text) = block.content.as_ref().and_then(Value::as_str) else { return Ok(None) };
        self.items.truncate(self.head);
        self.open.clear();
        self.changes = Changes::default();
        self.add(ItemBody::Compaction { text: text.to_owned() });
        let mut told = Vec::new();
        for (place, change) in block.tool_changes.iter().flatten().enumerate() {
            told.push(self.change(change, &format!("{path}.tool_changes.{place}"))?);
        }
        let found = self.found();
        self.items.extend(found);
        Ok(Some(joined(&told)).filter(|told| !told.is_empty()))
    }

    /// What the model is told of a tool that comes or goes.
    fn change(&mut self, block: &InputBlock, path: &str) -> Result<String, Reject> {
        match block.kind.as_str() {
            "tool_addition" => self.changes.add(block, self.setting.tools, path),
            "tool_removal" => self.changes.remove(block, self.setting.tools, path),
            _ => Err(unknown(block, path, "the system")),
        }
    }

    fn assistant(&mut self, message: &InputMessage, path: &str) -> Result<(), Reject> {
        // Behind results the model went on: who has none by then gets none.
        if self.items.last().is_some_and(|item| item.answers().is_some()) {
            self.open.clear();
        }
        match &message.content {
            None => return Err(missing(path, "content")),
            Some(TextOr::Text(text)) if text.is_empty() => {}
            Some(TextOr::Text(text)) => self.say(Role::Assistant, text.clone()),
            Some(TextOr::List(blocks)) => {
                for (place, block) in blocks.iter().enumerate() {
                    self.answered(block, &format!("{path}.content.{place}"))?;
                    self.mark(block.cache_control.as_ref());
                }
            }
        }
        Ok(())
    }

    /// A block of an answer.
    fn answered(&mut self, block: &InputBlock, path: &str) -> Result<(), Reject> {
        match block.kind.as_str() {
            "text" => {
                let text = text::text(block, path)?;
                if !text.is_empty() {
                    self.say(Role::Assistant, text);
                }
            }
            "thinking" | "redacted_thinking" => {
                if let Some(body) = self.thought(block) {
                    self.add(body);
                }
            }
            "tool_use" => {
                let id = block.id.clone().ok_or_else(|| missing(path, "id"))?;
                let name = block.name.clone().ok_or_else(|| missing(path, "name"))?;
                let arguments = block.input.as_ref().filter(|input| !input.is_null()).map(Value::to_string);
                let arguments = arguments.unwrap_or_else(|| "{}".to_owned());
                self.open.push(id.clone());
                let (call_id, call_kind) = (CallId(id), CallKind::Function);
                let (native_id, namespace) = (None, None);
                self.add(ItemBody::FunctionCall { call_id, native_id, name, arguments, call_kind, namespace });
            }
            "compaction" => {
                if let Some(text) = self.compaction(block, path)? {
                    self.say(Role::System, text);
                }
            }
            "document" if self.setting.strict => {
                let at = format!("{path}.type");
                return Err(invalid(
                    at.clone(),
                    format!("{at}: a message of the assistant has no documents; put them into a user's"),
                ));
            }
            "document" => {
                let text = reading(block, path)?;
                self.say(Role::Assistant, text);
            }
            // Of tools that ran on another server, and of what it did besides: what they came to, the text says.
            "server_tool_use" | "mcp_tool_use" | "mcp_tool_listing" | "container_upload" | "fallback" => {}
            kind if kind.ends_with("_tool_result") => {}
            _ => return Err(unknown(block, path, "the assistant")),
        }
        Ok(())
    }

    /// What was thought: as this server sealed it, or else the text that there is.
    fn thought(&self, block: &InputBlock) -> Option<ItemBody> {
        let sealed = block.signature.as_deref().or(block.data.as_deref());
        if let Some(Kept { text, made }) = sealed.and_then(|sealed| self.setting.seal?.open(sealed)) {
            return Some(ItemBody::Reasoning { text, made: Some(made) });
        }
        let text = block.thinking.clone().filter(|text| !text.is_empty())?;
        Some(ItemBody::Reasoning { text, made: None })
    }

    /// Gives the effort that holds from here on, where the message says one. What changes it is said where it stands,
    /// so that the prompt in front of it stays.
    fn system(&mut self, message: &InputMessage, is_over: bool, path: &str) -> Result<Option<String>, Reject> {
        let effort = message.output_config.as_ref().and_then(|config| config.effort.as_deref());
        let effort = checked(effort, &format!("{path}.output_config.effort"))?.map(str::to_owned);
        let mut said = Joined::default();
        match &message.content {
            None => {}
            Some(TextOr::Text(text)) => said.add(text, None),
            Some(TextOr::List(blocks)) => {
                for (place, block) in blocks.iter().enumerate() {
                    let at = format!("{path}.content.{place}");
                    let told = match block.kind.as_str() {
                        "text" => text::text(block, &at)?,
                        _ => self.change(block, &at)?,
                    };
                    said.add(&told, block.cache_control.as_ref());
                }
            }
        }
        let found = self.found();
        self.items.extend(found);
        let changes_tools = matches!(&message.content, Some(TextOr::List(blocks)) if !blocks.is_empty());
        if said.text.is_empty() && !changes_tools && message.output_config.is_none() {
            return Err(invalid(path, format!("{path}: a system message has content, or an output_config")));
        }
        if is_over {
            said.text.clear();
        }
        if effort.is_some() && effort != self.effort {
            let word = effort.clone().unwrap_or_default();
            said.add(&format!("From here on, the effort is {word}."), None);
            self.effort.clone_from(&effort);
        }
        self.say_marked(Role::System, said);
        Ok(effort)
    }
}

fn unknown(block: &InputBlock, path: &str, who: &str) -> Reject {
    let at = format!("{path}.type");
    let text = format!("{at}: {:?} is no type of a block that {who} can say; leave it out", block.kind);
    invalid(at, text)
}
