//! How model families write tool calls: one file and one description per family.
//!
//! A family names the markers that open a call, or a block of calls; behind one, its parser takes the bytes until
//! the block ends or turns out to be none. A parser never emits text: what is no call goes back to the splitter. A
//! family whose output consists of channels reads all of the output itself. Everything else about a family is in its
//! description; whoever adds one adds its file and its line in [`FAMILIES`].

mod arguments;
mod bare_json;
mod call_object;
mod channels;
mod deepseek;
mod deepseek_dsml;
mod gemma4;
mod glm47;
pub(super) mod harmony;
mod hermes;
pub(super) mod inkling;
mod jamba;
mod json_block;
mod kimi_k2;
mod kimi_k3;
mod literal;
mod llama3_json;
mod message_call;
mod minimax_m2;
mod minimax_m3;
mod mistral;
mod named;
mod nemotron_deci;
mod phi4;
mod pythonic;
mod qwen3_coder;
mod section;
mod tagged;
mod writing;

use super::calls::Calls;
use super::formats::ToolFormat;
use super::sink::Sink;
use super::tools::Tools;
pub use writing::{BARE_CALL, CallPart, Each, Writing};

/// Every family; the first is what a model gets whose template writes no calls. Whoever adds one adds a generator in
/// `tests/`.
pub(super) static FAMILIES: &[&Family] = &[
    &hermes::FAMILY,
    &nemotron_deci::FAMILY,
    &llama3_json::FAMILY,
    &mistral::FAMILY,
    &phi4::FAMILY,
    &jamba::FAMILY,
    &deepseek::V3,
    &deepseek::V3_1,
    &kimi_k2::FAMILY,
    &harmony::FAMILY,
    &inkling::FAMILY,
    &qwen3_coder::FAMILY,
    &glm47::FAMILY,
    &deepseek_dsml::DEEPSEEK_V3_2,
    &deepseek_dsml::DEEPSEEK_V4,
    &minimax_m2::FAMILY,
    &minimax_m3::FAMILY,
    &kimi_k3::FAMILY,
    &gemma4::FAMILY,
    &pythonic::PYTHONIC,
    &pythonic::LFM2,
];

/// The description of a family.
pub(super) struct Family {
    pub(super) name: &'static str,
    /// Other names that users know it by.
    pub(super) aliases: &'static [&'static str],
    /// What opens a call or a block of calls. None is the beginning of another.
    pub(super) open: &'static [&'static str],
    /// What else its form consists of: where one of these, or a part of it, is a control token, the pipeline is given
    /// its text.
    pub(super) inner: &'static [&'static str],
    /// The first bytes of a call that begins the answer without any marker, where the family writes such calls.
    pub(super) bare: &'static [u8],
    /// Line ends in front of an opening marker that are framing.
    pub(super) line_ends_before: usize,
    /// How its models write calls: one of the forms that are read.
    pub(super) writes: Writing,
    pub(super) reads: Reads,
}

/// What a family's parser reads.
pub(super) enum Reads {
    /// What follows an opening marker.
    Calls(fn(&Opening<'_>) -> Box<dyn CallParser>),
    /// The same, where some of the opening markers open nothing: they only frame the answer's text, and are dropped.
    Framed { calls: fn(&Opening<'_>) -> Box<dyn CallParser>, frame: &'static [&'static str] },
    /// The same, where calls stand in a section. When something else is said behind them, inside the section, the
    /// marks that then close it frame nothing any more, and are dropped.
    Sections { calls: fn(&Opening<'_>) -> Box<dyn CallParser>, closes: &'static [&'static str] },
    /// The whole output.
    Output(fn(Setup) -> Box<dyn StreamParser>),
}

/// How a call was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening<'a> {
    /// The marker; empty where a call begins without one.
    pub(super) marker: &'a str,
    pub(super) tools: &'a Tools,
}

/// What a parser of the whole output is to look for. What is not looked for is text.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) calls: bool,
    pub(super) reasoning: bool,
    /// Whether the prompt ends inside reasoning, if it says.
    pub(super) starts_in_reasoning: Option<bool>,
}

/// What a byte did to a call. What is taken ends with a whole character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The byte is kept: whether it belongs to a call is not known yet.
    Held,
    /// This byte and all that was held belong to calls.
    Taken,
    /// The block ended with this byte.
    Ended,
    /// The marker has opened a section, in which something is said first: what is held behind the marker, and this
    /// byte, are read again, and the marker is dropped. No call was announced.
    Framed,
    /// Everything held and this byte belong to no call: they are read again as text. No call is open. Where no call
    /// was announced, that is everything since and with the marker.
    NotACall,
}

/// Reads one call, or a block of calls.
pub(super) trait CallParser: std::fmt::Debug + Send {
    /// Takes the next byte.
    fn push(&mut self, byte: u8, calls: &mut Calls) -> Step;

    /// The output ends here; `cut` says that it was cut off. Closes what is open; whether what is held belongs to it.
    fn finish(&mut self, cut: bool, calls: &mut Calls) -> bool;
}

/// Reads a whole output.
pub(super) trait StreamParser: std::fmt::Debug + Send {
    /// Takes more of the output.
    fn push(&mut self, text: &str, sink: &mut Sink<'_>);

    /// The output ends here; `cut` says that it was cut off.
    fn finish(&mut self, cut: bool, sink: &mut Sink<'_>);

    /// Whether something was taken that is not shown yet.
    fn held(&self) -> bool;

    /// Whether the answer is inside reasoning.
    fn in_reasoning(&self) -> bool;

    /// Whether the answer is inside what is, or may become, a call.
    fn in_call(&self) -> bool;

    /// Steps taken so far, for the proof that work is linear.
    #[cfg(any(test, fuzzing))]
    fn work(&self) -> usize;
}

impl Family {
    /// A parser for what follows an opening marker.
    pub(super) fn open(&self, opening: &Opening<'_>) -> Option<Box<dyn CallParser>> {
        match self.reads {
            Reads::Calls(parser) | Reads::Sections { calls: parser, .. } => Some(parser(opening)),
            Reads::Framed { calls, frame } if !frame.contains(&opening.marker) => Some(calls(opening)),
            Reads::Framed { .. } | Reads::Output(_) => None,
        }
    }

    /// A parser for an answer that begins with this byte and may be a call without markers: the family's own form,
    /// or an answer that as a whole is a call object.
    pub(super) fn open_bare(&self, first: u8, tools: &Tools) -> Option<Box<dyn CallParser>> {
        if tools.is_empty() {
            return None;
        }
        if self.bare.contains(&first) {
            return self.open(&Opening { marker: "", tools });
        }
        matches!(first, b'{' | b'`').then(|| Box::new(bare_json::BareJson::new(tools.clone())) as Box<dyn CallParser>)
    }

    /// What closes a section of calls.
    pub(super) fn closes(&self) -> &'static [&'static str] {
        match self.reads {
            Reads::Sections { closes, .. } => closes,
            Reads::Calls(_) | Reads::Framed { .. } | Reads::Output(_) => &[],
        }
    }

    /// All texts of its form.
    pub(super) fn texts(&self) -> impl Iterator<Item = &'static str> {
        self.open.iter().chain(self.inner).copied()
    }
}

impl ToolFormat {
    /// What opens or frames a call, wherever it stands in an answer.
    pub fn openings(self) -> &'static [&'static str] {
        self.family().map_or(&[], |family| family.open)
    }

    /// Where an answer is searched for calls without markers: the first bytes of the family's own form of them, beside
    /// call objects, bare or in a fence.
    pub fn bare(self) -> Option<&'static [u8]> {
        let family = self.family()?;
        (!matches!(family.reads, Reads::Output(_))).then_some(family.bare)
    }
}

impl std::fmt::Debug for Family {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}
