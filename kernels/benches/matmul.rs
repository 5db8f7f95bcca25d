//! How fast products are: Gop/s (a multiply and an add are two) for every format, batch size and instruction set.
//! `cargo bench -p midstream-kernels -- Q4_1 avx512` runs what matches all words. It must never be read as a test.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

use std::time::{Duration, Instant};

use midstream_kernels::{
    AttentionArgs, AttentionRow, AttentionScratch, Format, Isa, Scratch, Team, WeightMatrix, attention, f32_to_f16,
    matmul,
};

const ROWS: usize = 4096;
const COLS: usize = 1536;
const BATCHES: [usize; 5] = [1, 4, 8, 16, 128];
const TIME: Duration = Duration::from_millis(150);

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let matches = |line: &str| words.iter().all(|word| line.contains(word.as_str()));
    for size in [1, Team::default_size()] {
        let team = Team::new(size);
        println!("threads {size}, {ROWS} x {COLS}, Gop/s for m = {BATCHES:?}");
        for isa in Isa::available() {
            for format in Format::ALL {
                let line = format!("{:7} {:5}", isa.name(), format!("{format:?}"));
                if matches(&line) {
                    println!("{line} {}", products(&team, isa, format));
                }
            }
            let line = format!("{:7} attention", isa.name());
            if matches(&line) {
                println!("{line} {}", attentions(&team, isa));
            }
        }
    }
}

fn products(team: &Team, isa: Isa, format: Format) -> String {
    // Small scales and quants that are not all alike; values do not matter for speed, subnormals would.
    let bytes: Vec<u8> = (0..ROWS * COLS / format.block_len() * format.block_bytes())
        .map(|i| {
            if i % format.block_bytes() % 2 == 0 {
                (i / 7) as u8
            } else {
                0x20
            }
        })
        .collect();
    let weights = WeightMatrix::new(isa, format, ROWS, COLS, &bytes).unwrap();
    let mut scratch = Scratch::default();
    let mut line = String::new();
    for m in BATCHES {
        let x: Vec<f32> = (0..m * COLS).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut out = vec![0.0; m * ROWS];
        let seconds = fastest(|| matmul(team, &weights, &x, m, &mut out, &mut scratch));
        line += &format!("{:8.1}", 2e-9 * (m * ROWS * COLS) as f64 / seconds);
    }
    line
}

fn attentions(team: &Team, isa: Isa) -> String {
    let (n_heads, n_kv_heads, head_dim, block_size) = (9, 3, 64, 16);
    let mut line = String::new();
    for (rows, len) in [(1, 128), (1, 2048), (64, 1024)] {
        let blocks = 2048 / block_size;
        let pool: Vec<u16> = (0..blocks * n_kv_heads * block_size * head_dim)
            .map(|i| f32_to_f16((i % 13) as f32 * 0.1))
            .collect();
        let q: Vec<f32> = (0..rows * n_heads * head_dim).map(|i| (i % 11) as f32 * 0.1).collect();
        let table: Vec<u32> = (0..blocks as u32).rev().collect();
        let seen = vec![
            AttentionRow {
                block_table: &table,
                len
            };
            rows
        ];
        let args = AttentionArgs {
            q: &q,
            n_heads,
            n_kv_heads,
            head_dim,
            scale: 0.125,
            k: &pool,
            v: &pool,
            block_size,
            rows: &seen,
        };
        let mut out = vec![0.0; q.len()];
        let mut scratch = AttentionScratch::default();
        let seconds = fastest(|| attention(team, isa, &args, &mut out, &mut scratch));
        line += &format!("  {rows} rows of {len}: {:.1} us", 1e6 * seconds);
    }
    line
}

/// The shortest of several runs, in seconds.
fn fastest(mut run: impl FnMut()) -> f64 {
    let (start, mut best) = (Instant::now(), Duration::MAX);
    let mut runs = 0;
    while runs < 2 || start.elapsed() < TIME {
        let before = Instant::now();
        run();
        best = best.min(before.elapsed());
        runs += 1;
    }
    best.as_secs_f64()
}
