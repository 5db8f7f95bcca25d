//! The header of a KV file: what the blocks behind it are, and a checksum for each and for itself.
//!
//! Layout, numbers little-endian: magic, version (u32), length of the body (u32), body, SHA-256 of all before it.
//! Body: length and text of the fingerprint, conversation, salt, block count, tokens per block, bytes per block,
//! tokens, CRC-32 per block. No count is believed before the file was seen to be long enough for it.

use std::fs::File;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

use super::{KvContent, KvFileError};
use crate::ids::ConversationId;

/// The first bytes of every KV file, and its format.
const MAGIC: [u8; 8] = *b"midst-kv";
const VERSION: u32 = 1;
/// Magic, version, length of the body.
const PREAMBLE_BYTES: usize = 16;
const SEAL_BYTES: usize = 32;
/// Far more than the tokens of any context take.
const BODY_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    conversation: ConversationId,
    pub(super) fingerprint: String,
    pub(super) salt: u64,
    pub(super) block_bytes: usize,
    pub(super) tokens: Vec<u32>,
    pub(super) checksums: Vec<u32>,
}

impl Header {
    /// The header of this content; none when its blocks are uneven, or none at all.
    pub(super) fn of(content: &KvContent, conversation: ConversationId) -> Option<Self> {
        let KvContent { fingerprint, salt, tokens, blocks } = content;
        let block_bytes = blocks.first()?.len();
        let is_even = blocks.iter().all(|block| block.len() == block_bytes) && tokens.len() % blocks.len() == 0;
        is_even.then(|| Self {
            conversation,
            fingerprint: fingerprint.clone(),
            salt: *salt,
            block_bytes,
            tokens: tokens.clone(),
            checksums: blocks.iter().map(|block| crc32fast::hash(block)).collect(),
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let number = |number: usize| (number as u32).to_le_bytes();
        let mut body = Vec::with_capacity(64 + self.fingerprint.len() + 4 * (self.tokens.len() + self.checksums.len()));
        body.extend(number(self.fingerprint.len()));
        body.extend(self.fingerprint.as_bytes());
        body.extend(self.conversation.to_bytes());
        body.extend(self.salt.to_le_bytes());
        body.extend(number(self.checksums.len()));
        body.extend(number(self.tokens.len() / self.checksums.len().max(1)));
        body.extend(number(self.block_bytes));
        body.extend(self.tokens.iter().chain(&self.checksums).flat_map(|number| number.to_le_bytes()));
        let mut header = [&MAGIC[..], &VERSION.to_le_bytes(), &number(body.len())].concat();
        header.extend(body);
        let seal = Sha256::digest(&header);
        header.extend(seal);
        header
    }

    /// Reads and checks the header; the file then stands at its first block.
    pub(super) fn read(file: &mut File, conversation: ConversationId) -> Result<Self, KvFileError> {
        let damaged = KvFileError::Damaged;
        let short = |_: io::Error| damaged("it ends inside its header");
        let file_bytes = file.metadata().map_err(|_| damaged("its size is unknown"))?.len();
        let mut sealed = vec![0; PREAMBLE_BYTES];
        file.read_exact(&mut sealed).map_err(short)?;
        if sealed[..MAGIC.len()] != MAGIC {
            return Err(damaged("it is no KV file"));
        }
        let mut preamble = Fields(&sealed[MAGIC.len()..]);
        if preamble.u32() != Some(VERSION) {
            return Err(damaged("it has another format"));
        }
        let body_bytes = preamble.u32().unwrap_or_default() as usize;
        if body_bytes > BODY_BYTES_MAX || body_bytes as u64 > file_bytes {
            return Err(damaged("its header is longer than it"));
        }
        sealed.resize(PREAMBLE_BYTES + body_bytes, 0);
        file.read_exact(&mut sealed[PREAMBLE_BYTES..]).map_err(short)?;
        let mut seal = [0; SEAL_BYTES];
        file.read_exact(&mut seal).map_err(short)?;
        if Sha256::digest(&sealed)[..] != seal {
            return Err(damaged("its header has another checksum"));
        }
        let header = Self::decode(&sealed[PREAMBLE_BYTES..]).ok_or(damaged("its header contradicts itself"))?;
        if header.conversation != conversation {
            return Err(damaged("it belongs to another conversation"));
        }
        let blocks = (header.checksums.len() as u64).checked_mul(header.block_bytes as u64);
        let whole = blocks.and_then(|blocks| blocks.checked_add((sealed.len() + SEAL_BYTES) as u64));
        if whole != Some(file_bytes) {
            return Err(damaged("it has another length than its header says"));
        }
        Ok(header)
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let length = fields.u32()? as usize;
        let fingerprint = String::from_utf8(fields.take(length)?.to_vec()).ok()?;
        let conversation = ConversationId::from_bytes(fields.take(16)?.try_into().ok()?);
        let salt = u64::from_le_bytes(fields.take(8)?.try_into().ok()?);
        let (blocks, block_tokens, block_bytes) = (fields.u32()?, fields.u32()?, fields.u32()? as usize);
        let token_count = (blocks as usize).checked_mul(block_tokens as usize)?;
        let tokens = fields.numbers(token_count)?;
        let checksums = fields.numbers(blocks as usize)?;
        let is_whole = fields.0.is_empty() && blocks > 0 && block_tokens > 0;
        is_whole.then_some(Self { conversation, fingerprint, salt, block_bytes, tokens, checksums })
    }
}

/// Bytes that are read from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn numbers(&mut self, count: usize) -> Option<Vec<u32>> {
        let bytes = self.take(count.checked_mul(4)?)?;
        Some(
            bytes
                .chunks_exact(4)
                .map(|number| u32::from_le_bytes([number[0], number[1], number[2], number[3]]))
                .collect(),
        )
    }
}
