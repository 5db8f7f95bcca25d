//! Compares this engine with what `tools/agreement/` wrote about an independent implementation; prints JSON.
//!
//! `scripts/agreement` runs it. A development tool: the thresholds it judges by are the ones that make two right
//! implementations agree, whose roundings differ.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use midstream::engine::{LoadOptions, Scorer};
use serde::Deserialize;
use serde_json::{Value, json};

/// Where every build of the reference is surer than this, the top token must be the same.
const MARGIN: f32 = 0.4;
/// How far, relatively, the perplexities may be apart.
const PERPLEXITY_TOLERANCE: f64 = 0.01;
/// Differing texts that the report shows.
const SHOWN_MAX: usize = 5;

/// Logits, a row of the vocabulary's size per position.
type Rows = Vec<Vec<f32>>;

/// What both sides read.
#[derive(Deserialize)]
struct Texts {
    question: String,
    prompts: Vec<String>,
    lines: Vec<String>,
    books: Vec<Book>,
}

#[derive(Deserialize)]
struct Book {
    name: String,
    text: String,
}

/// What the reference found.
#[derive(Deserialize)]
struct Reference {
    positions: usize,
    context: usize,
    prompts: Vec<Vec<u32>>,
    lines: Vec<Vec<u32>>,
    books: Vec<ReferenceBook>,
    answer: Vec<u32>,
}

#[derive(Deserialize)]
struct ReferenceBook {
    ids: Vec<u32>,
    perplexity: f64,
    scored: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [model, folder] = &arguments[..] else {
        return Err(
            "usage: agreement MODEL.gguf FOLDER (with texts.json, reference.json, logits.f32, exact.f32)".into()
        );
    };
    let texts: Texts = read(&folder.join("texts.json"))?;
    let reference: Reference = read(&folder.join("reference.json"))?;
    let mut scorer = Scorer::load(model, &LoadOptions::default())?;
    let (tokens, tokens_agree) = compare_tokens(&scorer, &texts, &reference);
    let (logits, logits_agree) = compare_logits(&mut scorer, &reference, folder)?;
    let (perplexity, perplexity_agrees) = compare_perplexity(&mut scorer, &texts, &reference)?;
    let answer = greedy(&mut scorer, &texts.question, reference.answer.len())?;
    let tokenizer = &scorer.model().tokenizer;
    let agrees = tokens_agree && logits_agree && perplexity_agrees;
    let report = json!({
        "agrees": agrees,
        "tokens": tokens,
        "logits": logits,
        "perplexity": perplexity,
        "greedy_answer": {
            "equal_tokens": answer.iter().zip(&reference.answer).take_while(|(own, other)| own == other).count(),
            "tokens": reference.answer.len(),
            "own": tokenizer.decode(&answer),
            "reference": tokenizer.decode(&reference.answer),
        },
    });
    writeln!(std::io::stdout(), "{report:#}")?;
    if agrees { Ok(()) } else { Err("the two implementations do not agree".into()) }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Box<dyn Error>> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

fn compare_tokens(scorer: &Scorer, texts: &Texts, reference: &Reference) -> (Value, bool) {
    let tokenizer = &scorer.model().tokenizer;
    let prompts = texts.prompts.iter().zip(&reference.prompts).map(|(text, ids)| (text, true, ids));
    let lines = texts.lines.iter().zip(&reference.lines).map(|(text, ids)| (text, false, ids));
    let books = texts.books.iter().zip(&reference.books).map(|(book, found)| (&book.text, false, &found.ids));
    let mut count = 0;
    let mut differing = Vec::new();
    for (text, special, ids) in prompts.chain(lines).chain(books) {
        let mut own = tokenizer.encode(text, special);
        if own.len() + 1 == ids.len() && tokenizer.add_bos() {
            own.splice(0..0, tokenizer.bos());
        }
        count += ids.len();
        if own != *ids {
            let at = own.iter().zip(ids).take_while(|(own, other)| own == other).count();
            let near = |ids: &[u32]| ids[at.min(ids.len())..(at + 8).min(ids.len())].to_vec();
            let shown: String = text.chars().take(400).collect();
            differing.push(json!({ "text": shown, "at": at, "own": near(&own), "reference": near(ids) }));
        }
    }
    let report = json!({
        "lines": texts.lines.len(), "tokens": count, "differing_texts": differing.len(),
        "shown": &differing[..differing.len().min(SHOWN_MAX)],
    });
    (report, differing.is_empty())
}

/// The logits behind the first positions of all prompts.
fn own_rows(scorer: &mut Scorer, reference: &Reference) -> Result<Rows, Box<dyn Error>> {
    let mut rows = Vec::new();
    for ids in &reference.prompts {
        let ids = ids.get(..reference.positions).ok_or("a prompt of the reference is too short")?;
        scorer.score(ids, 0, |_, logits| rows.push(logits.to_vec()))?;
    }
    Ok(rows)
}

/// Little-endian rows of `width` numbers.
fn read_rows(path: &Path, width: usize, count: usize) -> Result<Rows, Box<dyn Error>> {
    let bytes = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let (numbers, _) = bytes.as_chunks::<4>();
    if bytes.len() != count * width * size_of::<f32>() {
        return Err(format!("{} does not hold {count} rows of {width} numbers", path.display()).into());
    }
    let row = |row: &[[u8; 4]]| row.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Ok(numbers.chunks_exact(width).map(row).collect())
}

/// The reference's builds for other processors, each by its name, as far as they were run.
fn other_builds(folder: &Path, width: usize, count: usize) -> Result<BTreeMap<String, Rows>, Box<dyn Error>> {
    let mut builds = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        if let Some(build) = stem.strip_prefix("logits-") {
            builds.insert(build.to_owned(), read_rows(&path, width, count)?);
        }
    }
    Ok(builds)
}

/// Logits of this engine against those of the reference's builds and of exact arithmetic. Disagrees where every build
/// of the reference is sure of one token and this engine has another.
fn compare_logits(scorer: &mut Scorer, reference: &Reference, folder: &Path) -> Result<(Value, bool), Box<dyn Error>> {
    let own = own_rows(scorer, reference)?;
    let width = own.first().map_or(0, Vec::len);
    let best = read_rows(&folder.join("logits.f32"), width, own.len())?;
    let exact = read_rows(&folder.join("exact.f32"), width, own.len())?;
    let builds = other_builds(folder, width, own.len())?;
    let (mut same_top, mut sure_alone, mut sure, mut same_where_sure, mut other_tops) = (0, 0, 0, 0, Vec::new());
    for (index, row) in own.iter().enumerate() {
        let (own, _) = top(row);
        let (token, margin) = top(&best[index]);
        same_top += usize::from(own == token);
        sure_alone += usize::from(margin > MARGIN);
        let least = builds.values().map(|rows| lead(&rows[index], token)).fold(margin, f32::min);
        if least > MARGIN {
            sure += 1;
            same_where_sure += usize::from(own == token);
        }
        if margin > MARGIN && own != token {
            let (exact, exact_margin) = top(&exact[index]);
            other_tops.push(json!({
                "prompt": index / reference.positions, "position": index % reference.positions, "own": own,
                "reference": token, "margin": margin, "least_margin": least,
                "exact": exact, "exact_margin": exact_margin,
            }));
        }
    }
    let between: BTreeMap<&str, Value> =
        builds.iter().map(|(build, rows)| (build.as_str(), differences(rows, &best))).collect();
    let report = json!({
        "positions": own.len(),
        "top_as_the_reference": same_top,
        "margin": MARGIN,
        "best_build_surer": sure_alone,
        "other_top_there": other_tops,
        "every_build_surer": sure,
        "same_top_there": same_where_sure,
        "own_to_reference": differences(&own, &best),
        "own_to_exact": differences(&own, &exact),
        "reference_to_exact": differences(&best, &exact),
        "reference_build_to_reference": between,
    });
    Ok((report, same_where_sure == sure))
}

/// Mean absolute differences: of all logits, each row's mean taken out, and of the log-probabilities of tokens that
/// have at least one chance in a thousand.
fn differences(these: &[Vec<f32>], those: &[Vec<f32>]) -> Value {
    let (mut logit, mut logits, mut likely, mut likelies, mut largest) = (0.0, 0_usize, 0.0, 0_usize, 0.0_f64);
    for (this, that) in these.iter().zip(those) {
        let (mean, total) = (mean(this) - mean(that), log_total(this) - log_total(that));
        let likely_from = log_total(that) + 0.001_f64.ln();
        for (this, that) in this.iter().zip(that) {
            let (difference, that) = (f64::from(*this) - f64::from(*that), f64::from(*that));
            logit += (difference - mean).abs();
            logits += 1;
            if that > likely_from {
                likely += (difference - total).abs();
                likelies += 1;
                largest = largest.max((difference - total).abs());
            }
        }
    }
    json!({
        "centred_logit_mean": logit / logits as f64,
        "likely_log_probability_mean": likely / likelies as f64,
        "likely_log_probability_max": largest,
    })
}

/// How far a token is ahead of the best of the others; below zero where another is ahead.
fn lead(logits: &[f32], token: usize) -> f32 {
    let others = logits.iter().enumerate().filter(|(other, _)| *other != token);
    logits[token] - others.map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max)
}

/// The most likely token, and how far the second is behind.
fn top(logits: &[f32]) -> (usize, f32) {
    let (mut best, mut first, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (token, logit) in logits.iter().copied().enumerate() {
        if logit > first {
            (best, second, first) = (token, first, logit);
        } else if logit > second {
            second = logit;
        }
    }
    (best, first - second)
}

fn mean(logits: &[f32]) -> f64 {
    logits.iter().copied().map(f64::from).sum::<f64>() / logits.len() as f64
}

/// The logarithm of the sum of all weights: a logit minus this is a log-probability.
fn log_total(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum::<f64>().ln()
}

fn compare_perplexity(
    scorer: &mut Scorer,
    texts: &Texts,
    reference: &Reference,
) -> Result<(Value, bool), Box<dyn Error>> {
    let mut reports = Vec::new();
    let mut agrees = true;
    for (book, other) in texts.books.iter().zip(&reference.books) {
        let own = scorer.perplexity(&book.text, reference.context)?;
        let relative = own.value / other.perplexity - 1.0;
        agrees &= relative.abs() <= PERPLEXITY_TOLERANCE && own.scored == other.scored;
        reports.push(json!({
            "text": book.name, "scored": own.scored, "own": own.value, "reference": other.perplexity,
            "relative": relative,
        }));
    }
    Ok((Value::Array(reports), agrees))
}

/// The most likely token after another, `count` at most.
fn greedy(scorer: &mut Scorer, text: &str, count: usize) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut ids = scorer.model().tokenizer.encode(text, true);
    let prompt = ids.len();
    while ids.len() - prompt < count {
        let mut next = 0;
        scorer.score(&ids, ids.len() - 1, |_, logits| next = top(logits).0 as u32)?;
        if scorer.model().tokenizer.end_of_generation().contains(&next) {
            break;
        }
        ids.push(next);
    }
    Ok(ids.split_off(prompt))
}
