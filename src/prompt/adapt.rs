//! Messages made fit for a template that does not take them as they are.
//!
//! Works on messages only, and only as far as the template needs it. What is adapted is adapted in the same way in
//! every turn, so that a growing conversation keeps its beginning.

use std::borrow::Cow;

use super::preamble::strip_preamble;
use super::probe::Capabilities;
use super::{Message, Rendering, Role, call_ids, hermes};

/// What stands between two texts that become one.
const BETWEEN: &str = "\n\n";

pub(super) type Messages<'a> = Cow<'a, [Message]>;

/// The messages as the template can take them.
pub(super) fn adapt<'a>(rendering: &Rendering<'a>, can: &Capabilities) -> Messages<'a> {
    let mut messages = Cow::Borrowed(rendering.messages);
    if rendering.strip_preamble {
        without_preamble(&mut messages);
    }
    if !can.developer {
        developer_as_system(&mut messages);
    }
    if can.call_content_is_none {
        text_before_calls(&mut messages);
    } else if can.reasoning_field.is_none() {
        reasoning_into_content(&mut messages);
    }
    if !can.call_takes_both {
        text_into_reasoning(&mut messages);
    }
    messages = hermes::adapt(messages, rendering.tools, can);
    if !can.system_anywhere {
        system_in_front_only(&mut messages);
    }
    if !can.system {
        system_into_user(&mut messages);
    }
    if !can.consecutive_users {
        merge_neighbours(&mut messages, Role::User);
    }
    if !can.consecutive_assistants {
        merge_neighbours(&mut messages, Role::Assistant);
    }
    if !can.user_after_result {
        answer_results(&mut messages);
    }
    call_ids::show(&mut messages, can);
    messages
}

fn without_preamble(messages: &mut Messages<'_>) {
    let marked = |message: &Message| {
        message.role == Role::System && strip_preamble(&message.content).len() < message.content.len()
    };
    if !messages.iter().any(marked) {
        return;
    }
    let messages = messages.to_mut();
    for message in messages.iter_mut().filter(|message| marked(message)) {
        message.content = strip_preamble(&message.content).to_owned();
    }
    // A system message that was nothing else is none.
    if messages.first().is_some_and(|first| first.role == Role::System && first.content.is_empty()) {
        messages.remove(0);
    }
}

fn developer_as_system(messages: &mut Messages<'_>) {
    if messages.iter().any(|message| message.role == Role::Developer) {
        for message in messages.to_mut().iter_mut().filter(|message| message.role == Role::Developer) {
            message.role = Role::System;
        }
    }
}

/// Reasoning that led to calls stays in its place, inside the content; other reasoning is left out.
fn reasoning_into_content(messages: &mut Messages<'_>) {
    let explains = |message: &Message| message.reasoning_content.is_some() && !message.tool_calls.is_empty();
    if !messages.iter().any(explains) {
        return;
    }
    for message in messages.to_mut().iter_mut().filter(|message| explains(message)) {
        let reasoning = message.reasoning_content.take().unwrap_or_default();
        message.content = format!("<think>\n{}\n</think>\n\n{}", reasoning.trim_matches('\n'), message.content);
    }
}

/// What is said in front of a call joins its reasoning.
fn text_into_reasoning(messages: &mut Messages<'_>) {
    let both = |message: &Message| {
        !message.content.is_empty() && !message.tool_calls.is_empty() && message.reasoning_content.is_some()
    };
    if !messages.iter().any(both) {
        return;
    }
    for message in messages.to_mut().iter_mut().filter(|message| both(message)) {
        let content = std::mem::take(&mut message.content);
        let reasoning = message.reasoning_content.get_or_insert_default();
        *reasoning = joined(reasoning, &content);
    }
}

/// Where a message either says something or calls, one that does both becomes two.
fn text_before_calls(messages: &mut Messages<'_>) {
    let both = |message: &Message| !message.content.is_empty() && !message.tool_calls.is_empty();
    if !messages.iter().any(both) {
        return;
    }
    let mut parted = Vec::with_capacity(messages.len() + 1);
    for message in messages.iter() {
        if both(message) {
            parted.push(Message::text(message.role, message.content.as_str()));
            parted.push(Message { content: String::new(), ..message.clone() });
        } else {
            parted.push(message.clone());
        }
    }
    *messages = Cow::Owned(parted);
}

/// System messages at the beginning become one; a later one becomes the user's, where it stands: at the beginning it
/// would change the prompt in front of everything that was said before it.
fn system_in_front_only(messages: &mut Messages<'_>) {
    if !messages.iter().skip(1).any(|message| message.role == Role::System) {
        return;
    }
    let messages = messages.to_mut();
    let leading = messages.iter().take_while(|message| message.role == Role::System).count();
    for message in messages.iter_mut().skip(leading).filter(|message| message.role == Role::System) {
        message.role = Role::User;
        message.content = format!("<system>\n{}\n</system>", message.content);
    }
    if leading > 1 {
        let rest = messages.split_off(leading);
        merge_all(messages);
        messages.extend(rest);
    }
}

/// A leading system message becomes the beginning of the first user message.
fn system_into_user(messages: &mut Messages<'_>) {
    if messages.first().is_none_or(|message| message.role != Role::System) {
        return;
    }
    let messages = messages.to_mut();
    let system = messages.remove(0);
    match messages.first_mut().filter(|message| message.role == Role::User) {
        Some(user) => user.content = joined(&system.content, &user.content),
        None => messages.insert(0, Message::text(Role::User, system.content)),
    }
}

/// Messages of this role that follow each other become one.
fn merge_neighbours(messages: &mut Messages<'_>, role: Role) {
    if !messages.windows(2).any(|pair| pair.iter().all(|message| message.role == role)) {
        return;
    }
    let mut merged: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages.iter() {
        match merged.last_mut().filter(|last| last.role == role && message.role == role) {
            Some(last) => append(last, message),
            None => merged.push(message.clone()),
        }
    }
    *messages = Cow::Owned(merged);
}

fn merge_all(messages: &mut Vec<Message>) {
    let mut rest = std::mem::take(messages).into_iter();
    if let Some(mut first) = rest.next() {
        rest.for_each(|message| append(&mut first, &message));
        messages.push(first);
    }
}

fn append(message: &mut Message, next: &Message) {
    message.content = joined(&message.content, &next.content);
    if let Some(reasoning) = &next.reasoning_content {
        let before = message.reasoning_content.take().unwrap_or_default();
        message.reasoning_content = Some(joined(&before, reasoning));
    }
    message.tool_calls.extend(next.tool_calls.iter().cloned());
}

fn joined(first: &str, second: &str) -> String {
    let between = if first.is_empty() || second.is_empty() { "" } else { BETWEEN };
    format!("{first}{between}{second}")
}

/// Puts an empty answer between a result and what the user says next.
fn answer_results(messages: &mut Messages<'_>) {
    let pair = |pair: &[Message]| pair[0].role == Role::Tool && pair[1].role == Role::User;
    if !messages.windows(2).any(pair) {
        return;
    }
    let mut answered: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    for message in messages.iter() {
        if message.role == Role::User && answered.last().is_some_and(|last| last.role == Role::Tool) {
            answered.push(Message::text(Role::Assistant, ""));
        }
        answered.push(message.clone());
    }
    *messages = Cow::Owned(answered);
}
