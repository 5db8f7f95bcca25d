//! `midstream chat`: a conversation from the terminal, over the conversation's WebSocket.
//!
//! A client of the public API like any other: it shares no state with a server in the same process.

mod client;
mod session;
#[cfg(test)]
mod tests;

use std::io::{BufRead, IsTerminal, Read, Write};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use axum::http::Method;
use clap::Args;
use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::ids::FreshIds;
use client::{Client, Socket};
use session::{Output, Session};

/// Lines that may be typed ahead.
const LINES_QUEUED: usize = 16;

/// Waits between attempts to reach the server again, in milliseconds; the last one is repeated.
const RECONNECT_WAITS_MS: [u64; 5] = [100, 200, 500, 1000, 2000];

/// Attempts to reach the server again before the chat gives up: about a minute.
const RECONNECTS_MAX: usize = 32;

/// What is set on the command line.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The server
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The model to ask [default: the first one that the server lists]
    #[arg(long)]
    model: Option<String>,
    /// An existing conversation to go on with [default: a new one]
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// What to ask; without it standard input is read, line by line from a terminal
    #[arg(value_name = "MESSAGE")]
    message: Vec<String>,
}

/// What a person does.
#[derive(Debug)]
enum Input {
    Line(String),
    End,
    Interrupt,
}

/// Holds the chat until the person leaves or the one answer is there.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let message = match arguments.message.as_slice() {
        [] if std::io::stdin().is_terminal() => None,
        [] => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input is no text")?;
            Some(text.trim_end().to_owned())
        }
        words => Some(words.join(" ")),
    };
    if message.as_ref().is_some_and(|message| message.trim().is_empty()) {
        anyhow::bail!("there is nothing to ask: the message is empty");
    }
    let is_interactive = message.is_none();
    let (inputs, typed) = mpsc::channel(LINES_QUEUED);
    if is_interactive {
        std::thread::spawn(move || read_lines(&inputs));
    }
    let api_key = std::env::var("MIDSTREAM_API_KEY").ok();
    let client = Client::new(&arguments.url, api_key.as_deref())?;
    let screen = Screen::new(std::io::stdout(), std::io::stderr(), is_interactive);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let (model, conversation) = join(&client, arguments).await?;
        let session = Session::new(model, FreshIds::random(), !is_interactive);
        let interrupts = signal(SignalKind::interrupt())?;
        let is_typing_over = !is_interactive;
        Chat { client, conversation, session, screen, typed, is_typing_over, interrupts }.run(message).await
    });
    // The thread that reads the terminal may still wait for a line.
    runtime.shutdown_background();
    outcome
}

/// The model to ask and the conversation to hold.
async fn join(client: &Client, arguments: &Arguments) -> Result<(String, String)> {
    let model = if let Some(model) = &arguments.model {
        model.clone()
    } else {
        let models = client.exchange(Method::GET, "/v1/models", None).await?;
        models["data"][0]["id"].as_str().with_context(|| format!("{client} serves no model"))?.to_owned()
    };
    let conversation = if let Some(conversation) = &arguments.conversation {
        conversation.clone()
    } else {
        let created = client.exchange(Method::POST, "/v1/conversations", Some(json!({}))).await?;
        created["id"].as_str().with_context(|| format!("{client} made no conversation"))?.to_owned()
    };
    Ok((model, conversation))
}

fn read_lines(inputs: &mpsc::Sender<Input>) {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if inputs.blocking_send(Input::Line(line)).is_err() {
            return;
        }
    }
    // The chat may be over already.
    let _ = inputs.blocking_send(Input::End);
}

/// Where answers and notices go.
struct Screen<O, N> {
    out: O,
    notes: N,
    is_interactive: bool,
    /// Whether the last line of the answer is still open.
    is_in_line: bool,
    /// Whether the prompt stands there and nothing was typed behind it.
    is_prompted: bool,
}

impl<O: Write, N: Write> Screen<O, N> {
    fn new(out: O, notes: N, is_interactive: bool) -> Self {
        Self { out, notes, is_interactive, is_in_line: false, is_prompted: false }
    }

    fn text(&mut self, text: &str) -> std::io::Result<()> {
        self.leave_prompt()?;
        self.is_in_line = !text.ends_with('\n') && (self.is_in_line || !text.is_empty());
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    fn reasoning(&mut self, text: &str) -> std::io::Result<()> {
        if self.is_interactive { self.text(&format!("\x1b[2m{text}\x1b[0m")) } else { Ok(()) }
    }

    fn end_line(&mut self) -> std::io::Result<()> {
        if self.is_in_line { self.text("\n") } else { Ok(()) }
    }

    fn notice(&mut self, text: &str) -> std::io::Result<()> {
        self.leave_prompt()?;
        self.end_line()?;
        writeln!(self.notes, "midstream: {text}")
    }

    fn prompt(&mut self) -> std::io::Result<()> {
        if !self.is_interactive || self.is_prompted {
            return Ok(());
        }
        self.end_line()?;
        self.is_prompted = true;
        self.out.write_all(b"> ")?;
        self.out.flush()
    }

    /// What comes now was not typed, so it begins on a line of its own.
    fn leave_prompt(&mut self) -> std::io::Result<()> {
        if std::mem::take(&mut self.is_prompted) { self.out.write_all(b"\n") } else { Ok(()) }
    }
}

/// One chat with its connection and its terminal.
struct Chat<O, N> {
    client: Client,
    conversation: String,
    session: Session,
    screen: Screen<O, N>,
    typed: mpsc::Receiver<Input>,
    /// Whether nothing more comes from `typed`.
    is_typing_over: bool,
    interrupts: Signal,
}

/// What woke the chat.
enum Wake {
    Frame(Option<Result<Message, tungstenite::Error>>),
    Input(Input),
}

impl<O: Write, N: Write> Chat<O, N> {
    async fn run(mut self, message: Option<String>) -> Result<()> {
        let mut socket = self.client.connect(&self.conversation).await?;
        if self.screen.is_interactive {
            self.screen.notice(&format!(
                "conversation {}; a line typed during an answer steers it, Ctrl-C cancels it",
                self.conversation
            ))?;
        }
        let mut outputs = self.session.on_connected();
        if let Some(message) = message {
            outputs.extend(self.session.on_line(&message));
        }
        loop {
            let is_connected = match self.perform(outputs, &mut socket).await? {
                Performed::Quit(outcome) => return outcome.map_err(|reason| anyhow!(reason)),
                Performed::All => true,
                Performed::Disconnected => false,
            };
            outputs = match self.next(&mut socket, is_connected).await? {
                Wake::Input(Input::Line(line)) => {
                    self.screen.is_prompted = false;
                    self.session.on_line(&line)
                }
                Wake::Input(Input::End) => self.session.on_end_of_input(),
                Wake::Input(Input::Interrupt) => self.session.on_interrupt(),
                Wake::Frame(Some(Ok(Message::Text(text)))) => {
                    let frame = serde_json::from_str(&text).context("the server sent a frame that is no JSON")?;
                    self.session.on_frame(&frame)
                }
                Wake::Frame(Some(Ok(Message::Close(_)) | Err(_)) | None) => {
                    socket = self.reconnect().await?;
                    self.session.on_connected()
                }
                Wake::Frame(Some(Ok(_))) => Vec::new(),
            };
        }
    }

    /// Waits for the server or the person, whoever is first.
    async fn next(&mut self, socket: &mut Socket, is_connected: bool) -> Result<Wake> {
        if !is_connected {
            return Ok(Wake::Frame(None));
        }
        let woken = tokio::select! {
            frame = socket.next() => Wake::Frame(frame),
            input = self.typed.recv(), if !self.is_typing_over => Wake::Input(input.unwrap_or(Input::End)),
            _ = self.interrupts.recv() => Wake::Input(Input::Interrupt),
        };
        self.is_typing_over |= matches!(woken, Wake::Input(Input::End));
        Ok(woken)
    }

    async fn perform(&mut self, outputs: Vec<Output>, socket: &mut Socket) -> Result<Performed> {
        for output in outputs {
            match output {
                Output::Text(text) => self.screen.text(&text)?,
                Output::Reasoning(text) => self.screen.reasoning(&text)?,
                Output::EndOfAnswer => self.screen.end_line()?,
                Output::Notice(text) => self.screen.notice(&text)?,
                Output::Send(frame) => {
                    if socket.send(Message::text(frame.to_string())).await.is_err() {
                        // The session repeats what was not answered.
                        return Ok(Performed::Disconnected);
                    }
                }
                Output::Quit(outcome) => {
                    self.screen.end_line()?;
                    // The server does not depend on a farewell.
                    let _ = socket.close(None).await;
                    return Ok(Performed::Quit(outcome));
                }
            }
        }
        if self.session.is_idle() {
            self.screen.prompt()?;
        }
        Ok(Performed::All)
    }

    /// Reaches the server again; Ctrl-C gives up at once.
    async fn reconnect(&mut self) -> Result<Socket> {
        if self.screen.is_interactive {
            self.screen.notice("the connection was lost; reconnecting …")?;
        }
        let mut last = None;
        for attempt in 0..RECONNECTS_MAX {
            let wait_ms = RECONNECT_WAITS_MS[attempt.min(RECONNECT_WAITS_MS.len() - 1)];
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
                _ = self.interrupts.recv() => break,
            }
            match self.client.connect(&self.conversation).await {
                Ok(socket) => return Ok(socket),
                Err(error) => last = Some(error),
            }
        }
        let reason = last.unwrap_or_else(|| anyhow!("interrupted"));
        Err(reason.context(format!("the connection was lost; `--conversation {}` goes on with it", self.conversation)))
    }
}

/// What became of a list of outputs.
enum Performed {
    All,
    Disconnected,
    Quit(Result<(), String>),
}
