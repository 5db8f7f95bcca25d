//! Text to token ids and back.

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {}
