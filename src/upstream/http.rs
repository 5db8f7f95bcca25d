//! One HTTP exchange with an upstream: a connection, a request, and the bytes of its answer as they come.
//!
//! A connection whose answer was read to its end is kept for the next request. Dropping an exchange closes its
//! connection, and the upstream sees that. Knows nothing of what is said.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::SetupError;
use crate::clock::monotonic;

/// Most bytes of an answer that is read whole.
const WHOLE_BYTES_MAX: usize = 64 << 20;
/// Connections that are kept between two requests, and for how long: what is older may be gone without a word.
const KEPT_MAX: usize = 64;
const KEPT_FOR: Duration = Duration::from_secs(30);

/// What a connection runs over.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection that is being opened.
type Opening = Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send>>;

/// Opens a connection; tests put their own in its place.
pub(crate) type Dial = Arc<dyn Fn() -> Opening + Send + Sync>;

/// Why an exchange came to nothing. The texts name no key.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// There is no connection.
    #[error("it cannot be reached: {0}")]
    Unreachable(io::Error),
    /// Nothing came for too long.
    #[error("it said nothing for {0:?}")]
    Silent(Duration),
    /// The connection broke.
    #[error("the connection broke off: {0}")]
    Broken(hyper::Error),
    /// It says more than is read.
    #[error("its answer has more than {WHOLE_BYTES_MAX} bytes")]
    TooLong,
}

/// Where an upstream is, and how it is reached.
#[derive(Clone)]
pub(super) struct Client {
    dial: Dial,
    /// The address, without a slash at its end.
    base: Uri,
    headers: HeaderMap,
    connect_timeout: Duration,
    idle_timeout: Duration,
    kept: Arc<Mutex<Vec<(Connection, Instant)>>>,
}

/// A connection, in an exchange or between two.
struct Connection {
    sender: http1::SendRequest<String>,
    /// Moves the bytes; it ends when the connection does.
    moving: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Connection {
    /// Whether it takes another request now.
    fn is_ready(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let has_ended = self.moving.as_mut().poll(&mut context).is_ready();
        !has_ended && matches!(self.sender.poll_ready(&mut context), Poll::Ready(Ok(())))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

/// An answer whose head has come.
pub(super) struct Exchange {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Incoming,
    /// Absent once it has ended.
    connection: Option<Connection>,
    /// Whether the answer was read to its end.
    is_read: bool,
    idle_timeout: Duration,
}

impl Client {
    /// A client for this address, with headers of every request.
    pub(super) fn new(
        base: Uri,
        headers: HeaderMap,
        connect_timeout: Duration,
        idle_timeout: Duration,
    ) -> Result<Self, SetupError> {
        let dial = dial(&base)?;
        Ok(Self { dial, base, headers, connect_timeout, idle_timeout, kept: Arc::default() })
    }

    /// The same over connections of another kind.
    #[cfg(test)]
    pub(super) fn over(mut self, dial: Dial) -> Self {
        self.dial = dial;
        self
    }

    /// Posts a body, and waits for the head of the answer.
    pub(super) async fn post(&self, path: &str, body: &str) -> Result<Exchange, Error> {
        if let Some(connection) = self.take() {
            match self.ask(connection, path, body).await {
                // The other side closed it meanwhile: no answer had begun.
                Err(Error::Broken(_)) => {}
                done => return done,
            }
        }
        let connection = self.open().await?;
        self.ask(connection, path, body).await
    }

    /// Keeps the connection of an exchange whose answer was read to its end.
    pub(super) fn keep(&self, exchange: Exchange) {
        let Exchange { connection: Some(connection), is_read: true, .. } = exchange else { return };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_MAX {
            kept.push((connection, monotonic()));
        }
    }

    /// The connection that was kept last, if one still stands.
    fn take(&self) -> Option<Connection> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = monotonic();
        kept.retain(|(_, since)| now.duration_since(*since) < KEPT_FOR);
        while let Some((mut connection, _)) = kept.pop() {
            if connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    async fn open(&self) -> Result<Connection, Error> {
        let opening = tokio::time::timeout(self.connect_timeout, (self.dial)());
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no connection in {:?}", self.connect_timeout));
        let stream = opening.await.map_err(late).flatten().map_err(Error::Unreachable)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(Error::Broken)?;
        let moving = Box::pin(async move {
            // How it failed, whoever reads from it is told.
            let _ = connection.await;
        });
        Ok(Connection { sender, moving })
    }

    async fn ask(&self, mut connection: Connection, path: &str, body: &str) -> Result<Exchange, Error> {
        let mut request = Request::new(body.to_owned());
        *request.method_mut() = Method::POST;
        // Both parts were checked when the address was read.
        *request.uri_mut() = format!("{}{path}", self.base.path().trim_end_matches('/')).parse().unwrap_or_default();
        *request.headers_mut() = self.headers.clone();
        let mut answering = pin!(connection.sender.send_request(request));
        let answer = tokio::time::timeout(self.idle_timeout, async {
            tokio::select! {
                biased;
                answer = &mut answering => return (answer, true),
                () = &mut connection.moving => {}
            }
            // The connection may be at its end before the answer was read out of it.
            (answering.await, false)
        });
        let (answer, lives) = answer.await.map_err(|_| Error::Silent(self.idle_timeout))?;
        let (head, body) = answer.map_err(Error::Broken)?.into_parts();
        let connection = lives.then_some(connection);
        let (is_read, idle_timeout) = (false, self.idle_timeout);
        Ok(Exchange { status: head.status, headers: head.headers, body, connection, is_read, idle_timeout })
    }
}

impl Exchange {
    /// The next bytes; none at the end.
    pub(super) async fn bytes(&mut self) -> Result<Option<Bytes>, Error> {
        let patience = self.idle_timeout;
        let bytes = tokio::time::timeout(patience, async {
            loop {
                let frame = tokio::select! {
                    biased;
                    frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)) => frame,
                    () = ended(&mut self.connection) => continue,
                };
                match frame {
                    // Trailers say nothing here.
                    Some(Ok(frame)) => {
                        if let Ok(bytes) = frame.into_data() {
                            return Ok(Some(bytes));
                        }
                    }
                    Some(Err(error)) => return Err(Error::Broken(error)),
                    None => {
                        self.is_read = true;
                        return Ok(None);
                    }
                }
            }
        });
        bytes.await.map_err(|_| Error::Silent(patience))?
    }

    /// All bytes to the end, within a bound.
    pub(super) async fn whole(&mut self) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(bytes) = self.bytes().await? {
            all.extend_from_slice(&bytes);
            if all.len() > WHOLE_BYTES_MAX {
                return Err(Error::TooLong);
            }
        }
        Ok(all)
    }

    /// A header's text.
    pub(super) fn header(&self, name: impl header::AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Moves bytes until the connection ends, and never returns once it has.
async fn ended(connection: &mut Option<Connection>) {
    match connection {
        Some(running) => running.moving.as_mut().await,
        None => std::future::pending().await,
    }
    *connection = None;
}

/// The headers of every request to this address; `own` are those of its kind.
pub(super) fn headers(base: &Uri, own: Vec<(HeaderName, HeaderValue)>) -> Result<HeaderMap, SetupError> {
    let authority = base.authority().ok_or_else(|| SetupError::Address(base.to_string()))?;
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| SetupError::Address(base.to_string()))?;
    let agent = HeaderValue::from_static(concat!("midstream/", env!("CARGO_PKG_VERSION")));
    let json = HeaderValue::from_static("application/json");
    let all = [(header::HOST, host), (header::USER_AGENT, agent), (header::CONTENT_TYPE, json)];
    Ok(all.into_iter().chain(own).collect())
}

/// How a connection to this address is opened: over TLS where it begins with `https`.
pub(crate) fn dial(base: &Uri) -> Result<Dial, SetupError> {
    let address = || SetupError::Address(base.to_string());
    let host = base.host().ok_or_else(address)?.trim_matches(['[', ']']).to_owned();
    let is_secure = base.scheme_str() == Some("https");
    let port = base.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let tls = is_secure.then(connector).transpose()?;
    let name = ServerName::try_from(host.clone()).map_err(|_| address())?;
    Ok(Arc::new(move || {
        let (host, name, tls) = (host.clone(), name.clone(), tls.clone());
        Box::pin(async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            stream.set_nodelay(true)?;
            Ok(match tls {
                Some(tls) => Box::new(tls.connect(name, stream).await?) as Box<dyn Io>,
                None => Box::new(stream),
            })
        })
    }))
}

/// TLS as the system trusts; `SSL_CERT_FILE` names another list.
fn connector() -> Result<TlsConnector, SetupError> {
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(SetupError::Tls(
            "no list of certificates that are trusted was found; see SSL_CERT_FILE".to_owned(),
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| SetupError::Tls(error.to_string()))?;
    Ok(TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
}
