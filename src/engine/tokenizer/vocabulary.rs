//! Token ids, their kinds and the bytes they stand for. Knows nothing about how text is cut into tokens.

/// Stands for a space inside tokens.
pub(super) const METASPACE: &str = "\u{2581}";

/// What a token is for, as the model file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// How a normal token's text becomes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Each character stands for a byte, as GPT-2 has it.
    ByteLevel,
    /// Plain text in which U+2581 stands for a space.
    Metaspace,
}

/// All tokens of a model.
#[derive(Debug)]
pub(super) struct Vocabulary {
    texts: Vec<String>,
    kinds: Vec<Kind>,
    /// The bytes of all tokens, one after another, and where each token's begin; one more border closes the last.
    bytes: Vec<u8>,
    borders: Vec<usize>,
}

impl Vocabulary {
    pub(super) fn new(texts: Vec<String>, kinds: Vec<Kind>, alphabet: Alphabet) -> Self {
        let mut bytes = Vec::new();
        let mut borders = vec![0];
        for (text, &kind) in texts.iter().zip(&kinds) {
            push_bytes(&mut bytes, text, kind, alphabet);
            borders.push(bytes.len());
        }
        Self { texts, kinds, bytes, borders }
    }

    /// The most bytes that one token stands for.
    pub(super) fn longest_bytes(&self) -> usize {
        self.borders.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn texts(&self) -> &[String] {
        &self.texts
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(String::as_str)
    }

    pub(super) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        match self.borders.get(id as usize..) {
            Some(&[start, end, ..]) => &self.bytes[start..end],
            _ => &[],
        }
    }

    /// Ids and texts of all tokens of one kind.
    pub(super) fn of_kind(&self, wanted: Kind) -> impl Iterator<Item = (u32, &str)> {
        let with_kinds = self.texts.iter().zip(&self.kinds).enumerate();
        with_kinds.filter(move |(_, (_, kind))| **kind == wanted).map(|(id, (text, _))| (id as u32, text.as_str()))
    }
}

fn push_bytes(bytes: &mut Vec<u8>, text: &str, kind: Kind, alphabet: Alphabet) {
    match (kind, alphabet) {
        // They have no text of their own: a client that sees the marker would take it for what was said.
        (Kind::Control | Kind::Unknown | Kind::Unused, _) => {}
        (Kind::UserDefined, Alphabet::ByteLevel) => bytes.extend(text.as_bytes()),
        (Kind::Byte, _) if byte_of_token(text).is_some() => bytes.extend(byte_of_token(text)),
        (_, Alphabet::ByteLevel) => text.chars().for_each(|character| match byte_of_char(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }),
        (_, Alphabet::Metaspace) => bytes.extend(text.replace(METASPACE, " ").as_bytes()),
    }
}

/// The byte of a token like `<0x0A>`.
pub(super) fn byte_of_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The byte that a character of the GPT-2 alphabet stands for.
fn byte_of_char(character: char) -> Option<u8> {
    let code = character as u32;
    match code {
        33..=126 | 161..=172 | 174..=255 => Some(code as u8),
        // The bytes that are no printable Latin-1 character follow from U+0100 in ascending order.
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 127) as u8),
        0x143 => Some(173),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> = (0u32..0x200).filter_map(|code| byte_of_char(char::from_u32(code)?)).collect();
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn control_tokens_have_no_bytes() {
        let texts = ["Ġhi", "<|x|>", "Ġ"].map(str::to_owned).to_vec();
        let kinds = vec![Kind::Normal, Kind::Control, Kind::UserDefined];
        let vocabulary = Vocabulary::new(texts, kinds, Alphabet::ByteLevel);
        assert_eq!(vocabulary.bytes(0), b" hi");
        assert_eq!(vocabulary.bytes(1), b"");
        assert_eq!(vocabulary.bytes(2), "Ġ".as_bytes());
        assert_eq!(vocabulary.bytes(9), b"");
    }
}
