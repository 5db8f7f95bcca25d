//! Templates that come with the program, for files that bring none, and for users who want another than the file's.
//!
//! Written for this project in the manner of the models they are named after.

/// `ChatML`, for models that bring no template. It knows no tools; they are written into the messages.
pub(super) const CHATML: &str = include_str!("templates/chatml.jinja");

/// All of them by name.
const ALL: [(&str, &str); 5] = [
    ("chatml", CHATML),
    ("hermes", include_str!("templates/hermes.jinja")),
    ("llama3", include_str!("templates/llama3.jinja")),
    ("mistral", include_str!("templates/mistral.jinja")),
    ("gemma", include_str!("templates/gemma.jinja")),
];

/// The text of the built-in template with this name.
pub fn builtin_template(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}

/// The names of the built-in templates.
pub fn builtin_template_names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}
