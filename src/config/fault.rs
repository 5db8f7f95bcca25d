//! What is wrong with a source of settings, in an operator's words.

use super::nearest::nearest;
use super::parse_listen;
use super::variables::{LIST_SETTINGS, Variables};

/// What is wrong with a source, in an operator's terms and with the name as it was written.
pub(super) fn what_is_wrong(error: &figment::Error, variables: &Variables) -> String {
    use figment::error::Kind;
    let spelled = |name: &str, as_variable: bool| {
        if as_variable { format!("`MIDSTREAM_{}`", name.to_uppercase()) } else { format!("`{name}`") }
    };
    let written = |name: &str| spelled(name, variables.has(name));
    let name = error.path.join(".");
    let said = match &error.kind {
        Kind::UnknownField(field, known) => {
            let as_variable = variables.has(field);
            let help = match nearest(field, known) {
                Some(near) => format!("did you mean {}?", spelled(near, as_variable)),
                None => "midstream.example.toml shows all".to_owned(),
            };
            return format!("unknown setting {}; {help}", spelled(field, as_variable));
        }
        _ if name.is_empty() => error.kind.to_string().replace("``", "`"),
        Kind::InvalidType(..) | Kind::InvalidValue(..) if name == "listen" => {
            format!("{}: {}", written(&name), parse_listen("").err().unwrap_or_default())
        }
        Kind::InvalidType(_, expected) => format!("{} must be {}", written(&name), in_words(expected)),
        Kind::InvalidValue(_, expected) => format!("{} must be {} of 0 or more", written(&name), in_words(expected)),
        Kind::Message(_) if LIST_SETTINGS.contains(&name.as_str()) => {
            format!("{} must be one text or a list of texts", written(&name))
        }
        // What figment quotes has its quotes already.
        kind => format!("{}: {}", written(&name), kind.to_string().replace("``", "`")),
    };
    let source = error.metadata.as_ref().and_then(|metadata| metadata.source.as_ref());
    match source.and_then(figment::Source::file_path) {
        Some(path) => format!("{said} (in {})", path.display()),
        None => said.trim().to_owned(),
    }
}

fn in_words(expected: &str) -> &str {
    match expected {
        "usize" | "u64" => "a whole number",
        "a string" | "path string" => "a text",
        expected => expected,
    }
}
