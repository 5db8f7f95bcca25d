//! KV across restarts: what a conversation's last sequence left in the engine's cache is written to a file when the
//! conversation rests, and read back before its next sequence when the cache does not hold it any more.
//!
//! All of it only saves work: nothing waits for a file to be written, and a file that cannot be read or used is
//! logged and left out. What was really reused, the engine alone says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::clock::Clock;
use crate::conversation::Event;
use crate::engine::{Engine, KvImage};
use crate::ids::ConversationId;
use crate::store::{Journal, KvContent, KvFileError, KvFiles, KvReader};

/// Images that are in memory at once on their way to a file, and from one.
const SAVES_MAX: usize = 1;
const RESTORES_MAX: usize = 2;

/// The KV files of all conversations, and what is being written. The default keeps none.
#[derive(Clone, Default)]
pub struct KvKeeper(Option<Arc<Keeper>>);

struct Keeper {
    files: KvFiles,
    /// How long a conversation rests before its file is written.
    idle: Duration,
    clock: Clock,
    saves: Arc<Semaphore>,
    restores: Arc<Semaphore>,
    /// Files that are being written or removed, or wait for it.
    saving: watch::Sender<usize>,
}

impl KvKeeper {
    /// Keeps KV in these files, written once a conversation has rested for `idle`.
    pub fn new(files: KvFiles, idle: Duration, clock: Clock) -> Self {
        let (saves, restores) = (Arc::new(Semaphore::new(SAVES_MAX)), Arc::new(Semaphore::new(RESTORES_MAX)));
        let saving = watch::Sender::new(0);
        Self(Some(Arc::new(Keeper { files, idle, clock, saves, restores, saving })))
    }

    /// Removes the file of a conversation that is deleted; none appears afterwards, whatever still runs. It never
    /// waits.
    pub fn remove(&self, conversation: ConversationId) {
        let Some(keeper) = self.0.clone() else { return };
        let removing = Saving::begin(&keeper);
        let remove = move || {
            let _removing = removing;
            keeper.files.remove(conversation);
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }

    /// Removes the files of conversations that are gone: the last process may have ended before it came to that.
    /// Blocks.
    pub fn sweep(&self, journal: &dyn Journal) {
        let Some(keeper) = &self.0 else { return };
        keeper.files.retain(|conversation| !is_gone(journal, conversation));
    }

    /// Returns once every file that was to be written or removed is.
    pub async fn settled(&self) {
        if let Some(keeper) = &self.0 {
            // The sender lives in `self`: waiting cannot fail.
            let _ = keeper.saving.subscribe().wait_for(|count| *count == 0).await;
        }
    }
}

/// Whether the conversation never was or is deleted. One that cannot be read is neither.
fn is_gone(journal: &dyn Journal, conversation: ConversationId) -> bool {
    let Ok(last_seq) = journal.last_seq(conversation) else { return false };
    let last = journal.read(conversation, last_seq.saturating_sub(1), 1);
    last.is_ok_and(|events| events.last().is_none_or(|last| matches!(last.event, Event::ConversationDeleted {})))
}

/// One conversation's part: the last sequence it had in an engine.
#[derive(Default)]
pub(super) struct ConversationKv(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    last: Option<Sequence>,
    /// Counts sequences, so that a conversation is known to have rested.
    sequences: u64,
    /// This process knows its file's tokens to be in the cache, or has asked already.
    consulted: bool,
}

/// What is to be written when the conversation rests.
struct Sequence {
    number: u64,
    keeper: Arc<Keeper>,
    home: ConversationId,
    engine: Arc<dyn Engine>,
    salt: u64,
    /// Prompt and answer so far.
    tokens: Vec<u32>,
}

impl ConversationKv {
    /// A sequence is about to begin with these tokens: sees to it that the engine holds what the conversation's file
    /// holds of them. Without a file, and while the conversation has not rested, it asks nobody.
    pub(super) async fn begin(
        self: &Arc<Self>,
        keeper: &KvKeeper,
        home: ConversationId,
        engine: &Arc<dyn Engine>,
        (tokens, salt): (Arc<[u32]>, u64),
    ) -> Recorder {
        let consulted = std::mem::replace(&mut self.kept().consulted, true);
        if let Some(keeper) = keeper.0.as_ref().filter(|keeper| !consulted && keeper.files.contains(home)) {
            match keeper.restore(home, engine, &tokens, salt).await {
                Ok(count) => tracing::debug!(conversation = %home, count, "tokens read back from the KV file"),
                Err(why) => tracing::warn!(conversation = %home, why, "the KV file is not used; the prompt is run"),
            }
        }
        let mut kept = self.kept();
        kept.sequences += 1;
        let number = kept.sequences;
        let sequence =
            |keeper| Sequence { number, keeper, home, engine: engine.clone(), salt, tokens: tokens.to_vec() };
        kept.last = keeper.0.clone().map(sequence);
        Recorder { kv: self.clone(), number }
    }

    /// Has the file written, if there is anything that was not. It never waits.
    pub(super) fn save(&self) {
        let mut kept = self.kept();
        let Some(last) = kept.last.take() else { return };
        // The cache may lose it from now on; the next sequence asks.
        kept.consulted = false;
        drop(kept);
        // An actor that is dropped outside of a runtime belongs to a process that ends.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(last.save());
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows one sequence. When it is dropped the sequence has ended, and its KV is written unless the next one begins
/// soon.
pub(super) struct Recorder {
    kv: Arc<ConversationKv>,
    number: u64,
}

impl Recorder {
    /// The sequence goes on with this token.
    pub(super) fn push(&self, token: u32) {
        if let Some(last) = self.kv.kept().last.as_mut().filter(|last| last.number == self.number) {
            last.tokens.push(token);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let number = self.number;
        let kept = self.kv.kept();
        let idle = kept.last.as_ref().filter(|last| last.number == number).map(|last| last.keeper.idle);
        drop(kept);
        let (Some(idle), Ok(runtime)) = (idle, Handle::try_current()) else { return };
        let kv = Arc::downgrade(&self.kv);
        runtime.spawn(async move {
            tokio::time::sleep(idle).await;
            if let Some(kv) = kv.upgrade()
                && kv.kept().sequences == number
            {
                kv.save();
            }
        });
    }
}

impl Sequence {
    /// The draft and the count are taken at once, the work is done by whoever polls.
    fn save(self) -> impl Future<Output = ()> + Send + use<> {
        let Self { keeper, home, engine, salt, tokens, .. } = self;
        let (draft, saving) = (keeper.files.draft(home), Saving::begin(&keeper));
        async move {
            let _saving = saving;
            let Ok(permit) = keeper.saves.clone().acquire_owned().await else { return };
            // Closes without an answer when the cache holds nothing of it.
            let Ok(image) = engine.save_kv(tokens.into(), salt).await else { return };
            let (files, now_ms) = (keeper.files.clone(), keeper.clock.unix_ms());
            let written = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                if has_as_much(&files, home, &image, now_ms) { Ok(()) } else { draft.write(&content(image), now_ms) }
            });
            match written.await {
                Ok(Err(error)) if error != KvFileError::Unwanted => {
                    tracing::warn!(conversation = %home, %error, "the KV file is not written");
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
}

impl Keeper {
    /// Reads the file and has the engine take it in, as far as it is of use; says how many tokens, or why not.
    async fn restore(
        &self,
        home: ConversationId,
        engine: &Arc<dyn Engine>,
        tokens: &Arc<[u32]>,
        salt: u64,
    ) -> Result<usize, String> {
        let Ok(cached) = engine.cached_kv(tokens.clone(), salt).await else {
            return Ok(0);
        };
        let (files, now_ms) = (self.files.clone(), self.clock.unix_ms());
        let (tokens, fingerprint) = (tokens.clone(), engine.model().fingerprint.clone());
        let found =
            self.blocking(home, move || find(&files, home, (&tokens, salt), &fingerprint, cached, now_ms)).await?;
        let Some((reader, count)) = found else { return Ok(0) };
        let Ok(permit) = self.restores.clone().acquire_owned().await else { return Ok(0) };
        let image = self.blocking(home, move || read(reader, count)).await?;
        let restored = engine.restore_kv(image).await;
        drop(permit);
        match restored {
            Ok(Ok(count)) => Ok(count),
            Ok(Err(refused)) => Err(refused.to_string()),
            Err(_) => Ok(0),
        }
    }

    /// Does what reads files away from the async threads. A damaged file is removed: it would never be of use.
    async fn blocking<T: Send + 'static>(
        &self,
        home: ConversationId,
        work: impl FnOnce() -> Result<T, KvFileError> + Send + 'static,
    ) -> Result<T, String> {
        let files = self.files.clone();
        let working = tokio::task::spawn_blocking(move || {
            let done = work();
            if let Err(KvFileError::Damaged(_)) = done {
                files.discard(home);
            }
            done
        });
        working.await.map_err(|_| "reading it failed".to_owned())?.map_err(|error| error.to_string())
    }
}

/// The file and how many of its blocks are of use for these tokens, if that is more than what is cached. Blocks.
fn find(
    files: &KvFiles,
    home: ConversationId,
    (tokens, salt): (&[u32], u64),
    fingerprint: &str,
    cached: usize,
    now_ms: u64,
) -> Result<Option<(KvReader, usize)>, KvFileError> {
    let Some(reader) = files.read(home, now_ms)? else { return Ok(None) };
    if reader.fingerprint() != fingerprint || reader.salt() != salt {
        // Of another model, or of a build that counts differently: it is overwritten when the conversation rests.
        return Ok(None);
    }
    // The last token is always run, so its block would be of no use.
    let useful = &tokens[..tokens.len().saturating_sub(1)];
    let common = reader.tokens().iter().zip(useful).take_while(|(held, wanted)| held == wanted).count();
    let count = common / reader.block_tokens().max(1);
    Ok((count * reader.block_tokens() > cached).then_some((reader, count)))
}

/// The first blocks of a file. Blocks.
fn read(reader: KvReader, count: usize) -> Result<KvImage, KvFileError> {
    let (fingerprint, salt) = (reader.fingerprint().to_owned(), reader.salt());
    let tokens = reader.tokens()[..count * reader.block_tokens()].into();
    Ok(KvImage { fingerprint, salt, tokens, blocks: reader.blocks(count)? })
}

/// Whether the conversation's file holds the image already, or more of the same: the cache may have lost a part since
/// it was written. Blocks.
fn has_as_much(files: &KvFiles, home: ConversationId, image: &KvImage, now_ms: u64) -> bool {
    files.read(home, now_ms).ok().flatten().is_some_and(|reader| {
        let same = reader.fingerprint() == image.fingerprint && reader.salt() == image.salt;
        same && reader.tokens().starts_with(&image.tokens)
    })
}

fn content(image: KvImage) -> KvContent {
    let KvImage { fingerprint, salt, tokens, blocks } = image;
    KvContent { fingerprint, salt, tokens: tokens.to_vec(), blocks }
}

/// Counts one file until it is written or removed, or will not be.
struct Saving(Arc<Keeper>);

impl Saving {
    fn begin(keeper: &Arc<Keeper>) -> Self {
        keeper.saving.send_modify(|count| *count += 1);
        Self(keeper.clone())
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        self.0.saving.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
