//! Small random models for tests, written as GGUF files.

use midstream_kernels::{Format, f32_to_f16};

use super::super::gguf::{Array, TensorType, Value, Writer};

/// What a tiny model is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiny {
    pub(crate) architecture: &'static str,
    pub(crate) layers: usize,
    /// Tokens of its context.
    pub(crate) context: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Values in a head, where heads do not share the stream's width.
    pub(crate) head_dim: Option<usize>,
    pub(crate) kind: TensorType,
    pub(crate) seed: u64,
    /// Without: the embedding is the output matrix.
    pub(crate) own_output: bool,
    /// Experts in the place of one feed-forward part, two of which each row takes.
    pub(crate) experts: usize,
    /// How the experts' matrices are packed, where they are not as all others.
    pub(crate) expert_kind: Option<TensorType>,
    /// A key or tensor that is left out.
    pub(crate) skip: Option<&'static str>,
}

impl Default for Tiny {
    fn default() -> Self {
        Self {
            architecture: "llama",
            layers: 2,
            context: 2048,
            heads: 4,
            kv_heads: 2,
            head_dim: None,
            kind: TensorType::Q4_1,
            seed: 1,
            own_output: false,
            experts: 0,
            expert_kind: None,
            skip: None,
        }
    }
}

/// Width of the residual stream, and of the feed-forward layer: whole blocks of every format.
pub(crate) const WIDTH: usize = 256;
/// The vocabulary: the bytes and `ChatML`'s tokens, padded as real models are.
pub(crate) const VOCABULARY: usize = 288;

impl Tiny {
    /// The file.
    pub(crate) fn file(self) -> Vec<u8> {
        self.writer().finish()
    }

    pub(crate) fn head_dim(self) -> usize {
        self.head_dim.unwrap_or(WIDTH / self.heads)
    }

    /// The file before it is written, to be spoilt.
    pub(crate) fn writer(self) -> Writer {
        let number = |value: usize| Value::U32(value as u32);
        let kv_heads = match self.architecture {
            "lfm2" => {
                let of = |layer| if self.convolves(layer) { 0 } else { self.kv_heads as u32 };
                Value::Array(Array::U32((0..self.layers).map(of).collect()))
            }
            _ => number(self.kv_heads),
        };
        let keys = [
            ("block_count", number(self.layers)),
            ("context_length", number(self.context)),
            ("embedding_length", number(WIDTH)),
            ("attention.head_count", number(self.heads)),
            ("attention.head_count_kv", kv_heads),
            ("shortconv.l_cache", number(3)),
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("feed_forward_length", number(WIDTH)),
            ("expert_count", number(self.experts)),
            ("expert_used_count", number(2.min(self.experts))),
            ("expert_feed_forward_length", number(WIDTH)),
            ("attention.key_length", number(self.head_dim())),
            ("attention.value_length", number(self.head_dim())),
        ];
        let keys = keys.map(|(name, value)| (format!("{}.{name}", self.architecture), value));
        let architecture = ("general.architecture".to_owned(), Value::String(self.architecture.to_owned()));
        let wanted = keys.into_iter().chain([architecture]).filter(|(key, _)| self.skip != Some(key.as_str()));
        let writer = wanted.fold(Writer::new(), |writer, (key, value)| writer.entry(key, value));
        self.tensors(tokenizer(writer))
    }

    /// Whether the layer is a short convolution.
    fn convolves(self, layer: usize) -> bool {
        self.architecture == "lfm2" && layer % 3 != 2
    }

    fn tensors(self, writer: Writer) -> Writer {
        let mut random = Random(self.seed);
        let embedding = if self.kind == TensorType::F32 { self.kind } else { TensorType::Q8_0 };
        let mut all = vec![("token_embd.weight".to_owned(), vec![WIDTH, VOCABULARY], embedding)];
        for layer in 0..self.layers {
            let parts = [self.mixer(layer), self.feed_forward(), self.norms()].concat();
            all.extend(parts.into_iter().map(|(part, shape, kind)| (format!("blk.{layer}.{part}"), shape, kind)));
        }
        let norm = if self.architecture == "lfm2" { "token_embd_norm.weight" } else { "output_norm.weight" };
        all.push((norm.to_owned(), vec![WIDTH], TensorType::F32));
        if self.own_output {
            all.push(("output.weight".to_owned(), vec![WIDTH, VOCABULARY], self.kind));
        }
        let wanted = all.into_iter().filter(|(name, ..)| self.skip != Some(name.as_str()));
        wanted.fold(writer, |writer, (name, shape, kind)| {
            let data = random.data(kind, &shape);
            writer.tensor(name, &shape, kind, data)
        })
    }

    fn mixer(self, layer: usize) -> Vec<Part> {
        if self.convolves(layer) {
            return vec![
                ("shortconv.in_proj.weight".to_owned(), vec![WIDTH, 3 * WIDTH], self.kind),
                ("shortconv.conv.weight".to_owned(), vec![3, WIDTH], TensorType::F32),
                ("shortconv.out_proj.weight".to_owned(), vec![WIDTH, WIDTH], self.kind),
            ];
        }
        let head_dim = self.head_dim();
        let (query, kv) = (head_dim * self.heads, head_dim * self.kv_heads);
        let mut parts = Vec::new();
        for (part, rows) in [("attn_q", query), ("attn_k", kv), ("attn_v", kv)] {
            parts.push((format!("{part}.weight"), vec![WIDTH, rows], self.kind));
            if matches!(self.architecture, "qwen2" | "gpt-oss") {
                parts.push((format!("{part}.bias"), vec![rows], TensorType::F32));
            }
        }
        if matches!(self.architecture, "qwen3" | "qwen3moe" | "gemma3" | "lfm2") {
            parts.push(("attn_q_norm.weight".to_owned(), vec![head_dim], TensorType::F32));
            parts.push(("attn_k_norm.weight".to_owned(), vec![head_dim], TensorType::F32));
        }
        parts.push(("attn_output.weight".to_owned(), vec![query, WIDTH], self.kind));
        if self.architecture == "gpt-oss" {
            parts.push(("attn_output.bias".to_owned(), vec![WIDTH], TensorType::F32));
            parts.push(("attn_sinks.weight".to_owned(), vec![self.heads], TensorType::F32));
        }
        parts
    }

    fn feed_forward(self) -> Vec<Part> {
        let matrices = ["ffn_gate", "ffn_up", "ffn_down"];
        if self.experts == 0 {
            return matrices.map(|part| (format!("{part}.weight"), vec![WIDTH, WIDTH], self.kind)).to_vec();
        }
        let mut parts = vec![("ffn_gate_inp.weight".to_owned(), vec![WIDTH, self.experts], TensorType::F32)];
        for part in matrices {
            let kind = self.expert_kind.unwrap_or(self.kind);
            parts.push((format!("{part}_exps.weight"), vec![WIDTH, WIDTH, self.experts], kind));
            if self.architecture == "gpt-oss" {
                parts.push((format!("{part}_exps.bias"), vec![WIDTH, self.experts], TensorType::F32));
            }
        }
        if self.architecture == "gpt-oss" {
            parts.push(("ffn_gate_inp.bias".to_owned(), vec![self.experts], TensorType::F32));
        }
        parts
    }

    fn norms(self) -> Vec<Part> {
        let names: &[&str] = match self.architecture {
            "gemma3" => &["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"],
            "gpt-oss" => &["attn_norm", "post_attention_norm"],
            _ => &["attn_norm", "ffn_norm"],
        };
        names.iter().map(|part| (format!("{part}.weight"), vec![WIDTH], TensorType::F32)).collect()
    }
}

/// A tensor: its name in its layer, its shape, its type.
type Part = (String, Vec<usize>, TensorType);

/// The models whose logits `tests/golden/logits/` has: small ones of every architecture, over f32 weights, with the
/// properties that set it apart.
pub(crate) fn references() -> Vec<(&'static str, Writer)> {
    let plain = Tiny { kind: TensorType::F32, heads: 8, seed: 9, ..Tiny::default() };
    let llama = |own_output| Tiny { own_output, ..plain }.writer();
    // All within the original context, and the factors' short list, would not show the scaling.
    let scaled = |kind: &str| {
        llama(false)
            .entry("llama.rope.scaling.type", Value::String(kind.to_owned()))
            .entry("llama.rope.scaling.factor", Value::F32(4.0))
            .entry("llama.rope.scaling.original_context_length", Value::U32(24))
    };
    let factors =
        |step: f32| -> Vec<u8> { (0..16_u8).flat_map(|pair| (1.0 + step * f32::from(pair)).to_le_bytes()).collect() };
    let with_factors =
        |writer: Writer, name: &str, step: f32| writer.tensor(name, &[16], TensorType::F32, factors(step));
    let longrope = with_factors(scaled("longrope"), "rope_factors_short.weight", 0.1);
    let gemma3 = Tiny { architecture: "gemma3", layers: 6, head_dim: Some(48), ..plain }
        .writer()
        .entry("gemma3.attention.sliding_window", Value::U32(12))
        .entry("gemma3.rope.freq_base", Value::F32(1e6))
        .entry("gemma3.rope.scaling.type", Value::String("linear".to_owned()))
        .entry("gemma3.rope.scaling.factor", Value::F32(8.0));
    let gpt_oss = |expert_kind| {
        Tiny { architecture: "gpt-oss", experts: 6, expert_kind, own_output: true, ..plain }
            .writer()
            .entry("gpt-oss.attention.sliding_window", Value::U32(12))
            .entry("gpt-oss.rope.freq_base", Value::F32(150_000.0))
            .entry("gpt-oss.rope.scaling.type", Value::String("yarn".to_owned()))
            .entry("gpt-oss.rope.scaling.factor", Value::F32(4.0))
            .entry("gpt-oss.rope.scaling.original_context_length", Value::U32(24))
    };
    vec![
        ("llama", llama(true)),
        ("llama_linear", scaled("linear")),
        ("llama_yarn", scaled("yarn")),
        ("llama_longrope", with_factors(longrope, "rope_factors_long.weight", 0.3)),
        ("llama_factors", with_factors(llama(false), "rope_freqs.weight", 0.5)),
        ("qwen2", Tiny { architecture: "qwen2", ..plain }.writer()),
        ("qwen3", Tiny { architecture: "qwen3", head_dim: Some(48), ..plain }.writer()),
        ("qwen3moe", Tiny { architecture: "qwen3moe", experts: 6, ..plain }.writer()),
        ("gemma3", gemma3),
        ("gpt-oss", gpt_oss(None)),
        ("gpt-oss_mxfp4", gpt_oss(Some(TensorType::MXFP4))),
        ("lfm2", Tiny { architecture: "lfm2", layers: 4, ..plain }.writer()),
        ("smollm3", Tiny { architecture: "smollm3", layers: 4, kv_heads: 4, ..plain }.writer()),
    ]
}

/// A byte tokenizer in the file's own terms.
fn tokenizer(writer: Writer) -> Writer {
    let mut tokens: Vec<String> = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut kinds = vec![6; 256];
    for text in ["<|im_start|>", "<|im_end|>", "<|endoftext|>"] {
        tokens.push(text.to_owned());
        kinds.push(3);
    }
    let scores = vec![0.0; tokens.len()];
    writer
        .entry("tokenizer.ggml.model", Value::String("llama".to_owned()))
        .entry("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)))
        .entry("tokenizer.ggml.scores", Value::Array(Array::F32(scores)))
        .entry("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)))
        .entry("tokenizer.ggml.eos_token_id", Value::U32(257))
        .entry("tokenizer.ggml.add_bos_token", Value::Bool(false))
}

/// Random blocks whose values are small enough that nothing overflows.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Between -1 and 1.
    fn unit(&mut self) -> f32 {
        (self.next() % 20_001) as f32 / 10_000.0 - 1.0
    }

    fn data(&mut self, kind: TensorType, shape: &[usize]) -> Vec<u8> {
        let values: usize = shape.iter().product();
        match kind {
            TensorType::F32 if shape.len() > 1 => (0..values).flat_map(|_| (0.1 * self.unit()).to_le_bytes()).collect(),
            TensorType::F32 => (0..values).flat_map(|_| (1.0 + 0.2 * self.unit()).to_le_bytes()).collect(),
            TensorType::BF16 => {
                let upper_half = |value: f32| ((value.to_bits() >> 16) as u16).to_le_bytes();
                (0..values).flat_map(|_| upper_half(0.1 * self.unit())).collect()
            }
            TensorType::F16 => (0..values).flat_map(|_| f32_to_f16(0.1 * self.unit()).to_le_bytes()).collect(),
            _ => (0..values / kind.block_len()).flat_map(|_| self.block(kind)).collect(),
        }
    }

    /// Random bits, with scales that keep the values around 0.05.
    fn block(&mut self, kind: TensorType) -> Vec<u8> {
        let mut block: Vec<u8> = (0..kind.block_bytes()).map(|_| self.next() as u8).collect();
        let mut scale = |at: usize, value: f32| {
            block[at..at + 2].copy_from_slice(&f32_to_f16(value * (1.5 + self.unit())).to_le_bytes());
        };
        match kind {
            TensorType::Q4_0 | TensorType::Q5_0 => scale(0, 0.01),
            TensorType::Q4_1 => {
                scale(0, 0.01);
                scale(2, -0.05);
            }
            TensorType::Q5_1 => {
                scale(0, 0.005);
                scale(2, -0.05);
            }
            TensorType::Q8_0 | TensorType::IQ4_NL => scale(0, 0.001),
            TensorType::Q2_K => {
                scale(80, 0.005);
                scale(82, 0.005);
            }
            TensorType::Q3_K => scale(108, 0.001),
            TensorType::Q4_K | TensorType::Q5_K => {
                scale(0, 0.0005);
                scale(2, 0.0005);
            }
            TensorType::Q6_K => scale(208, 0.0001),
            TensorType::IQ4_XS => scale(0, 0.00005),
            TensorType::MXFP4 => block[0] = 120 + block[0] % 3,
            _ => unreachable!("no kernels for {kind:?}"),
        }
        block
    }
}

/// The formats with kernels, as tensor types.
pub(crate) fn kinds() -> impl Iterator<Item = TensorType> {
    let known = |kind: &TensorType| u32::try_from(kind.id()).ok().and_then(Format::from_gguf_type).is_some();
    TensorType::ALL.iter().copied().filter(known)
}
