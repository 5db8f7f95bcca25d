//! How deep a template's expressions go. The engine that compiles them recurses along chains of operators (`not not
//! not …`, `a.b.c…`, `1+1+1…`) without a limit, so a hostile file could overflow the stack; real templates stay far
//! below this bound.

/// Most operators in one tag.
const OPERATORS_MAX: usize = 500;

/// The number of operators in the longest tag, where it is more than any sane template has.
pub(super) fn too_deep(source: &str) -> Option<usize> {
    let mut rest = source;
    while let Some((tag, behind)) = next_tag(rest) {
        let count = operators(tag);
        if count > OPERATORS_MAX {
            return Some(count);
        }
        rest = behind;
    }
    None
}

/// The inside of the next `{{ … }}` or `{% … %}`, and what follows. A tag that is not closed reaches to the end.
fn next_tag(source: &str) -> Option<(&str, &str)> {
    let begin = source.find("{{").into_iter().chain(source.find("{%")).min()?;
    let inside = &source[begin + 2..];
    let close = if source[begin..].starts_with("{{") { "}}" } else { "%}" };
    // Inside a string the closing mark does not count, and a string that never ends is no reason to look no further.
    let end = closing(inside, close).or_else(|| inside.find(close)).unwrap_or(inside.len());
    Some((&inside[..end], &inside[end..]))
}

fn closing(inside: &str, close: &str) -> Option<usize> {
    outside_strings(inside).find(|(place, _)| inside[*place..].starts_with(close)).map(|(place, _)| place)
}

/// Signs and words that may nest expressions.
fn operators(tag: &str) -> usize {
    let code: String = outside_strings(tag).map(|(_, character)| character).collect();
    let signs = code.bytes().filter(|byte| b"+-*/%~.|[(<>=!".contains(byte)).count();
    let words = code.split(|character: char| !character.is_alphanumeric() && character != '_');
    signs + words.filter(|word| matches!(*word, "not" | "and" | "or" | "in" | "is" | "if" | "else")).count()
}

/// The characters that are in no string, and where.
fn outside_strings(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut quote = None;
    text.char_indices().filter(move |(_, character)| {
        let inside = quote.is_some();
        match quote {
            Some(open) if open == *character => quote = None,
            None if matches!(character, '"' | '\'') => quote = Some(*character),
            _ => {}
        }
        !inside && quote.is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::super::{ChatTemplate, TemplateError};

    #[test]
    fn chains_that_would_overflow_the_stack_are_refused() {
        let chains = [
            format!("{{{{ {}1 }}}}", "-".repeat(50_000)),
            format!("{{{{ {}1 }}}}", "not ".repeat(50_000)),
            format!("{{{{ a{} }}}}", ".b".repeat(50_000)),
            format!("{{{{ 1{} }}}}", "+1".repeat(100_000)),
            format!("{{% if {}1 %}}x{{% endif %}}", "not ".repeat(50_000)),
            format!("{{{{ '{{{{' ~ {}1 }}}}", "-".repeat(50_000)),
            format!("{{{{ {}1", "-".repeat(50_000)),
            format!("{{{{ x{} }}}}", "|trim".repeat(50_000)),
            format!("{{{{ x{} }}}}", "[0]".repeat(50_000)),
        ];
        for chain in chains {
            let refused = ChatTemplate::new(&chain, "", "").unwrap_err();
            assert!(matches!(refused, TemplateError::Syntax(_)), "{refused}");
        }
    }

    #[test]
    fn long_text_and_many_short_tags_are_fine() {
        let source = format!("{}{}", "a - b. ".repeat(10_000), "{{ messages[0].content }}".repeat(2_000));
        assert!(super::too_deep(&source).is_none());
    }
}
