//! The plot: throughput by sequences, and time to the first token by prompt, cold and cached, as an SVG file.

use std::fmt::Write;

use super::report::Report;

/// Of the whole picture, in its own units.
const HEIGHT: f64 = 360.0;
/// Of one chart with its labels.
const CHART_WIDTH: f64 = 460.0;
/// Around the area of the lines.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 60.0;
/// Colours that differ for everybody.
const COLOURS: [&str; 2] = ["#0072b2", "#d55e00"];
/// Lines across a linear chart, about.
const TICKS: f64 = 5.0;

/// A chart over a row of counts, which stand side by side: they are powers of two as a rule.
struct Chart {
    title: &'static str,
    x_label: &'static str,
    counts: Vec<usize>,
    lines: Vec<(&'static str, Vec<f64>)>,
    axis: Axis,
}

/// The upward axis.
enum Axis {
    /// From 0 to this.
    Linear(f64),
    /// From one power of ten to another.
    Logarithmic(i32, i32),
}

/// Draws what of the two was measured.
pub(super) fn svg(report: &Report) -> String {
    let charts: Vec<Chart> = [throughput(report), first_tokens(report)].into_iter().flatten().collect();
    let width = CHART_WIDTH * charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" width=\"{width}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    let machine = &report.machine;
    let caption = format!("{}, {}, threads: {}", report.model.id, machine.isa, machine.threads);
    text(&mut out, (LEFT, 20.0), "start", &caption);
    for (number, chart) in charts.iter().enumerate() {
        chart.draw(&mut out, CHART_WIDTH * number as f64);
    }
    out.push_str("</svg>\n");
    out
}

fn throughput(report: &Report) -> Option<Chart> {
    let rates: Vec<f64> = report.decode.iter().map(|row| row.tokens_per_second).collect();
    let highest = rates.iter().copied().reduce(f64::max)?;
    Some(Chart {
        title: "tokens per second, all sequences",
        x_label: "sequences",
        counts: report.decode.iter().map(|row| row.sequences).collect(),
        lines: vec![("decoding", rates)],
        axis: Axis::Linear(highest),
    })
}

fn first_tokens(report: &Report) -> Option<Chart> {
    let cold: Vec<f64> = report.prefill.iter().map(|row| row.cold_seconds * 1e3).collect();
    let cached: Vec<f64> = report.prefill.iter().map(|row| row.cached_seconds * 1e3).collect();
    let all = || cold.iter().chain(&cached).copied();
    let (lowest, highest) = (all().reduce(f64::min)?, all().reduce(f64::max)?);
    let decade = |value: f64| value.max(f64::MIN_POSITIVE).log10();
    let (from, to) = (decade(lowest).floor() as i32, decade(highest).ceil() as i32);
    Some(Chart {
        title: "milliseconds to the first token",
        x_label: "tokens of the prompt",
        counts: report.prefill.iter().map(|row| row.tokens).collect(),
        lines: vec![("cold", cold), ("cached", cached)],
        axis: Axis::Logarithmic(from, to.max(from + 1)),
    })
}

impl Chart {
    fn draw(&self, out: &mut String, left: f64) {
        let (start, end) = (left + LEFT, left + CHART_WIDTH - RIGHT);
        text(out, (start, TOP - 16.0), "start", self.title);
        for (value, label) in self.axis.ticks() {
            let y = self.axis.place(value);
            line(out, &[(start, y), (end, y)], "#dddddd", 1);
            text(out, (start - 8.0, y + 4.0), "end", &label);
        }
        let x = |number: usize| {
            let middle = (number as f64 + 0.5) / self.counts.len() as f64;
            start + middle * (end - start)
        };
        for (number, count) in self.counts.iter().enumerate() {
            text(out, (x(number), HEIGHT - BOTTOM + 20.0), "middle", &count.to_string());
        }
        text(out, (f64::midpoint(start, end), HEIGHT - BOTTOM + 42.0), "middle", self.x_label);
        for ((name, values), colour) in self.lines.iter().zip(COLOURS) {
            let place = |(number, value): (usize, &f64)| (x(number), self.axis.place(*value));
            let points: Vec<(f64, f64)> = values.iter().enumerate().map(place).collect();
            line(out, &points, colour, 2);
            for (x, y) in &points {
                let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
            // Beside the line's end, where lines are furthest apart as a rule.
            if let Some((x, y)) = points.last() {
                text(out, (*x, y - 8.0), "end", name);
            }
        }
    }
}

impl Axis {
    /// How far up a value lies.
    fn place(&self, value: f64) -> f64 {
        let share = match self {
            Self::Linear(highest) => value / highest,
            Self::Logarithmic(from, to) => {
                (value.max(f64::MIN_POSITIVE).log10() - f64::from(*from)) / f64::from(to - from)
            }
        };
        let height = HEIGHT - TOP - BOTTOM;
        // A measurement of nothing at all must not leave the picture.
        HEIGHT - BOTTOM - height * if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Values with a line of their own, and what is written beside it.
    fn ticks(&self) -> Vec<(f64, String)> {
        match self {
            Self::Linear(highest) => {
                let step = round_step(highest / TICKS);
                let count = (highest / step).floor() as usize;
                (0..=count).map(|number| number as f64 * step).map(|value| (value, shown(value))).collect()
            }
            Self::Logarithmic(from, to) => {
                (*from..=*to).map(|power| 10_f64.powi(power)).map(|value| (value, shown(value))).collect()
            }
        }
    }
}

/// The next larger of 1, 2, 5, 10, … and their tenths.
fn round_step(least: f64) -> f64 {
    if !least.is_finite() || least <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= least).unwrap_or(10.0 * power)
}

fn shown(value: f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

fn line(out: &mut String, points: &[(f64, f64)], colour: &str, width: u32) {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let points = points.join(" ");
    let _ = writeln!(out, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>");
}

fn text(out: &mut String, at: (f64, f64), anchor: &str, words: &str) {
    let (x, y) = at;
    let words = escaped(words);
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

/// A model's id is a file's name and may hold anything; what XML has no place for becomes a space.
fn escaped(words: &str) -> String {
    let mut out = String::new();
    for letter in words.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        let labels = |axis: Axis| axis.ticks().into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(Axis::Linear(487.0)), ["0", "100", "200", "300", "400"]);
        assert_eq!(labels(Axis::Linear(0.9)), ["0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(labels(Axis::Logarithmic(-1, 2)), ["0.1", "1", "10", "100"]);
        assert_eq!(labels(Axis::Linear(0.0)), ["0"]);
    }

    #[test]
    fn values_lie_between_the_bottom_and_the_top_whatever_they_are() {
        for axis in [Axis::Linear(10.0), Axis::Logarithmic(0, 2), Axis::Linear(0.0)] {
            for value in [0.0, 1.0, 10.0, 1e9, f64::NAN, f64::INFINITY] {
                let place = axis.place(value);
                assert!((TOP..=HEIGHT - BOTTOM).contains(&place), "{value}: {place}");
            }
        }
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("a<b> & \"c\"\u{1}\u{ffff}"), "a&lt;b&gt; &amp; \"c\"  ");
    }
}
