//! The text of content that is given as blocks: what the model reads of each kind.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::errors::dotted;
use super::marks;
use crate::api::body::decode;
use crate::api::errors::invalid;
use crate::conversation::Reject;
use crate::protocol::TextOr;
use crate::protocol::messages::{CacheControl, InputBlock};

/// What stands between two blocks that become one text.
const BETWEEN: &str = "\n\n";

/// Several texts as one. A single one stays as it is: a text is the same as one block of it.
pub(super) fn joined(texts: &[String]) -> String {
    let mut whole = Joined::default();
    for text in texts {
        whole.add(text, None);
    }
    whole.text
}

/// Texts that become one, and the marks behind them.
#[derive(Debug, Default)]
pub(super) struct Joined {
    pub(super) text: String,
    /// How many bytes stand in front of each mark, and how long it keeps them.
    pub(super) marks: Vec<(usize, Duration)>,
}

impl Joined {
    /// Adds one with the mark behind it, if there is one.
    pub(super) fn add(&mut self, text: &str, mark: Option<&CacheControl>) {
        if !text.is_empty() && !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push_str(BETWEEN);
        }
        self.text.push_str(text);
        self.marks.extend(marks::time(mark).map(|time| (self.text.len(), time)));
    }
}

/// The text of a `text` block.
pub(super) fn text(block: &InputBlock, path: &str) -> Result<String, Reject> {
    block.text.clone().ok_or_else(|| missing(path, "text"))
}

/// A block that shows something to read: a document or a search's result.
pub(super) fn reading(block: &InputBlock, path: &str) -> Result<String, Reject> {
    if block.kind == "document" { document(block, path) } else { search_result(block, path) }
}

fn document(block: &InputBlock, path: &str) -> Result<String, Reject> {
    let source = block.source.as_ref().ok_or_else(|| missing(path, "source"))?;
    let at = format!("{path}.source");
    let text = match source["type"].as_str() {
        Some("text") => source["data"].as_str().ok_or_else(|| missing(&at, "data"))?.to_owned(),
        Some("content") => inner(source.get("content"), &format!("{at}.content"))?,
        kind => {
            let kind = kind.unwrap_or("none");
            let text =
                format!("{at}.type is {kind}, but the model reads text: send a source of the type text or content");
            return Err(invalid(format!("{at}.type"), text));
        }
    };
    let told = [("title", &block.title), ("context", &block.context)];
    let told = told.into_iter().filter_map(|(name, value)| Some(format!("<{name}>{}</{name}>\n", value.as_ref()?)));
    Ok(format!("<document>\n{}{text}\n</document>", told.collect::<String>()))
}

fn search_result(block: &InputBlock, path: &str) -> Result<String, Reject> {
    let source = block.source.as_ref().and_then(Value::as_str).unwrap_or_default();
    let title = block.title.as_deref().unwrap_or_default();
    let text = inner(block.content.as_ref(), &format!("{path}.content"))?;
    Ok(format!("<search_result>\n<source>{source}</source>\n<title>{title}</title>\n{text}\n</search_result>"))
}

/// The text of content inside a block. What is no text says so in its place.
fn inner(content: Option<&Value>, path: &str) -> Result<String, Reject> {
    let blocks = match blocks(content, path)? {
        TextOr::Text(text) => return Ok(text),
        TextOr::List(blocks) => blocks,
    };
    let texts: Vec<String> = blocks.iter().map(|block| block.text.clone().unwrap_or_else(|| left_out(block))).collect();
    Ok(joined(&texts))
}

/// Content inside a block, whose errors are named by their place.
pub(super) fn blocks(content: Option<&Value>, path: &str) -> Result<TextOr<InputBlock>, Reject> {
    let Some(content) = content.filter(|content| !content.is_null()) else { return Ok(TextOr::List(Vec::new())) };
    decode_at(content, path)
}

/// Reads a known type out of JSON that stands at this path of the request.
pub(super) fn decode_at<T: DeserializeOwned>(value: &Value, path: &str) -> Result<T, Reject> {
    decode(value).map_err(|reject| {
        let inner = reject.param.unwrap_or_default();
        let said = reject.message.strip_prefix(&inner).unwrap_or(&reject.message);
        let inner = dotted(&inner);
        let at = match inner.trim_matches('.') {
            "" => path.to_owned(),
            inner => format!("{path}.{inner}"),
        };
        invalid(at.clone(), format!("{at}{said}"))
    })
}

/// What stands in the place of something that the model cannot read: a tool that gave a picture once must not end the
/// conversation.
pub(super) fn left_out(block: &InputBlock) -> String {
    format!("[a block of the type {} is left out: this model reads text]", block.kind)
}

/// A field is missing.
pub(super) fn missing(path: &str, name: &str) -> Reject {
    invalid(format!("{path}.{name}"), format!("{path}.{name} is missing"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::messages::ToolDeclaration;

    #[test]
    fn one_text_is_the_same_as_one_block_of_it_and_several_stand_apart() {
        let joined = |texts: &[&str]| joined(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(joined(&[" a \n"]), " a \n");
        assert_eq!(joined(&["a", "", "b\n", "c"]), "a\n\nb\nc");
    }

    #[test]
    fn what_is_wrong_inside_a_block_is_named_by_its_whole_path() {
        let read = |content: Value| blocks(Some(&content), "messages.2.content.0.content").unwrap_err().message;
        let path = "messages.2.content.0.content";
        assert!(read(json!([{"type": "text", "text": "a"}, {"type": 7}])).starts_with(path), "one spelling");
        assert!(read(json!(7)).starts_with(&format!("{path}: ")));
        let definition = decode_at::<ToolDeclaration>(&json!({"name": 7}), "messages.1.content.0.tool.definition");
        let said = definition.unwrap_err().message;
        assert!(said.starts_with("messages.1.content.0.tool.definition.name: "), "{said}");
    }

    #[test]
    fn documents_are_read_as_text_and_others_are_refused_by_their_place() {
        let read = |value: Value| reading(&decode(&value).unwrap(), "messages.0.content.1");
        let plain = json!({"type": "text", "media_type": "text/plain", "data": "Hi"});
        let text = read(json!({"type": "document", "source": plain, "title": "T"})).unwrap();
        assert_eq!(text, "<document>\n<title>T</title>\nHi\n</document>");
        let blocks = json!({"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "image"}]});
        assert!(
            read(json!({"type": "document", "source": blocks})).unwrap().contains("a\n\n[a block of the type image")
        );
        let refused = read(json!({"type": "document", "source": {"type": "base64", "data": ""}})).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("messages.0.content.1.source.type"));
    }
}
