//! Writes answers of given forms, choosing at random among what each form allows: for `scripts/forms`, which has them
//! checked by another implementation of JSON Schema. A development tool.
//!
//! `cargo run --release --example forms -- MODEL.gguf COUNT < schemas.jsonl`: lines of JSON, `{"schema": number of the
//! line, "text": …}`, COUNT for each schema, over the vocabulary of a real model. A schema that is refused gives
//! `{"schema": …, "refused": …}`, an answer that finds no end `{"schema": …, "endless": …}`. What masks cost goes to
//! the standard error.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool reports on standard output")]

use std::io::Read;
use std::path::Path;

use midstream::clock::monotonic;
use midstream::engine::settings::{Constraint, TextRule};
use midstream::engine::{Guide, LoadOptions, ModelInfo, Surroundings, TokenSet, read_model_info};
use serde_json::{Value, json};

/// Tokens of an answer. A form that allows no end for so long is an error.
const TOKENS_MAX: usize = 4_000;
/// From here on whatever closes something is chosen where it is allowed.
const TOKENS_FREE: usize = 60;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, count] = &arguments[..] else { return Err("usage: forms MODEL.gguf COUNT < schemas.jsonl".into()) };
    let model = read_model_info(Path::new(model), &LoadOptions::default())?;
    let count: u32 = count.parse()?;
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let mut masks: Vec<f64> = Vec::new();
    for (number, line) in input.lines().enumerate() {
        let schema: Value = serde_json::from_str(line)?;
        let constraint = Constraint { text: TextRule::JsonSchema { schema }, calls: None, at: None };
        let surroundings = Surroundings { tools: &[], tool_format: model.tool_format, reasoning: model.reasoning };
        let grammars = model.grammars.as_ref().ok_or("this model takes no forms")?;
        let compiled = match grammars.compile(&constraint, &surroundings) {
            Ok(compiled) => compiled,
            Err(refused) => {
                println!("{}", json!({"schema": number, "refused": refused.to_string()}));
                continue;
            }
        };
        for seed in 0..count {
            let mut draws = Draws((u64::from(seed) << 32) | (number as u64 + 1));
            let said = match answer(&model, compiled.guide(Some(false)), &mut draws, &mut masks) {
                Ok(text) => json!({"schema": number, "text": text}),
                Err(endless) => json!({"schema": number, "endless": endless.to_string()}),
            };
            println!("{said}");
        }
    }
    masks.sort_unstable_by(f64::total_cmp);
    let at = |share: usize| masks[(masks.len() - 1) * share / 100];
    eprintln!("{} masks; microseconds: median {:.0}, 99 % {:.0}, most {:.0}", masks.len(), at(50), at(99), at(100));
    Ok(())
}

/// An answer that the guide allows.
fn answer(model: &ModelInfo, mut guide: Guide, draws: &mut Draws, masks: &mut Vec<f64>) -> Outcome<String> {
    let ends = model.tokenizer.end_of_generation();
    let closing: Vec<u32> = ["\"", "\"}", "}", "]", "\",", ",", "true", "0", "1", "@", "a.b"]
        .iter()
        .flat_map(|text| model.tokenizer.encode(text, false))
        .collect();
    let mut tokens: Vec<u32> = Vec::new();
    while tokens.len() < TOKENS_MAX {
        let began = monotonic();
        let mask = guide.mask()?.ok_or("nothing is masked")?;
        masks.push(began.elapsed().as_secs_f64() * 1e6);
        let token = choose(&mask, ends, &closing, tokens.len(), draws).ok_or("nothing is allowed")?;
        if ends.contains(&token) {
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| model.tokenizer.token_bytes(*token)).copied().collect();
            return Ok(String::from_utf8(bytes)?);
        }
        guide.accept(token)?;
        tokens.push(token);
    }
    Err(format!("no end after {TOKENS_MAX} tokens: {}…", model.tokenizer.decode(&tokens[..40])).into())
}

fn choose(mask: &TokenSet, ends: &[u32], closing: &[u32], length: usize, draws: &mut Draws) -> Option<u32> {
    let allowed = |tokens: &[u32]| tokens.iter().copied().filter(|token| mask.is_allowed(*token)).collect::<Vec<u32>>();
    // A form that allows anything at all is left as often as it is gone on with.
    let close = length >= TOKENS_FREE || draws.below(3) == 0;
    let (end, close_by) = (allowed(ends), allowed(closing));
    if close && !end.is_empty() {
        return end.first().copied();
    }
    if close && !close_by.is_empty() {
        return Some(close_by[draws.below(close_by.len())]);
    }
    let all: Vec<u32> = mask.to_list();
    (!all.is_empty()).then(|| all[draws.below(all.len())])
}

/// Numbers of SplitMix64 (Steele et al., 2014).
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % bound as u64) as usize
    }
}
