//! Runs decoders of llama's family on the processor, over the kernels crate.
//!
//! Every operation works on rows that do not see each other, except attention, which reads the KV blocks in order
//! of position. So a row's bits depend on its own sequence alone: not on its batch-mates, not on whether it came
//! in a prompt chunk or one by one, not on the number of threads.

mod pages;
mod weights;

#[cfg(test)]
mod tests;

use midstream_kernels::{
    AttentionArgs, AttentionRow, AttentionScratch, Isa, Product, Scratch, Team, add_in_place, add_to_rows, attention,
    matmul, matmul_all, rms_norm_rows, rope, rope_angles, silu_mul_rows,
};

use super::super::kv::{BLOCK_TOKENS, BlockId};
use super::super::model::{Description, ModelError, Sizes};
use super::super::scheduler::Chunk;
use super::{Backend, StepError};
use pages::Pages;
use weights::{Layer, Projection, Weights};

/// A model in memory, its KV blocks, and the threads that run it.
pub(crate) struct CpuBackend {
    team: Team,
    isa: Isa,
    description: Description,
    weights: Weights,
    pages: Pages,
    buffers: Buffers,
}

/// What a step computes in; kept from step to step.
#[derive(Default)]
struct Buffers {
    residual: Vec<f32>,
    normed: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    attended: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    logits: Vec<f32>,
    products: Scratch,
    attention: AttentionScratch,
}

/// One token of a step.
struct Row<'a> {
    position: usize,
    token: u32,
    blocks: &'a [u32],
}

impl CpuBackend {
    /// Copies the weights out of the file's bytes and makes room for `blocks` KV blocks.
    pub(crate) fn load(
        description: Description,
        file: &[u8],
        isa: Isa,
        team: Team,
        blocks: usize,
    ) -> Result<Self, ModelError> {
        let weights = Weights::load(&description, file, isa)?;
        let Sizes { kv_heads, head_dim, .. } = description.sizes;
        let pages = Pages::new(weights.layers.len(), blocks, kv_heads, head_dim);
        Ok(Self { team, isa, description, weights, pages, buffers: Buffers::default() })
    }

    fn embed(&mut self, rows: &[Row<'_>]) -> Result<(), StepError> {
        let Sizes { embedding, rope_dims, rope_base, .. } = self.description.sizes;
        let pairs = rope_dims / 2;
        let buffers = &mut self.buffers;
        buffers.resize(rows.len(), &self.description.sizes);
        for (index, row) in rows.iter().enumerate() {
            let values = &mut buffers.residual[index * embedding..(index + 1) * embedding];
            let found = self.weights.embedding.dequantise_row(row.token as usize, values);
            found.map_err(|_| StepError::UnknownToken(row.token))?;
            let angles = index * pairs..(index + 1) * pairs;
            let (cos, sin) = (&mut buffers.cos[angles.clone()], &mut buffers.sin[angles]);
            let factors = self.weights.rope_factors.as_deref();
            rope_angles(row.position as f64, f64::from(rope_base), factors, cos, sin);
        }
        Ok(())
    }

    /// Attention of one layer, added to the residual stream.
    fn attend(&mut self, number: usize, rows: &[Row<'_>], seen: &[AttentionRow<'_>]) {
        let Self { team, isa, description, weights, pages, buffers } = self;
        let (sizes, isa, layer) = (&description.sizes, *isa, &weights.layers[number]);
        let count = rows.len();
        rms_norm_rows(team, isa, &buffers.residual, &layer.attn_norm, sizes.rms_epsilon, &mut buffers.normed);
        let mut products = [
            Product { weights: &layer.query.weight, out: &mut buffers.query },
            Product { weights: &layer.key.weight, out: &mut buffers.key },
            Product { weights: &layer.value.weight, out: &mut buffers.value },
        ];
        matmul_all(team, &buffers.normed, count, &mut products, &mut buffers.products);
        layer.query.add_bias(isa, &mut buffers.query);
        layer.key.add_bias(isa, &mut buffers.key);
        layer.value.add_bias(isa, &mut buffers.value);
        let (style, head_dim) = (description.architecture.rope, sizes.head_dim);
        rope(isa, style, &mut buffers.query, count, head_dim, &buffers.cos, &buffers.sin);
        rope(isa, style, &mut buffers.key, count, head_dim, &buffers.cos, &buffers.sin);
        let row_len = sizes.kv_heads * head_dim;
        for (index, row) in rows.iter().enumerate() {
            let values = index * row_len..(index + 1) * row_len;
            let block = row.blocks[row.position / BLOCK_TOKENS];
            let at = (block as usize, row.position % BLOCK_TOKENS);
            pages.write(isa, number, at, &buffers.key[values.clone()], &buffers.value[values]);
        }
        let (k, v) = pages.layer(number);
        let args = AttentionArgs {
            q: &buffers.query,
            n_heads: sizes.heads,
            n_kv_heads: sizes.kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            k,
            v,
            window: None,
            sinks: None,
            rows: seen,
        };
        attention(team, isa, &args, &mut buffers.attended, &mut buffers.attention);
        let out = &mut buffers.normed;
        matmul(team, &layer.attn_output.weight, &buffers.attended, count, out, &mut buffers.products);
        layer.attn_output.add_bias(isa, out);
        add_in_place(isa, &mut buffers.residual, out);
    }

    /// The feed-forward part of one layer, added to the residual stream.
    fn feed_forward(&mut self, number: usize) {
        let Self { team, isa, description, weights, buffers, .. } = self;
        let (sizes, isa) = (&description.sizes, *isa);
        let Layer { ffn_norm, gate, up, down, .. } = &weights.layers[number];
        let count = buffers.residual.len() / sizes.embedding;
        rms_norm_rows(team, isa, &buffers.residual, ffn_norm, sizes.rms_epsilon, &mut buffers.normed);
        let mut products =
            [Product { weights: gate, out: &mut buffers.gate }, Product { weights: up, out: &mut buffers.up }];
        matmul_all(team, &buffers.normed, count, &mut products, &mut buffers.products);
        silu_mul_rows(team, isa, &mut buffers.gate, &buffers.up, sizes.feed_forward);
        matmul(team, down, &buffers.gate, count, &mut buffers.normed, &mut buffers.products);
        add_in_place(isa, &mut buffers.residual, &buffers.normed);
    }

    /// Logits behind the given rows.
    fn project(&mut self, wanted: &[usize]) {
        let Self { team, isa, description, weights, buffers, .. } = self;
        let Sizes { embedding, vocabulary, rms_epsilon, .. } = description.sizes;
        for (to, from) in wanted.iter().enumerate() {
            // Rows come in ascending order, so none is overwritten before it is moved.
            buffers.residual.copy_within(from * embedding..(from + 1) * embedding, to * embedding);
        }
        let length = wanted.len() * embedding;
        let normed = &mut buffers.normed[..length];
        rms_norm_rows(team, *isa, &buffers.residual[..length], &weights.output_norm, rms_epsilon, normed);
        let output = weights.output.as_ref().unwrap_or(&weights.embedding);
        buffers.logits.resize(wanted.len() * vocabulary, 0.0);
        matmul(team, output, normed, wanted.len(), &mut buffers.logits, &mut buffers.products);
    }
}

impl Backend for CpuBackend {
    fn forward(&mut self, chunks: &[Chunk]) -> Result<&[f32], StepError> {
        let tables: Vec<Vec<u32>> =
            chunks.iter().map(|chunk| chunk.blocks.iter().map(|block| block.0).collect()).collect();
        let mut rows = Vec::new();
        let mut wanted = Vec::new();
        for (chunk, blocks) in chunks.iter().zip(&tables) {
            for (offset, token) in chunk.tokens.iter().enumerate() {
                rows.push(Row { position: chunk.start + offset, token: *token, blocks });
            }
            wanted.extend(rows.len() - chunk.sampled.min(chunk.tokens.len())..rows.len());
        }
        let blockless = |row: &&Row<'_>| {
            row.blocks.get(row.position / BLOCK_TOKENS).is_none_or(|block| *block as usize >= self.pages.blocks())
        };
        if let Some(row) = rows.iter().find(blockless) {
            return Err(StepError::NoBlock { position: row.position });
        }
        self.embed(&rows)?;
        let seen: Vec<AttentionRow<'_>> =
            rows.iter().map(|row| AttentionRow { block_table: row.blocks, len: row.position + 1 }).collect();
        for number in 0..self.weights.layers.len() {
            self.attend(number, &rows, &seen);
            self.feed_forward(number);
        }
        self.project(&wanted);
        Ok(&self.buffers.logits)
    }

    fn vocabulary(&self) -> usize {
        self.description.sizes.vocabulary
    }

    fn block_bytes(&self) -> usize {
        self.pages.block_bytes()
    }

    fn read_block(&self, block: BlockId) -> Vec<u8> {
        self.pages.read_block(block.0 as usize)
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        self.pages.write_block(block.0 as usize, bytes);
    }
}

impl Projection {
    fn add_bias(&self, isa: Isa, rows: &mut [f32]) {
        if let Some(bias) = &self.bias {
            add_to_rows(isa, rows, bias);
        }
    }
}

impl Buffers {
    fn resize(&mut self, rows: usize, sizes: &Sizes) {
        let (query, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
        for (buffer, width) in [
            (&mut self.residual, sizes.embedding),
            (&mut self.normed, sizes.embedding),
            (&mut self.query, query),
            (&mut self.attended, query),
            (&mut self.key, kv),
            (&mut self.value, kv),
            (&mut self.gate, sizes.feed_forward),
            (&mut self.up, sizes.feed_forward),
            (&mut self.cos, sizes.rope_dims / 2),
            (&mut self.sin, sizes.rope_dims / 2),
        ] {
            buffer.resize(rows * width, 0.0);
        }
    }
}
