//! Work that takes a core or a disk: away from the async threads, so that they never wait for it.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{JoinError, spawn_blocking};

/// Does `work` on a thread of its own. A runtime of one thread, as simulations use, does it in place: there the order
/// of everything must follow from the seed. An error says that the work panicked, or the server stops.
pub(crate) async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => Ok(work()),
        _ => spawn_blocking(work).await,
    }
}
