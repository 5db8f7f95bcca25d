//! How model families write tool calls: one file per family.
//!
//! A family names its opening markers; behind one, its parser takes the bytes until the call ends or turns out to be
//! none. A parser never emits text: what is no call goes back to the splitter.

mod bare_json;
mod call_object;
mod hermes;

use super::calls::Calls;
use super::piece::ToolFormat;

/// What a byte, or the end of the output, did to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The call goes on.
    More,
    /// This is no call: everything since the marker is text. Only before the call was announced.
    NotACall,
    /// The call ended with this byte.
    Ended,
    /// The call ended earlier; these bytes and then this one come after it.
    EndedBefore(Vec<u8>),
    /// The call ended, and these bytes and then this one may begin another in the same block.
    Another(Vec<u8>),
}

/// Reads one call.
pub(super) trait CallParser: std::fmt::Debug + Send {
    /// Takes the next byte.
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step;

    /// The output ends here; `cut` says that it was cut off. Anything but `NotACall` means that the call is closed.
    fn finish(&mut self, cut: bool, calls: &mut Calls) -> Step;

    /// Whether bytes are held back that may still become text.
    fn held(&self) -> bool;
}

/// The markers that open a call.
pub(super) fn markers(format: ToolFormat) -> &'static [&'static str] {
    match format {
        ToolFormat::None => &[],
        ToolFormat::Hermes => &[hermes::OPEN],
    }
}

/// The markers that close a call.
pub(super) fn closing_markers(format: ToolFormat) -> &'static [&'static str] {
    match format {
        ToolFormat::None => &[],
        ToolFormat::Hermes => &[hermes::CLOSE],
    }
}

/// A parser for what follows an opening marker.
pub(super) fn open(format: ToolFormat) -> Option<Box<dyn CallParser>> {
    match format {
        ToolFormat::None => None,
        ToolFormat::Hermes => Some(Box::new(hermes::Hermes::new())),
    }
}

/// A parser for an answer that as a whole may be a call without markers, by its first byte.
pub(super) fn open_bare(format: ToolFormat, first: u8, tools: &[String]) -> Option<Box<dyn CallParser>> {
    match format {
        ToolFormat::Hermes if matches!(first, b'{' | b'`') && !tools.is_empty() => {
            Some(Box::new(bare_json::BareJson::new(tools.to_vec())))
        }
        ToolFormat::None | ToolFormat::Hermes => None,
    }
}
