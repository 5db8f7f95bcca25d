//! The file that a scripted engine plays, and which of its replies answers a transcript. No engine, no timers.

use serde::Deserialize;

use crate::parse::{ReasoningFormat, ToolFormat};
use crate::prompt::{Message, Role, TemplateError};

/// What can be wrong with a script.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("cannot read the script {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The text is no script; the message says where.
    #[error("the script {name} is not valid: {source}")]
    Invalid {
        /// The file, or what stands for it.
        name: String,
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
    /// The built-in template does not compile.
    #[error("the built-in chat template cannot be used: {0}")]
    Template(TemplateError),
    /// The engine's thread could not be started.
    #[error("cannot start the scripted engine: {0}")]
    Start(std::io::Error),
}

/// Replies, and the formats in which they are written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Script {
    #[serde(default)]
    pub(super) tool_format: ToolFormat,
    #[serde(default)]
    pub(super) reasoning: ReasoningFormat,
    pub(super) replies: Vec<Reply>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reply {
    /// Text that the last user or tool message must contain; without it every transcript matches.
    #[serde(default, rename = "match")]
    pub(super) matches: Option<String>,
    /// Text that some message must contain: what is said last is not always what is asked.
    #[serde(default, rename = "match_any")]
    pub(super) matches_any: Option<String>,
    /// The text, in the pieces in which it is sent.
    pub(super) deltas: Vec<String>,
    /// Waited before each piece.
    #[serde(default)]
    pub(super) delay_ms: u64,
    #[serde(default)]
    pub(super) finish: Finish,
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Finish {
    /// With the end-of-turn token.
    #[default]
    Stop,
    /// Cut off.
    Length,
    /// The engine fails.
    Error,
}

impl Script {
    /// Reads a script: an object, or just its list of replies.
    pub(super) fn parse(json: &str) -> Result<Self, serde_json::Error> {
        // Not an untagged enum: that would lose what is wrong and where.
        if json.trim_start().starts_with('[') {
            let replies = serde_json::from_str(json)?;
            return Ok(Self { tool_format: ToolFormat::default(), reasoning: ReasoningFormat::default(), replies });
        }
        serde_json::from_str(json)
    }

    /// The first reply that matches the last user or tool message, and any message.
    pub(super) fn reply(&self, messages: &[Message]) -> Option<&Reply> {
        let last = messages.iter().rev().find(|message| matches!(message.role, Role::User | Role::Tool));
        let text = last.map_or("", |message| message.content.as_str());
        let is_said = |wanted: &str| messages.iter().any(|message| message.content.contains(wanted));
        self.replies.iter().find(|reply| {
            reply.matches.as_deref().is_none_or(|wanted| text.contains(wanted))
                && reply.matches_any.as_deref().is_none_or(is_said)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_an_object_or_just_its_list() {
        let list = r#" [{"deltas": ["a"]}, {"match": "x", "deltas": [], "delay_ms": 5, "finish": "error"}]"#;
        let script = Script::parse(list).unwrap();
        assert_eq!(script.reasoning, ReasoningFormat::default());
        assert_eq!(script.replies[0].finish, Finish::Stop);
        assert_eq!(script.replies[1].finish, Finish::Error);
        let object = format!(r#"{{"tool_format": "hermes", "reasoning": "qwen3", "replies": {list}}}"#);
        assert_eq!(Script::parse(&object).unwrap(), script);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let cases = [
            ("[\n{\"deltas\": [], \"delay\": 5}]", "unknown field `delay`", "line 2"),
            ("[{\"deltas\": [1]}]", "expected a string", "column 14"),
            ("[{}]", "missing field `deltas`", "line 1"),
            ("{\"replies\": [], \"reply\": 1}", "unknown field `reply`", "line 1"),
            ("{\"replies\": [{\"deltas\": [], \"finish\": \"done\"}]}", "unknown variant `done`", "line 1"),
            (
                "{\"tool_format\": \"x\", \"replies\": []}",
                "no tool format is called x; there are: none, hermes",
                "line 1",
            ),
            ("nonsense", "expected", "line 1"),
        ];
        for (json, what, place) in cases {
            let text = Script::parse(json).unwrap_err().to_string();
            assert!(text.contains(what) && text.contains(place), "{json}: {text}");
        }
    }

    #[test]
    fn the_last_user_or_tool_message_chooses_the_first_reply_that_matches() {
        let json = r#"[{"match": "weather", "deltas": ["1"]}, {"match": "rain", "deltas": ["2"]}, {"deltas": ["3"]}]"#;
        let script = Script::parse(json).unwrap();
        let chosen = |messages: &[(Role, &str)]| {
            let messages: Vec<_> = messages.iter().map(|(role, text)| Message::text(*role, *text)).collect();
            script.reply(&messages).unwrap().deltas[0].clone()
        };
        assert_eq!(chosen(&[(Role::User, "the weather, please")]), "1");
        assert_eq!(chosen(&[(Role::User, "weather"), (Role::Assistant, "?"), (Role::Tool, "rain")]), "2");
        assert_eq!(chosen(&[(Role::User, "weather"), (Role::User, "hello"), (Role::Assistant, "rain")]), "3");
        assert_eq!(chosen(&[]), "3");
        let json = r#"[{"match_any": "rain", "match": "weather", "deltas": ["1"]}, {"deltas": ["2"]}]"#;
        let script = Script::parse(json).unwrap();
        let chosen = |messages: &[Message]| script.reply(messages).unwrap().deltas[0].clone();
        let (rain, weather) = (Message::text(Role::User, "rain"), Message::text(Role::User, "weather"));
        assert_eq!(chosen(&[rain.clone(), weather.clone()]), "1");
        assert_eq!((chosen(&[weather.clone(), rain]), chosen(&[weather])), ("2".into(), "2".into()));
        assert_eq!(Script::parse(r#"[{"match": "x", "deltas": []}]"#).unwrap().reply(&[]), None);
    }
}
