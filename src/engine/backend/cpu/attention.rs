//! Attention: projections, head norms, rotation, the pages, and what comes out of it.

use midstream_kernels::{
    AttentionArgs, AttentionRow, Product, Rotation, attention, matmul, matmul_all, rms_norm_heads, rope,
};

use super::weights::Attention;
use super::{Angles, Mixing};

impl Mixing<'_> {
    /// Attention of one layer, from the normed stream to the branch.
    pub(super) fn attend(&mut self, layer: &Attention, seen: &[AttentionRow<'_>]) {
        self.project_heads(layer);
        self.turn_heads(layer);
        self.write_heads();
        let Self { team, isa, sizes, pages, buffers, place, .. } = self;
        let args = AttentionArgs {
            q: &buffers.query,
            n_heads: sizes.heads,
            scale: sizes.attention_scale,
            kv: pages.heads(*place),
            window: layer.window,
            sinks: layer.sinks.as_deref(),
            rows: seen,
        };
        attention(team, *isa, &args, &mut buffers.attended, &mut buffers.attention);
        let (output, count) = (&layer.output, seen.len());
        matmul(team, &output.weight, &buffers.attended, count, &mut buffers.branch, &mut buffers.products);
        output.add_bias(team, *isa, &mut buffers.branch);
    }

    fn project_heads(&mut self, layer: &Attention) {
        let Self { team, isa, buffers, rows, .. } = self;
        let mut products = [
            Product { weights: &layer.query.weight, out: &mut buffers.query },
            Product { weights: &layer.key.weight, out: &mut buffers.key },
            Product { weights: &layer.value.weight, out: &mut buffers.value },
        ];
        matmul_all(team, &buffers.normed, rows.len(), &mut products, &mut buffers.products);
        layer.query.add_bias(team, *isa, &mut buffers.query);
        layer.key.add_bias(team, *isa, &mut buffers.key);
        layer.value.add_bias(team, *isa, &mut buffers.value);
    }

    fn turn_heads(&mut self, layer: &Attention) {
        let Self { team, isa, sizes, style, buffers, rows, .. } = self;
        let parts =
            [(&mut buffers.query, sizes.heads, &layer.query_norm), (&mut buffers.key, sizes.kv_heads, &layer.key_norm)];
        for (values, heads, norm) in parts {
            if let Some(norm) = norm {
                rms_norm_heads(team, *isa, values, heads * sizes.head_dim, norm, sizes.rms_epsilon);
            }
            if let Some(Angles { cos, sin }) = layer.rope.and_then(|rope| buffers.angles.get(rope)) {
                let rotation = Rotation { style: *style, head_dim: sizes.head_dim, cos, sin };
                rope(team, *isa, &rotation, values, rows.len());
            }
        }
    }

    fn write_heads(&mut self) {
        let Self { isa, sizes, pages, buffers, rows, place, .. } = self;
        let row_len = sizes.kv_heads * sizes.head_dim;
        for (index, row) in rows.iter().enumerate() {
            let values = index * row_len..(index + 1) * row_len;
            pages.write(*isa, *place, row.at(), &buffers.key[values.clone()], &buffers.value[values]);
        }
    }
}
