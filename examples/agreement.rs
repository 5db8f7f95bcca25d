//! Compares this engine with what `tools/agreement/` wrote about an independent implementation; prints JSON.
//!
//! `scripts/agreement` runs it. A development tool: the thresholds it judges by are the ones that make two right
//! implementations agree, whose roundings differ.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use midstream::engine::{LoadOptions, Scorer};
use serde::Deserialize;
use serde_json::{Value, json};

/// Where the reference is surer than this, the top token must be the same.
const MARGIN: f32 = 0.4;
/// How far, relatively, the perplexities may be apart.
const PERPLEXITY_TOLERANCE: f64 = 0.01;
/// Differing texts that the report shows.
const SHOWN_MAX: usize = 5;

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

/// Differences of logits, summed up.
#[derive(Default)]
struct Differences {
    positions: usize,
    sure: usize,
    wrong: Vec<Value>,
    same_top: usize,
    log_probability: f64,
    centred_logit: f64,
    values: usize,
    likely: f64,
    likely_values: usize,
    largest: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [model, folder] = &arguments[..] else {
        return Err("usage: agreement MODEL.gguf FOLDER (with texts.json, reference.json and logits.f32)".into());
    };
    let texts: Texts = read(&folder.join("texts.json"))?;
    let reference: Reference = read(&folder.join("reference.json"))?;
    let mut scorer = Scorer::load(model, &LoadOptions::default())?;
    let (tokens, tokens_agree) = compare_tokens(&scorer, &texts, &reference);
    let differences = compare_logits(&mut scorer, &reference, &folder.join("logits.f32"))?;
    let (perplexity, perplexity_agrees) = compare_perplexity(&mut scorer, &texts, &reference)?;
    let answer = greedy(&mut scorer, &texts.question, reference.answer.len())?;
    let tokenizer = &scorer.model().tokenizer;
    let agrees = tokens_agree && differences.wrong.is_empty() && perplexity_agrees;
    let report = json!({
        "agrees": agrees,
        "tokens": tokens,
        "logits": differences.report(),
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

fn compare_logits(scorer: &mut Scorer, reference: &Reference, path: &Path) -> Result<Differences, Box<dyn Error>> {
    let mut file = BufReader::new(File::open(path)?);
    let mut differences = Differences::default();
    let mut bytes = vec![0; scorer.model().tokenizer.vocab_size() * size_of::<f32>()];
    for (prompt, ids) in reference.prompts.iter().enumerate() {
        let mut failed = None;
        let ids = ids.get(..reference.positions).ok_or("a prompt of the reference is too short")?;
        scorer.score(ids, 0, |position, own| match file.read_exact(&mut bytes) {
            Ok(()) => {
                let row: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                differences.add(prompt, position, own, &row);
            }
            Err(error) => failed = Some(error),
        })?;
        if let Some(error) = failed {
            return Err(format!("{} ends too early: {error}", path.display()).into());
        }
    }
    Ok(differences)
}

impl Differences {
    fn add(&mut self, prompt: usize, position: usize, own: &[f32], reference: &[f32]) {
        let (best, margin) = top(reference);
        let (own_best, _) = top(own);
        self.positions += 1;
        self.same_top += usize::from(best == own_best);
        if margin > MARGIN {
            self.sure += 1;
            if best != own_best {
                let wrong = json!({
                    "prompt": prompt, "position": position, "margin": margin, "own": own_best, "reference": best,
                });
                self.wrong.push(wrong);
            }
        }
        let (own_total, reference_total) = (log_total(own), log_total(reference));
        let (own_mean, reference_mean) = (mean(own), mean(reference));
        for (own, reference) in own.iter().zip(reference) {
            let (own, reference) = (f64::from(*own), f64::from(*reference));
            let difference = ((own - own_total) - (reference - reference_total)).abs();
            self.log_probability += difference;
            self.centred_logit += ((own - own_mean) - (reference - reference_mean)).abs();
            self.values += 1;
            // One token in a thousand or likelier.
            if reference - reference_total > (0.001_f64).ln() {
                self.likely += difference;
                self.likely_values += 1;
                self.largest = self.largest.max(difference);
            }
        }
    }

    fn report(&self) -> Value {
        json!({
            "positions": self.positions,
            "same_top": self.same_top,
            "margin_above": MARGIN,
            "sure": self.sure,
            "sure_and_other_top": self.wrong,
            "log_probability_difference_mean": self.log_probability / self.values as f64,
            "centred_logit_difference_mean": self.centred_logit / self.values as f64,
            "tokens_above_0.001": {
                "count": self.likely_values,
                "log_probability_difference_mean": self.likely / self.likely_values as f64,
                "log_probability_difference_max": self.largest,
            },
        })
    }
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
