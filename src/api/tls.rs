//! The server's certificate and its key: read from files, and read again when the process is told to.
//!
//! **Invariant:** files that cannot be used keep a server from starting, and change nothing for one that runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What is spoken behind the handshake.
const PROTOCOL: &[u8] = b"http/1.1";

/// The files cannot be used; the text says which and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is not there, or may not be read.
    #[error("{} cannot be read: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file holds something else.
    #[error("{} holds no {what} in PEM{why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What is wrong with it, if that is known.
        why: &'static str,
    },
    /// They do not belong together, or are of a kind that is not spoken here.
    #[error("the certificate {} cannot be used with the key {}: {source}", cert.display(), key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// The certificate in force; clones have the same.
#[derive(Clone, Debug)]
pub struct Tls {
    cert_file: PathBuf,
    key_file: PathBuf,
    config: watch::Sender<Arc<ServerConfig>>,
}

impl Tls {
    /// The certificate chain and the key in these files, both in PEM.
    pub fn open(cert_file: &Path, key_file: &Path) -> Result<Self, Error> {
        let config = watch::Sender::new(Arc::new(read(cert_file, key_file)?));
        Ok(Self { cert_file: cert_file.to_owned(), key_file: key_file.to_owned(), config })
    }

    /// Reads the files again, for the connections that are opened from now on.
    pub fn reload(&self) -> Result<(), Error> {
        self.config.send_replace(Arc::new(read(&self.cert_file, &self.key_file)?));
        Ok(())
    }

    /// Shakes hands with a client.
    pub(super) async fn accept<I: AsyncRead + AsyncWrite + Unpin>(&self, io: I) -> std::io::Result<TlsStream<I>> {
        let config = Arc::clone(&self.config.borrow());
        TlsAcceptor::from(config).accept(io).await
    }
}

fn read(cert_file: &Path, key_file: &Path) -> Result<ServerConfig, Error> {
    let certificate = "certificate";
    let chain = CertificateDer::pem_file_iter(cert_file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| unread(cert_file, certificate, error))?;
    if chain.is_empty() {
        return Err(unread(cert_file, certificate, pem::Error::NoItemsFound));
    }
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| unread(key_file, "private key", error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let pair = |source| Error::Pair { cert: cert_file.to_owned(), key: key_file.to_owned(), source };
    let mut config = config.map_err(pair)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(config)
}

/// Why a file is of no use. What stands in it is not said: it may be the key.
fn unread(path: &Path, what: &'static str, error: pem::Error) -> Error {
    let path = path.to_owned();
    match error {
        pem::Error::Io(source) => Error::File { path, source },
        pem::Error::NoItemsFound => Error::Content { path, what, why: "" },
        _ => Error::Content { path, what, why: ": it is damaged" },
    }
}
