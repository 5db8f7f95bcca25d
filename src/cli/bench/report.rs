//! What was measured: its JSON form, and a table for people.

use std::fmt::Write;

use serde::{Serialize, Serializer};

use super::clients::Streaming;
use super::engine::{Decode, Prefill};
use super::limits::Limits;
use crate::engine::Work;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: Model,
    pub(super) machine: Machine,
    pub(super) prefill: Vec<Prefill>,
    pub(super) decode: Vec<Decode>,
    pub(super) clients: Option<Streaming>,
}

/// The model.
#[derive(Debug, Serialize)]
pub(super) struct Model {
    pub(super) id: String,
    pub(super) file_bytes: u64,
    /// What one token takes.
    #[serde(serialize_with = "serialize_work")]
    pub(super) work: Work,
}

/// The machine, as far as it decides.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) isa: &'static str,
    pub(super) threads: usize,
    /// The system's load before anything was measured.
    pub(super) load: Option<f64>,
    #[serde(flatten)]
    pub(super) limits: Limits,
}

fn serialize_work<S: Serializer>(work: &Work, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Shown {
        operations_per_token: u64,
        operations_per_token_with_logits: u64,
        bytes_per_step: u64,
        kv_bytes_per_position: u64,
    }
    let shown = Shown {
        operations_per_token: work.layer_operations,
        operations_per_token_with_logits: work.step_operations(1),
        bytes_per_step: work.step_bytes(1, 0),
        kv_bytes_per_position: work.kv_bytes,
    };
    shown.serialize(serializer)
}

/// The middle value; of two middle ones the lower. Sorts the values; 0 where there are none.
pub(super) fn median(values: &mut [f64]) -> f64 {
    percentile(values, 50)
}

/// The value that so many of a hundred do not exceed. Sorts the values; 0 where there are none.
pub(super) fn percentile(values: &mut [f64], share: usize) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) * share / 100).copied().unwrap_or(0.0)
}

/// The table for people.
pub(super) fn table(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a text cannot fail.
    let _ = write_table(&mut text, report);
    text
}

fn write_table(out: &mut String, report: &Report) -> std::fmt::Result {
    let Report { model, machine, prefill, decode, clients } = report;
    let work = &model.work;
    let Limits { int8_operations_per_second, read_bytes_per_second } = machine.limits;
    let load = machine.load.map_or_else(String::new, |load| format!(", load {load:.1} before"));
    writeln!(
        out,
        "{}, {:.0} MB; {}, threads: {}{load}",
        model.id,
        mega(model.file_bytes),
        machine.isa,
        machine.threads
    )?;
    writeln!(
        out,
        "machine at most: int8 dot products {:.1} Gop/s, memory read {:.1} GB/s",
        int8_operations_per_second / 1e9,
        read_bytes_per_second / 1e9
    )?;
    writeln!(
        out,
        "a token: {:.2} Gop, {:.2} with logits; a step reads {:.0} MB, and {:.1} KB for each position",
        work.layer_operations as f64 / 1e9,
        work.step_operations(1) as f64 / 1e9,
        mega(work.step_bytes(1, 0)),
        work.kv_bytes as f64 / 1e3
    )?;
    if !prefill.is_empty() {
        writeln!(out, "\nprompt tokens  first token ms   cached ms  tokens/s  of int8 limit")?;
    }
    for row in prefill {
        let (cold, cached) = (row.cold_seconds * 1e3, row.cached_seconds * 1e3);
        let (rate, share) = (row.tokens_per_second, row.int8_share * 100.0);
        writeln!(out, "{:>13}  {cold:>14.1}  {cached:>10.1}  {rate:>8.0}  {share:>11.0} %", row.tokens)?;
    }
    if !decode.is_empty() {
        writeln!(out, "\n    sequences      tokens/s  of each one  of read limit  of int8 limit")?;
    }
    for row in decode {
        let (rate, each) = (row.tokens_per_second, row.tokens_per_second / row.sequences as f64);
        let (read, int8) = (row.read_share * 100.0, row.int8_share * 100.0);
        writeln!(out, "{:>13}  {rate:>12.1}  {each:>11.1}  {read:>11.0} %  {int8:>11.0} %", row.sequences)?;
    }
    if let Some(row) = clients {
        let (first, first_p90) = (row.first_token_seconds_median * 1e3, row.first_token_seconds_p90 * 1e3);
        let (gap, gap_p99) = (row.gap_seconds_median * 1e3, row.gap_seconds_p99 * 1e3);
        writeln!(out, "\n      clients      tokens/s  first token ms, 90 %  between two ms, 99 %  answers")?;
        writeln!(
            out,
            "{:>13}  {:>12.1}  {first:>14.1} {first_p90:>5.0}  {gap:>14.1} {gap_p99:>5.0}  {:>7}",
            row.clients, row.tokens_per_second, row.answers
        )?;
    }
    Ok(())
}

fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let shown = |values: &[f64], share| percentile(&mut values.to_vec(), share).to_string();
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!([0, 50, 90, 100].map(|share| shown(&values, share)), ["1", "3", "4", "5"]);
        assert_eq!((shown(&[2.0, 1.0], 50), shown(&[], 50)), ("1".to_owned(), "0".to_owned()));
    }
}
