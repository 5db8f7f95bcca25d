//! What midstream must reach, row by row, for the models that there are floors for.

use std::fmt;

/// What a row is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Floor {
    /// At least so many times the peer.
    Times(f64),
    /// At most this part of the peer.
    Part(f64),
    /// At most so much, whatever the peer does.
    AtMost(f64),
}

impl Floor {
    pub(crate) fn is_met(self, own: f64, ratio: f64) -> bool {
        match self {
            Self::Times(least) => ratio >= least,
            Self::Part(most) => ratio <= most,
            Self::AtMost(most) => own <= most,
        }
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(least) => write!(formatter, "{least} times"),
            Self::Part(most) => write!(formatter, "{most} of it"),
            Self::AtMost(most) => write!(formatter, "{most} at most"),
        }
    }
}

use Floor::{AtMost, Part, Times};

/// By the name of the row: for SmolLM2-135M `Q4_1`, and for Qwen2.5-Coder-0.5B `Q4_K_M`.
const FLOORS: [(&str, Floor, Option<Floor>); 13] = [
    ("prefill of 512", Times(3.0), Some(Times(2.0))),
    ("prefill of 2,048", Times(3.0), Some(Times(2.0))),
    ("one sequence behind 128", Times(1.8), Some(Times(1.25))),
    ("one sequence behind 2,048", Times(2.5), Some(Times(1.6))),
    ("8 sequences", Times(2.5), Some(Times(2.0))),
    ("32 sequences", Times(4.0), Some(Times(3.0))),
    ("16 clients", Times(2.5), Some(Times(2.0))),
    ("16 clients, first token", Part(0.1), Some(Part(0.1))),
    ("longest gap while 3,000 tokens arrive", Part(0.05), Some(Part(0.05))),
    ("above the weights, 8 x 1,024", Part(0.5), Some(Part(0.5))),
    ("at rest after a client left in prefill", AtMost(0.3), Some(AtMost(0.5))),
    ("beside a busy process, to one own thread", Times(1.0), Some(Times(1.0))),
    ("start to ready", AtMost(1.0), None),
];

/// The floor of a row, if the file's name is that of one of the two models.
pub(crate) fn of(file: &str, row: &str) -> Option<Floor> {
    let (_, smollm, qwen) = FLOORS.iter().find(|(name, ..)| *name == row)?;
    if file.starts_with("SmolLM2-135M") {
        Some(*smollm)
    } else if file.starts_with("Qwen2.5-Coder-0.5B") {
        *qwen
    } else {
        None
    }
}
