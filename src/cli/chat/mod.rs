//! `midstream chat`: a conversation from the terminal, over the conversation's WebSocket.
//!
//! A client of the public API like any other: it shares no state with a server in the same process.

mod screen;
mod session;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
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

use super::client::{Client, Socket, own_server};
use crate::ids::FreshIds;
use screen::Screen;
use session::{Output, Session};

/// Lines that may be typed ahead.
const LINES_QUEUED: usize = 16;

/// Waits between attempts to reach the server again, in milliseconds; the last one is repeated.
const RECONNECT_WAITS_MS: [u64; 5] = [100, 200, 500, 1000, 2000];

/// Attempts to reach the server again before the chat gives up: about a minute.
const RECONNECTS_MAX: usize = 32;

/// How long a chat that is told to go waits for the server to say that the answer is cancelled.
const FAREWELL_WAIT: Duration = Duration::from_secs(5);

/// What `/help` says.
const HELP: &str = "a line typed during an answer steers it; Ctrl-C cancels the answer, and leaves at the prompt; \
                    /quit leaves; /help says this; all else goes to the model";

/// What else there is to know.
const ABOUT: &str = "\
Examples:
  midstream chat 'What is the capital of France?'
  midstream chat --url http://127.0.0.1:8090 --max-tokens 200

Where the server asks for an API key, it is taken from the variable MIDSTREAM_API_KEY.";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = ABOUT)]
pub(super) struct Arguments {
    /// The server [default: where the settings let it listen, else 127.0.0.1:8080]
    #[arg(long)]
    url: Option<String>,
    /// The model to ask [default: the first one that the server lists]
    #[arg(long)]
    model: Option<String>,
    /// An existing conversation to go on with [default: a new one]
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// The most tokens of an answer [default: until the model ends it or its context is full]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
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
    Terminate,
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
    let url = arguments.url.clone().map_or_else(own_server, Ok)?;
    let client = Client::new(&url, api_key.as_deref())?;
    let screen = Screen::new(std::io::stdout(), std::io::stderr(), is_interactive);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let (model, conversation) = join(&client, arguments).await?;
        let session = Session::new(model, FreshIds::random(), !is_interactive).limited(arguments.max_tokens);
        let signals = Signals::new()?;
        let is_typing_over = !is_interactive;
        let is_lost = false;
        Chat { client, conversation, session, screen, typed, is_typing_over, is_lost, signals }.run(message).await
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

/// One chat with its connection and its terminal.
struct Chat<O, N> {
    client: Client,
    conversation: String,
    session: Session,
    screen: Screen<O, N>,
    typed: mpsc::Receiver<Input>,
    /// Whether nothing more comes from `typed`.
    is_typing_over: bool,
    /// Whether the person was told that the connection was lost, and it did not come back yet.
    is_lost: bool,
    signals: Signals,
}

/// What tells the process to go.
struct Signals {
    interrupts: Signal,
    terminates: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { interrupts: signal(SignalKind::interrupt())?, terminates: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) -> Input {
        tokio::select! {
            _ = self.interrupts.recv() => Input::Interrupt,
            _ = self.terminates.recv() => Input::Terminate,
        }
    }
}

/// What woke the chat.
enum Wake {
    Frame(Option<Result<Message, tungstenite::Error>>),
    Input(Input),
    /// The server does not say that the answer is cancelled.
    WaitedEnough,
}

impl<O: Write, N: Write> Chat<O, N> {
    async fn run(mut self, message: Option<String>) -> Result<()> {
        let mut socket = self.client.connect(&self.conversation).await?;
        if self.screen.is_interactive {
            self.screen.notice(&format!(
                "conversation {}; a line typed during an answer steers it, Ctrl-C cancels it, /help says more",
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
                Wake::Input(input) => self.on_input(input)?,
                Wake::Frame(Some(Ok(Message::Text(text)))) => {
                    self.is_lost = false;
                    let frame = serde_json::from_str(&text).context("the server sent a frame that is no JSON")?;
                    self.session.on_frame(&frame)
                }
                Wake::Frame(Some(Ok(Message::Close(_)) | Err(_)) | None) => {
                    socket = self.reconnect().await?;
                    self.session.on_connected()
                }
                Wake::Frame(Some(Ok(_))) => Vec::new(),
                Wake::WaitedEnough => {
                    vec![Output::Quit(self.session.farewell().cloned().unwrap_or(Ok(())))]
                }
            };
        }
    }

    fn on_input(&mut self, input: Input) -> Result<Vec<Output>> {
        Ok(match input {
            Input::Line(line) => {
                self.screen.on_typed_line();
                match line.trim() {
                    "/quit" => self.session.on_leave(Ok(())),
                    "/help" => {
                        self.screen.notice(HELP)?;
                        Vec::new()
                    }
                    _ => self.session.on_line(&line),
                }
            }
            Input::End => self.session.on_end_of_input(),
            Input::Interrupt => {
                self.screen.on_interrupt();
                self.session.on_interrupt()
            }
            Input::Terminate => self.session.on_leave(Err("terminated".to_owned())),
        })
    }

    /// Waits for the server or the person, whoever is first.
    async fn next(&mut self, socket: &mut Socket, is_connected: bool) -> Result<Wake> {
        if !is_connected {
            return Ok(Wake::Frame(None));
        }
        let woken = tokio::select! {
            frame = socket.next() => Wake::Frame(frame),
            input = self.typed.recv(), if !self.is_typing_over => Wake::Input(input.unwrap_or(Input::End)),
            signal = self.signals.next() => Wake::Input(signal),
            () = tokio::time::sleep(FAREWELL_WAIT), if self.session.farewell().is_some() => Wake::WaitedEnough,
        };
        self.is_typing_over |= matches!(woken, Wake::Input(Input::End));
        Ok(woken)
    }

    async fn perform(&mut self, outputs: Vec<Output>, socket: &mut Socket) -> Result<Performed> {
        let mut outputs = VecDeque::from(outputs);
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Text(text) => self.screen.text(&text)?,
                Output::Reasoning(text) => self.screen.reasoning(&text)?,
                Output::EndOfAnswer => self.screen.end_line()?,
                Output::Steered(text) => self.screen.steered(&text)?,
                Output::Notice(text) => self.screen.notice(&text)?,
                Output::Send(frame) => {
                    if socket.send(Message::text(frame.to_string())).await.is_err() {
                        // The session repeats what was not answered.
                        return Ok(Performed::Disconnected);
                    }
                }
                Output::Quit(outcome) => {
                    self.screen.leave()?;
                    // The server does not depend on a farewell.
                    let _ = socket.close(None).await;
                    return Ok(Performed::Quit(outcome));
                }
            }
            if self.screen.is_unread() && self.session.farewell().is_none() {
                // Whoever read the answer has enough of it, as `head` has: that is no error.
                outputs.extend(self.session.on_leave(Ok(())));
            }
        }
        if self.session.is_idle() {
            self.screen.prompt()?;
        }
        Ok(Performed::All)
    }

    /// Reaches the server again; Ctrl-C gives up at once.
    async fn reconnect(&mut self) -> Result<Socket> {
        if self.screen.is_interactive && !std::mem::replace(&mut self.is_lost, true) {
            self.screen.notice("reconnecting …")?;
        }
        let mut last = None;
        for attempt in 0..RECONNECTS_MAX {
            let wait_ms = RECONNECT_WAITS_MS[attempt.min(RECONNECT_WAITS_MS.len() - 1)];
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
                _ = self.signals.next() => {
                    self.screen.on_interrupt();
                    self.screen.leave()?;
                    break;
                }
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
