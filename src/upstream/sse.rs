//! Server-sent events out of bytes, however they are cut. Pure, and bounded: an event that is too long is an error.

/// Most bytes of one event.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// One event. Its `id` and `retry` mean nothing to an upstream's client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SseEvent {
    /// Its type; empty where none was given.
    pub(super) event: String,
    /// Its data, lines joined.
    pub(super) data: String,
}

/// An event has more bytes than any should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {EVENT_BYTES_MAX} bytes")]
pub(super) struct TooLong;

/// Reads a stream of events.
#[derive(Debug, Default)]
pub(super) struct SseReader {
    /// The line that has not ended.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return, whose newline may follow.
    after_return: bool,
    /// Whether a first line was read: a byte order mark may stand in front of it.
    has_begun: bool,
    /// The event that has not ended.
    open: Open,
}

#[derive(Debug, Default)]
struct Open {
    event: SseEvent,
    has_data: bool,
}

impl SseReader {
    /// Takes the next bytes and gives the events that end in them. One that the stream's end cuts off never comes.
    pub(super) fn push(&mut self, bytes: &[u8], events: &mut Vec<SseEvent>) -> Result<(), TooLong> {
        for &byte in bytes {
            let is_second_half = std::mem::take(&mut self.after_return) && byte == b'\n';
            if is_second_half {
                continue;
            }
            if byte == b'\n' || byte == b'\r' {
                self.after_return = byte == b'\r';
                self.end_line(events);
                continue;
            }
            self.line.push(byte);
            if self.line.len() + self.open.event.data.len() > EVENT_BYTES_MAX {
                return Err(TooLong);
            }
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<SseEvent>) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let line = if is_first { line.trim_start_matches('\u{feff}') } else { &line };
        if line.is_empty() {
            let Open { event, has_data } = std::mem::take(&mut self.open);
            events.extend(has_data.then_some(event));
            return;
        }
        // A comment's name is empty.
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => value.clone_into(&mut self.open.event.event),
            "data" => {
                if std::mem::replace(&mut self.open.has_data, true) {
                    self.open.event.data.push('\n');
                }
                self.open.event.data.push_str(value);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(parts: &[&[u8]]) -> Vec<SseEvent> {
        let (mut reader, mut events) = (SseReader::default(), Vec::new());
        for part in parts {
            reader.push(part, &mut events).unwrap();
        }
        events
    }

    fn event(event: &str, data: &str) -> SseEvent {
        SseEvent { event: event.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn events_are_read_in_every_writing() {
        for end in ["\n", "\r\n", "\r"] {
            let text = [
                "\u{feff}: hello",
                "",
                "event: a",
                "data: one",
                "data:two",
                "data:  three",
                "id: 7",
                "retry: 3",
                "nonsense",
                "",
                "event: no data",
                "",
                "data",
                "",
                "data: cut off",
            ];
            let events = read(&[text.join(end).as_bytes()]);
            assert_eq!(events, [event("a", "one\ntwo\n three"), event("", "")], "{end:?}");
        }
        assert_eq!(read(&[b"data: \xff\n\n"]), [event("", "\u{fffd}")]);
    }

    #[test]
    fn an_event_without_an_end_is_an_error_and_takes_no_more_memory() {
        let mut reader = SseReader::default();
        let part = vec![b'a'; EVENT_BYTES_MAX / 2];
        let mut events = Vec::new();
        reader.push(&part, &mut events).unwrap();
        reader.push(&part, &mut events).unwrap();
        assert_eq!(reader.push(b"aa", &mut events), Err(TooLong));
        assert!(events.is_empty());
    }

    fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let piece = prop_oneof![
            Just(b"\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b"data: ".to_vec()),
            Just(b"data".to_vec()),
            Just(b"event:".to_vec()),
            Just(b": ".to_vec()),
            Just("é☃".as_bytes().to_vec()),
            proptest::collection::vec(any::<u8>(), 0..8),
        ];
        proptest::collection::vec(piece, 0..40)
    }

    proptest! {
        /// Where the network cuts the bytes changes nothing.
        #[test]
        fn every_cut_gives_the_same_events(pieces in pieces(), cuts in proptest::collection::vec(0usize..200, 0..10)) {
            let bytes = pieces.concat();
            let whole = read(&[&bytes]);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(read(&parts), whole.clone());
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(read(&single), whole);
        }
    }
}
