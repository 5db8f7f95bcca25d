//! Reasoning that its maker wants to read again as it signed it.

use serde_json::json;

use super::*;
use crate::prompt::Thought;

fn thought(text: &str, signature: &str) -> Piece {
    let native = json!({"signature": signature});
    Piece::Thought { maker: "m".to_owned(), text: text.to_owned(), native }
}

/// What the messages of a conversation with this answer say of its reasoning.
fn thoughts(outputs: Vec<Output>) -> (Option<String>, Vec<Thought>) {
    let mut talk = Talk::new(7);
    let id = talk.create("hello").unwrap();
    talk.generated(outputs);
    talk.ended(GenerationEnd::Stop);
    let response = talk.state.response(id).unwrap();
    let message = messages_with_answer(&talk.state, response, 0).pop().unwrap();
    (message.reasoning_content, message.thoughts)
}

#[test]
fn what_was_signed_stands_in_the_transcript_beside_the_text_that_it_belongs_to() {
    let said = |text: &str, signature: &str| Thought {
        maker: "m".to_owned(),
        text: text.to_owned(),
        native: json!({"signature": signature}),
    };
    let (reasoning, thoughts) = thoughts(vec![
        output(1, Piece::Reasoning("hm".to_owned())),
        output(2, Piece::Reasoning(", well".to_owned())),
        output(3, thought("hm, well", "a")),
        output(4, thought("", "b")),
        output(5, Piece::Text("So".to_owned())),
    ]);
    assert_eq!(reasoning.as_deref(), Some("hm, well"));
    assert_eq!(thoughts, [said("hm, well", "a"), said("", "b")]);
}

#[test]
fn reasoning_that_nobody_shows_is_no_reasoning_of_a_template() {
    let (reasoning, thoughts) = thoughts(vec![output(1, thought("", "b")), output(2, Piece::Text("So".to_owned()))]);
    assert_eq!((reasoning, thoughts.len()), (None, 1));
}

#[test]
fn what_was_thought_anew_behind_a_break_was_not_signed_with_what_stands_in_front_of_it() {
    let (reasoning, thoughts) = thoughts(vec![
        output(1, Piece::Reasoning("Broken off".to_owned())),
        output(2, Piece::Reasoning("hm".to_owned())),
        output(3, thought("hm", "a")),
        output(4, Piece::Text("So".to_owned())),
    ]);
    assert_eq!((reasoning.as_deref(), thoughts), (Some("Broken offhm"), vec![]));
}
