//! KV files: what a conversation's KV cache held, for its next turn after a restart. One file per conversation in
//! the folder `kv` of the data folder, all together within a bound; the one that was unused for longest goes first.
//!
//! A file is a header, sealed by a SHA-256 of itself, and blocks of bytes, each with its CRC-32 in the header. Nothing
//! of a file is believed before its checksum was seen to be right. A file is only ever a saving of work: none of
//! them is missed, and whatever is wrong with one, the answer is an error and never a wrong byte.
//!
//! What the bytes mean is not known here. All of it blocks: no work for an async thread.

mod header;

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use crate::crash;
use crate::ids::ConversationId;
use header::Header;

/// What a finished file is called behind its conversation's id; one that is being written has the other.
const FINISHED: &str = "kv";
const UNFINISHED: &str = "part";

/// Removals that are remembered: the actor of a deleted conversation may still live and want to write. When so many
/// others were removed it has ended.
const REMOVED_MAX: usize = 16_384;

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvContent {
    /// What computed it.
    pub fingerprint: String,
    /// Whom it may be shared with.
    pub salt: u64,
    /// The tokens that it stands for.
    pub tokens: Vec<u32>,
    /// The bytes, in blocks of one size that hold equally many tokens.
    pub blocks: Vec<Vec<u8>>,
}

/// Why a file is not used or not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvFileError {
    /// The system refused.
    #[error("{what}: {why}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        why: String,
    },
    /// It is not what was written.
    #[error("the KV file is damaged: {0}")]
    Damaged(&'static str),
    /// It alone is larger than all files together may be.
    #[error("{bytes} bytes are more than kv_files_bytes_max allows")]
    TooLarge {
        /// The file's size.
        bytes: u64,
    },
    /// Blocks of several sizes, or tokens that do not fill them.
    #[error("the blocks do not hold the tokens")]
    Uneven,
    /// The conversation's file was removed, or a newer one is on its way.
    #[error("it is not wanted any more")]
    Unwanted,
}

impl KvFileError {
    fn io(what: &str, path: &Path, why: &io::Error) -> Self {
        Self::Io { what: format!("cannot {what} {}", path.display()), why: why.to_string() }
    }
}

/// All KV files of a data folder. Clones are the same files.
#[derive(Clone, Debug)]
pub struct KvFiles(Arc<Files>);

#[derive(Debug)]
struct Files {
    folder: PathBuf,
    bytes_max: u64,
    index: Mutex<Index>,
}

#[derive(Debug, Default)]
struct Index {
    entries: HashMap<ConversationId, Entry>,
    /// The newest draft of each conversation that has one; another may not become its file.
    drafts: HashMap<ConversationId, u64>,
    /// Drafts so far.
    drafted: u64,
    /// Conversations whose files were removed last: they get no more drafts.
    removed: VecDeque<ConversationId>,
    /// Bytes of drafts that are being written.
    reserved: u64,
    /// Counts uses; the order in which files go.
    uses: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: u64,
}

impl Index {
    fn total(&self) -> u64 {
        self.reserved + self.entries.values().map(|entry| entry.bytes).sum::<u64>()
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Takes out those that were unused for longest until `bytes` more fit; the last resort is `own`, the file that
    /// the new one replaces.
    fn make_room(&mut self, bytes: u64, bytes_max: u64, own: Option<ConversationId>) -> Vec<ConversationId> {
        let mut out = Vec::new();
        let replaced = own.and_then(|own| self.entries.get(&own)).map_or(0, |entry| entry.bytes);
        while self.total() - replaced + bytes > bytes_max {
            let others = self.entries.iter().filter(|(id, _)| Some(**id) != own);
            let Some(oldest) = others.min_by_key(|(_, entry)| entry.used).map(|(id, _)| *id) else { break };
            self.entries.remove(&oldest);
            out.push(oldest);
        }
        if self.total() + bytes > bytes_max
            && let Some(own) = own
            && self.entries.remove(&own).is_some()
        {
            out.push(own);
        }
        out
    }
}

impl KvFiles {
    /// Opens the folder, removes what an earlier process did not finish, and what is beyond the bound. With a bound
    /// of 0 no file stays and none is written.
    pub fn open(data_dir: &Path, bytes_max: u64) -> Result<Self, KvFileError> {
        let folder = data_dir.join("kv");
        fs::create_dir_all(&folder).map_err(|error| KvFileError::io("create", &folder, &error))?;
        let cannot_read = |error: &io::Error| KvFileError::io("read", &folder, error);
        let mut found = Vec::new();
        for file in fs::read_dir(&folder).map_err(|error| cannot_read(&error))? {
            let path = file.map_err(|error| cannot_read(&error))?.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if extension == Some(UNFINISHED) {
                fs::remove_file(&path).map_err(|error| KvFileError::io("remove", &path, &error))?;
            } else if extension == Some(FINISHED)
                && let Some(id) = path.file_stem().and_then(|stem| stem.to_str()?.parse::<ConversationId>().ok())
                && let Ok(metadata) = fs::metadata(&path)
            {
                found.push((metadata.modified().unwrap_or(UNIX_EPOCH), id, metadata.len()));
            }
        }
        found.sort_unstable();
        let mut index = Index::default();
        for (_, id, bytes) in found {
            let used = index.next_use();
            index.entries.insert(id, Entry { bytes, used });
        }
        let beyond = index.make_room(0, bytes_max, None);
        let files = Self(Arc::new(Files { folder, bytes_max, index: Mutex::new(index) }));
        for id in beyond {
            files.unlink(id);
        }
        Ok(files)
    }

    /// Whether the conversation has a file. Never waits.
    pub fn contains(&self, conversation: ConversationId) -> bool {
        self.index().entries.contains_key(&conversation)
    }

    /// Bytes of all files, those being written included.
    pub fn total_bytes(&self) -> u64 {
        self.index().total()
    }

    /// The right to write the conversation's next file. It ends when the file is removed or a newer draft is begun.
    pub fn draft(&self, conversation: ConversationId) -> KvDraft {
        let mut index = self.index();
        index.drafted += 1;
        let number = index.drafted;
        if !index.removed.contains(&conversation) {
            index.drafts.insert(conversation, number);
        }
        drop(index);
        KvDraft { files: self.clone(), conversation, number }
    }

    /// Opens the conversation's file, if there is one, and reads its header. The file counts as used.
    pub fn read(&self, conversation: ConversationId, now_ms: u64) -> Result<Option<KvReader>, KvFileError> {
        {
            let mut index = self.index();
            let used = index.next_use();
            match index.entries.get_mut(&conversation) {
                Some(entry) => entry.used = used,
                None => return Ok(None),
            }
        }
        let path = self.path(conversation);
        let mut file = match File::options().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.index().entries.remove(&conversation);
                return Ok(None);
            }
            Err(error) => return Err(KvFileError::io("open", &path, &error)),
        };
        // The order in which files go after the next start; nothing else depends on it.
        let _ = file.set_modified(UNIX_EPOCH + Duration::from_millis(now_ms));
        let header = Header::read(&mut file, conversation)?;
        Ok(Some(KvReader { file, header }))
    }

    /// Removes the file of a conversation that is deleted. One that is being written will not become it, and no
    /// other is written.
    pub fn remove(&self, conversation: ConversationId) {
        let mut index = self.index();
        if index.removed.len() == REMOVED_MAX {
            index.removed.pop_front();
        }
        index.removed.push_back(conversation);
        index.drafts.remove(&conversation);
        drop(index);
        self.discard(conversation);
    }

    /// Removes the files of conversations that are not known: their deletion was cut short.
    pub fn retain(&self, is_known: impl Fn(ConversationId) -> bool) {
        let all: Vec<_> = self.index().entries.keys().copied().collect();
        all.into_iter().filter(|id| !is_known(*id)).for_each(|id| self.discard(id));
    }

    /// Removes the conversation's file because it is of no use.
    pub fn discard(&self, conversation: ConversationId) {
        let mut index = self.index();
        let existed = index.entries.remove(&conversation).is_some();
        drop(index);
        if existed {
            self.unlink(conversation);
        }
    }

    fn unlink(&self, conversation: ConversationId) {
        let path = self.path(conversation);
        crash::point("kv_removing");
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "a KV file could not be removed");
        }
    }

    fn path(&self, conversation: ConversationId) -> PathBuf {
        self.0.folder.join(format!("{conversation}.{FINISHED}"))
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.0.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that is to be written.
#[derive(Debug)]
pub struct KvDraft {
    files: KvFiles,
    conversation: ConversationId,
    number: u64,
}

impl KvDraft {
    /// Writes the file beside the old one, syncs it and puts it in the old one's place. Others make room for it.
    pub fn write(self, content: &KvContent, now_ms: u64) -> Result<(), KvFileError> {
        let header = Header::of(content, self.conversation).ok_or(KvFileError::Uneven)?.encode();
        let bytes = header.len() as u64 + content.blocks.iter().map(|block| block.len() as u64).sum::<u64>();
        let _reserved = self.reserve(bytes)?;
        let folder = &self.files.0.folder;
        let path = folder.join(format!("{}.{}.{UNFINISHED}", self.conversation, self.number));
        let placed = write_synced(&path, &header, content, now_ms)
            .map_err(|error| KvFileError::io("write", &path, &error))
            .and_then(|()| self.place(&path, bytes));
        if placed.is_err() {
            // Whatever is left of it goes at the next start.
            let _ = fs::remove_file(&path);
        }
        placed?;
        sync(folder).map_err(|error| KvFileError::io("sync", folder, &error))
    }

    /// Counts the file before it is there, so that the bound holds all the time.
    fn reserve(&self, bytes: u64) -> Result<Reserved<'_>, KvFileError> {
        let bytes_max = self.files.0.bytes_max;
        if bytes > bytes_max {
            return Err(KvFileError::TooLarge { bytes });
        }
        let mut index = self.files.index();
        if index.drafts.get(&self.conversation) != Some(&self.number) {
            return Err(KvFileError::Unwanted);
        }
        let out = index.make_room(bytes, bytes_max, Some(self.conversation));
        index.reserved += bytes;
        drop(index);
        for id in out {
            self.files.unlink(id);
        }
        Ok(Reserved { files: &self.files, bytes })
    }

    fn place(&self, path: &Path, bytes: u64) -> Result<(), KvFileError> {
        // Under the lock, so that a removal comes before or after it and never in between.
        let mut index = self.files.index();
        if index.drafts.get(&self.conversation) != Some(&self.number) {
            return Err(KvFileError::Unwanted);
        }
        crash::point("kv_file_synced");
        fs::rename(path, self.files.path(self.conversation))
            .map_err(|error| KvFileError::io("rename", path, &error))?;
        crash::point("kv_file_placed");
        let used = index.next_use();
        index.entries.insert(self.conversation, Entry { bytes, used });
        Ok(())
    }
}

impl Drop for KvDraft {
    fn drop(&mut self) {
        let mut index = self.files.index();
        if index.drafts.get(&self.conversation) == Some(&self.number) {
            index.drafts.remove(&self.conversation);
        }
    }
}

/// Bytes that are counted while they are written.
struct Reserved<'a> {
    files: &'a KvFiles,
    bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.files.index().reserved -= self.bytes;
    }
}

fn write_synced(path: &Path, header: &[u8], content: &KvContent, now_ms: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(header)?;
    for block in &content.blocks {
        crash::point("kv_file_writing");
        file.write_all(block)?;
    }
    file.set_modified(UNIX_EPOCH + Duration::from_millis(now_ms))?;
    file.sync_all()
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A file whose header is right.
#[derive(Debug)]
pub struct KvReader {
    file: File,
    header: Header,
}

impl KvReader {
    /// What computed it.
    pub fn fingerprint(&self) -> &str {
        &self.header.fingerprint
    }

    /// Whom it may be shared with.
    pub fn salt(&self) -> u64 {
        self.header.salt
    }

    /// The tokens that it stands for.
    pub fn tokens(&self) -> &[u32] {
        &self.header.tokens
    }

    /// How many tokens a block holds.
    pub fn block_tokens(&self) -> usize {
        self.header.tokens.len() / self.header.checksums.len().max(1)
    }

    /// The first blocks, each checked.
    pub fn blocks(mut self, count: usize) -> Result<Vec<Vec<u8>>, KvFileError> {
        let mut blocks = Vec::with_capacity(count.min(self.header.checksums.len()));
        for checksum in self.header.checksums.iter().take(count) {
            let mut block = vec![0; self.header.block_bytes];
            self.file.read_exact(&mut block).map_err(|_| KvFileError::Damaged("a block cannot be read"))?;
            if crc32fast::hash(&block) != *checksum {
                return Err(KvFileError::Damaged("a block has another checksum"));
            }
            blocks.push(block);
        }
        Ok(blocks)
    }
}
