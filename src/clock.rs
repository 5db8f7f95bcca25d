//! The one place that reads time; only the threads of the kernels time their own waits. Everything else is handed a
//! [`Clock`] or a value.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A source of wall-clock time, real or driven by a test.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's clock.
    #[default]
    System,
    /// A clock that moves only when a test says so; the value is in milliseconds since the Unix epoch.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Milliseconds since the Unix epoch.
    pub fn unix_ms(&self) -> u64 {
        match self {
            #[allow(clippy::disallowed_methods)] // this is the one place
            Self::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
            }
            Self::Manual(now_ms) => now_ms.load(Ordering::SeqCst),
        }
    }
}

/// A point on the monotonic clock, for measuring how long something took.
#[allow(clippy::disallowed_methods)] // this is the one place
pub fn monotonic() -> Instant {
    Instant::now()
}
