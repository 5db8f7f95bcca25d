//! How fast products are: Gop/s (a multiply and an add are two) for every format, batch size and instruction set; and
//! GB/s of packed weights that a lone row reads, and of the file's bytes while they are packed.
//! `cargo bench -p midstream-kernels -- Q4_1 avx512` runs what matches all words. It must never be read as a test.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

use std::fmt::Write;
use std::time::{Duration, Instant};

use midstream_kernels::{
    Activation, AttentionArgs, AttentionRow, AttentionScratch, Format, Isa, KV_BLOCK, KvFormat, KvLayer, Product,
    Scratch, Team, WeightMatrix, activate_rows, attention, matmul, matmul_all, rms_norm_rows,
};

const ROWS: usize = 4096;
const COLS: usize = 1536;
const BATCHES: [usize; 6] = [1, 4, 8, 16, 128, 512];
const TIME: Duration = Duration::from_millis(150);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let matches = |line: &str| words.iter().all(|word| line.contains(word.as_str()));
    for size in [1, Team::default_size()] {
        let team = Team::new(size);
        println!("threads {size}, {ROWS} x {COLS}, Gop/s for m = {BATCHES:?}, GB/s for m = 1 and packing");
        for isa in Isa::available() {
            for format in Format::ALL {
                let line = format!("{:7} {:6}", isa.name(), format!("{format:?}"));
                if matches(&line) {
                    println!("{line} {}", products(&team, isa, format));
                }
            }
            let line = format!("{:7} model", isa.name());
            if matches(&line) {
                println!("{line} {}", models(&team, isa));
            }
            for format in KvFormat::ALL {
                let line = format!("{:7} attention {format}", isa.name());
                if matches(&line) {
                    println!("{line} {}", attentions(&team, isa, format));
                }
            }
        }
    }
}

/// The products, norms and gates of a small model (30 layers of 576, feed-forward 1536, 49152 words, `Q4_1` with a
/// `Q8_0` head) without attention: tokens per second for each batch size.
fn models(team: &Team, isa: Isa) -> String {
    let matrix =
        |format, rows, cols| WeightMatrix::new(isa, format, rows, cols, &file_bytes(format, rows * cols)).unwrap();
    let layer = || {
        [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)]
            .map(|(rows, cols)| matrix(Format::Q4_1, rows, cols))
    };
    let layers: Vec<[WeightMatrix; 7]> = (0..30).map(|_| layer()).collect();
    let head = matrix(Format::Q8_0, 49_152, 576);
    let norm = vec![1.0; 576];
    let mut line = String::new();
    for m in BATCHES {
        let x: Vec<f32> = (0..m * 576).map(|i| (i % 17) as f32 - 8.0).collect();
        let [mut h, mut q, mut k, mut v] = [576, 576, 192, 192].map(|cols| vec![0.0; m * cols]);
        let [mut gate, mut up, mut logits] = [1536, 1536, 49_152].map(|cols| vec![0.0; m * cols]);
        let mut scratch = Scratch::default();
        let seconds = fastest(|| {
            for [wq, wk, wv, wo, wgate, wup, wdown] in &layers {
                rms_norm_rows(team, isa, &x, &norm, 1e-5, &mut h);
                let mut products = [
                    Product { weights: wq, out: &mut q },
                    Product { weights: wk, out: &mut k },
                    Product { weights: wv, out: &mut v },
                ];
                matmul_all(team, &h, m, &mut products, &mut scratch);
                matmul(team, wo, &q, m, &mut h, &mut scratch);
                rms_norm_rows(team, isa, &x, &norm, 1e-5, &mut h);
                let mut products = [Product { weights: wgate, out: &mut gate }, Product { weights: wup, out: &mut up }];
                matmul_all(team, &h, m, &mut products, &mut scratch);
                activate_rows(team, isa, Activation::Silu, &mut gate, &up, 1536);
                matmul(team, wdown, &gate, m, &mut h, &mut scratch);
            }
            matmul(team, &head, &x, m, &mut logits, &mut scratch);
        });
        let _ = write!(line, "{:8.0}", m as f64 / seconds);
    }
    line
}

/// Small scales and quants that are not all alike; values do not matter for speed, subnormals would.
fn file_bytes(format: Format, values: usize) -> Vec<u8> {
    (0..values / format.block_len() * format.block_bytes())
        .map(|i| match i % format.block_bytes() {
            // An exponent of its own.
            0 if format == Format::MXFP4 => 120,
            at if at.is_multiple_of(2) => (i / 7) as u8,
            _ => 0x20,
        })
        .collect()
}

fn products(team: &Team, isa: Isa, format: Format) -> String {
    let bytes = file_bytes(format, ROWS * COLS);
    let weights = WeightMatrix::new(isa, format, ROWS, COLS, &bytes).unwrap();
    let mut scratch = Scratch::default();
    let (mut line, mut alone) = (String::new(), 0.0);
    for m in BATCHES {
        let x: Vec<f32> = (0..m * COLS).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut out = vec![0.0; m * ROWS];
        let seconds = fastest(|| matmul(team, &weights, &x, m, &mut out, &mut scratch));
        let _ = write!(line, "{:8.1}", 2e-9 * (m * ROWS * COLS) as f64 / seconds);
        if m == 1 {
            alone = 1e-9 * weights.packed_bytes() as f64 / seconds;
        }
    }
    let packing = fastest(|| drop(WeightMatrix::new(isa, format, ROWS, COLS, &bytes).unwrap()));
    format!("{line} {alone:7.1} {:7.2}", 1e-9 * bytes.len() as f64 / packing)
}

fn attentions(team: &Team, isa: Isa, format: KvFormat) -> String {
    let (n_heads, n_kv_heads, head_dim) = (9, 3, 64);
    let mut line = String::new();
    for (rows, len) in [(1, 128), (1, 2048), (8, 1024), (64, 1024)] {
        let blocks = 2048 / KV_BLOCK;
        let mut kv = KvLayer::new(format, blocks, n_kv_heads, head_dim);
        let position: Vec<f32> = (0..n_kv_heads * head_dim).map(|i| (i % 13) as f32 * 0.1).collect();
        for place in (0..blocks).flat_map(|block| (0..KV_BLOCK).map(move |slot| (block, slot))) {
            kv.write(isa, place, &position, &position);
        }
        let q: Vec<f32> = (0..rows * n_heads * head_dim).map(|i| (i % 11) as f32 * 0.1).collect();
        let table: Vec<u32> = (0..blocks as u32).rev().collect();
        let seen = vec![AttentionRow { block_table: &table, len }; rows];
        let args = AttentionArgs { q: &q, n_heads, scale: 0.125, kv: &kv, window: None, sinks: None, rows: &seen };
        let mut out = vec![0.0; q.len()];
        let mut scratch = AttentionScratch::default();
        let seconds = fastest(|| attention(team, isa, &args, &mut out, &mut scratch));
        let _ = write!(line, "  {rows} rows of {len}: {:.1} us", 1e6 * seconds);
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
