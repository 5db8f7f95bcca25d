//! Whether a template fits a vocabulary: the marks that it writes around messages are tokens of the model it was made
//! for, and of another model's they are letters.

use serde_json::Map;

use super::{ChatTemplate, Message, PromptEnd, Rendering, Role};
use crate::engine::tokenizer::Tokenizer;

/// Longer marks are none.
const MARK_BYTES_MAX: usize = 64;

/// The marks that the template writes around plain messages and that are no tokens of this tokenizer, in order.
pub fn missing_marks(template: &ChatTemplate, tokenizer: &Tokenizer) -> Vec<String> {
    let messages = [Message::text(Role::User, "Hello"), Message::text(Role::Assistant, "Hi")];
    let rendering = Rendering {
        messages: &messages,
        tools: &[],
        end: PromptEnd::Answer,
        kwargs: &Map::new(),
        now_unix_ms: 0,
        strip_preamble: false,
    };
    // What refuses this is told where it is used.
    let text = template.render(&rendering).unwrap_or_default();
    let mut missing: Vec<String> = Vec::new();
    for mark in marks(&text) {
        if tokenizer.encode(mark, true).len() != 1 && !missing.iter().any(|known| known == mark) {
            missing.push(mark.to_owned());
        }
    }
    missing
}

/// What looks like a mark: `<|a|>`, `<start_of_a>`, `[A]`, `[/A]`.
fn marks(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(['<', '[']).filter_map(|(at, open)| {
        let close = if open == "<" { '>' } else { ']' };
        let end = text[at..].find(close).map(|len| at + len + 1).filter(|end| end - at <= MARK_BYTES_MAX)?;
        let inner = &text[at + 1..end - 1];
        let is_mark = if open == "<" {
            inner.contains(['|', '｜', '_']) && !inner.contains(|letter: char| letter.is_whitespace() || letter == '<')
        } else {
            let word = inner.strip_prefix('/').unwrap_or(inner);
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
        };
        is_mark.then(|| &text[at..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::builtin_template;

    fn missing(name: &str) -> Vec<String> {
        let template = ChatTemplate::new(builtin_template(name).unwrap(), "<s>", "</s>").unwrap();
        missing_marks(&template, &Tokenizer::bytes())
    }

    #[test]
    fn the_marks_of_another_models_template_are_found() {
        // The vocabulary is bytes and the tokens of ChatML.
        assert_eq!(missing("chatml"), [""; 0]);
        assert_eq!(missing("hermes"), [""; 0]);
        assert_eq!(missing("llama3"), ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]);
        assert_eq!(missing("gemma"), ["<start_of_turn>", "<end_of_turn>"]);
        assert_eq!(missing("mistral"), ["[INST]", "[/INST]"]);
    }

    #[test]
    fn what_only_looks_like_a_tag_is_no_mark() {
        let all = "<think>\n<b> a < b_c > [1] [a] <s> [] <｜User｜> [/INST] <turn|>";
        assert_eq!(marks(all).collect::<Vec<_>>(), ["<｜User｜>", "[/INST]", "<turn|>"]);
    }
}
