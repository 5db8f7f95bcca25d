//! Stands between a client and the server: one address while servers come and go, and what either side said.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// Passes connections on, and keeps what goes through.
pub(crate) struct Proxy {
    pub(crate) address: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Where the server is now; while there is none, connections are closed at once.
    upstream: Mutex<Option<String>>,
    asked: Mutex<Vec<u8>>,
    answered: Mutex<Vec<u8>>,
    /// How the request begins that finds nothing.
    refused: Mutex<Option<String>>,
    /// Who waits for the server to say something.
    waiting: Mutex<Option<(String, Sender<()>)>>,
}

impl Proxy {
    /// Begins to pass connections on.
    pub(crate) fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared::default());
        *shared.upstream.lock().unwrap() = Some(server.to_owned());
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let upstream = own.upstream.lock().unwrap().clone();
                let server = upstream.and_then(|address| TcpStream::connect(address).ok());
                let Some(server) = server else { continue };
                let (shared, back) = (Arc::clone(&own), Arc::clone(&own));
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let refusing = client.try_clone().unwrap();
                std::thread::spawn(move || pass(from, to, |bytes| shared.ask(bytes, &refusing)));
                std::thread::spawn(move || pass(server, client, |bytes| back.answer(bytes)));
            }
        });
        Self { address, shared }
    }

    /// Passes new connections on to this server, or to none.
    pub(crate) fn redirect(&self, server: Option<&str>) {
        *self.shared.upstream.lock().unwrap() = server.map(str::to_owned);
    }

    /// Answers the next request that begins like this itself: there is no such route.
    pub(crate) fn refuse_next(&self, head: &str) {
        *self.shared.refused.lock().unwrap() = Some(head.to_owned());
    }

    /// Is told once the server says this for the first time from now on.
    pub(crate) fn hears(&self, text: &str) -> Receiver<()> {
        let (told, hears) = channel();
        *self.shared.waiting.lock().unwrap() = Some((text.to_owned(), told));
        hears
    }

    /// How often the client said this.
    pub(crate) fn asked(&self, text: &str) -> usize {
        String::from_utf8_lossy(&self.shared.asked.lock().unwrap()).matches(text).count()
    }

    /// What the client sent in its requests that begin like this, as JSON.
    pub(crate) fn bodies(&self, head: &str) -> Vec<Value> {
        let asked = self.shared.asked.lock().unwrap();
        let asked = String::from_utf8_lossy(&asked);
        let begins = asked.match_indices(head).filter_map(|(place, _)| asked[place..].split_once("\r\n\r\n"));
        begins.map(|(_, rest)| serde_json::Deserializer::from_str(rest).into_iter().next().unwrap().unwrap()).collect()
    }

    /// How often the server said this.
    pub(crate) fn answered(&self, text: &str) -> usize {
        String::from_utf8_lossy(&self.shared.answered.lock().unwrap()).matches(text).count()
    }
}

impl Shared {
    /// Whether the server is to be asked this.
    fn ask(&self, bytes: &[u8], mut client: &TcpStream) -> bool {
        self.asked.lock().unwrap().extend(bytes);
        let is_refused = |head: &mut String| String::from_utf8_lossy(bytes).starts_with(&**head);
        if self.refused.lock().unwrap().take_if(is_refused).is_none() {
            return true;
        }
        let body = r#"{"type":"error","error":{"type":"not_found_error","message":"there is no such route"}}"#;
        let head = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\nconnection: close";
        write!(client, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        // Whoever still sends must not be cut off before it has read the answer.
        let _ = std::io::copy(&mut client, &mut std::io::sink());
        false
    }

    fn answer(&self, bytes: &[u8]) -> bool {
        let mut answered = self.answered.lock().unwrap();
        answered.extend(bytes);
        let mut waiting = self.waiting.lock().unwrap();
        if let Some((_, told)) = waiting.take_if(|(text, _)| String::from_utf8_lossy(&answered).contains(&**text)) {
            // A test that has ended waits no more.
            let _ = told.send(());
        }
        true
    }
}

/// Passes bytes on to the end, and then the end; `seen` says whether they are to be passed on.
fn pass(mut from: TcpStream, mut to: TcpStream, mut seen: impl FnMut(&[u8]) -> bool) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !seen(&bytes[..count]) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Either side may be gone already.
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
