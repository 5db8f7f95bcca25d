//! The server loop: connections are taken, spoken on and closed here, and whoever is slow on one holds nothing else.
//!
//! Knows no route. **Invariant:** nothing that a client does or leaves undone holds a connection for ever, unless it
//! reads what it is sent.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::patience::Patient;
use super::tls::Tls;
use crate::config::Config;
use crate::telemetry;

/// How long nothing is accepted where the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Who may connect, and how long a client may take; `config` names and sets it.
#[derive(Clone, Debug)]
pub struct Doors {
    /// Most connections that are open at once; one more is closed.
    pub connections_max: usize,
    /// Most bytes of a request's head.
    pub header_bytes_max: usize,
    /// How long the head of the next request may take to come, and a TLS handshake.
    pub header_timeout: Duration,
    /// How long a client may take nothing of its answer.
    pub write_timeout: Duration,
    /// The certificate; without one everything is said in plain.
    pub tls: Option<Tls>,
}

impl Doors {
    /// As the settings say, without TLS.
    pub fn new(config: &Config) -> Self {
        Self {
            connections_max: config.connections_max,
            header_bytes_max: config.header_bytes_max,
            header_timeout: Duration::from_millis(config.header_timeout_ms),
            write_timeout: Duration::from_millis(config.write_timeout_ms),
            tls: None,
        }
    }
}

/// Serves until `shutdown` resolves; then no connection is accepted and running requests end by themselves.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    doors: Doors,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (closing, closed) = watch::channel(false);
    let places = Arc::new(Semaphore::new(doors.connections_max.min(Semaphore::MAX_PERMITS)));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            stream = accept(&listener) => {
                // A socket keeps its connection's place, though what spoke HTTP on it has ended.
                if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                    let stream = Patient::new(stream, doors.write_timeout, place);
                    connections.spawn(connection(stream, router.clone(), doors.clone(), closed.clone()));
                } else {
                    // It is dropped, and so closed.
                    telemetry::connection_refused();
                }
            }
            Some(_) = connections.join_next() => {}
            () = &mut shutdown => break,
        }
    }
    drop(listener);
    closing.send_replace(true);
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// The next connection.
async fn accept(listener: &TcpListener) -> TcpStream {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A token is a small packet: it must not wait for the next one.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::warn!(%error, "TCP_NODELAY could not be set");
                }
                return stream;
            }
            // The client is gone again already.
            Err(error) if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be taken now; trying again");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One connection, to its end. Whatever goes wrong on it is the client's to see: it is gone, or was never one.
async fn connection(stream: Patient<TcpStream>, router: Router, doors: Doors, closed: watch::Receiver<bool>) {
    let Some(tls) = &doors.tls else { return speak(stream, router, &doors, closed).await };
    let shaken = tokio::select! {
        shaken = timeout(doors.header_timeout, tls.accept(stream)) => shaken,
        () = told(closed.clone()) => return,
    };
    if let Ok(Ok(stream)) = shaken {
        speak(stream, router, &doors, closed).await;
    }
}

/// Speaks HTTP until the client goes or, once the server stops, its request is answered. A socket that comes of it
/// lives on by itself.
async fn speak<I>(io: I, router: Router, doors: &Doors, closed: watch::Receiver<bool>)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(doors.header_timeout).max_header_size(doors.header_bytes_max);
    let connection = http.serve_connection(TokioIo::new(io), TowerToHyperService::new(router)).with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = told(closed) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Returns once the server stops.
async fn told(mut closed: watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = closed.wait_for(|closed| *closed).await.map(drop);
}
