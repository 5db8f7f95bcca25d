//! What a conversation is called in a list: the label that its client gave it, else its first words.

use super::item::{Item, ItemBody};
use super::state::State;
use crate::prompt::Role;

/// The label that is a title.
const LABEL: &str = "title";

/// Most characters of a title that nobody gave.
const CHARACTERS_MAX: usize = 80;

/// The title; none where nobody has said anything yet.
pub fn title(state: &State) -> Option<String> {
    let label = state.metadata.get(LABEL).and_then(|label| label.as_str()).map(str::trim);
    if let Some(label) = label.filter(|label| !label.is_empty()) {
        return Some(label.to_owned());
    }
    let turns = state.responses.iter().chain(&state.queue).flat_map(|response| &response.input);
    turns.chain(&state.staged).find_map(first_words)
}

/// The first line of what a user says, cut between characters.
fn first_words(item: &Item) -> Option<String> {
    if !matches!(item.body, ItemBody::Message { role: Role::User, .. }) {
        return None;
    }
    let text = item.text();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let mut characters = line.chars();
    let mut words: String = characters.by_ref().take(CHARACTERS_MAX).collect();
    if characters.next().is_some() {
        words.push('…');
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ids::{FreshIds, ItemId};

    fn saying(role: Role, text: &str) -> State {
        let item = Item::message(ItemId::draw(&mut FreshIds::from_seed(1)), role, text);
        State { staged: vec![item], ..State::default() }
    }

    #[test]
    fn a_title_is_the_label_else_the_first_line_of_the_first_user() {
        assert_eq!(title(&State::default()), None);
        assert_eq!(title(&saying(Role::System, "Be brief.")), None);
        assert_eq!(title(&saying(Role::User, "\n  Hello there \nand more")).as_deref(), Some("Hello there"));
        let long = title(&saying(Role::User, &"é".repeat(200))).unwrap();
        assert_eq!((long.chars().count(), long.ends_with('…')), (81, true));
        let mut labelled = saying(Role::User, "Hello");
        labelled.metadata.insert(LABEL.to_owned(), json!(" Trains "));
        assert_eq!(title(&labelled).as_deref(), Some("Trains"));
        labelled.metadata.insert(LABEL.to_owned(), json!("  "));
        assert_eq!(title(&labelled).as_deref(), Some("Hello"));
    }
}
