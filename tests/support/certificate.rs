//! A certificate that a test makes for itself, written out in DER as X.509 has it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// The tags that are needed.
const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const BYTES: u8 = 0x04;
const OID: u8 = 0x06;
const TEXT: u8 = 0x0c;
const SHORT_TIME: u8 = 0x17;
const LONG_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;

/// What certificates and keys call things.
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];

/// A self-signed certificate and its key, both in DER.
pub(crate) struct Certificate {
    pub(crate) cert: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Certificate {
    /// A new one for `localhost`, valid for as long as dates go.
    pub(crate) fn of_localhost() -> Self {
        let name = b"localhost";
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap();
        let algorithm = of(SEQUENCE, &[&of(OID, &[ED25519])]);
        let common_name = of(SEQUENCE, &[&of(OID, &[COMMON_NAME]), &of(TEXT, &[name])]);
        let subject = of(SEQUENCE, &[&of(SET, &[&common_name])]);
        let times = [of(SHORT_TIME, &[b"000101000000Z"]), of(LONG_TIME, &[b"99991231235959Z"])];
        let names = of(SEQUENCE, &[&of(DNS_NAME, &[name])]);
        let names = of(SEQUENCE, &[&of(OID, &[ALTERNATIVE_NAMES]), &of(BYTES, &[&names])]);
        let signed = of(
            SEQUENCE,
            &[
                &of(VERSION, &[&of(INTEGER, &[&[2]])]),
                // Of one issuer no two certificates have the same number.
                &of(INTEGER, &[&[1], &pair.public_key().as_ref()[..8]]),
                &algorithm,
                &subject,
                &of(SEQUENCE, &[&times[0], &times[1]]),
                &subject,
                &of(SEQUENCE, &[&algorithm, &of(BITS, &[&[0], pair.public_key().as_ref()])]),
                &of(EXTENSIONS, &[&of(SEQUENCE, &[&names])]),
            ],
        );
        let signature = of(BITS, &[&[0], pair.sign(&signed).as_ref()]);
        let cert = of(SEQUENCE, &[&signed, &algorithm, &signature]);
        Self { cert, key: key.as_ref().to_vec() }
    }
}

/// A value: its tag, its length and what it is made of.
fn of(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut value = vec![tag];
    match content.len() {
        short @ 0..=0x7f => value.push(short as u8),
        middle @ 0x80..=0xff => value.extend([0x81, middle as u8]),
        long => value.extend([0x82, (long >> 8) as u8, long as u8]),
    }
    value.extend(content);
    value
}

/// Bytes as a file has them.
pub(crate) fn pem(what: &str, bytes: &[u8]) -> String {
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", STANDARD.encode(bytes))
}
