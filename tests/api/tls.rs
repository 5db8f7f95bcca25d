//! TLS: HTTP and sockets over it, certificates that change, and what cannot be used.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use midstream::api::{Doors, Tls};
use midstream::config::Config;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;

use crate::certificate::{Certificate, pem};
use crate::support::{PATIENCE, Server, Setup};

/// The files of a certificate for `localhost` and its key, and the folder that they are in.
struct Files {
    folder: TempDir,
    cert: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new() -> (Self, CertificateDer<'static>) {
        let folder = TempDir::new().unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let files = Self { folder, cert, key };
        let shown = files.renew();
        (files, shown)
    }

    /// Writes another certificate, with another key; gives it.
    fn renew(&self) -> CertificateDer<'static> {
        let made = Certificate::of_localhost();
        std::fs::write(&self.cert, pem("CERTIFICATE", &made.cert)).unwrap();
        std::fs::write(&self.key, pem("PRIVATE KEY", &made.key)).unwrap();
        made.cert.into()
    }

    fn open(&self) -> Tls {
        Tls::open(&self.cert, &self.key).unwrap()
    }
}

async fn serve(tls: Tls, header_timeout: Duration) -> Server {
    let doors = Doors { tls: Some(tls), header_timeout, ..Doors::new(&Config::default()) };
    Server::start_with(Setup { doors, ..Setup::default() }).await
}

/// A connection to the server, whose certificate must be this one.
async fn shake(server: &Server, trusted: &CertificateDer<'static>) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(&server.address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// Posts a body on a connection of its own; gives all that is answered.
async fn post(server: &Server, trusted: &CertificateDer<'static>, path: &str, body: &Value) -> String {
    let (mut stream, body) = (shake(server, trusted).await.unwrap(), body.to_string());
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("it ends").unwrap();
    answer
}

#[tokio::test]
async fn http_and_streams_are_spoken_over_tls() {
    let (files, trusted) = Files::new();
    let server = serve(files.open(), PATIENCE).await;
    let whole = post(&server, &trusted, "/v1/responses", &json!({"input": "hi"})).await;
    assert!(whole.starts_with("HTTP/1.1 200") && whole.contains("Hello, world"), "{whole}");
    let streamed = post(&server, &trusted, "/v1/responses", &json!({"input": "slow", "stream": true})).await;
    assert!(streamed.contains("event: response.completed") && streamed.contains("one two three four"), "{streamed}");
    // More than one record holds.
    let echoed = post(
        &server,
        &trusted,
        "/v1/chat/render",
        &json!({"messages": [
        {"role": "user", "content": "x".repeat(200_000)}]}),
    )
    .await;
    assert!(echoed.matches('x').count() >= 200_000);
}

#[tokio::test]
async fn a_socket_is_opened_over_tls() {
    let (files, trusted) = Files::new();
    let server = serve(files.open(), PATIENCE).await;
    let opened = post(&server, &trusted, "/v1/conversations", &json!({})).await;
    let conversation: Value = serde_json::from_str(opened.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let url = format!("ws://localhost/v1/conversations/{}/ws", conversation["id"].as_str().unwrap());
    let (mut socket, _) = client_async(url, shake(&server, &trusted).await.unwrap()).await.unwrap();
    socket.send(Message::text(json!({"type": "response.create", "input": "hi"}).to_string())).await.unwrap();
    let answered = async {
        loop {
            let Message::Text(text) = socket.next().await.unwrap().unwrap() else { continue };
            if text.contains("response.completed") {
                return text.to_string();
            }
        }
    };
    assert!(timeout(PATIENCE, answered).await.expect("it is answered").contains("Hello, world"));
}

#[tokio::test]
async fn whoever_speaks_no_tls_or_nothing_at_all_is_closed_and_others_are_answered() {
    let (files, trusted) = Files::new();
    let server = serve(files.open(), Duration::from_millis(500)).await;
    let closed = async |said: &[u8]| {
        let mut stream = TcpStream::connect(&server.address).await.unwrap();
        stream.write_all(said).await.unwrap();
        let mut answer = Vec::new();
        // An alert is an answer too, and a reset a close.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is closed");
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    };
    // The last one begins a handshake.
    let all: [&[u8]; 3] = [b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"", b"\x16\x03\x01\x02\x00\x01"];
    futures_util::future::join_all(all.map(closed)).await;
    let answered = async {
        // A busy machine may take too long for a handshake.
        while shake(&server, &trusted).await.is_err() {}
    };
    timeout(PATIENCE, answered).await.expect("others are answered");
}

#[tokio::test]
async fn a_certificate_that_changes_is_shown_once_it_was_read_again() {
    let (files, first) = Files::new();
    let tls = files.open();
    let server = serve(tls.clone(), PATIENCE).await;
    let mut before = shake(&server, &first).await.unwrap();
    let second = files.renew();
    assert!(shake(&server, &second).await.is_err(), "nobody said that it changed");
    tls.reload().unwrap();
    shake(&server, &second).await.unwrap();
    assert!(shake(&server, &first).await.is_err());
    // What is open goes on.
    before.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    timeout(PATIENCE, before.read_exact(&mut answer)).await.expect("it is answered").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    // What cannot be used changes nothing.
    std::fs::write(&files.key, "damaged").unwrap();
    tls.reload().unwrap_err();
    shake(&server, &second).await.unwrap();
}

#[test]
fn files_that_cannot_be_used_are_refused_by_name_and_without_what_is_in_them() {
    let ((own, _), (other, _)) = (Files::new(), Files::new());
    let refused = |cert: &Path, key: &Path| Tls::open(cert, key).unwrap_err().to_string();
    let written = |name: &str, text: &str| {
        let path = own.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let named = |path: &Path, said: &str| format!("{} {said}", path.display());
    let absent = own.folder.path().join("absent.pem");
    assert!(refused(&absent, &own.key).starts_with(&named(&absent, "cannot be read: ")));
    assert!(refused(&own.cert, &absent).starts_with(&named(&absent, "cannot be read: ")));
    assert_eq!(refused(&own.key, &own.key), named(&own.key, "holds no certificate in PEM"));
    assert_eq!(refused(&own.cert, &own.cert), named(&own.cert, "holds no private key in PEM"));
    let secret = written("secret.pem", "-----BEGIN PRIVATE KEY-----\nsk-secret!\n-----END PRIVATE KEY-----\n");
    assert_eq!(refused(&own.cert, &secret), named(&secret, "holds no private key in PEM: it is damaged"));
    let garbage = written("garbage.pem", &pem("CERTIFICATE", b"no certificate"));
    for (cert, key) in [(&own.cert, &other.key), (&garbage, &own.key)] {
        let said = refused(cert, key);
        let expected = format!("the certificate {} cannot be used with the key {}: ", cert.display(), key.display());
        assert!(said.starts_with(&expected), "{said}");
    }
}
