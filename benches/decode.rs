//! How fast the local engine decodes 1, 2, 4 and 8 sequences together, without guesses; how fast it reads a prompt of
//! 512 tokens; how fast it writes freely and in a given form, and what the masks of that form take; and how fast it
//! repeats a text and writes a new one, without guesses and with them.
//!
//! `MIDSTREAM_TEST_MODEL=FILE.gguf cargo bench --bench decode [-- THREADS…]`; by default with 1 and 2 threads.
#![allow(clippy::print_stdout)] // its output is a table for people
#![allow(missing_docs)]
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use midstream::clock::monotonic;
use midstream::engine::settings::{Constraint, TextRule};
use midstream::engine::{
    Compiled, Engine, EngineEvent, Generation, GenerationRequest, LoadOptions, LocalEngine, Surroundings,
};
use serde_json::json;

/// Tokens of the prompt before decoding is measured.
const CONTEXT: u32 = 128;
/// Tokens that each sequence decodes.
const DECODED: u32 = 96;
/// The prompt whose reading is measured.
const PROMPT: u32 = 512;
/// Runs of which the best counts: whatever else the machine does only slows down.
const RUNS: u64 = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(path) = std::env::var_os("MIDSTREAM_TEST_MODEL").map(PathBuf::from) else {
        println!("set MIDSTREAM_TEST_MODEL to a GGUF file");
        return Ok(());
    };
    let mut threads: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    if threads.is_empty() {
        threads = vec![1, 2];
    }
    println!("threads   prefill {PROMPT}   decode tokens/s of     1        2        4        8 sequences");
    let options =
        |threads, guessed_tokens| LoadOptions { threads: Some(threads), guessed_tokens, ..LoadOptions::default() };
    for threads in &threads {
        let engine = LocalEngine::load(&path, &options(*threads, 0))?;
        let mut salt = 0;
        let prefill = best(|| prefill(&engine, next(&mut salt)))?;
        let mut line = format!("{threads:>7}   {prefill:>11.0}                      ");
        for sequences in [1, 2, 4, 8] {
            let rate = best(|| decode(&engine, sequences, next(&mut salt)))?;
            write!(line, "{rate:>9.1}")?;
        }
        println!("{line}");
    }
    println!("threads   answer     tokens/s free     of a form   masks: median, 99 %, in microseconds");
    for threads in &threads {
        let engine = LocalEngine::load(&path, &options(*threads, 0))?;
        let compiled = form(&engine)?;
        let (mut free, mut formed, mut tokens) = (0.0_f64, 0.0_f64, Vec::new());
        for _ in 0..RUNS {
            free = free.max(answer(&engine, None)?.0);
            let (rate, said) = answer(&engine, Some(compiled.clone()))?;
            (formed, tokens) = (formed.max(rate), said);
        }
        let (median, most) = masks(&compiled, &tokens)?;
        println!("{threads:>7}   {:<8} {free:>14.1} {formed:>13.1}   {median:>14.0} {most:>6.0}", "person");
    }
    println!("threads   answer     tokens/s without guesses     with   guessed   right");
    for threads in threads {
        for (name, question) in [("repeats", REPEATS), ("is new", IS_NEW)] {
            let plain = LocalEngine::load(&path, &options(threads, 0))?;
            let guessing = LocalEngine::load(&path, &options(threads, LoadOptions::default().guessed_tokens))?;
            // In turns, so that what else the machine does hits both.
            let (mut without, mut with) = (0.0_f64, 0.0_f64);
            for _ in 0..RUNS {
                without = without.max(write(&plain, question)?);
                with = with.max(write(&guessing, question)?);
            }
            let stats = guessing.stats();
            let (guessed, right) = (stats.tokens_guessed / RUNS, stats.tokens_guessed_right / RUNS);
            println!("{threads:>7}   {name:<8} {without:>26.1} {with:>8.1} {guessed:>9} {right:>7}");
        }
    }
    Ok(())
}

/// Tokens of an answer to a question.
const WRITTEN: u32 = 200;
/// A question whose answer is in it.
const REPEATS: &str = concat!(
    "<|im_start|>user\nPrint this file again, unchanged:\n```python\nimport json\n\n\n",
    "def load(path):\n    with open(path) as file:\n        data = json.load(file)\n",
    "    return [item for item in data if item[\"active\"]]\n\n\n",
    "def totals(items):\n    result = {}\n    for item in items:\n        name = item[\"name\"]\n",
    "        result[name] = result.get(name, 0) + item[\"price\"]\n    return result\n\n\n",
    "if __name__ == \"__main__\":\n    for name, total in totals(load(\"items.json\")).items():\n",
    "        print(name, total)\n```<|im_end|>\n<|im_start|>assistant\n```python\n"
);
/// A question whose answer is not.
const IS_NEW: &str =
    "<|im_start|>user\nTell a story about a lighthouse and a storm.<|im_end|>\n<|im_start|>assistant\n";

/// Tokens per second of a greedy answer behind its first token.
fn write(engine: &LocalEngine, question: &str) -> Result<f64, Box<dyn std::error::Error>> {
    let prompt: Vec<u32> = engine.model().tokenizer.encode(question, true);
    let mut generation = submit_tokens(engine, prompt.into(), WRITTEN, 0)?;
    await_token(&mut generation)?;
    let begin = monotonic();
    let mut tokens = 0;
    while let Some(event) = generation.events.blocking_recv() {
        tokens += u32::from(matches!(event, EngineEvent::Token(_)));
    }
    Ok(f64::from(tokens) / seconds(begin))
}

/// A schema with nested objects, lists, patterns and choices.
fn form(engine: &LocalEngine) -> Result<Compiled, Box<dyn std::error::Error>> {
    let work = json!({
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 60},
            "year": {"type": "integer", "minimum": 1000, "maximum": 2030},
            "kind": {"enum": ["painting", "sculpture", "drawing", "print"]},
            "sizes": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3},
        },
        "required": ["title", "year", "kind", "sizes"],
        "additionalProperties": false,
    });
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 60},
            "born": {"type": "string", "pattern": "^[12][0-9]{3}-[01][0-9]-[0-3][0-9]$"},
            "alive": {"type": "boolean"},
            "works": {"type": "array", "items": work, "minItems": 4, "maxItems": 8},
            "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 200}]},
        },
        "required": ["name", "born", "alive", "works", "note"],
        "additionalProperties": false,
    });
    let constraint = Constraint { text: TextRule::JsonSchema { schema }, calls: None, at: None };
    let model = engine.model();
    let surroundings = Surroundings { tools: &[], tool_format: model.tool_format, reasoning: model.reasoning };
    let grammars = model.grammars.as_ref().ok_or("no constraints")?;
    Ok(grammars.compile(&constraint, &surroundings)?)
}

/// Tokens per second of an answer behind its first token, and the tokens; it is held to the form, if to one.
fn answer(engine: &LocalEngine, form: Option<Compiled>) -> Result<(f64, Vec<u32>), Box<dyn std::error::Error>> {
    let question = "<|im_start|>user\nDescribe a painter and the works as JSON.<|im_end|>\n<|im_start|>assistant\n";
    let prompt: Vec<u32> = engine.model().tokenizer.encode(question, true);
    let ends = engine.model().tokenizer.end_of_generation();
    let mut generation = engine.submit(GenerationRequest {
        stop_tokens: ends.into(),
        constraint: form.map(|form| (form, Some(false))),
        channel_capacity: WRITTEN as usize + 8,
        ..GenerationRequest::greedy(prompt.into(), WRITTEN)
    })?;
    await_token(&mut generation)?;
    let (begin, mut tokens) = (monotonic(), Vec::new());
    while let Some(event) = generation.events.blocking_recv() {
        if let EngineEvent::Token(token) = event {
            tokens.push(token);
        }
    }
    let rate = tokens.len() as f64 / seconds(begin);
    tokens.retain(|token| !ends.contains(token));
    Ok((rate, tokens))
}

/// How long a mask takes in front of each token of an answer that was held to the form: the median, and what one in a
/// hundred takes longer than; in microseconds.
fn masks(compiled: &Compiled, tokens: &[u32]) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let mut guide = compiled.guide(Some(false));
    let mut times = Vec::with_capacity(tokens.len());
    // The first token was not counted with the others.
    let first = guide.forced().first().copied().ok_or("the form begins with a choice")?;
    guide.accept(first)?;
    for token in tokens {
        let begin = monotonic();
        guide.mask()?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
        guide.accept(*token)?;
    }
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: usize| times.get(times.len().saturating_sub(1) * share / 100).copied().unwrap_or_default();
    Ok((at(50), at(99)))
}

fn next(salt: &mut u64) -> u64 {
    *salt += 1;
    *salt
}

fn best<E>(mut run: impl FnMut() -> Result<f64, E>) -> Result<f64, E> {
    (0..RUNS).try_fold(0.0, |best: f64, _| Ok(best.max(run()?)))
}

/// Another salt each time, so that nothing comes from the cache.
fn submit(
    engine: &LocalEngine,
    length: u32,
    max_tokens: u32,
    salt: u64,
) -> Result<Generation, Box<dyn std::error::Error>> {
    let vocabulary = engine.model().tokenizer.vocab_size() as u32;
    let prompt = (0..length).map(|index| (index * 7_919 + 311) % vocabulary).collect();
    submit_tokens(engine, prompt, max_tokens, salt)
}

fn submit_tokens(
    engine: &LocalEngine,
    prompt: Arc<[u32]>,
    max_tokens: u32,
    salt: u64,
) -> Result<Generation, Box<dyn std::error::Error>> {
    Ok(engine.submit(GenerationRequest {
        cache_salt: salt,
        channel_capacity: max_tokens as usize + 8,
        ..GenerationRequest::greedy(prompt, max_tokens)
    })?)
}

/// Tokens per second until the first token of the answer.
fn prefill(engine: &LocalEngine, salt: u64) -> Result<f64, Box<dyn std::error::Error>> {
    let begin = monotonic();
    let mut generation = submit(engine, PROMPT, 1, salt)?;
    while generation.events.blocking_recv().is_some() {}
    Ok(f64::from(PROMPT) / begin.elapsed().as_secs_f64())
}

/// Tokens per second of all sequences together, while all of them decode.
fn decode(engine: &LocalEngine, sequences: u64, salt: u64) -> Result<f64, Box<dyn std::error::Error>> {
    let mut running = (0..sequences)
        .map(|index| submit(engine, CONTEXT, DECODED * 2, salt << 16 | index))
        .collect::<Result<Vec<_>, _>>()?;
    // All decode once the last one has sent its first token; the first one ends first.
    let last = running.len() - 1;
    await_token(&mut running[last])?;
    let begin = monotonic();
    let before = sampled(engine);
    for _ in 0..DECODED {
        await_token(&mut running[last])?;
    }
    let rate = (sampled(engine) - before) as f64 / seconds(begin);
    for generation in &mut running {
        generation.abort.abort();
        while generation.events.blocking_recv().is_some() {}
    }
    Ok(rate)
}

fn seconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64()
}

fn sampled(engine: &LocalEngine) -> u64 {
    engine.stats().tokens_sampled
}

fn await_token(generation: &mut Generation) -> Result<(), String> {
    loop {
        match generation.events.blocking_recv() {
            Some(EngineEvent::Token(_)) => return Ok(()),
            Some(EngineEvent::Started { .. }) => {}
            other => return Err(format!("the sequence ended early: {other:?}")),
        }
    }
}
