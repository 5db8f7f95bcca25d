//! Where the time of a forward pass goes: a model's products, attention and vector operations as the engine calls them,
//! with weights of its formats and shapes that mean nothing. Prompts are read in steps of 128 tokens.
//! `cargo bench -p midstream-kernels --bench forward -- SmolLM2 avx2` runs what matches all words. It must never be
//! read as a test.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

use std::fmt::Write;
use std::time::{Duration, Instant};

use midstream_kernels::{
    Activation, AttentionArgs, AttentionRow, AttentionScratch, Branch, Format, Isa, KV_BLOCK, KvFormat, KvLayer,
    Product, RopeStyle, Rotation, Scratch, Team, WeightMatrix, activate_rows, add_branch, attention, matmul,
    matmul_all, rms_norm_rows, rope,
};

const STEP: usize = 128;
const CONTEXT: usize = 2048;
const PARTS: [&str; 10] =
    ["norm", "q k v", "rope", "kv write", "attention", "output", "gate up", "activate", "down", "head"];

/// A model's shape and formats.
struct Shape {
    name: &'static str,
    layers: usize,
    width: usize,
    heads: usize,
    kv_heads: usize,
    inner: usize,
    words: usize,
    /// Of query, key, value, output, gate, up, down, head.
    formats: [Format; 8],
}

const HEAD_DIM: usize = 64;

const SHAPES: [Shape; 2] = [
    Shape {
        name: "SmolLM2-135M",
        layers: 30,
        width: 576,
        heads: 9,
        kv_heads: 3,
        inner: 1536,
        words: 49_152,
        formats: [
            Format::Q4_1,
            Format::Q4_1,
            Format::Q4_1,
            Format::Q4_1,
            Format::Q4_1,
            Format::Q4_1,
            Format::Q4_1,
            Format::Q8_0,
        ],
    },
    Shape {
        name: "Qwen2.5-0.5B",
        layers: 24,
        width: 896,
        heads: 14,
        kv_heads: 2,
        inner: 4864,
        words: 151_936,
        formats: [
            Format::Q5_0,
            Format::Q5_0,
            Format::Q8_0,
            Format::Q5_0,
            Format::Q5_0,
            Format::Q5_0,
            Format::Q6_K,
            Format::Q8_0,
        ],
    },
];

struct Model<'a> {
    shape: &'a Shape,
    isa: Isa,
    /// Query, key, value, output, gate, up, down.
    layers: Vec<[WeightMatrix; 7]>,
    head: WeightMatrix,
    norm: Vec<f32>,
    kv: Vec<KvLayer>,
    times: [Duration; PARTS.len()],
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    for shape in &SHAPES {
        let isas = Isa::available().into_iter().skip(1);
        for (isa, format) in isas.flat_map(|isa| KvFormat::ALL.map(|format| (isa, format))) {
            let line = format!("{} {} {format}", shape.name, isa.name());
            if !words.iter().all(|word| line.contains(word.as_str())) {
                continue;
            }
            let mut model = Model::new(shape, isa, format);
            for threads in [1, Team::default_size()] {
                println!("{line}, {threads} threads");
                println!("{:28}{}", "us per token", PARTS.map(|part| format!("{part:>10}")).concat());
                let team = Team::new(threads);
                for length in [512, CONTEXT] {
                    model.report(&format!("prompt of {length}"), length, |model| {
                        for start in (0..length).step_by(STEP) {
                            let run = start..start + STEP;
                            model.step(&team, std::slice::from_ref(&run), run.end == length);
                        }
                    });
                }
                for (sequences, context) in [(1, 128), (1, CONTEXT), (8, 128), (32, 128)] {
                    let name = format!("{sequences} decode at {context}");
                    let runs = vec![context - 1..context; sequences];
                    model.report(&name, sequences, |model| model.step(&team, &runs, true));
                }
            }
        }
    }
}

impl<'a> Model<'a> {
    fn new(shape: &'a Shape, isa: Isa, format: KvFormat) -> Self {
        let Shape { width, inner, .. } = *shape;
        let (query, kv) = (shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM);
        let sizes =
            [(query, width), (kv, width), (kv, width), (width, query), (inner, width), (inner, width), (width, inner)];
        let matrix = |format: Format, rows: usize, cols: usize| {
            let bytes: Vec<u8> = (0..rows * cols / format.block_len() * format.block_bytes())
                .map(|i| if (i % format.block_bytes()).is_multiple_of(2) { (i / 7) as u8 } else { 0x20 })
                .collect();
            WeightMatrix::new(isa, format, rows, cols, &bytes).unwrap()
        };
        let layer = || std::array::from_fn(|i| matrix(shape.formats[i], sizes[i].0, sizes[i].1));
        let pages = || KvLayer::new(format, CONTEXT / KV_BLOCK, shape.kv_heads, HEAD_DIM);
        Self {
            shape,
            isa,
            layers: (0..shape.layers).map(|_| layer()).collect(),
            head: matrix(shape.formats[7], shape.words, width),
            norm: vec![1.0; width],
            kv: std::iter::repeat_with(pages).take(shape.layers).collect(),
            times: [Duration::ZERO; PARTS.len()],
        }
    }

    /// Runs something some times and prints the times of the fastest run.
    fn report(&mut self, name: &str, tokens: usize, run: impl Fn(&mut Self)) {
        let (begin, mut best) = (Instant::now(), [Duration::MAX; PARTS.len()]);
        let sum = |times: [Duration; PARTS.len()]| times.iter().map(Duration::as_secs_f64).sum::<f64>();
        while best[0] == Duration::MAX || begin.elapsed() < Duration::from_millis(1500) {
            self.times = [Duration::ZERO; PARTS.len()];
            run(self);
            if best[0] == Duration::MAX || sum(self.times) < sum(best) {
                best = self.times;
            }
        }
        let mut line = format!("{name:20}{:8.0}", 1e6 * sum(best) / tokens as f64);
        for time in best {
            let _ = write!(line, "{:10.1}", 1e6 * time.as_secs_f64() / tokens as f64);
        }
        println!("{line}{:10.1} tokens/s", tokens as f64 / sum(best));
    }

    /// One step over runs of positions. All sequences share one table of blocks: nobody looks at what comes out.
    fn step(&mut self, team: &Team, runs: &[std::ops::Range<usize>], has_head: bool) {
        let isa = self.isa;
        let Shape { width, heads, kv_heads, inner, words, .. } = *self.shape;
        let positions: Vec<usize> = runs.iter().flat_map(Clone::clone).collect();
        let (m, query, kv) = (positions.len(), heads * HEAD_DIM, kv_heads * HEAD_DIM);
        let tables: Vec<Vec<u32>> = runs.iter().map(|_| (0..(CONTEXT / KV_BLOCK) as u32).collect()).collect();
        let seen = rows(runs, &tables);
        let x: Vec<f32> = (0..m * width).map(|i| (i % 17) as f32 - 8.0).collect();
        let [mut residual, mut h, mut out] = [x.clone(), x.clone(), x];
        let [mut q, mut attended, mut k, mut v] = [query, query, kv, kv].map(|cols| vec![0.0; m * cols]);
        let [mut gate, mut up] = [inner, inner].map(|cols| vec![0.0; m * cols]);
        let (cos, sin) = (vec![0.8; m * HEAD_DIM / 2], vec![0.6; m * HEAD_DIM / 2]);
        let mut logits = vec![0.0; runs.len() * words];
        let (mut scratch, mut attention_scratch) = (Scratch::default(), AttentionScratch::default());
        for index in 0..self.shape.layers {
            let [wq, wk, wv, wo, wgate, wup, wdown] = &self.layers[index];
            let mut clock = Clock { times: &mut self.times, last: Instant::now() };
            if index == 0 {
                rms_norm_rows(team, isa, &residual, &self.norm, 1e-5, &mut h);
                clock.stop("norm");
            }
            let mut products = [
                Product { weights: wq, out: &mut q },
                Product { weights: wk, out: &mut k },
                Product { weights: wv, out: &mut v },
            ];
            matmul_all(team, &h, m, &mut products, &mut scratch);
            clock.stop("q k v");
            let rotation = Rotation { style: RopeStyle::Norm, head_dim: HEAD_DIM, cos: &cos, sin: &sin };
            rope(team, isa, &rotation, &mut q, m);
            rope(team, isa, &rotation, &mut k, m);
            clock.stop("rope");
            for ((position, k), v) in positions.iter().zip(k.chunks_exact(kv)).zip(v.chunks_exact(kv)) {
                self.kv[index].write(isa, (position / KV_BLOCK, position % KV_BLOCK), k, v);
            }
            clock.stop("kv write");
            let args = AttentionArgs {
                q: &q,
                n_heads: heads,
                scale: 0.125,
                kv: &self.kv[index],
                window: None,
                sinks: None,
                rows: &seen,
            };
            attention(team, isa, &args, &mut attended, &mut attention_scratch);
            clock.stop("attention");
            matmul(team, wo, &attended, m, &mut out, &mut scratch);
            clock.stop("output");
            let branch = Branch { values: &out, norm: None, next_norm: Some(&self.norm), epsilon: 1e-5 };
            add_branch(team, isa, &branch, &mut residual, &mut h, width);
            clock.stop("norm");
            let mut products = [Product { weights: wgate, out: &mut gate }, Product { weights: wup, out: &mut up }];
            matmul_all(team, &h, m, &mut products, &mut scratch);
            clock.stop("gate up");
            activate_rows(team, isa, Activation::Silu, &mut gate, &up, inner);
            clock.stop("activate");
            matmul(team, wdown, &gate, m, &mut out, &mut scratch);
            clock.stop("down");
            let branch = Branch { values: &out, norm: None, next_norm: Some(&self.norm), epsilon: 1e-5 };
            add_branch(team, isa, &branch, &mut residual, &mut h, width);
            clock.stop("norm");
        }
        if has_head {
            let mut clock = Clock { times: &mut self.times, last: Instant::now() };
            matmul(team, &self.head, &residual[..runs.len() * width], runs.len(), &mut logits, &mut scratch);
            clock.stop("head");
        }
    }
}

/// What each position of the runs attends to.
fn rows<'a>(runs: &[std::ops::Range<usize>], tables: &'a [Vec<u32>]) -> Vec<AttentionRow<'a>> {
    let of_run = |(run, table): (&std::ops::Range<usize>, &'a Vec<u32>)| {
        run.clone().map(|position| AttentionRow { block_table: table, len: position + 1 }).collect::<Vec<_>>()
    };
    runs.iter().zip(tables).flat_map(of_run).collect()
}

/// Adds up what each part takes.
struct Clock<'a> {
    times: &'a mut [Duration; PARTS.len()],
    last: Instant,
}

impl Clock<'_> {
    fn stop(&mut self, part: &str) {
        let now = Instant::now();
        let index = PARTS.iter().position(|known| *known == part).unwrap();
        self.times[index] += now - self.last;
        self.last = now;
    }
}
