//! The root of the supervision tree: starts the directory, recovers what was running, stops it all in order.

use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::watch;

use super::directory::{DirectoryActor, DirectoryHandle};
use super::journal::{JournalActor, Keeper};
use super::shared::Parts;
use crate::conversation::Reject;

/// The root; it has no messages of its own.
struct RootActor;

struct Tree {
    directory: DirectoryHandle,
    failed: watch::Sender<bool>,
}

impl Actor for RootActor {
    type Msg = ();
    type State = Tree;
    type Arguments = (Parts, watch::Sender<bool>, tokio::sync::oneshot::Sender<DirectoryHandle>);

    async fn pre_start(
        &self,
        myself: ActorRef<()>,
        (parts, failed, ready): Self::Arguments,
    ) -> Result<Tree, ActorProcessingErr> {
        let (actor, _) = Actor::spawn_linked(None, DirectoryActor, parts.clone(), myself.get_cell()).await?;
        let keeper = Keeper { parts: parts.clone(), directory: actor.clone(), trimmed_to: None };
        Actor::spawn_linked(None, JournalActor, keeper, myself.get_cell()).await?;
        let directory = DirectoryHandle { actor, parts };
        let _ = ready.send(directory.clone());
        Ok(Tree { directory, failed })
    }

    /// The directory holds nothing that the journal does not, but every handle points at it: when it fails, the
    /// process ends and a fresh one recovers. Without the journal's keeper only old keys stay; the log says so.
    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        event: SupervisionEvent,
        tree: &mut Tree,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(cell, error) = event {
            let is_directory = cell.get_id() == tree.directory.actor.get_id();
            tracing::error!(%error, is_directory, "a root actor failed");
            if is_directory {
                tree.failed.send_replace(true);
            }
        }
        Ok(())
    }
}

/// The running tree.
pub struct RootHandle {
    root: ActorRef<()>,
    directory: DirectoryHandle,
    failed: watch::Receiver<bool>,
}

/// Starts the actors.
pub async fn start(parts: Parts) -> anyhow::Result<RootHandle> {
    let (failed_sender, failed) = watch::channel(false);
    let (ready, directory) = tokio::sync::oneshot::channel();
    let (root, _) = Actor::spawn(None, RootActor, (parts, failed_sender, ready)).await?;
    Ok(RootHandle { root, directory: directory.await?, failed })
}

impl RootHandle {
    /// The way to all conversations.
    pub fn directory(&self) -> DirectoryHandle {
        self.directory.clone()
    }

    /// Goes on with every response that was running when the process ended; says how many conversations.
    pub async fn recover(&self) -> Result<usize, Reject> {
        self.directory.recover().await
    }

    /// Returns when the tree cannot go on and the process must end.
    pub async fn failed(&self) {
        let _ = self.failed.clone().wait_for(|failed| *failed).await;
    }

    /// Stops all conversations, then the tree. What is running stays in the journal.
    pub async fn stop(&self) {
        self.directory.parts.running.stop();
        self.directory.stop_all().await;
        self.root.stop(Some("the server stops".to_owned()));
    }
}
