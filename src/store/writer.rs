//! The one thread that writes: it takes what waits, writes it with one flush and one sync, and acknowledges all.
//!
//! There is no timer: while one group is on its way to the disk the next one gathers, so a lone conversation
//! waits for nothing and many share a flush.
//!
//! When nothing waits it folds the journals of ended responses and removes what is left of deleted conversations, a
//! bounded part at a time; that needs no flush of its own, since it changes nothing that is read. It also trims what it
//! is told to, part by part.
//!
//! **Invariant:** nothing is acknowledged before it is durable; after a failed write nothing is written again.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot, watch};

use super::error::Error;
use super::journal::{Batch, Durability, Journal, Sequence};
use crate::conversation::{Event, Recorded};
use crate::ids::ConversationId;
use crate::{clock, crash, telemetry};

/// Parts of a purge that a writer does at most before it stops; the next start goes on with the rest.
const PURGED_STOPPING_MAX: usize = 64;

/// What the writer can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterStatus {
    /// It writes.
    Running,
    /// A write failed: every append is refused until the process starts again.
    Failed(Error),
    /// A sync failed: the process must exit, since nobody knows what is on disk.
    Fatal(Error),
    /// It was stopped, and all that was queued is written.
    Stopped,
}

/// A conversation and the first event of it that stays.
struct Trim {
    conversation: ConversationId,
    oldest_seq: u64,
    done: Done,
}

type Done = oneshot::Sender<Result<(), Error>>;

enum Command {
    Append(Batch, Done),
    Trim(Trim),
    Stop,
}

/// Starts the writer thread.
#[derive(Debug)]
pub struct Writer;

impl Writer {
    /// Starts the thread. `queue_bound` batches may wait; it is also the most that share a flush.
    pub fn start(journal: Arc<dyn Journal>, queue_bound: usize) -> Result<WriterHandle, Error> {
        let (handle, mut thread) = Thread::new(journal, queue_bound);
        std::thread::Builder::new()
            .name("journal-writer".into())
            .spawn(move || thread.run())
            .map_err(|error| Error::file("cannot start the journal's writer thread", &error))?;
        Ok(handle)
    }
}

/// A writer without a thread: whoever holds it says when a group is taken and when it is written. For simulations,
/// where nothing may depend on how threads are scheduled.
pub struct ManualWriter {
    thread: Thread,
    group: Vec<Waiting>,
}

impl ManualWriter {
    /// As [`Writer::start`], without the thread.
    pub fn new(journal: Arc<dyn Journal>, queue_bound: usize) -> (WriterHandle, Self) {
        let (handle, thread) = Thread::new(journal, queue_bound);
        (handle, Self { thread, group: Vec::new() })
    }

    /// Waits for what is to be written with the next flush. `None`: nobody will append any more.
    pub async fn gather(&mut self) -> Option<Vec<Batch>> {
        let mut next = Some(self.thread.commands.recv().await?);
        while let Some(command) = next {
            match command {
                Command::Append(batch, done) => self.group.push((batch, done)),
                Command::Trim(trim) => self.thread.trims.push_back(trim),
                Command::Stop => self.thread.commands.close(),
            }
            next = self.thread.commands.try_recv().ok();
        }
        Some(self.group.iter().map(|(batch, _)| batch.clone()).collect())
    }

    /// Writes what was gathered, and acknowledges it; then trims what it was told to.
    pub fn commit(&mut self) {
        let group = std::mem::take(&mut self.group);
        self.thread.commit(group);
        while self.thread.trim() {}
    }
}

/// Appends through the writer thread. Clones share it; the thread ends when it is stopped or the last is dropped.
#[derive(Clone, Debug)]
pub struct WriterHandle {
    queue: mpsc::Sender<Command>,
    status: watch::Receiver<WriterStatus>,
}

impl WriterHandle {
    /// Queues the batch, waiting for room if there is none, and resolves once it is durable or refused. When the
    /// future is dropped early the batch may be written all the same.
    pub fn append(&self, batch: Batch) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let queued = self.enqueue(batch);
        async move { queued.await?.await }
    }

    /// Queues the batch behind all that were queued before it, waiting for room if there is none. What it returns
    /// resolves as [`WriterHandle::append`] does; dropped early, the batch may be written all the same.
    pub fn enqueue(&self, batch: Batch) -> impl Future<Output = Result<Ack, Error>> + Send + 'static {
        let queue = self.queue.clone();
        async move {
            let (done, answer) = oneshot::channel();
            queue.send(Command::Append(batch, done)).await.map_err(|_| Error::Stopped)?;
            Ok(Ack(answer))
        }
    }

    /// As [`WriterHandle::append`], for threads outside the async runtime.
    pub fn append_blocking(&self, batch: Batch) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        let command = Command::Append(batch, done);
        self.queue.blocking_send(command).map_err(|_| Error::Stopped)?;
        answer.blocking_recv().unwrap_or(Err(Error::Stopped))
    }

    /// Has the events in front of `oldest_seq` trimmed, between what is appended: see [`Journal::trim`]. Resolves once
    /// they are unreadable, or when that was refused. One at a time is enough.
    pub async fn trim(&self, conversation: ConversationId, oldest_seq: u64) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        let trim = Command::Trim(Trim { conversation, oldest_seq, done });
        self.queue.send(trim).await.map_err(|_| Error::Stopped)?;
        answer.await.unwrap_or(Err(Error::Stopped))
    }

    /// How many batches wait for the thread.
    pub fn queued(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    /// Why nothing is written any more, if that is so.
    pub fn usable(&self) -> Result<(), Error> {
        match &*self.status.borrow() {
            WriterStatus::Running => Ok(()),
            WriterStatus::Failed(error) | WriterStatus::Fatal(error) => Err(error.clone()),
            WriterStatus::Stopped => Err(Error::Stopped),
        }
    }

    /// What the writer can do now.
    pub fn status(&self) -> WriterStatus {
        self.status.borrow().clone()
    }

    /// Tells every change of the status: readiness hangs on it, and a `Fatal` must end the process.
    pub fn watch(&self) -> watch::Receiver<WriterStatus> {
        self.status.clone()
    }

    /// Writes what is queued, then ends the thread. Later appends are refused with [`Error::Stopped`].
    pub async fn stop(&self) {
        // A closed queue means that the thread has ended or is about to.
        let _ = self.queue.send(Command::Stop).await;
        self.queue.closed().await;
        let mut status = self.status.clone();
        // The sender is dropped last, with the journal.
        while status.changed().await.is_ok() {}
    }
}

/// Resolves once the batch is durable or refused.
#[derive(Debug)]
#[must_use = "a refused batch is told here"]
pub struct Ack(oneshot::Receiver<Result<(), Error>>);

impl Future for Ack {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(Error::Stopped)))
    }
}

struct Thread {
    journal: Arc<dyn Journal>,
    commands: mpsc::Receiver<Command>,
    status: watch::Sender<WriterStatus>,
    bound: usize,
    /// What can be folded, and up to which seq. What does not fit is folded when the conversation's next response
    /// ends.
    folds: VecDeque<(ConversationId, u64)>,
    /// What is to be trimmed.
    trims: VecDeque<Trim>,
    /// Something may be left of deleted conversations; at the start, of those that a crash interrupted.
    purging: bool,
    /// Parts that were removed since the queue was closed.
    purged_stopping: usize,
}

type Waiting = (Batch, Done);

impl Thread {
    fn new(journal: Arc<dyn Journal>, queue_bound: usize) -> (WriterHandle, Self) {
        let bound = queue_bound.max(1);
        let (queue, commands) = mpsc::channel(bound);
        let (status_sender, status) = watch::channel(WriterStatus::Running);
        let (folds, trims) = (VecDeque::new(), VecDeque::new());
        let thread =
            Self { journal, commands, status: status_sender, bound, folds, trims, purging: true, purged_stopping: 0 };
        (WriterHandle { queue, status }, thread)
    }

    fn run(&mut self) {
        while let Some(first) = self.next() {
            let mut group = Vec::new();
            let mut next = Some(first);
            while let Some(command) = next {
                match command {
                    Command::Append(batch, done) => self.gather(&mut group, (batch, done)),
                    Command::Trim(trim) => self.trims.push_back(trim),
                    // What was sent before the queue closed is still received.
                    Command::Stop => self.commands.close(),
                }
                next = (group.len() < self.bound).then(|| self.commands.try_recv().ok()).flatten();
            }
            self.commit(group);
        }
        self.status.send_if_modified(|status| {
            let running = *status == WriterStatus::Running;
            if running {
                *status = WriterStatus::Stopped;
            }
            running
        });
    }

    /// The next command; folds while there is none, and even under load once much has gathered.
    fn next(&mut self) -> Option<Command> {
        if self.folds.len() >= self.bound {
            self.fold();
        }
        // One part even under load, so that what was deleted goes at last, and that no more trims wait than come.
        self.purge();
        self.trim();
        while self.commands.is_empty() && (self.fold() || self.trim() || self.may_purge() && self.purge()) {}
        self.commands.blocking_recv()
    }

    /// Whether there is time to purge: a writer that stops leaves most of it to the next start.
    fn may_purge(&mut self) -> bool {
        if self.commands.is_closed() {
            self.purged_stopping += 1;
        }
        self.purged_stopping <= PURGED_STOPPING_MAX
    }

    /// Folds one part. Whether there was one.
    fn fold(&mut self) -> bool {
        let Some((conversation, up_to)) = self.folds.pop_front() else {
            return false;
        };
        match self.guard(|journal| journal.fold(conversation, up_to)) {
            Ok(true) => self.folds.push_back((conversation, up_to)),
            Ok(false) => {}
            Err(error) => tracing::warn!(%conversation, %error, "the journal is left unfolded"),
        }
        true
    }

    /// Does one part of a trim. Whether there was one.
    fn trim(&mut self) -> bool {
        let Some(trim) = self.trims.pop_front() else {
            return false;
        };
        let usable = match &*self.status.borrow() {
            WriterStatus::Failed(error) | WriterStatus::Fatal(error) => Err(error.clone()),
            WriterStatus::Running | WriterStatus::Stopped => Ok(()),
        };
        let (conversation, oldest_seq) = (trim.conversation, trim.oldest_seq);
        match usable.and_then(|()| self.guard(|journal| journal.trim(conversation, oldest_seq))) {
            Ok(true) => self.trims.push_back(trim),
            Ok(false) => {
                self.purging = true;
                let _ = trim.done.send(Ok(()));
            }
            Err(error) => drop(trim.done.send(Err(error))),
        }
        true
    }

    /// Removes one part of what is left of deleted conversations. Whether there was one.
    fn purge(&mut self) -> bool {
        if self.purging && *self.status.borrow() == WriterStatus::Running {
            self.purging = self.guard(Journal::purge).unwrap_or_else(|error| {
                tracing::warn!(%error, "the rest of deleted conversations stays until the next start");
                false
            });
        }
        self.purging
    }

    /// Remembers what the written batches allow to fold, and whether they delete.
    fn plan_tidying(&mut self, batches: &[Batch]) {
        for batch in batches {
            self.purging |= batch.deletes();
            let ended = |recorded: &&Recorded| matches!(recorded.event, Event::ResponseEnded { .. });
            if let Some(last) = batch.events.iter().rfind(ended)
                && self.folds.len() < self.bound
            {
                self.folds.push_back((batch.conversation, last.seq));
            }
        }
    }

    /// A batch with a flush of its own neither waits for others nor lets them wait behind it in one flush.
    fn gather(&mut self, group: &mut Vec<Waiting>, waiting: Waiting) {
        if waiting.0.durability == Durability::Sync {
            self.commit(std::mem::take(group));
            self.commit(vec![waiting]);
        } else {
            group.push(waiting);
        }
    }

    fn commit(&mut self, group: Vec<Waiting>) {
        if group.is_empty() {
            return;
        }
        let (batches, waiting) = self.accept(group);
        if batches.is_empty() {
            return;
        }
        crash::point("append_before");
        let began = clock::monotonic();
        let written = self.guard(|journal| journal.append(&batches));
        if written.is_ok() {
            telemetry::committed(batches.len(), clock::monotonic().duration_since(began));
        }
        crash::point("append_after");
        for done in waiting {
            // Nobody may wait any more: the caller died.
            let _ = done.send(written.clone());
        }
        crash::point("append_acknowledged");
        if written.is_ok() {
            self.plan_tidying(&batches);
        }
    }

    /// Answers the batches that cannot be written, and returns the others.
    fn accept(&self, group: Vec<Waiting>) -> (Vec<Batch>, Vec<Done>) {
        let failed = match &*self.status.borrow() {
            WriterStatus::Failed(error) | WriterStatus::Fatal(error) => Some(error.clone()),
            WriterStatus::Running | WriterStatus::Stopped => None,
        };
        let mut sequence = Sequence::new(&*self.journal);
        let mut accepted = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
        for (batch, done) in group {
            let refused = failed.clone().map_or_else(|| sequence.accept(&batch), Err);
            if let Err(error) = refused {
                let _ = done.send(Err(error));
            } else {
                accepted.0.push(batch);
                accepted.1.push(done);
            }
        }
        accepted
    }

    /// Notes when the journal can be written no more. A panic inside the database must not leave callers waiting
    /// for ever.
    fn guard<T>(&self, write: impl FnOnce(&dyn Journal) -> Result<T, Error>) -> Result<T, Error> {
        catch_unwind(AssertUnwindSafe(|| write(&*self.journal)))
            .unwrap_or_else(|_| Err(Error::SyncFailed("the database panicked while writing".into())))
            .inspect_err(|error| {
                if matches!(error, Error::SyncFailed(_)) {
                    tracing::error!(%error, "the journal's sync failed");
                    self.status.send_replace(WriterStatus::Fatal(error.clone()));
                } else if error.is_final() {
                    tracing::error!(%error, "the journal cannot be written");
                    self.status.send_replace(WriterStatus::Failed(error.clone()));
                }
            })
    }
}
