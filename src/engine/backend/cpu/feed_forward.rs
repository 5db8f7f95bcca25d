//! The feed-forward branch of a layer.

use midstream_kernels::{Product, activate_rows, matmul, matmul_all};

use super::CpuBackend;
use super::weights::FeedForward;

impl CpuBackend {
    /// The feed-forward part of one layer, from the normed stream to the branch.
    pub(super) fn feed_forward(&mut self, number: usize, count: usize) {
        let Self { team, isa, description, weights, buffers, .. } = self;
        let FeedForward { gate, up, down } = &weights.layers[number].feed_forward;
        buffers.gate.resize(count * gate.rows(), 0.0);
        buffers.up.resize(count * up.rows(), 0.0);
        let mut products =
            [Product { weights: gate, out: &mut buffers.gate }, Product { weights: up, out: &mut buffers.up }];
        matmul_all(team, &buffers.normed, count, &mut products, &mut buffers.products);
        let activation = description.architecture.activation;
        activate_rows(team, *isa, activation, &mut buffers.gate, &buffers.up, up.rows());
        matmul(team, down, &buffers.gate, count, &mut buffers.branch, &mut buffers.products);
    }
}
