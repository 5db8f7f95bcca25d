//! The feed-forward branch of a layer: one gated part, or several of which each row takes some.
//!
//! Rows that take the same expert are computed together. A product's row does not depend on the others, and what a row
//! gets from its experts is added in the order of their numbers: so its bits depend on itself alone.

use midstream_kernels::{
    Activation, Isa, Product, Scratch, Team, activate_rows, add_scaled_in_place, matmul, matmul_all, softmax_in_place,
};

use super::CpuBackend;
use super::weights::{Experts, FeedForward, Gated};

/// What feed-forward parts compute in.
#[derive(Default)]
pub(super) struct FeedForwardBuffers {
    gate: Vec<f32>,
    up: Vec<f32>,
    /// The experts' scores, row after row.
    scores: Vec<f32>,
    routes: Vec<Route>,
    /// The rows of one expert, and what it makes of them.
    taken: Vec<f32>,
    made: Vec<f32>,
}

/// One row on its way to one expert.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Route {
    expert: usize,
    row: usize,
    weight: f32,
}

/// What every product of a step needs.
struct Tools<'a> {
    team: &'a Team,
    isa: Isa,
    activation: Activation,
    products: &'a mut Scratch,
}

impl CpuBackend {
    /// The feed-forward part of one layer, from the normed stream to the branch.
    pub(super) fn feed_forward(&mut self, number: usize, count: usize) {
        let Self { team, isa, description, weights, buffers, .. } = self;
        let activation = description.architecture.activation;
        let mut tools = Tools { team, isa: *isa, activation, products: &mut buffers.products };
        let (normed, branch) = (&buffers.normed, &mut buffers.branch);
        let FeedForwardBuffers { gate, up, scores, routes, taken, made } = &mut buffers.feed_forward;
        match &weights.layers[number].feed_forward {
            FeedForward::Dense(gated) => tools.run(gated, normed, count, [gate, up], branch),
            FeedForward::Experts(experts) => {
                let width = description.sizes.embedding;
                tools.route(experts, normed, count, scores, routes);
                branch.fill(0.0);
                for routes in routes.chunk_by(|one, next| one.expert == next.expert) {
                    taken.clear();
                    for route in routes {
                        taken.extend(&normed[route.row * width..(route.row + 1) * width]);
                    }
                    made.resize(taken.len(), 0.0);
                    tools.run(&experts.parts[routes[0].expert], taken, routes.len(), [gate, up], made);
                    for (route, made) in routes.iter().zip(made.chunks_exact(width)) {
                        let branch = &mut branch[route.row * width..(route.row + 1) * width];
                        add_scaled_in_place(tools.isa, branch, made, route.weight);
                    }
                }
            }
        }
    }
}

impl Tools<'_> {
    /// One gated part over some rows.
    fn run(&mut self, gated: &Gated, x: &[f32], count: usize, [gate, up]: [&mut Vec<f32>; 2], out: &mut [f32]) {
        let inner = gated.up.weight.rows();
        gate.resize(count * inner, 0.0);
        up.resize(count * inner, 0.0);
        let mut products =
            [Product { weights: &gated.gate.weight, out: gate }, Product { weights: &gated.up.weight, out: up }];
        matmul_all(self.team, x, count, &mut products, self.products);
        gated.gate.add_bias(self.team, self.isa, gate);
        gated.up.add_bias(self.team, self.isa, up);
        activate_rows(self.team, self.isa, self.activation, gate, up, inner);
        matmul(self.team, &gated.down.weight, gate, count, out, self.products);
        gated.down.add_bias(self.team, self.isa, out);
    }

    /// Which rows take which experts, in the order of experts, then rows.
    fn route(&mut self, experts: &Experts, x: &[f32], count: usize, scores: &mut Vec<f32>, routes: &mut Vec<Route>) {
        let router = &experts.router;
        scores.resize(count * router.weight.rows(), 0.0);
        matmul(self.team, &router.weight, x, count, scores, self.products);
        router.add_bias(self.team, self.isa, scores);
        routes.clear();
        for (row, scores) in scores.chunks_exact(router.weight.rows()).enumerate() {
            let chosen = highest(scores, experts.used);
            let mut weights: Vec<f32> = chosen.iter().map(|expert| scores[*expert]).collect();
            softmax_in_place(self.isa, &mut weights);
            routes.extend(chosen.into_iter().zip(weights).map(|(expert, weight)| Route { expert, row, weight }));
        }
        routes.sort_by_key(|route| (route.expert, route.row));
    }
}

/// The places of the highest scores, the first of equals before the others.
fn highest(scores: &[f32], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).collect();
    places.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]).then(one.cmp(other)));
    places.truncate(count);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_scores_are_chosen_and_of_equals_the_first() {
        assert_eq!(highest(&[1.0, 3.0, -2.0, 3.0, 2.0], 3), [1, 3, 4]);
        assert_eq!(highest(&[0.0, 0.0, 0.0], 2), [0, 1]);
    }
}
