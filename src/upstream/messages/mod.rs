//! Anthropic's Messages as an upstream speaks it: the body of a request, and what its answers say. Pure.

mod decode;
mod request;

pub(super) use decode::Decoder;
pub(super) use request::{Manners, body};
