//! The bytes of a request's body, as they were before the client compressed them.
//!
//! A body is expanded while it comes. **Invariant:** no more bytes are read, and no more made of them, than the route
//! takes: a small body that would expand to a large one costs no more than a large one. One that comes too slowly is
//! not waited for.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, header};
use flate2::write::MultiGzDecoder;
use futures_util::StreamExt;
use tokio::time::timeout;
use zstd::stream::write::Decoder as ZstdDecoder;

use crate::conversation::Reject;
use crate::error::Code;

/// The codings that are accepted, as a header lists them.
pub(crate) const ACCEPTED: &str = "zstd, gzip";

/// The logarithm of the most bytes that a zstd stream may look back, for which memory is taken: 8 MiB, what RFC 9659
/// allows in HTTP.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Bytes that must have come each time that a body's patience is over: whoever drips is as slow as who says nothing.
const PART_BYTES: usize = 64 << 10;

/// Reads a body with at most `bytes_max` bytes, both as it is sent and expanded. Of each [`PART_BYTES`] the whole must
/// come within `patience`.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
    patience: Duration,
) -> Result<Vec<u8>, Reject> {
    let coding = Coding::of(headers)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    let expander = Expander::new(coding, bytes_max).map_err(|error| unreadable(&error))?;
    let mut coming = Coming { chunks: body.into_data_stream(), coding, expander, bytes: 0, bytes_max };
    while timeout(patience, coming.part()).await.map_err(|_| too_slow(patience))?? {}
    // Some requests have no body; there was nothing to compress then.
    if coming.bytes == 0 {
        return Ok(Vec::new());
    }
    coming.expander.whole().map_err(|error| coding.refusal(&error, bytes_max))
}

/// A body while it comes.
struct Coming {
    chunks: BodyDataStream,
    coding: Coding,
    expander: Expander,
    /// As they were sent.
    bytes: usize,
    bytes_max: usize,
}

impl Coming {
    /// Takes in the next [`PART_BYTES`], or what there is; false at the end.
    async fn part(&mut self) -> Result<bool, Reject> {
        let full = self.bytes + PART_BYTES;
        while let Some(chunk) = self.chunks.next().await {
            let chunk = chunk.map_err(|error| unreadable(&error))?;
            self.bytes += chunk.len();
            if self.bytes > self.bytes_max {
                return Err(too_large(self.bytes_max));
            }
            self.expander.take(&chunk).map_err(|error| self.coding.refusal(&error, self.bytes_max))?;
            if self.bytes >= full {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Identity,
    Gzip,
    Zstd,
}

impl Coding {
    /// What the headers say; several codings on top of each other are none that is known.
    fn of(headers: &HeaderMap) -> Result<Self, Reject> {
        let values = headers.get_all(header::CONTENT_ENCODING).iter();
        let said: Vec<String> = values.map(|value| String::from_utf8_lossy(value.as_bytes()).to_lowercase()).collect();
        let said = said.join(",");
        let mut codings = said.split(',').map(str::trim).filter(|coding| !matches!(*coding, "" | "identity"));
        match (codings.next(), codings.next()) {
            (None, _) => Ok(Self::Identity),
            (Some("gzip" | "x-gzip"), None) => Ok(Self::Gzip),
            (Some("zstd"), None) => Ok(Self::Zstd),
            _ => {
                let text = format!(
                    "the content-encoding {said:?} is not known; send the body uncompressed, or in one of {ACCEPTED}"
                );
                Err(Reject::new(Code::UnsupportedEncoding, text))
            }
        }
    }

    /// What is said of a body that could not be expanded.
    fn refusal(self, error: &io::Error, bytes_max: usize) -> Reject {
        let name = match self {
            Self::Identity => "plain",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        };
        let text = match error.kind() {
            io::ErrorKind::FileTooLarge => return too_large(bytes_max),
            io::ErrorKind::WriteZero => format!("something follows the end of the {name} stream that the body is"),
            _ => format!("the body is no whole {name} stream, as its content-encoding says: {error}"),
        };
        Reject::new(Code::InvalidInput, format!("{text}; send it again, or uncompressed"))
    }
}

/// Makes a body of what comes of it.
enum Expander {
    Identity(Bounded),
    /// Of any number of members, whose contents are one body.
    Gzip(Box<MultiGzDecoder<Bounded>>),
    Zstd(ZstdDecoder<'static, Bounded>),
}

impl Expander {
    fn new(coding: Coding, bytes_max: usize) -> io::Result<Self> {
        let bounded = Bounded { bytes: Vec::new(), bytes_max };
        Ok(match coding {
            Coding::Identity => Self::Identity(bounded),
            Coding::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(bounded))),
            Coding::Zstd => {
                let mut decoder = ZstdDecoder::new(bounded)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Self::Zstd(decoder)
            }
        })
    }

    fn take(&mut self, chunk: &[u8]) -> io::Result<()> {
        match self {
            Self::Identity(bounded) => bounded.write_all(chunk),
            Self::Gzip(decoder) => decoder.write_all(chunk),
            Self::Zstd(decoder) => decoder.write_all(chunk),
        }
    }

    /// All of it; an error where the end is missing.
    fn whole(self) -> io::Result<Vec<u8>> {
        let bounded = match self {
            Self::Identity(bounded) => bounded,
            Self::Gzip(decoder) => decoder.finish()?,
            Self::Zstd(decoder) => decoder.finish()?,
        };
        Ok(bounded.bytes)
    }
}

/// Bytes that do not become more than they may.
struct Bounded {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.bytes_max - self.bytes.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn too_large(bytes_max: usize) -> Reject {
    let text =
        format!("the body has more than the {bytes_max} bytes that this route takes, sent or expanded; send less");
    Reject::new(Code::RequestTooLarge, text)
}

fn too_slow(patience: Duration) -> Reject {
    let kib = PART_BYTES >> 10;
    let text = format!(
        "the body comes too slowly: {kib} KiB, or its end, must come within {} ms; send it again",
        patience.as_millis()
    );
    Reject::new(Code::RequestTimeout, text)
}

fn unreadable(error: &dyn std::error::Error) -> Reject {
    Reject::new(Code::InvalidInput, format!("the body could not be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    const ROOM: usize = 1 << 20;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ::zstd::stream::encode_all(bytes, 3).unwrap()
    }

    /// A coding with what it makes of bytes.
    type Coded = (&'static str, fn(&[u8]) -> Vec<u8>);

    const CODINGS: [Coded; 2] = [("gzip", gzip), ("zstd", zstd)];

    fn headers(codings: &[&'static str]) -> HeaderMap {
        let value = |coding: &&'static str| (header::CONTENT_ENCODING, HeaderValue::from_static(coding));
        let mut headers = HeaderMap::new();
        headers.extend(codings.iter().map(value));
        headers
    }

    /// Reads a body that comes in chunks of this size.
    async fn read_in(coding: &'static str, bytes: Vec<u8>, chunk: usize, bytes_max: usize) -> Result<Vec<u8>, Reject> {
        let chunks: Vec<io::Result<Vec<u8>>> = bytes.chunks(chunk).map(|chunk| Ok(chunk.to_vec())).collect();
        let body = Body::from_stream(futures_util::stream::iter(chunks));
        read(&headers(&[coding]), body, bytes_max, Duration::from_mins(1)).await
    }

    /// Reads a body whose chunks have this many bytes and come this far apart.
    async fn read_slowly(chunk: usize, pause: Duration) -> Result<Vec<u8>, Reject> {
        let chunks = futures_util::stream::iter(0..(200_000 / chunk)).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, io::Error>(vec![b' '; chunk])
        });
        read(&HeaderMap::new(), Body::from_stream(chunks), ROOM, Duration::from_mins(1)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_too_slowly_is_not_waited_for_and_one_that_only_takes_long_is() {
        assert_eq!(read_slowly(20_000, Duration::from_secs(14)).await.unwrap().len(), 200_000);
        for (chunk, pause_s) in [(20_000, 16), (1, 1), (1, 59), (50_000, 61)] {
            let late = read_slowly(chunk, Duration::from_secs(pause_s)).await.unwrap_err();
            assert_eq!(late.code, Code::RequestTimeout, "{chunk} every {pause_s} s");
            assert!(late.message.contains("64 KiB, or its end, must come within 60000 ms"), "{}", late.message);
        }
    }

    /// Text that is no more repetitive than prose.
    fn text(bytes: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let letter = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            b"etaoin shrdlu"[(state >> 33) as usize % 13]
        };
        (0..bytes).map(letter).collect()
    }

    #[tokio::test]
    async fn a_body_is_what_it_was_however_it_is_cut_and_compressed() {
        for bytes in [b"{}".to_vec(), text(5_000), vec![b' '; 300_000], text(ROOM)] {
            for chunk in [1 + bytes.len() / 200, 7_000, ROOM] {
                assert!(read_in("identity", bytes.clone(), chunk, ROOM).await.unwrap() == bytes);
                for (coding, compress) in CODINGS {
                    let read = read_in(coding, compress(&bytes), chunk, ROOM).await;
                    assert!(read.unwrap() == bytes, "{coding} of {} in {chunk}", bytes.len());
                }
            }
        }
        for (coding, _) in CODINGS {
            assert_eq!(read_in(coding, vec![], 1, ROOM).await.unwrap(), b"", "no body at all");
        }
    }

    #[tokio::test]
    async fn the_bound_is_one_of_the_bytes_that_are_sent_and_of_those_that_come_out() {
        let refused = |coding, bytes, bytes_max| async move {
            let reject = read_in(coding, bytes, 4_096, bytes_max).await.unwrap_err();
            assert_eq!(reject.code, Code::RequestTooLarge, "{coding}");
            assert!(reject.message.contains(&format!("{bytes_max} bytes")), "{}", reject.message);
        };
        for (coding, compress) in CODINGS {
            let bytes = text(10_000);
            assert!(read_in(coding, compress(&bytes), 4_096, bytes.len()).await.is_ok());
            refused(coding, compress(&bytes), bytes.len() - 1).await;
            // Many bytes in few, of which nobody may make more than the bound.
            refused(coding, compress(&vec![0; 16 << 20]), ROOM).await;
            refused(coding, compress(&bytes), 100).await;
        }
        // What expands to nothing is bounded as it is sent.
        let nothing = [zstd(b""), b"\x50\x2a\x4d\x18\x04\0\0\0skip".to_vec()].concat().repeat(1_000);
        assert_eq!(read_in("zstd", nothing.clone(), 100, ROOM).await.unwrap(), b"");
        refused("zstd", nothing, 5_000).await;
    }

    #[tokio::test]
    async fn several_streams_behind_each_other_are_one_body() {
        let (first, second) = (text(3_000), text(500));
        for (coding, compress) in CODINGS {
            let parts = [compress(&first), compress(b""), compress(&second)];
            let (bytes, expected) = (parts.concat(), [first.clone(), second.clone()].concat());
            for chunk in [1, 7, parts[0].len(), bytes.len()] {
                assert!(read_in(coding, bytes.clone(), chunk, ROOM).await.unwrap() == expected, "{coding} in {chunk}");
            }
            let reject = read_in(coding, bytes[..bytes.len() - 1].to_vec(), 100, ROOM).await.unwrap_err();
            assert_eq!(reject.code, Code::InvalidInput, "{coding}: the last is cut");
            let reject = read_in(coding, bytes, 100, expected.len() - 1).await.unwrap_err();
            assert_eq!(reject.code, Code::RequestTooLarge, "{coding}: one bound for all of them");
        }
    }

    #[tokio::test]
    async fn a_stream_that_is_cut_goes_on_or_is_none_is_refused() {
        for (coding, compress) in CODINGS {
            let whole = compress(&text(5_000));
            let cut = |bytes: usize| whole[..bytes].to_vec();
            let followed = [whole.clone(), b"{}".to_vec()].concat();
            let mut flipped = whole.clone();
            flipped[0] ^= 1;
            for bytes in [cut(1), cut(10), cut(whole.len() / 2), cut(whole.len() - 1), followed, flipped, text(50)] {
                let reject = read_in(coding, bytes, 1_000, ROOM).await.unwrap_err();
                assert_eq!(reject.code, Code::InvalidInput, "{coding}");
                assert!(reject.message.contains(coding), "{}", reject.message);
            }
        }
        // Of gzip every byte is summed; zstd's sum is up to the client.
        let mut flipped = gzip(&text(5_000));
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        assert_eq!(read_in("gzip", flipped, 1_000, ROOM).await.unwrap_err().code, Code::InvalidInput);
    }

    #[tokio::test]
    async fn a_zstd_stream_that_needs_much_memory_is_refused() {
        let mut encoder = ::zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(ZSTD_WINDOW_LOG_MAX + 1).unwrap();
        encoder.write_all(&text(1_000)).unwrap();
        let reject = read_in("zstd", encoder.finish().unwrap(), 1_000, ROOM).await.unwrap_err();
        assert_eq!(reject.code, Code::InvalidInput);
        assert!(reject.message.contains("memory"), "{}", reject.message);
    }

    #[test]
    fn codings_are_known_by_every_way_to_write_them_and_others_are_refused_by_name() {
        for (written, coding) in [
            (&[][..], Coding::Identity),
            (&["identity"], Coding::Identity),
            (&["", "Identity, identity"], Coding::Identity),
            (&["GZip"], Coding::Gzip),
            (&["x-gzip"], Coding::Gzip),
            (&["identity", " zstd "], Coding::Zstd),
        ] {
            assert_eq!(Coding::of(&headers(written)).unwrap(), coding, "{written:?}");
        }
        for written in [&["br"][..], &["deflate"], &["gzip, zstd"], &["gzip", "gzip"], &["zstd;q=1"]] {
            let reject = Coding::of(&headers(written)).unwrap_err();
            assert_eq!(reject.code, Code::UnsupportedEncoding);
            assert!(reject.message.contains(written[0]) && reject.message.contains(ACCEPTED), "{}", reject.message);
        }
    }
}
