//! The two ways a command talks to a server: one HTTP exchange, and a conversation's WebSocket.
//!
//! Knows the public API's addresses and nothing of what is said.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use axum::body::{Body, to_bytes};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio_tungstenite::tungstenite::{self, client::IntoClientRequest};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::config::{Config, Flags};
use crate::upstream::{Dial, Io, dial};

/// The conversation's connection.
pub(super) type Socket = WebSocketStream<Box<dyn Io>>;

/// Most bytes of an answer that is not streamed.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// How long one exchange may take.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The address of the server that these settings would start.
pub(super) fn own_server() -> Result<String> {
    let config = Config::load(None, super::serve::variables(), Flags::default())?;
    let (listen, ip) = (config.listen, config.listen.ip());
    Ok(match config.tls_cert_file {
        // Certificates name hosts.
        Some(_) if ip.is_loopback() || ip.is_unspecified() => format!("https://localhost:{}", listen.port()),
        Some(_) => format!("https://{listen}"),
        None => format!("http://{listen}"),
    })
}

/// A server's address and the key for it.
#[derive(Clone)]
pub(super) struct Client {
    /// Opens a connection, over TLS where the address says so.
    dial: Dial,
    scheme: String,
    authority: Authority,
    base: String,
    credential: Option<HeaderValue>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Client").field(&self.to_string()).finish()
    }
}

impl Client {
    /// The client for a server such as `http://127.0.0.1:8080`.
    pub(super) fn new(url: &str, api_key: Option<&str>) -> Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("{url} is no address of a server"))?;
        let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"));
        let scheme = scheme.with_context(|| format!("{url} must begin with http:// or https://"))?.to_owned();
        let authority = uri.authority().cloned().with_context(|| format!("{url} names no host"))?;
        let base = uri.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let credential = match api_key {
            Some(key) => Some(format!("Bearer {key}").parse().context("the API key holds characters that no key has")?),
            None => None,
        };
        Ok(Self { dial: dial(&uri)?, scheme, authority, base, credential })
    }

    /// Sends one request and reads its answer; an error answer is an error with the server's own text.
    pub(super) async fn exchange(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let exchange = self.exchange_untimed(method, path, body);
        tokio::time::timeout(EXCHANGE_TIMEOUT, exchange).await.map_err(|_| anyhow!("{self} does not answer"))?
    }

    async fn exchange_untimed(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let unreachable = |error| anyhow!("cannot reach {self} ({error}); is `midstream serve` running there?");
        let stream = (self.dial)().await.map_err(unreachable)?;
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        request = request.header(header::HOST, self.authority.as_str());
        if let Some(credential) = &self.credential {
            request = request.header(header::AUTHORIZATION, credential);
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = request.body(body)?;
        let exchange = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let bytes = to_bytes(Body::new(answer.into_body()), ANSWER_BYTES_MAX).await?;
            Ok::<_, anyhow::Error>((status, bytes))
        };
        let mut exchange = std::pin::pin!(exchange);
        let (status, bytes) = tokio::select! {
            answer = &mut exchange => answer,
            // The connection may be at its end before the answer was read out of it.
            _ = connection => exchange.await,
        }
        .with_context(|| format!("{self} broke off its answer"))?;
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if !status.is_success() {
            let text = answer["error"]["message"].as_str().map_or_else(|| status.to_string(), str::to_owned);
            bail!("{self} refused: {text}");
        }
        Ok(answer)
    }

    /// Opens the conversation's WebSocket.
    pub(super) async fn connect(&self, conversation: &str) -> Result<Socket> {
        let url = format!("ws://{}{}/v1/conversations/{conversation}/ws", self.authority, self.base);
        let mut request = url.into_client_request()?;
        if let Some(credential) = &self.credential {
            request.headers_mut().insert(header::AUTHORIZATION, credential.clone());
        }
        let stream = (self.dial)().await.map_err(|error| anyhow!("cannot reach {self} ({error})"))?;
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(answer)) if answer.status() == StatusCode::NOT_FOUND => {
                bail!("{self} has no conversation {conversation}")
            }
            Err(error) => Err(anyhow!("cannot join {conversation} on {self} ({error})")),
        }
    }
}

impl std::fmt::Display for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}://{}{}", self.scheme, self.authority, self.base)
    }
}
