//! Reads text of which a part may have to be read a second time, in bounded time altogether.

use super::sink::Sink;

/// What became of the beginning of the text.
pub(super) enum Taken {
    /// So many bytes are done with.
    Bytes(usize),
    /// This text, which was held, comes in front of it again.
    Again(String),
}

/// Reads text from its beginning on.
pub(super) trait Reader {
    /// Takes some of the text, which is not empty.
    fn take(&mut self, rest: &str, sink: &mut Sink<'_>) -> Taken;

    fn budget(&mut self) -> &mut Budget;
}

/// How much may be read again.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Bytes that may still be read a second time: as many as were read, so that work stays linear.
    allowance: usize,
    /// Steps taken, for the proof of that.
    #[cfg(any(test, fuzzing))]
    pub(super) work: usize,
}

impl Budget {
    /// Whether so many bytes may be read again; they count as read then.
    pub(super) fn allows(&mut self, bytes: usize) -> bool {
        let left = self.allowance.checked_sub(bytes);
        self.allowance = left.unwrap_or(self.allowance);
        left.is_some()
    }
}

/// Reads `text` behind what is to be read again.
pub(super) fn read(reader: &mut impl Reader, again: String, text: &str, sink: &mut Sink<'_>) {
    let mut again = vec![(again, 0)];
    let mut at = 0;
    while !sink.stopped() {
        let (source, place) = match again.last_mut() {
            Some((source, place)) => (source.as_str(), place),
            None => (text, &mut at),
        };
        let rest = &source[*place..];
        if rest.is_empty() {
            if again.pop().is_none() {
                return;
            }
            continue;
        }
        let taken = match reader.take(rest, sink) {
            Taken::Bytes(bytes) => {
                *place += bytes;
                bytes
            }
            Taken::Again(before) => {
                if !before.is_empty() {
                    again.push((before, 0));
                }
                0
            }
        };
        let fresh = again.is_empty();
        let budget = reader.budget();
        #[cfg(any(test, fuzzing))]
        {
            budget.work += taken.max(1);
        }
        if fresh {
            budget.allowance += taken;
        }
    }
}
