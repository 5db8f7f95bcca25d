//! Stop strings: finds the first that completes and holds back only what may still become one.

use super::piece::Piece;

/// One text that is looked for, and how much of it stands at the end of what was read so far.
#[derive(Clone, Debug)]
pub(super) struct Search {
    text: String,
    /// For each number of matching bytes, how many match when the next byte does not fit.
    fallback: Vec<usize>,
    matched: usize,
}

impl Search {
    /// The text must not be empty.
    pub(super) fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut matched = 0;
        for index in 1..bytes.len() {
            while matched > 0 && bytes[index] != bytes[matched] {
                matched = fallback[matched - 1];
            }
            matched += usize::from(bytes[index] == bytes[matched]);
            fallback[index] = matched;
        }
        Self { text, fallback, matched: 0 }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Takes a byte; true when the text is complete. It may begin again inside itself.
    pub(super) fn push(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        let complete = self.matched == bytes.len();
        if complete {
            self.matched = self.fallback[self.matched - 1];
        }
        complete
    }

    /// Whether nothing of the text stands at the end.
    pub(super) fn is_at_start(&self) -> bool {
        self.matched == 0
    }

    /// What was read does not go on.
    pub(super) fn restart(&mut self) {
        self.matched = 0;
    }
}

/// Passes text on until a stop string is complete.
#[derive(Clone, Debug, Default)]
pub(super) struct StopFilter {
    searches: Vec<Search>,
    /// Text that may be the beginning of a stop string.
    kept: String,
    /// The stop string that was found.
    found: Option<String>,
}

impl StopFilter {
    pub(super) fn new(stops: Vec<String>) -> Self {
        let searches = stops.into_iter().filter(|stop| !stop.is_empty()).map(Search::new).collect();
        Self { searches, kept: String::new(), found: None }
    }

    /// The stop string that was found.
    pub(super) fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    pub(super) fn stopped(&self) -> bool {
        self.found.is_some()
    }

    pub(super) fn held(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Takes text of the channel and emits what is no stop string.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        if self.stopped() {
            return;
        }
        if self.searches.is_empty() {
            emit(text, out);
            return;
        }
        self.kept.push_str(text);
        let before = self.kept.len() - text.len();
        for (index, byte) in text.bytes().enumerate() {
            // Of those that complete together the longest began first.
            let complete = self.searches.iter_mut().filter_map(|search| search.push(byte).then_some(&*search));
            if let Some(search) = complete.max_by_key(|search| search.text.len()) {
                let stop = search.text.clone();
                self.kept.truncate(before + index + 1 - stop.len());
                emit(&std::mem::take(&mut self.kept), out);
                out.push(Piece::Stopped { stop: stop.clone() });
                self.found = Some(stop);
                return;
            }
        }
        let possible = self.searches.iter().map(|search| search.matched).max().unwrap_or(0);
        let rest = self.kept.split_off(self.kept.len() - possible);
        emit(&std::mem::replace(&mut self.kept, rest), out);
    }

    /// The text is interrupted: no stop string reaches over it.
    pub(super) fn release(&mut self, out: &mut Vec<Piece>) {
        emit(&std::mem::take(&mut self.kept), out);
        self.searches.iter_mut().for_each(Search::restart);
    }
}

fn emit(text: &str, out: &mut Vec<Piece>) {
    if text.is_empty() {
        return;
    }
    match out.last_mut() {
        Some(Piece::Text(last)) => last.push_str(text),
        _ => out.push(Piece::Text(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], chunks: &[&str]) -> (String, Option<String>, bool) {
        let mut filter = StopFilter::new(stops.iter().map(|&stop| stop.to_owned()).collect());
        let mut out = Vec::new();
        for chunk in chunks {
            filter.push(chunk, &mut out);
        }
        let mut text = String::new();
        let mut stopped = None;
        for piece in out {
            match piece {
                Piece::Text(more) => text.push_str(&more),
                Piece::Stopped { stop } => stopped = Some(stop),
                other => panic!("{other:?}"),
            }
        }
        (text, stopped, filter.held())
    }

    #[test]
    fn a_stop_string_over_borders_is_not_shown() {
        assert_eq!(run(&["STOP"], &["aS", "T", "OPb"]), ("a".to_owned(), Some("STOP".to_owned()), false));
        assert_eq!(run(&["aab"], &["aaab"]), ("a".to_owned(), Some("aab".to_owned()), false));
        assert_eq!(run(&["bc", "abc"], &["abc"]), (String::new(), Some("abc".to_owned()), false));
        assert_eq!(run(&["abcd", "b"], &["abcd"]), ("a".to_owned(), Some("b".to_owned()), false));
        assert_eq!(run(&["é!"], &["xé", "é!"]), ("xé".to_owned(), Some("é!".to_owned()), false));
    }

    #[test]
    fn only_a_possible_beginning_is_held() {
        assert_eq!(run(&["STOP"], &["aSTO"]), ("a".to_owned(), None, true));
        assert_eq!(run(&["STOP"], &["aSTO", "R"]), ("aSTOR".to_owned(), None, false));
        assert_eq!(run(&[""], &["ab"]), ("ab".to_owned(), None, false));
    }
}
