//! What a request has left out of its transcript: old thinking, and what tools gave long ago.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use crate::api::App;
use crate::api::errors::invalid;
use crate::conversation::{Create, Item, ItemBody, Reject};
use crate::engine::Engine;
use crate::prompt::Role;
use crate::protocol::messages::{Amount, AppliedEdit, AppliedEdits, Edit, MessagesRequest};

/// What Anthropic's API does where a request does not say: the tokens from which on uses of tools are cleared, and how
/// many of them stay; and of how many turns the thinking stays.
const TRIGGER_TOKENS: u32 = 100_000;
const KEPT_USES: u32 = 3;
const KEPT_TURNS: u32 = 1;

/// What stands in the place of a result.
const CLEARED: &str = "[this result was cleared to save room]";

/// What became of a transcript.
pub(super) struct Edited {
    pub(super) applied: AppliedEdits,
    /// Tokens of the prompt before anything was left out, where that was counted.
    pub(super) original_tokens: Option<usize>,
}

/// Leaves out what the request says; nothing where it says nothing of it.
pub(super) async fn apply(
    app: &App,
    engine: &Arc<dyn Engine>,
    request: &MessagesRequest,
    create: &mut Create,
) -> Result<Option<Edited>, Reject> {
    let Some(asked) = &request.context_management else { return Ok(None) };
    let mut edited = Edited { applied: AppliedEdits::default(), original_tokens: None };
    let mut tokens = None;
    for (place, edit) in asked.edits.iter().flatten().enumerate() {
        let Some(rule) = Rule::read(edit, &format!("context_management.edits.{place}"))? else { continue };
        let before = match tokens {
            Some(tokens) => tokens,
            None => count(app, engine, create).await?,
        };
        edited.original_tokens.get_or_insert(before);
        tokens = Some(before);
        let mut shorter = create.clone();
        let cleared = rule.clear(&mut shorter.input, before);
        if cleared == 0 {
            continue;
        }
        let after = count(app, engine, &shorter).await?;
        let gained = before.saturating_sub(after);
        if gained >= rule.gain_min() {
            (*create, tokens) = (shorter, Some(after));
            edited.applied.applied_edits.push(rule.applied(cleared, gained));
        }
    }
    Ok(Some(edited))
}

/// Tokens of the prompt.
pub(super) async fn count(app: &App, engine: &Arc<dyn Engine>, create: &Create) -> Result<usize, Reject> {
    app.directory.count(None, create.clone(), engine).await
}

/// What is left out.
enum Rule {
    /// Thinking, but for the last turns.
    Thinking { kept_turns: usize },
    /// Uses of tools.
    ToolUses(Uses),
}

struct Uses {
    /// From so many tokens on, or else from so many uses on.
    trigger_tokens: Option<usize>,
    trigger_calls: usize,
    kept: usize,
    gain_min: usize,
    excluded: HashSet<String>,
    inputs: Inputs,
}

/// Which inputs go with the results.
enum Inputs {
    None,
    All,
    Of(Vec<String>),
}

impl Rule {
    /// The rule of an edit; none where it keeps everything.
    fn read(edit: &Edit, path: &str) -> Result<Option<Self>, Reject> {
        match edit.kind.as_str() {
            "clear_thinking_20251015" => {
                let is_all = |keep: &Value| keep == "all" || keep["type"] == "all";
                if edit.keep.as_ref().is_some_and(is_all) {
                    return Ok(None);
                }
                let kept_turns = kept(edit, "thinking_turns", KEPT_TURNS, path)?;
                Ok(Some(Self::Thinking { kept_turns }))
            }
            "clear_tool_uses_20250919" => Ok(Some(Self::ToolUses(Uses::read(edit, path)?))),
            kind => {
                let at = format!("{path}.type");
                let text = format!(
                    "{at}: {kind:?} is not done here; there are clear_thinking_20251015 and clear_tool_uses_20250919"
                );
                Err(invalid(at, text))
            }
        }
    }

    fn gain_min(&self) -> usize {
        match self {
            Self::Thinking { .. } => 0,
            Self::ToolUses(uses) => uses.gain_min,
        }
    }

    /// Leaves things out of a transcript whose prompt has so many tokens; says how many.
    fn clear(&self, items: &mut Vec<Item>, tokens: usize) -> usize {
        match self {
            Self::Thinking { kept_turns } => clear_thinking(items, *kept_turns),
            Self::ToolUses(uses) => uses.clear(items, tokens),
        }
    }

    fn applied(&self, cleared: usize, cleared_input_tokens: usize) -> AppliedEdit {
        match self {
            Self::Thinking { .. } => AppliedEdit::Thinking { cleared_thinking_turns: cleared, cleared_input_tokens },
            Self::ToolUses(_) => AppliedEdit::ToolUses { cleared_tool_uses: cleared, cleared_input_tokens },
        }
    }
}

/// How much stays.
fn kept(edit: &Edit, kind: &str, otherwise: u32, path: &str) -> Result<usize, Reject> {
    let Some(keep) = edit.keep.as_ref().filter(|keep| !keep.is_null()) else { return Ok(otherwise as usize) };
    let value = keep["value"].as_u64().filter(|_| keep["type"] == kind);
    value.map(|value| value as usize).ok_or_else(|| {
        let at = format!("{path}.keep");
        invalid(at.clone(), format!("{at} must be {{\"type\": {kind:?}, \"value\": a number}}"))
    })
}

fn amount(asked: Option<&Amount>, kinds: &[&str], at: &str) -> Result<Option<(String, usize)>, Reject> {
    let Some(asked) = asked else { return Ok(None) };
    match asked.value.filter(|_| kinds.contains(&asked.kind.as_str())) {
        Some(value) => Ok(Some((asked.kind.clone(), value as usize))),
        None => Err(invalid(at, format!("{at} must have a value, and one of the types {}", kinds.join(", ")))),
    }
}

/// Leaves out the thinking of all but the last turns that have any; a turn goes on until the user speaks again.
fn clear_thinking(items: &mut Vec<Item>, kept_turns: usize) -> usize {
    let mut turn = 0_usize;
    let turns: Vec<usize> = items
        .iter()
        .map(|item| {
            turn += usize::from(matches!(item.body, ItemBody::Message { role: Role::User, .. }));
            turn
        })
        .collect();
    let is_thought = |item: &Item| matches!(item.body, ItemBody::Reasoning { .. });
    let mut thought: Vec<usize> =
        items.iter().zip(&turns).filter(|(item, _)| is_thought(item)).map(|(_, turn)| *turn).collect();
    thought.dedup();
    let cleared = thought.len().saturating_sub(kept_turns);
    let gone: HashSet<usize> = thought[..cleared].iter().copied().collect();
    let mut turns = turns.iter();
    items.retain(|item| {
        let turn = turns.next();
        !(is_thought(item) && turn.is_some_and(|turn| gone.contains(turn)))
    });
    cleared
}

impl Uses {
    fn read(edit: &Edit, path: &str) -> Result<Self, Reject> {
        let trigger = amount(edit.trigger.as_ref(), &["input_tokens", "tool_uses"], &format!("{path}.trigger"))?;
        let (kind, value) = trigger.unwrap_or_else(|| ("input_tokens".to_owned(), TRIGGER_TOKENS as usize));
        let by_tokens = kind == "input_tokens";
        let gain = amount(edit.clear_at_least.as_ref(), &["input_tokens"], &format!("{path}.clear_at_least"))?;
        let inputs = match &edit.clear_tool_inputs {
            Some(Value::Bool(true)) => Inputs::All,
            Some(Value::Array(names)) => {
                Inputs::Of(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            }
            _ => Inputs::None,
        };
        Ok(Self {
            trigger_tokens: by_tokens.then_some(value),
            trigger_calls: if by_tokens { 0 } else { value },
            kept: kept(edit, "tool_uses", KEPT_USES, path)?,
            gain_min: gain.map_or(0, |(_, value)| value),
            excluded: edit.exclude_tools.iter().flatten().cloned().collect(),
            inputs,
        })
    }

    fn clear(&self, items: &mut [Item], tokens: usize) -> usize {
        let calls: Vec<(usize, String)> = items
            .iter()
            .enumerate()
            .filter_map(|(place, item)| match &item.body {
                ItemBody::FunctionCall { call_id, name, .. } if !self.excluded.contains(name) => {
                    Some((place, call_id.0.clone()))
                }
                _ => None,
            })
            .collect();
        let due = self.trigger_tokens.map_or(calls.len() > self.trigger_calls, |trigger| tokens > trigger);
        if !due {
            return 0;
        }
        let old = &calls[..calls.len().saturating_sub(self.kept)];
        for (place, call) in old {
            let answer = items[*place..].iter_mut().find(|item| item.answers().is_some_and(|id| id.0 == *call));
            if let Some(ItemBody::FunctionCallOutput { output, is_error, .. }) = answer.map(|item| &mut item.body) {
                CLEARED.clone_into(output);
                *is_error = false;
            }
            if let ItemBody::FunctionCall { name, arguments, .. } = &mut items[*place].body {
                let goes = match &self.inputs {
                    Inputs::None => false,
                    Inputs::All => true,
                    Inputs::Of(names) => names.contains(name),
                };
                if goes {
                    "{}".clone_into(arguments);
                }
            }
        }
        old.len()
    }
}
