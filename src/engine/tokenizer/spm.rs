//! SentencePiece-style encoding by scores: spaces as U+2581, the best-scored neighbours merge first.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::vocabulary::{Kind, METASPACE, Vocabulary, byte_of_token};

/// A score-based encoder.
#[derive(Debug)]
pub(super) struct Spm {
    ids: HashMap<String, u32>,
    scores: Vec<f32>,
    byte_ids: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    /// Whether a text begins with a space that is not in it.
    pub(super) space_prefix: bool,
}

/// One run of characters that may become a token.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours whose joined text is a token.
#[derive(Debug, PartialEq)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Spm {
    pub(super) fn new(vocabulary: &Vocabulary, scores: Vec<f32>, unknown: Option<u32>, space_prefix: bool) -> Self {
        let mut ids = HashMap::new();
        let mut byte_ids = Box::new([None; 256]);
        for (text, id) in vocabulary.texts().iter().zip(0u32..) {
            match vocabulary.kind(id) {
                Some(Kind::Byte) => {
                    if let Some(byte) = byte_of_token(text) {
                        byte_ids[usize::from(byte)] = Some(id);
                    }
                }
                Some(Kind::Normal | Kind::UserDefined) => {
                    ids.insert(text.clone(), id);
                }
                _ => {}
            }
        }
        Self { ids, scores, byte_ids, unknown, space_prefix }
    }

    /// Appends the tokens of a text that holds no special token; `opening` says that it stands at the beginning or
    /// behind a special token.
    pub(super) fn encode(&self, text: &str, opening: bool, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut escaped = if opening && self.space_prefix { METASPACE.to_owned() } else { String::new() };
        escaped.push_str(&text.replace(' ', METASPACE));
        let symbols = self.merge(&escaped);
        let mut at = Some(0);
        while let Some(symbol) = at.and_then(|index| symbols.get(index)) {
            self.emit(&escaped[symbol.start..symbol.start + symbol.len], out);
            at = symbol.next;
        }
    }

    fn merge(&self, text: &str) -> Vec<Symbol> {
        let count = text.chars().count();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, character))| Symbol {
                start,
                len: character.len_utf8(),
                previous: index.checked_sub(1),
                next: (index + 1 < count).then_some(index + 1),
            })
            .collect();
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() {
            queue.extend(self.candidate(text, &symbols, right - 1, right));
        }
        while let Some(Candidate { left, right, len, .. }) = queue.pop() {
            // A candidate is stale when one of its halves has been merged since.
            if symbols[left].len == 0 || symbols[right].len == 0 || symbols[left].len + symbols[right].len != len {
                continue;
            }
            let after = symbols[right].next;
            symbols[left].len = len;
            symbols[left].next = after;
            symbols[right].len = 0;
            if let Some(next) = after {
                symbols[next].previous = Some(left);
                queue.extend(self.candidate(text, &symbols, left, next));
            }
            if let Some(previous) = symbols[left].previous {
                queue.extend(self.candidate(text, &symbols, previous, left));
            }
        }
        symbols
    }

    fn candidate(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Candidate> {
        let len = symbols[left].len + symbols[right].len;
        let start = symbols[left].start;
        let id = *self.ids.get(&text[start..start + len])?;
        let score = self.scores.get(id as usize).copied().unwrap_or(0.0);
        Some(Candidate { score, left, right, len })
    }

    fn emit(&self, piece: &str, out: &mut Vec<u32>) {
        if let Some(&id) = self.ids.get(piece) {
            out.push(id);
            return;
        }
        for byte in piece.bytes() {
            out.extend(self.byte_ids[usize::from(byte)].or(self.unknown));
        }
    }
}
