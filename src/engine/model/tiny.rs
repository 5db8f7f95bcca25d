//! Small random models for tests, written as GGUF files.

use midstream_kernels::{Format, f32_to_f16};

use super::super::gguf::{Array, TensorType, Value, Writer};

/// What a tiny model is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiny {
    pub(crate) architecture: &'static str,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) kind: TensorType,
    pub(crate) seed: u64,
    /// Without: the embedding is the output matrix.
    pub(crate) own_output: bool,
    /// A key or tensor that is left out.
    pub(crate) skip: Option<&'static str>,
}

impl Default for Tiny {
    fn default() -> Self {
        Self {
            architecture: "llama",
            layers: 2,
            heads: 4,
            kv_heads: 2,
            kind: TensorType::Q4_1,
            seed: 1,
            own_output: false,
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

    /// The file before it is written, to be spoilt.
    pub(crate) fn writer(self) -> Writer {
        let number = |value: usize| Value::U32(value as u32);
        let keys = [
            ("block_count", number(self.layers)),
            ("context_length", number(2048)),
            ("embedding_length", number(WIDTH)),
            ("attention.head_count", number(self.heads)),
            ("attention.head_count_kv", number(self.kv_heads)),
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ];
        let keys = keys.map(|(name, value)| (format!("{}.{name}", self.architecture), value));
        let architecture = ("general.architecture".to_owned(), Value::String(self.architecture.to_owned()));
        let wanted = keys.into_iter().chain([architecture]).filter(|(key, _)| self.skip != Some(key.as_str()));
        let writer = wanted.fold(Writer::new(), |writer, (key, value)| writer.entry(key, value));
        self.tensors(tokenizer(writer))
    }

    fn tensors(self, mut writer: Writer) -> Writer {
        let mut random = Random(self.seed);
        let kv = WIDTH / self.heads * self.kv_heads;
        let mut add = |name: String, shape: &[usize], kind: TensorType| {
            if self.skip == Some(name.as_str()) {
                return;
            }
            let data = random.data(kind, shape);
            writer = std::mem::take(&mut writer).tensor(name, shape, kind, data);
        };
        add("token_embd.weight".into(), &[WIDTH, VOCABULARY], TensorType::Q8_0);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            for (part, rows) in [("attn_q", WIDTH), ("attn_k", kv), ("attn_v", kv)] {
                add(name(&format!("{part}.weight")), &[WIDTH, rows], self.kind);
                if self.architecture == "qwen2" {
                    add(name(&format!("{part}.bias")), &[rows], TensorType::F32);
                }
            }
            for part in ["attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
                add(name(&format!("{part}.weight")), &[WIDTH, WIDTH], self.kind);
            }
            for part in ["attn_norm", "ffn_norm"] {
                add(name(&format!("{part}.weight")), &[WIDTH], TensorType::F32);
            }
        }
        add("output_norm.weight".into(), &[WIDTH], TensorType::F32);
        if self.own_output {
            add("output.weight".into(), &[WIDTH, VOCABULARY], self.kind);
        }
        writer
    }
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
