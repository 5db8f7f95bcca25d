//! How tokens are chosen: from the wire's fields to the core's settings, with every range checked.

use super::errors::invalid;
use crate::conversation::Reject;
use crate::engine::ModelInfo;
use crate::engine::settings::{Dry, Mirostat, Penalties, Sampling, Shaping, Step, Xtc};
use crate::ids::FreshIds;
use crate::protocol::sampling::GenerationParams;

/// Most tokens that one request may bias: as many as OpenAI takes.
const BIASED_MAX: usize = 1024;
/// Most sequence breakers of a request, and most bytes of one: they are looked for in every token.
const BREAKERS_MAX: usize = 32;
const BREAKER_BYTES_MAX: usize = 64;

/// Most tokens in each place of which it is told how likely they were: as many as OpenAI takes.
const TOP_LOGPROBS_MAX: u8 = 20;

/// DRY's defaults where a client sets its multiplier only; its author's.
const DRY_BASE: f32 = 1.75;
const DRY_ALLOWED_LENGTH: u32 = 2;
const DRY_ALLOWED_LENGTH_MAX: u32 = 1_000;
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
/// XTC's and mirostat's likewise.
const XTC_THRESHOLD: f32 = 0.1;
const MIROSTAT_TAU: f32 = 5.0;
const MIROSTAT_ETA: f32 = 0.1;

/// Checks the ranges and fills in the model's defaults; a seed is drawn where none was given.
pub(crate) fn sampling(params: &GenerationParams, model: &ModelInfo, fresh: &mut FreshIds) -> Result<Sampling, Reject> {
    let defaults = model.sampling;
    Ok(Sampling {
        choice: 0,
        temperature: within(params.temperature.or(Some(defaults.temperature)), 0.0, 2.0, "temperature")?.unwrap_or(0.0),
        top_p: within(params.top_p.or(Some(defaults.top_p)), 0.0, 1.0, "top_p")?.unwrap_or(1.0),
        min_p: within(params.min_p.or(Some(defaults.min_p)), 0.0, 1.0, "min_p")?.unwrap_or(0.0),
        top_k: top_k(params)?.unwrap_or(defaults.top_k),
        seed: params.seed.map_or_else(|| fresh.next_u64(), |seed| seed as u64),
        shaping: shaping(params, model)?,
    })
}

/// Of how many of the likeliest tokens a request tells how likely they were, if it tells that at all.
pub(crate) fn logprobs(params: &GenerationParams) -> Result<Option<u8>, Reject> {
    let top = params.top_logprobs.unwrap_or(0);
    if top > TOP_LOGPROBS_MAX {
        let text = format!("top_logprobs is {top}, but must be between 0 and {TOP_LOGPROBS_MAX}");
        return Err(invalid("top_logprobs", text));
    }
    if top > 0 && params.logprobs == Some(false) {
        let text = "top_logprobs asks for what logprobs turns off; set logprobs to true, or leave one of them out";
        return Err(invalid("top_logprobs", text));
    }
    let included = params.includes("message.output_text.logprobs");
    Ok((included || params.logprobs == Some(true) || top > 0).then_some(top))
}

fn shaping(params: &GenerationParams, model: &ModelInfo) -> Result<Shaping, Reject> {
    let mirostat = mirostat(params)?;
    if mirostat.is_some() && params.samplers.is_some() {
        let text = "mirostat replaces the steps that samplers would order; leave one of them out";
        return Err(invalid("samplers", text));
    }
    let typical_p = within(params.typical_p, 0.0, 1.0, "typical_p")?;
    let top_n_sigma = within(params.top_n_sigma, -1.0, 1e6, "top_n_sigma")?;
    Ok(Shaping {
        order: params.samplers.as_deref().map(order).transpose()?,
        logit_bias: logit_bias(params, model)?,
        penalties: penalties(params)?,
        dry: dry(params)?,
        top_n_sigma: top_n_sigma.filter(|n| *n > 0.0),
        typical_p: typical_p.filter(|share| *share < 1.0),
        xtc: xtc(params)?,
        mirostat,
    })
}

/// A number between two, if it is given.
fn within(value: Option<f32>, least: f32, most: f32, name: &str) -> Result<Option<f32>, Reject> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(invalid(name, format!("{name} is {value}, but must be between {least} and {most}")))
        }
        value => Ok(value),
    }
}

/// How many of the most likely tokens are kept; some clients send -1 for all.
fn top_k(params: &GenerationParams) -> Result<Option<u32>, Reject> {
    match params.top_k {
        None => Ok(None),
        Some(-1) => Ok(Some(0)),
        Some(top_k) => match u32::try_from(top_k) {
            Ok(top_k) => Ok(Some(top_k)),
            Err(_) => {
                Err(invalid("top_k", format!("top_k is {top_k}, but must be a number of tokens, or 0 or -1 for all")))
            }
        },
    }
}

/// How many of the last tokens count: -1 means all.
fn last_n(value: Option<i64>, name: &str) -> Result<Option<u32>, Reject> {
    match value {
        None | Some(-1) => Ok(None),
        Some(count) => match u32::try_from(count) {
            Ok(count) => Ok(Some(count)),
            Err(_) => Err(invalid(name, format!("{name} is {count}, but must be a number of tokens, or -1 for all"))),
        },
    }
}

fn penalties(params: &GenerationParams) -> Result<Option<Penalties>, Reject> {
    // Zero would divide by nothing.
    let repetition = within(params.repetition_penalty, 0.01, 10.0, "repetition_penalty")?.unwrap_or(1.0);
    let frequency = within(params.frequency_penalty, -2.0, 2.0, "frequency_penalty")?.unwrap_or(0.0);
    let presence = within(params.presence_penalty, -2.0, 2.0, "presence_penalty")?.unwrap_or(0.0);
    let last_n = last_n(params.repeat_last_n, "repeat_last_n")?;
    let penalties = Penalties { repetition, frequency, presence, last_n };
    Ok(Some(penalties).filter(|penalties| Penalties { last_n: None, ..*penalties } != Penalties::NONE))
}

fn dry(params: &GenerationParams) -> Result<Option<Dry>, Reject> {
    let multiplier = within(params.dry_multiplier, 0.0, 100.0, "dry_multiplier")?.unwrap_or(0.0);
    let base = within(params.dry_base, 1.0, 100.0, "dry_base")?.unwrap_or(DRY_BASE);
    let last_n = last_n(params.dry_penalty_last_n, "dry_penalty_last_n")?;
    let breakers = params.dry_sequence_breakers.clone();
    let sequence_breakers = breakers.unwrap_or_else(|| DRY_BREAKERS.map(str::to_owned).to_vec());
    if sequence_breakers.len() > BREAKERS_MAX {
        let text =
            format!("dry_sequence_breakers has {} texts, at most {BREAKERS_MAX} are taken", sequence_breakers.len());
        return Err(invalid("dry_sequence_breakers", text));
    }
    let is_bad = |text: &String| text.is_empty() || text.len() > BREAKER_BYTES_MAX;
    if let Some(position) = sequence_breakers.iter().position(is_bad) {
        let at = format!("dry_sequence_breakers[{position}]");
        let text = format!("{at} must have between 1 and {BREAKER_BYTES_MAX} bytes");
        return Err(invalid(at, text));
    }
    let allowed_length = params.dry_allowed_length.unwrap_or(DRY_ALLOWED_LENGTH);
    if allowed_length > DRY_ALLOWED_LENGTH_MAX {
        let text = format!("dry_allowed_length is {allowed_length}, but must be at most {DRY_ALLOWED_LENGTH_MAX}");
        return Err(invalid("dry_allowed_length", text));
    }
    let dry = Dry { multiplier, base, allowed_length, last_n, sequence_breakers };
    Ok(Some(dry).filter(|dry| dry.multiplier > 0.0))
}

fn xtc(params: &GenerationParams) -> Result<Option<Xtc>, Reject> {
    let probability = within(params.xtc_probability, 0.0, 1.0, "xtc_probability")?.unwrap_or(0.0);
    let threshold = within(params.xtc_threshold, 0.0, 1.0, "xtc_threshold")?.unwrap_or(XTC_THRESHOLD);
    Ok(Some(Xtc { probability, threshold }).filter(|xtc| xtc.probability > 0.0))
}

fn mirostat(params: &GenerationParams) -> Result<Option<Mirostat>, Reject> {
    let tau = within(params.mirostat_tau, 0.0, 100.0, "mirostat_tau")?.unwrap_or(MIROSTAT_TAU);
    let eta = within(params.mirostat_eta, 0.0, 1.0, "mirostat_eta")?.unwrap_or(MIROSTAT_ETA);
    match params.mirostat {
        None | Some(0) => Ok(None),
        Some(version @ (1 | 2)) => Ok(Some(Mirostat { version, tau, eta })),
        Some(other) => Err(invalid("mirostat", format!("mirostat is {other}, but must be 0 for off, 1 or 2"))),
    }
}

fn order(names: &[String]) -> Result<Vec<Step>, Reject> {
    let mut steps = Vec::with_capacity(names.len());
    for (position, name) in names.iter().enumerate() {
        let at = format!("samplers[{position}]");
        let Some(step) = Step::named(name) else {
            let known = Step::DEFAULT_ORDER.map(Step::name).join(", ");
            return Err(invalid(at.clone(), format!("{at}: there is no step {name:?}; there are {known}")));
        };
        if steps.contains(&step) {
            return Err(invalid(at.clone(), format!("{at}: {name:?} is there twice; a step is done once")));
        }
        steps.push(step);
    }
    Ok(steps)
}

fn logit_bias(params: &GenerationParams, model: &ModelInfo) -> Result<Vec<(u32, f32)>, Reject> {
    let asked = params.logit_bias.iter().flatten();
    if params.logit_bias.as_ref().is_some_and(|asked| asked.len() > BIASED_MAX) {
        return Err(invalid("logit_bias", format!("logit_bias may name at most {BIASED_MAX} tokens")));
    }
    let vocabulary = model.tokenizer.vocab_size();
    let entry = |(id, bias): (&String, &serde_json::Value)| {
        let at = format!("logit_bias.{id}");
        let token = id.parse::<u32>().ok().filter(|token| (*token as usize) < vocabulary);
        let token = token.ok_or_else(|| {
            let text = format!("{at}: {} has no token {id:?}; its ids are below {vocabulary}", model.id);
            invalid(at.clone(), text)
        })?;
        let bias = bias.as_f64().map(|bias| bias as f32).filter(|bias| (-100.0..=100.0).contains(bias));
        let bias = bias.ok_or_else(|| invalid(at.clone(), format!("{at} must be a number between -100 and 100")))?;
        Ok((token, bias))
    };
    asked.map(entry).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::settings::SamplingDefaults;
    use crate::engine::{Engine, ScriptedEngine};

    /// A model whose answers are chosen in a way of its own.
    fn model() -> ModelInfo {
        let engine = ScriptedEngine::from_json(r#"[{"deltas": ["a"]}]"#).unwrap();
        let sampling = SamplingDefaults { temperature: 0.5, top_k: 7, top_p: 0.75, min_p: 0.25 };
        ModelInfo { sampling, ..engine.model().clone() }
    }

    fn chosen(model: &ModelInfo, body: &Value) -> Result<Sampling, Reject> {
        sampling(&serde_json::from_value(body.clone()).unwrap(), model, &mut FreshIds::random())
    }

    fn usual() -> Sampling {
        let shaping = Shaping::NONE;
        Sampling { choice: 0, temperature: 0.5, top_k: 7, top_p: 0.75, min_p: 0.25, seed: 3, shaping }
    }

    fn shaped(shaping: Shaping) -> Sampling {
        Sampling { shaping, ..usual() }
    }

    fn penalties(change: impl Fn(&mut Penalties)) -> Sampling {
        let mut penalties = Penalties::NONE;
        change(&mut penalties);
        shaped(Shaping { penalties: Some(penalties), ..Shaping::NONE })
    }

    fn dry(change: impl Fn(&mut Dry)) -> Sampling {
        let sequence_breakers = ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
        let mut dry = Dry { multiplier: 0.5, base: 1.75, allowed_length: 2, last_n: None, sequence_breakers };
        change(&mut dry);
        shaped(Shaping { dry: Some(dry), ..Shaping::NONE })
    }

    fn xtc(probability: f32, threshold: f32) -> Sampling {
        shaped(Shaping { xtc: Some(Xtc { probability, threshold }), ..Shaping::NONE })
    }

    fn mirostat(version: u8, tau: f32, eta: f32) -> Sampling {
        shaped(Shaping { mirostat: Some(Mirostat { version, tau, eta }), ..Shaping::NONE })
    }

    /// A body, and what it sets besides what the model does by itself.
    fn table() -> Vec<(Value, Sampling)> {
        vec![
            (json!({}), usual()),
            (json!({"temperature": 0}), Sampling { temperature: 0.0, ..usual() }),
            (json!({"top_k": 5}), Sampling { top_k: 5, ..usual() }),
            (json!({"top_k": 0}), Sampling { top_k: 0, ..usual() }),
            (json!({"top_k": -1}), Sampling { top_k: 0, ..usual() }),
            (json!({"top_p": 0.5}), Sampling { top_p: 0.5, ..usual() }),
            (json!({"min_p": 0.5}), Sampling { min_p: 0.5, ..usual() }),
            (json!({"typical_p": 0.5}), shaped(Shaping { typical_p: Some(0.5), ..Shaping::NONE })),
            (json!({"typ_p": 0.5}), shaped(Shaping { typical_p: Some(0.5), ..Shaping::NONE })),
            (json!({"typical_p": 1}), usual()),
            (json!({"top_n_sigma": 2}), shaped(Shaping { top_n_sigma: Some(2.0), ..Shaping::NONE })),
            (json!({"top_n_sigma": -1}), usual()),
            (json!({"xtc_probability": 0.5}), xtc(0.5, 0.1)),
            (json!({"xtc_probability": 0.5, "xtc_threshold": 0.25}), xtc(0.5, 0.25)),
            (json!({"xtc_threshold": 0.25}), usual()),
            (json!({"repetition_penalty": 1.5}), penalties(|penalties| penalties.repetition = 1.5)),
            (json!({"repeat_penalty": 1.5}), penalties(|penalties| penalties.repetition = 1.5)),
            (json!({"frequency_penalty": 1.5}), penalties(|penalties| penalties.frequency = 1.5)),
            (json!({"presence_penalty": 1.5}), penalties(|penalties| penalties.presence = 1.5)),
            (
                json!({"presence_penalty": 1.5, "repeat_last_n": 64}),
                penalties(|penalties| (penalties.presence, penalties.last_n) = (1.5, Some(64))),
            ),
            (json!({"presence_penalty": 1.5, "repeat_last_n": -1}), penalties(|penalties| penalties.presence = 1.5)),
            (json!({"repeat_last_n": 64}), usual()),
            (json!({"dry_multiplier": 0.5}), dry(|_| ())),
            (json!({"dry_multiplier": 0.5, "dry_base": 2}), dry(|dry| dry.base = 2.0)),
            (json!({"dry_multiplier": 0.5, "dry_allowed_length": 9}), dry(|dry| dry.allowed_length = 9)),
            (json!({"dry_multiplier": 0.5, "dry_penalty_last_n": 9}), dry(|dry| dry.last_n = Some(9))),
            (
                json!({"dry_multiplier": 0.5, "dry_sequence_breakers": ["a"]}),
                dry(|dry| dry.sequence_breakers = vec!["a".to_owned()]),
            ),
            (json!({"dry_base": 2}), usual()),
            (json!({"mirostat": 1}), mirostat(1, 5.0, 0.1)),
            (json!({"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.5}), mirostat(2, 3.0, 0.5)),
            (json!({"mirostat": 0, "mirostat_tau": 3}), usual()),
            (json!({"logit_bias": {"97": -5.5}}), shaped(Shaping { logit_bias: vec![(97, -5.5)], ..Shaping::NONE })),
            (
                json!({"samplers": ["typ_p", "penalties", "dry", "top_n_sigma", "temperature", "top_k", "top_p",
                    "min_p", "xtc"]}),
                shaped(Shaping {
                    order: Some(vec![
                        Step::TypicalP,
                        Step::Penalties,
                        Step::Dry,
                        Step::TopNSigma,
                        Step::Temperature,
                        Step::TopK,
                        Step::TopP,
                        Step::MinP,
                        Step::Xtc,
                    ]),
                    ..Shaping::NONE
                }),
            ),
        ]
    }

    #[test]
    fn every_field_sets_what_it_is_called() {
        let model = model();
        for (mut body, expected) in table() {
            body["seed"] = 3.into();
            assert_eq!(chosen(&model, &body).unwrap(), expected, "{body}");
        }
        let drawn = [(); 2].map(|()| chosen(&model, &json!({})).unwrap().seed);
        assert_ne!(drawn[0], drawn[1], "a seed is drawn where none is given");
    }

    #[test]
    fn a_value_out_of_its_range_is_refused_by_its_field() {
        let model = model();
        for (field, least, most) in [
            ("temperature", 0.0, 2.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("typical_p", 0.0, 1.0),
            ("top_n_sigma", -1.0, 1e6),
            ("xtc_probability", 0.0, 1.0),
            ("xtc_threshold", 0.0, 1.0),
            ("repetition_penalty", 0.01, 10.0),
            ("frequency_penalty", -2.0, 2.0),
            ("presence_penalty", -2.0, 2.0),
            ("dry_multiplier", 0.0, 100.0),
            ("dry_base", 1.0, 100.0),
            ("mirostat_tau", 0.0, 100.0),
            ("mirostat_eta", 0.0, 1.0),
        ] {
            for within in [least, most] {
                assert!(chosen(&model, &json!({field: within})).is_ok(), "{field}: {within}");
            }
            for beyond in [least - 0.5, most + 0.5] {
                let refused = chosen(&model, &json!({field: beyond})).unwrap_err();
                assert_eq!(refused.param.as_deref(), Some(field), "{beyond}");
            }
        }
        for (field, wrong) in [
            ("top_k", json!(-2)),
            ("top_k", json!(1_u64 << 32)),
            ("repeat_last_n", json!(-2)),
            ("dry_penalty_last_n", json!(-2)),
            ("dry_allowed_length", json!(1_001)),
            ("dry_sequence_breakers", json!(vec!["a"; 33])),
            ("mirostat", json!(3)),
        ] {
            let refused = chosen(&model, &json!({field: wrong})).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(field), "{wrong}");
        }
        for (body, param) in [
            (json!({"dry_sequence_breakers": ["a", ""]}), "dry_sequence_breakers[1]"),
            (json!({"samplers": ["top_k", "top_k"]}), "samplers[1]"),
            (json!({"samplers": ["magic"]}), "samplers[0]"),
            (json!({"logit_bias": {"97": 101}}), "logit_bias.97"),
            (json!({"logit_bias": {"1000000": 1}}), "logit_bias.1000000"),
        ] {
            assert_eq!(chosen(&model, &body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn logarithms_are_told_of_as_many_tokens_as_are_asked_for() {
        let asked = |body: Value| logprobs(&serde_json::from_value(body).unwrap());
        let included = json!({"include": ["message.output_text.logprobs"]});
        for (body, told) in [
            (json!({}), None),
            (json!({"logprobs": false, "top_logprobs": 0}), None),
            (json!({"logprobs": true}), Some(0)),
            (json!({"logprobs": true, "top_logprobs": 20}), Some(20)),
            (json!({"top_logprobs": 3}), Some(3)),
            (included, Some(0)),
        ] {
            assert_eq!(asked(body.clone()).unwrap(), told, "{body}");
        }
        for wrong in [json!({"logprobs": true, "top_logprobs": 21}), json!({"logprobs": false, "top_logprobs": 3})] {
            assert_eq!(asked(wrong.clone()).unwrap_err().param.as_deref(), Some("top_logprobs"), "{wrong}");
        }
    }
}
