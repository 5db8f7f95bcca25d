//! Text as the inside of a JSON string.

/// Appends one byte of UTF-8 text as it stands inside a JSON string.
pub(in crate::parse) fn escape(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b'"' => out.extend(b"\\\""),
        b'\\' => out.extend(b"\\\\"),
        b'\n' => out.extend(b"\\n"),
        b'\r' => out.extend(b"\\r"),
        b'\t' => out.extend(b"\\t"),
        0..0x20 => unicode(u32::from(byte), out),
        _ => out.push(byte),
    }
}

/// Appends a character of the basic plane, or half of one beyond, as `\uXXXX`.
pub(super) fn unicode(code: u32, out: &mut Vec<u8>) {
    out.extend(format!("\\u{code:04x}").bytes());
}
