//! The line that Claude Code puts at the head of its system prompt for billing. It says nothing to a model, and
//! changes with the client's version and the first words of a conversation, so it would part prompts that are equal
//! behind it.

/// How the line begins.
pub(super) const BILLING: &str = "x-anthropic-billing-header:";

/// The system text without the billing line at its head, whether more follows it or not.
///
/// The line ends at its newline. Where other text follows it in the same line, as when a client joins blocks without
/// one, it ends behind the last `key=value;` pair.
pub fn strip_preamble(system: &str) -> &str {
    let Some(line) = system.trim_start().strip_prefix(BILLING) else { return system };
    let mut rest = line;
    while let Some(behind) = pair(rest) {
        rest = behind;
    }
    if rest.len() == line.len() {
        // No pair that is known: the whole line is the header's.
        rest = line.find('\n').map_or("", |end| &line[end..]);
    }
    rest.trim_start_matches(['\r', '\n', ' '])
}

/// What follows ` key=value;`. The last pair of a line may do without its semicolon.
fn pair(text: &str) -> Option<&str> {
    let text = text.trim_start_matches(' ');
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    let value = text.trim_start_matches(is_name);
    let value = value.strip_prefix('=').filter(|_| value.len() < text.len())?;
    let end = value.find([';', '\n', ' ']).unwrap_or(value.len());
    Some(value[end..].strip_prefix(';').unwrap_or(&value[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_billing_line_goes_with_or_without_a_newline_and_nothing_else_does() {
        let line = "x-anthropic-billing-header: cc_version=2.1.332.0b8; cc_entrypoint=sdk-cli;";
        for (behind, left) in [
            ("", ""),
            ("\n", ""),
            ("\nYou are kind.", "You are kind."),
            ("You are kind.", "You are kind."),
            (" cch=a1b2c;\n\nYou are kind.\n", "You are kind.\n"),
            (" cch=a1b2c\nYou=1; are", "You=1; are"),
            ("\r\n# System", "# System"),
        ] {
            let text = format!("{line}{behind}");
            // A line of its own ends the header, however much the next one looks like it.
            assert_eq!(strip_preamble(&text), left, "{behind:?}");
        }
        assert_eq!(strip_preamble("x-anthropic-billing-header: something new\nText"), "Text");
        for text in ["", "Hello", "Say x-anthropic-billing-header: a=b;", " indented"] {
            assert_eq!(strip_preamble(text), text);
        }
    }
}
