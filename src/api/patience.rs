//! A connection that is given up once its client takes nothing for too long: what is written waits in memory, and the
//! room for its request is taken meanwhile.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};

/// Fails to write where nothing could be written for this long. Reading takes whatever time it takes.
#[derive(Debug)]
pub(super) struct Patient<I> {
    io: I,
    patience: Duration,
    /// Runs while the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Free again once the connection is closed, whatever was spoken on it.
    _place: OwnedSemaphorePermit,
}

impl<I> Patient<I> {
    pub(super) fn new(io: I, patience: Duration, place: OwnedSemaphorePermit) -> Self {
        Self { io, patience, stalled: None, _place: place }
    }

    /// Ends what has been pending for too long.
    fn bounded<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.stalled = None;
            return done;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing"));
        stalled.as_mut().poll(context).map(|()| late())
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Patient<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Patient<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.io).poll_write(context, bytes);
        self.bounded(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.io).poll_write_vectored(context, parts);
        self.bounded(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.io).poll_flush(context);
        self.bounded(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.io).poll_shutdown(context);
        self.bounded(context, done)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::Semaphore;
    use tokio::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(1);
    /// A little less.
    const ALMOST: Duration = Duration::from_secs(59);

    /// A connection with room for eight bytes, and its client.
    fn connection() -> (Patient<DuplexStream>, DuplexStream) {
        let (near, far) = duplex(8);
        (Patient::new(near, PATIENCE, Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap()), far)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_and_one_that_takes_little_is_not() {
        let (mut near, mut far) = connection();
        let began = Instant::now();
        let reading = async {
            for _ in 0..4 {
                sleep(ALMOST).await;
                far.read_exact(&mut [0; 4]).await.unwrap();
            }
        };
        let writing = near.write_all(&[0; 32]);
        let (written, ()) = tokio::join!(writing, reading);
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        // All that was taken made room; behind that nothing did.
        assert_eq!(began.elapsed(), ALMOST * 4 + PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn reading_is_not_bounded_here() {
        let (mut near, mut far) = connection();
        let says = async {
            sleep(PATIENCE * 3).await;
            far.write_all(b"a").await.unwrap();
        };
        let mut byte = [0];
        let (read, ()) = tokio::join!(near.read_exact(&mut byte), says);
        assert_eq!((read.unwrap(), byte), (1, *b"a"));
    }
}
