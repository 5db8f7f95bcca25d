//! Runs decoders of llama's family on the processor, over the kernels crate. A layer's description says what its parts
//! are; there is one forward pass that reads it.
//!
//! Every operation works on rows that do not see each other, except attention, which reads the KV blocks in order
//! of position. So a row's bits depend on its own sequence alone: not on its batch-mates, not on whether it came
//! in a prompt chunk or one by one, not on the number of threads.

mod attention;
mod feed_forward;
mod pages;
mod scratch;
mod short_convolution;
mod weights;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use midstream_kernels::{
    AttentionRow, AttentionScratch, Branch, Isa, KvFormat, RopeStyle, Scratch, Team, add_branch, add_to_rows, matmul,
    rms_norm_rows, rope_angles, scale_in_place,
};

use super::super::gguf::Source;
use super::super::kv::{BLOCK_TOKENS, BlockId};
use super::super::model::{Description, ModelError, Sizes};
use super::super::scheduler::Chunk;
use super::{Backend, StepError};
use feed_forward::FeedForwardBuffers;
use pages::{PageShape, Pages};
pub(crate) use scratch::StepSize;
use weights::{Mixer, Projection, Weights};

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
    /// What a short convolution is gated with, and its inputs.
    gates: Vec<f32>,
    feed_forward: FeedForwardBuffers,
    /// What a branch adds to the residual stream.
    branch: Vec<f32>,
    /// One for each of the model's rotations.
    angles: Vec<Angles>,
    logits: Vec<f32>,
    products: Scratch,
    attention: AttentionScratch,
}

/// Cosine and sine of one rotation's angles, row after row.
#[derive(Default)]
struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// One token of a step.
struct Row<'a> {
    position: usize,
    token: u32,
    blocks: &'a [u32],
}

impl Row<'_> {
    /// Its block and its place in the block.
    fn at(&self) -> (usize, usize) {
        (self.blocks[self.position / BLOCK_TOKENS] as usize, self.position % BLOCK_TOKENS)
    }
}

/// What one layer's mixer works with.
struct Mixing<'a> {
    team: &'a Team,
    isa: Isa,
    sizes: &'a Sizes,
    style: RopeStyle,
    pages: &'a mut Pages,
    buffers: &'a mut Buffers,
    rows: &'a [Row<'a>],
    /// Where the layer's pages are.
    place: usize,
}

/// The KV blocks of a backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvPlan {
    /// How keys and values are stored.
    pub(crate) format: KvFormat,
    /// How many blocks there are.
    pub(crate) blocks: usize,
}

impl CpuBackend {
    /// Reads the weights out of the files and makes room for KV blocks.
    pub(crate) fn load(
        description: Description,
        files: &dyn Source,
        isa: Isa,
        team: Team,
        kv: KvPlan,
    ) -> Result<Self, ModelError> {
        let weights = Weights::load(&description, files, isa, &team)?;
        let pages = Pages::new(PageShape::of(&description, kv.format), kv.blocks);
        Ok(Self { team, isa, description, weights, pages, buffers: Buffers::default() })
    }

    /// Bytes of one KV block of such a model.
    pub(crate) fn block_bytes_of(description: &Description, format: KvFormat) -> usize {
        PageShape::of(description, format).block_bytes()
    }

    /// Bytes of the weights of such a model.
    pub(crate) fn weight_bytes_of(description: &Description) -> Result<usize, ModelError> {
        weights::weight_bytes(description)
    }

    /// Bytes of all KV blocks. They are taken from the system as the blocks are filled.
    pub(crate) fn kv_bytes(&self) -> usize {
        self.pages.blocks() * self.pages.block_bytes()
    }

    fn embed(&mut self, rows: &[Row<'_>]) -> Result<(), StepError> {
        let width = self.description.sizes.embedding;
        let buffers = &mut self.buffers;
        buffers.resize(rows.len(), &self.description.sizes);
        for (row, values) in rows.iter().zip(buffers.residual.chunks_exact_mut(width)) {
            let found = self.weights.embedding.dequantise_row(row.token as usize, values);
            found.map_err(|_| StepError::UnknownToken(row.token))?;
        }
        if let Some(scale) = self.description.sizes.embedding_scale {
            scale_in_place(self.isa, &mut buffers.residual, scale);
        }
        buffers.angles.resize_with(self.weights.ropes.len(), Angles::default);
        for (rope, Angles { cos, sin }) in self.weights.ropes.iter().zip(&mut buffers.angles) {
            let pairs = rope.frequencies.len();
            cos.resize(rows.len() * pairs, 0.0);
            sin.resize(rows.len() * pairs, 0.0);
            let angles = cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs));
            for (row, (cos, sin)) in rows.iter().zip(angles) {
                rope_angles(row.position as f64, &rope.frequencies, rope.magnitude, cos, sin);
            }
        }
        Ok(())
    }

    /// Norms the residual stream for the first branch.
    fn begin(&mut self) {
        let Self { team, isa, description, weights, buffers, .. } = self;
        let Some(layer) = weights.layers.first() else { return };
        let epsilon = description.sizes.rms_epsilon;
        rms_norm_rows(team, *isa, &buffers.residual, &layer.mixer_norm, epsilon, &mut buffers.normed);
    }

    /// The part of a layer that reads other positions, from the normed stream to the branch.
    fn mix(&mut self, number: usize, rows: &[Row<'_>], seen: &[AttentionRow<'_>]) {
        let Self { team, isa, description, weights, pages, buffers } = self;
        let layer = &weights.layers[number];
        let (sizes, style) = (&description.sizes, description.architecture.rope);
        let mut mixing = Mixing { team, isa: *isa, sizes, style, pages, buffers, rows, place: layer.place };
        match &layer.mixer {
            Mixer::Attention(attention) => mixing.attend(attention, seen),
            Mixer::ShortConvolution(convolution) => mixing.convolve(convolution),
        }
    }

    /// Adds what a branch gave to the residual stream, normed once more where there is a norm for that, and norms the
    /// stream for the next branch, if there is one.
    fn add_branch<'a>(&'a mut self, norms: impl FnOnce(&'a Weights) -> (&'a Option<Vec<f32>>, Option<&'a Vec<f32>>)) {
        let Self { team, isa, description, weights, buffers, .. } = self;
        let Sizes { embedding, rms_epsilon: epsilon, .. } = description.sizes;
        let (norm, next_norm) = norms(weights);
        let Buffers { residual, normed, branch, .. } = buffers;
        let branch = Branch { values: branch, norm: norm.as_deref(), next_norm: next_norm.map(Vec::as_slice), epsilon };
        add_branch(team, *isa, &branch, residual, normed, embedding);
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
        self.begin();
        for number in 0..self.weights.layers.len() {
            self.mix(number, &rows, &seen);
            self.add_branch(|weights| {
                let layer = &weights.layers[number];
                (&layer.mixer_post_norm, Some(&layer.feed_forward_norm))
            });
            self.feed_forward(number, rows.len());
            self.add_branch(|weights| {
                let next = weights.layers.get(number + 1);
                (&weights.layers[number].feed_forward_post_norm, next.map(|layer| &layer.mixer_norm))
            });
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
    fn add_bias(&self, team: &Team, isa: Isa, rows: &mut [f32]) {
        if let Some(bias) = &self.bias {
            add_to_rows(team, isa, rows, bias);
        }
    }
}

impl Buffers {
    /// Room for what every layer needs; the others make their own.
    fn resize(&mut self, rows: usize, sizes: &Sizes) {
        let (query, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
        for (buffer, width) in [
            (&mut self.residual, sizes.embedding),
            (&mut self.normed, sizes.embedding),
            (&mut self.branch, sizes.embedding),
            (&mut self.query, query),
            (&mut self.attended, query),
            (&mut self.key, kv),
            (&mut self.value, kv),
        ] {
            buffer.resize(rows * width, 0.0);
        }
    }
}
