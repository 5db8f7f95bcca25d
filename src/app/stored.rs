//! What the data folder holds, opened at the start: the journal first, which locks the folder.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use crate::access::Gate;
use crate::actors::KvKeeper;
use crate::api::{Seal, StartProgress};
use crate::clock::Clock;
use crate::config::Config;
use crate::crash;
use crate::store::{Journal, KvFiles, SledJournal, Writer, WriterHandle};

/// The file of the key that seals what clients keep, in the data folder.
const SEAL_FILE: &str = "seal.key";

/// What the data folder holds, open.
pub(super) struct Stored {
    pub(super) journal: Arc<dyn Journal>,
    pub(super) writer: WriterHandle,
    pub(super) kv: KvKeeper,
    pub(super) gate: Gate,
    pub(super) seal: Seal,
}

impl Stored {
    /// Opens it, on a thread that may wait for the disk.
    pub(super) async fn open(config: &Config, progress: &StartProgress) -> anyhow::Result<Self> {
        let (config, progress) = (config.clone(), progress.clone());
        let open = move || {
            let (journal, writer) = open_journal(&config)?;
            crash::point("journal_opened");
            progress.journal_opened();
            let kv = keep_kv(&config, &*journal)?;
            let gate = Gate::open(&config.data_dir)?;
            config.check_reach(gate.is_locked())?;
            let seal = keep_seal(&config.data_dir).context("the key that seals what clients keep")?;
            Ok(Self { journal, writer, kv, gate, seal })
        };
        tokio::task::spawn_blocking(open).await.context("opening the journal")?
    }
}

/// The key in the data folder; a new one where there is none. The journal has locked the folder.
fn keep_seal(data_dir: &Path) -> io::Result<Seal> {
    let path = data_dir.join(SEAL_FILE);
    match std::fs::read(&path) {
        Ok(bytes) => {
            let key = bytes.try_into();
            let damaged =
                format!("{} is no key of 32 bytes; restore it, or remove it to get a new one", path.display());
            return key.map(Seal::new).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, damaged));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut key = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    // Whole under its name, or not there.
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&key)?;
    file.sync_all()?;
    crash::point("seal_written");
    std::fs::rename(&fresh, &path)?;
    File::open(data_dir)?.sync_all()?;
    Ok(Seal::new(key))
}

/// Opens the KV files; the journal has locked their folder.
fn keep_kv(config: &Config, journal: &dyn Journal) -> anyhow::Result<KvKeeper> {
    let files = KvFiles::open(&config.data_dir, config.kv_files_bytes_max)?;
    if config.kv_files_bytes_max == 0 {
        return Ok(KvKeeper::default());
    }
    let kv = KvKeeper::new(files, Duration::from_millis(config.kv_file_idle_ms), Clock::System);
    kv.sweep(journal);
    Ok(kv)
}

fn open_journal(config: &Config) -> anyhow::Result<(Arc<dyn Journal>, WriterHandle)> {
    let journal: Arc<dyn Journal> =
        Arc::new(SledJournal::open_keeping(&config.data_dir, config.journal_kept_bytes_max)?);
    let writer = Writer::start(journal.clone(), config.journal_queue_batches)?;
    Ok((journal, writer))
}
