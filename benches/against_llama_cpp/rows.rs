//! How each row is measured, on both sides in the same way and in turns.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use midstream::clock::monotonic;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::own::Own;
use super::peer::Peer;
use super::server::Server;
use super::stream::{Answer, Piece, Stream, request, words};
use super::{Group, Outcome, Row, median};

/// A row begins no further round behind this time: a slow machine measures fewer rounds, not for hours.
const ROW_DURATION_MAX: Duration = Duration::from_secs(100);

/// Tokens that a sequence decodes.
const DECODED: usize = 64;
/// Tokens in front of those of several sequences.
const CONTEXT: usize = 128;
const LONG_CONTEXT: usize = 2_048;

/// Clients of the streaming row, the slots they share at the peer, and the most tokens of an answer.
const CLIENTS: usize = 16;
const SLOTS: usize = 8;
const ANSWER_TOKENS: usize = 128;
/// Tokens of one slot's context.
const SLOT_CONTEXT: usize = 4_096;
/// What the clients' stories are about: prompts that are alike would share their cache.
const TOPICS: [&str; 8] =
    ["the sea", "a train", "two bridges", "winter", "a lighthouse", "bees", "a market", "the moon"];

/// Tokens of the prompt that arrives while another stream runs, about.
const ARRIVING_TOKENS: usize = 3_000;
/// Pieces that the running stream has brought by then.
const WARM_PIECES: usize = 20;

/// Sequences whose memory counts, and the tokens of each: a prompt and its answer.
const KEPT_SEQUENCES: usize = 8;
const KEPT_TOKENS: usize = 1_024;
/// Tokens of the template around a prompt, at most.
const TEMPLATE_TOKENS: usize = 64;

/// How far into its prompt a client leaves.
const LEAVES_AFTER: Duration = Duration::from_millis(500);

/// Both sides.
pub(crate) struct Sides {
    peer: Peer,
    model: PathBuf,
    model_bytes: u64,
    threads: usize,
    rounds: usize,
    time: Duration,
}

/// Which server.
#[derive(Clone, Copy)]
enum Side {
    Own,
    Peer,
}

impl Sides {
    pub(crate) fn new(model: &Path, tools: &Path, threads: usize, rounds: usize, seconds: u64) -> Outcome<Self> {
        let model_bytes = std::fs::metadata(model)?.len();
        let (peer, time) = (Peer::new(tools, model)?, Duration::from_secs(seconds));
        Ok(Self { peer, model: model.to_owned(), model_bytes, threads, rounds, time })
    }

    pub(crate) fn measure(&self, group: Group, runtime: &Runtime) -> Outcome<Vec<Row>> {
        match group {
            Group::Prefill => self.prefill(),
            Group::Decode => self.decode(),
            Group::Together => self.together(),
            Group::Clients => runtime.block_on(self.clients()),
            Group::Gap => runtime.block_on(self.gap()),
            Group::Memory => runtime.block_on(self.memory()),
            Group::Leave => runtime.block_on(self.leave()),
            Group::Competitor => self.competitor(),
            Group::Ready => runtime.block_on(self.ready()),
        }
    }

    /// The rounds of one row, as many as the time allows, one at least.
    fn rounds(&self) -> impl Iterator<Item = usize> {
        let begin = monotonic();
        (0..self.rounds).take_while(move |round| *round == 0 || begin.elapsed() < ROW_DURATION_MAX)
    }

    fn prefill(&self) -> Outcome<Vec<Row>> {
        let mut short = Row::new("prefill of 512", "tokens/s");
        let mut long = Row::new("prefill of 2,048", "tokens/s");
        for _ in self.rounds() {
            let found = self.peer.prefill(self.threads, &[512, LONG_CONTEXT])?;
            short.peer.push(found[0]);
            long.peer.push(found[1]);
            let mut own = Own::load(&self.model, self.threads)?;
            short.own.push(own.prefill(512)?);
            long.own.push(own.prefill(LONG_CONTEXT)?);
        }
        Ok(vec![short, long])
    }

    fn decode(&self) -> Outcome<Vec<Row>> {
        let mut short = Row::new("one sequence behind 128", "tokens/s");
        let mut long = Row::new("one sequence behind 2,048", "tokens/s");
        for _ in self.rounds() {
            let found = self.peer.decode(self.threads, &[CONTEXT, LONG_CONTEXT], DECODED)?;
            short.peer.push(found[0]);
            long.peer.push(found[1]);
            let mut own = Own::load(&self.model, self.threads)?;
            short.own.push(own.decode(1, CONTEXT, DECODED)?);
            long.own.push(own.decode(1, LONG_CONTEXT, DECODED)?);
        }
        Ok(vec![short, long])
    }

    fn together(&self) -> Outcome<Vec<Row>> {
        let mut few = Row::new("8 sequences", "tokens/s");
        let mut many = Row::new("32 sequences", "tokens/s");
        for _ in self.rounds() {
            let found = self.peer.together(self.threads, &[8, 32], CONTEXT, DECODED)?;
            few.peer.push(found[0]);
            many.peer.push(found[1]);
            let mut own = Own::load(&self.model, self.threads)?;
            few.own.push(own.decode(8, CONTEXT, DECODED)?);
            many.own.push(own.decode(32, CONTEXT, DECODED)?);
        }
        Ok(vec![few, many])
    }

    async fn clients(&self) -> Outcome<Vec<Row>> {
        let mut rate = Row::new("16 clients", "tokens/s");
        let mut first = Row::new("16 clients, first token", "s");
        for _ in self.rounds() {
            for side in [Side::Peer, Side::Own] {
                let server = self.serve(side, SLOT_CONTEXT).await?;
                let (tokens_per_second, seconds) = stream_clients(&server, self.time).await?;
                rate.of(side).push(tokens_per_second);
                first.of(side).push(seconds);
            }
        }
        Ok(vec![rate, first])
    }

    async fn gap(&self) -> Outcome<Vec<Row>> {
        let mut row = Row::new("longest gap while 3,000 tokens arrive", "s");
        for round in self.rounds() {
            for side in [Side::Peer, Side::Own] {
                let server = self.serve(side, SLOT_CONTEXT).await?;
                row.of(side).push(longest_gap(&server, round).await?.as_secs_f64());
            }
        }
        Ok(vec![row])
    }

    async fn memory(&self) -> Outcome<Vec<Row>> {
        let mut row = Row::new("above the weights, 8 x 1,024", "MB");
        for _ in self.rounds() {
            for side in [Side::Peer, Side::Own] {
                let server = self.serve(side, KEPT_TOKENS).await?;
                let prompt = KEPT_TOKENS - ANSWER_TOKENS - TEMPLATE_TOKENS;
                let bodies: Vec<_> =
                    (0..KEPT_SEQUENCES).map(|number| request(&words(number, prompt), ANSWER_TOKENS, number)).collect();
                let answers = join_all(bodies.iter().map(|body| Answer::read(&server, body))).await;
                answers.into_iter().collect::<Outcome<Vec<_>>>()?;
                let above = server.resident_bytes()?.saturating_sub(self.model_bytes);
                row.of(side).push(above as f64 / 1e6);
            }
        }
        Ok(vec![row])
    }

    async fn leave(&self) -> Outcome<Vec<Row>> {
        let mut row = Row::new("at rest after a client left in prefill", "s");
        for round in self.rounds() {
            for side in [Side::Peer, Side::Own] {
                let server = self.serve(side, SLOT_CONTEXT).await?;
                server.until_rest().await?;
                let body = request(&words(round, ARRIVING_TOKENS), ANSWER_TOKENS, round);
                if tokio::time::timeout(LEAVES_AFTER, Answer::read(&server, &body)).await.is_ok() {
                    return Err("the answer came before its client left".into());
                }
                row.of(side).push(server.until_rest().await?.as_secs_f64());
            }
        }
        Ok(vec![row])
    }

    fn competitor(&self) -> Outcome<Vec<Row>> {
        let mut to_peer = Row::new("beside a busy process, to the peer beside it", "tokens/s");
        let mut to_one = Row::new("beside a busy process, to one own thread", "tokens/s");
        for _ in self.rounds() {
            let peer = beside_a_busy_thread(|| self.peer.decode(self.threads, &[CONTEXT], DECODED))?;
            let alone = Own::load(&self.model, 1)?.decode(1, CONTEXT, DECODED)?;
            let mut own = Own::load(&self.model, self.threads)?;
            let own = beside_a_busy_thread(|| own.decode(1, CONTEXT, DECODED))?;
            to_peer.peer.extend(peer);
            to_one.peer.push(alone);
            to_peer.own.push(own);
            to_one.own.push(own);
        }
        Ok(vec![to_one, to_peer])
    }

    async fn ready(&self) -> Outcome<Vec<Row>> {
        let mut row = Row::new("start to ready", "s");
        for _ in self.rounds() {
            for side in [Side::Peer, Side::Own] {
                row.of(side).push(self.serve(side, SLOT_CONTEXT).await?.ready.as_secs_f64());
            }
        }
        Ok(vec![row])
    }

    async fn serve(&self, side: Side, context: usize) -> Outcome<Server> {
        match side {
            Side::Own => Server::own(&self.model, self.threads).await,
            Side::Peer => Server::peer(&self.peer.server(), &self.model, self.threads, SLOTS, context).await,
        }
    }
}

impl Row {
    fn new(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, own: Vec::new(), peer: Vec::new() }
    }

    fn of(&mut self, side: Side) -> &mut Vec<f64> {
        match side {
            Side::Own => &mut self.own,
            Side::Peer => &mut self.peer,
        }
    }
}

/// Tokens per second of all clients, and the median of their seconds to the first text.
async fn stream_clients(server: &Server, time: Duration) -> Outcome<(f64, f64)> {
    let begin = monotonic();
    let end = begin + time;
    let all = join_all((0..CLIENTS).map(|client| ask_until(server, client, end))).await;
    let answers: Vec<Answer> = all.into_iter().collect::<Outcome<Vec<_>>>()?.into_iter().flatten().collect();
    let tokens: f64 = answers.iter().map(|answer| answer.tokens_until(end)).sum();
    let first: Vec<f64> = answers.iter().filter_map(Answer::first).map(|first| first.as_secs_f64()).collect();
    Ok((tokens / time.as_secs_f64(), median(&first)))
}

/// Asks again and again until then. What has no text by then is dropped; what has is read to its end, which tells how
/// many tokens its pieces had.
async fn ask_until(server: &Server, client: usize, end: Instant) -> Outcome<Vec<Answer>> {
    let mut answers = Vec::new();
    while monotonic() < end {
        let number = answers.len();
        let topic = TOPICS[(client + number) % TOPICS.len()];
        let text = format!("{number}-{client}: write a long story about {topic}, with names and what everybody says.");
        let body = request(&text, ANSWER_TOKENS, client * 1_000 + number);
        match Answer::read_begun_by(server, &body, end).await? {
            Some(answer) => answers.push(answer),
            None => break,
        }
    }
    Ok(answers)
}

/// The longest time without text of a running answer while a long prompt arrives.
async fn longest_gap(server: &Server, round: usize) -> Outcome<Duration> {
    let (warm, last, longest) = (Notify::new(), Cell::new(None), Cell::new(Duration::ZERO));
    let note = |now: Instant| {
        let since = last.replace(Some(now)).map_or(Duration::ZERO, |last: Instant| now - last);
        longest.set(longest.get().max(since));
    };
    let running = async {
        // One answer after the other, should the model end early; then the time between them counts as well.
        for number in 0.. {
            let topic = TOPICS[(round + number) % TOPICS.len()];
            let body = request(&format!("Write a very long book about {topic}."), ARRIVING_TOKENS, number);
            let mut stream = Stream::open(server, &body).await?;
            let mut pieces = 0;
            while let Some(piece) = stream.next().await? {
                if matches!(piece, Piece::Text) {
                    note(monotonic());
                    pieces += 1;
                    if pieces == WARM_PIECES {
                        warm.notify_one();
                    }
                }
            }
        }
        Outcome::Ok(())
    };
    let arriving = async {
        warm.notified().await;
        longest.set(Duration::ZERO);
        let answer = Answer::read(server, &request(&words(round, ARRIVING_TOKENS), 1, round)).await?;
        Outcome::Ok(answer)
    };
    tokio::select! {
        ended = running => ended?,
        arrived = arriving => drop(arrived?),
    }
    // The gap that the arrival ended.
    note(monotonic());
    Ok(longest.get())
}

/// Runs it while another thread takes all it can get.
fn beside_a_busy_thread<T>(run: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let result = run();
        over.store(true, Ordering::Relaxed);
        result
    })
}
