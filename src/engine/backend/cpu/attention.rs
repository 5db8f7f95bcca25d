//! The attention branch of a layer: projections, head norms, rotation, the pages, and what comes out of it.

use midstream_kernels::{AttentionArgs, AttentionRow, Product, attention, matmul, matmul_all, rms_norm_heads, rope};

use super::super::super::kv::BLOCK_TOKENS;
use super::{Angles, CpuBackend, Row};

impl CpuBackend {
    /// Attention of one layer, from the normed stream to the branch.
    pub(super) fn attend(&mut self, number: usize, rows: &[Row<'_>], seen: &[AttentionRow<'_>]) {
        self.project_heads(number, rows.len());
        self.turn_heads(number, rows.len());
        self.write_pages(number, rows);
        let Self { team, isa, description, weights, pages, buffers } = self;
        let (sizes, isa) = (&description.sizes, *isa);
        let (k, v) = pages.layer(number);
        let layer = &weights.layers[number].attention;
        let args = AttentionArgs {
            q: &buffers.query,
            n_heads: sizes.heads,
            n_kv_heads: sizes.kv_heads,
            head_dim: sizes.head_dim,
            scale: sizes.attention_scale,
            k,
            v,
            window: layer.window,
            sinks: layer.sinks.as_deref(),
            rows: seen,
        };
        attention(team, isa, &args, &mut buffers.attended, &mut buffers.attention);
        let output = &layer.output;
        matmul(team, &output.weight, &buffers.attended, rows.len(), &mut buffers.branch, &mut buffers.products);
        output.add_bias(isa, &mut buffers.branch);
    }

    fn project_heads(&mut self, number: usize, count: usize) {
        let Self { team, isa, weights, buffers, .. } = self;
        let layer = &weights.layers[number].attention;
        let mut products = [
            Product { weights: &layer.query.weight, out: &mut buffers.query },
            Product { weights: &layer.key.weight, out: &mut buffers.key },
            Product { weights: &layer.value.weight, out: &mut buffers.value },
        ];
        matmul_all(team, &buffers.normed, count, &mut products, &mut buffers.products);
        layer.query.add_bias(*isa, &mut buffers.query);
        layer.key.add_bias(*isa, &mut buffers.key);
        layer.value.add_bias(*isa, &mut buffers.value);
    }

    fn turn_heads(&mut self, number: usize, count: usize) {
        let Self { team, isa, description, weights, buffers, .. } = self;
        let (sizes, layer) = (&description.sizes, &weights.layers[number].attention);
        let parts =
            [(&mut buffers.query, sizes.heads, &layer.query_norm), (&mut buffers.key, sizes.kv_heads, &layer.key_norm)];
        for (values, heads, norm) in parts {
            if let Some(norm) = norm {
                rms_norm_heads(team, *isa, values, heads * sizes.head_dim, norm, sizes.rms_epsilon);
            }
            if let Some(Angles { cos, sin }) = layer.rope.and_then(|rope| buffers.angles.get(rope)) {
                rope(*isa, description.architecture.rope, values, count, sizes.head_dim, cos, sin);
            }
        }
    }

    fn write_pages(&mut self, number: usize, rows: &[Row<'_>]) {
        let Self { isa, description, pages, buffers, .. } = self;
        let row_len = description.sizes.kv_heads * description.sizes.head_dim;
        for (index, row) in rows.iter().enumerate() {
            let values = index * row_len..(index + 1) * row_len;
            let block = row.blocks[row.position / BLOCK_TOKENS];
            let at = (block as usize, row.position % BLOCK_TOKENS);
            pages.write(*isa, number, at, &buffers.key[values.clone()], &buffers.value[values]);
        }
    }
}
