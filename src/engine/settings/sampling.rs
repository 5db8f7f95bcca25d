//! How tokens are chosen: the settings, by the field's names.

use serde::{Deserialize, Serialize};

/// How the next token is chosen from the logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 means greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 drops none.
    pub min_p: f32,
    /// Draws are a pure function of (seed, choice index, token index in the response).
    pub seed: u64,
    /// Which of several choices of one request this is. The journal has it beside this: see `ResponseConfig::choice`.
    #[serde(skip)]
    pub choice: u32,
    /// What else shapes the choice.
    #[serde(default, skip_serializing_if = "Shaping::is_none")]
    pub shaping: Shaping,
}

impl Sampling {
    /// The most likely token, always.
    pub const GREEDY: Self =
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1, choice: 0, shaping: Shaping::NONE };
}

/// How tokens are chosen where a client leaves it open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// See [`Sampling::temperature`].
    pub temperature: f32,
    /// See [`Sampling::top_k`].
    pub top_k: u32,
    /// See [`Sampling::top_p`].
    pub top_p: f32,
    /// See [`Sampling::min_p`].
    pub min_p: f32,
}

/// What shapes the choice besides temperature, top-k, top-p and min-p. What is absent does nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shaping {
    /// The steps that are done, in this order; absent means [`Step::DEFAULT_ORDER`]. What is left out is not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<Step>>,
    /// Added to the logits of these tokens, in front of every step. Pairs and no map: the journal's form has no other
    /// keys than texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes what was there already less likely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub penalties: Option<Penalties>,
    /// Makes what would prolong a repetition less likely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry: Option<Dry>,
    /// Keep logits within this many standard deviations of the greatest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_n_sigma: Option<f32>,
    /// Keep the tokens whose surprise is closest to the expected one, until they reach this probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub typical_p: Option<f32>,
    /// Now and then drops the most likely tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xtc: Option<Xtc>,
    /// Holds the surprise of the text constant; replaces every step that drops tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirostat: Option<Mirostat>,
}

impl Shaping {
    /// Nothing is shaped.
    pub const NONE: Self = Self {
        order: None,
        logit_bias: Vec::new(),
        penalties: None,
        dry: None,
        top_n_sigma: None,
        typical_p: None,
        xtc: None,
        mirostat: None,
    };

    /// Whether nothing is shaped.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// One step of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// [`Shaping::penalties`].
    Penalties,
    /// [`Shaping::dry`].
    Dry,
    /// [`Shaping::top_n_sigma`].
    TopNSigma,
    /// [`Sampling::temperature`].
    Temperature,
    /// [`Sampling::top_k`].
    TopK,
    /// [`Shaping::typical_p`].
    TypicalP,
    /// [`Sampling::top_p`].
    TopP,
    /// [`Sampling::min_p`].
    MinP,
    /// [`Shaping::xtc`].
    Xtc,
}

impl Step {
    /// The order where none is chosen.
    pub const DEFAULT_ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::Temperature,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
    ];

    /// Its name, as clients write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::Temperature => "temperature",
            Self::TopK => "top_k",
            Self::TypicalP => "typical_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
        }
    }

    /// The step of a name. llama.cpp writes `typ_p`.
    pub fn named(name: &str) -> Option<Self> {
        let name = if name == "typ_p" { "typical_p" } else { name };
        Self::DEFAULT_ORDER.into_iter().find(|step| step.name() == name)
    }
}

/// Makes what was there already less likely.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Penalties {
    /// Divides the positive logits of tokens of prompt and answer, and multiplies the negative ones; 1 does nothing
    /// (Keskar et al., 2019).
    pub repetition: f32,
    /// Subtracted once for each time that the answer has the token.
    pub frequency: f32,
    /// Subtracted once if the answer has the token.
    pub presence: f32,
    /// How many of the last tokens count; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_n: Option<u32>,
}

impl Penalties {
    /// Does nothing.
    pub const NONE: Self = Self { repetition: 1.0, frequency: 0.0, presence: 0.0, last_n: None };
}

/// "Don't repeat yourself": where the text ends as it did once before, the token that followed then is penalised by
/// `multiplier * base ^ (length - allowed_length)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dry {
    /// Above 0.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Repetitions shorter than this cost nothing.
    pub allowed_length: u32,
    /// How many of the last tokens are looked at; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_n: Option<u32>,
    /// No repetition reaches across a token that contains one of these.
    pub sequence_breakers: Vec<String>,
}

/// "Exclude top choices": with this probability all tokens above the threshold but the least likely of them go.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Xtc {
    /// How often.
    pub probability: f32,
    /// Above a half nothing can happen.
    pub threshold: f32,
}

/// Mirostat (Basu et al., 2021).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mirostat {
    /// 1 estimates how many tokens to keep, 2 cuts at a surprise.
    pub version: u8,
    /// The surprise to hold, in bits.
    pub tau: f32,
    /// How fast it learns.
    pub eta: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_found_by_its_name() {
        for step in Step::DEFAULT_ORDER {
            assert_eq!(Step::named(step.name()), Some(step));
            assert_eq!(serde_json::to_value(step).unwrap(), step.name(), "the journal has the same names");
        }
        assert_eq!(Step::named("typ_p"), Some(Step::TypicalP));
        assert_eq!(Step::named("infill"), None);
    }

    #[test]
    fn nothing_shaped_is_written_as_nothing() {
        assert_eq!(serde_json::to_string(&Shaping::NONE).unwrap(), "{}");
        assert_eq!(Shaping::default(), Shaping::NONE);
    }
}
