//! Wiring and the order of shutting down: which parts exist, who is handed which, and who stops first.

use crate::cli::Prepared;

/// Serves until the process is told to stop.
pub fn run(prepared: &Prepared) -> anyhow::Result<()> {
    anyhow::bail!("nothing is wired to serve {} yet", prepared.config.listen)
}
