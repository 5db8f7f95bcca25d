//! OpenAI's Responses: what a model thought goes back to it in each turn, sealed by its provider. Pure.

mod decode;
mod request;

pub(super) use decode::Decoder;
pub(super) use request::body;
