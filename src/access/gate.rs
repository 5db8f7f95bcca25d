//! The keys of a running server: who a client is by what it shows, now. A change of the file counts from the next
//! request on, since a look at the file's stamp costs next to nothing; whoever is let in by a key that goes is cut off.

use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::Error;
use super::file::{KeyFile, Stamp};
use super::key::{DEFAULT_TENANT, Key, LOCAL};
use super::limits::Limits;
use super::secret::Hash;

/// Who asks. It reads as the name of its principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Whose conversations it sees.
    pub principal: String,
    /// With whom its prompts may share keys and values of attention.
    pub tenant: String,
    /// The id of its key, where one is asked for.
    pub key: Option<String>,
    /// How much it may use.
    pub limits: Limits,
    /// Whether there are other principals, for whom a part of all room is left.
    pub shares: bool,
}

impl Identity {
    /// Whoever asks a server without keys.
    pub fn local() -> Self {
        let (principal, tenant) = (LOCAL.to_owned(), DEFAULT_TENANT.to_owned());
        Self { principal, tenant, key: None, limits: Limits::default(), shares: false }
    }
}

impl Deref for Identity {
    type Target = str;

    fn deref(&self) -> &str {
        &self.principal
    }
}

/// The keys as they are known now; none where nobody is asked for one.
type Ring = Option<Arc<[Key]>>;

/// Lets clients in. The default asks nobody for a key.
#[derive(Clone, Debug)]
pub struct Gate {
    file: Option<KeyFile>,
    ring: watch::Sender<Ring>,
    /// The stamp of the file that was read last.
    seen: Arc<Mutex<Option<Stamp>>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { file: None, ring: watch::Sender::new(None), seen: Arc::default() }
    }
}

impl Gate {
    /// The gate of a server on this data folder.
    pub fn open(data_dir: &Path) -> Result<Self, Error> {
        let file = KeyFile::of(data_dir);
        let seen = Arc::new(Mutex::new(file.stamp()));
        let ring = watch::Sender::new(file.read()?.map(Arc::from));
        Ok(Self { file: Some(file), ring, seen })
    }

    /// Whether clients are asked for a key.
    pub fn is_locked(&self) -> bool {
        self.refresh();
        self.ring.borrow().is_some()
    }

    /// Whether clients are asked for a key, and there is none.
    pub fn is_shut(&self) -> bool {
        self.refresh();
        self.ring.borrow().as_ref().is_some_and(|keys| keys.is_empty())
    }

    /// Who shows these: the owner of the first that is a key. Without keys everybody is let in.
    pub fn identify<'a>(&self, shown: impl IntoIterator<Item = &'a str>) -> Option<Identity> {
        self.refresh();
        let ring = self.ring.borrow().clone();
        let Some(keys) = ring else { return Some(Identity::local()) };
        shown.into_iter().find_map(|secret| {
            let hash = Hash::of(secret);
            keys.iter().find(|key| key.has(&hash)).map(|key| identity(key, &keys))
        })
    }

    /// Returns when whoever was let in would not be any more.
    pub async fn closed_to(&self, who: &Identity) {
        let admits = |ring: &Ring| match (ring, &who.key) {
            (None, None) => true,
            (Some(keys), Some(id)) => keys.iter().any(|key| key.id == *id),
            _ => false,
        };
        // The sender lives in `self`: waiting cannot fail.
        let _ = self.ring.subscribe().wait_for(|ring| !admits(ring)).await;
    }

    /// Reads the file again, changed or not.
    pub fn reload(&self) {
        let Some(file) = &self.file else { return };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = file.stamp();
        self.read(file);
    }

    /// Reads the file again if it changed.
    fn refresh(&self) {
        let Some(file) = &self.file else { return };
        let stamp = file.stamp();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen != stamp {
            *seen = stamp;
            self.read(file);
        }
    }

    /// What cannot be read lets nobody in who was not let in before.
    fn read(&self, file: &KeyFile) {
        match file.read() {
            Ok(Some(keys)) => {
                tracing::info!(count = keys.len(), "API keys read");
                self.ring.send_replace(Some(keys.into()));
            }
            Ok(None) if self.ring.borrow().is_none() => {}
            Ok(None) => {
                tracing::error!(
                    "the file of API keys is gone; the keys stay in force until the server is started again"
                );
            }
            Err(error) => tracing::error!(%error, "the API keys stay as they were"),
        }
    }
}

fn identity(key: &Key, all: &[Key]) -> Identity {
    Identity {
        principal: key.principal.clone(),
        tenant: key.tenant.clone(),
        key: Some(key.id.clone()),
        limits: key.limits,
        shares: all.iter().any(|other| other.principal != key.principal),
    }
}
