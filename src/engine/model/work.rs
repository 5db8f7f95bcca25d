//! How much a decoder computes and reads for one token, as its tensors say; for measuring against what the machine
//! can do at most. Must never decide how anything is run.

use super::super::gguf::{self, Gguf, Tensor};

/// What one token takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Multiplications and additions with the matrices of all layers. Attention itself is not counted.
    pub layer_operations: u64,
    /// The same with the output matrix, which only a token with logits takes.
    pub head_operations: u64,
    /// Bytes of the matrices of all layers, as they are in the file.
    pub layer_bytes: u64,
    /// Bytes of the output matrix.
    pub head_bytes: u64,
    /// Bytes of the keys and values of one position.
    pub kv_bytes: u64,
}

impl Work {
    /// Counts a file's tensors. Of experts only those count that a token is sent to.
    pub(crate) fn read(gguf: &Gguf) -> Result<Self, gguf::Error> {
        let architecture = gguf.string("general.architecture")?.unwrap_or_default();
        let experts = |key: &str| Ok(u64::from(gguf.u32(&format!("{architecture}.{key}"))?.unwrap_or(1).max(1)));
        let (used, all) = (experts("expert_used_count")?, experts("expert_count")?);
        let mut work = Self { layer_operations: 0, head_operations: 0, layer_bytes: 0, head_bytes: 0, kv_bytes: 0 };
        for tensor in gguf.tensors().iter().filter(|tensor| tensor.name.starts_with("blk.") && is_matrix(tensor)) {
            let (used, all) = if tensor.name.contains("_exps.") { (used, all) } else { (1, 1) };
            work.layer_operations += operations(tensor) * used / all;
            work.layer_bytes += tensor.range.len() as u64 * used / all;
            if tensor.name.ends_with(".attn_k.weight") || tensor.name.ends_with(".attn_v.weight") {
                work.kv_bytes += (size_of::<u16>() * tensor.rows()) as u64;
            }
        }
        let head = gguf.tensor("output.weight").or_else(|| gguf.tensor("token_embd.weight"));
        work.head_operations = head.map_or(0, operations);
        work.head_bytes = head.map_or(0, |tensor| tensor.range.len() as u64);
        Ok(work)
    }

    /// Operations of a prompt of so many tokens, of which the last one has logits.
    pub fn prompt_operations(&self, tokens: usize) -> u64 {
        self.layer_operations * tokens as u64 + self.head_operations
    }

    /// Operations of a step that decodes one token of each of so many sequences.
    pub fn step_operations(&self, sequences: usize) -> u64 {
        (self.layer_operations + self.head_operations) * sequences as u64
    }

    /// Bytes that such a step reads when every sequence has so many positions: all weights once, and each one's keys
    /// and values.
    pub fn step_bytes(&self, sequences: usize, positions: usize) -> u64 {
        self.layer_bytes + self.head_bytes + self.kv_bytes * (sequences * positions) as u64
    }
}

fn is_matrix(tensor: &Tensor) -> bool {
    tensor.rows() > 1
}

/// A multiplication and an addition for each weight.
fn operations(tensor: &Tensor) -> u64 {
    2 * (tensor.row_len() * tensor.rows()) as u64
}

#[cfg(test)]
mod tests {
    use super::super::super::gguf::Gguf;
    use super::super::tiny::{Tiny, VOCABULARY, WIDTH};
    use super::*;

    fn work(file: &[u8]) -> Work {
        Work::read(&Gguf::parse(file).unwrap()).unwrap()
    }

    #[test]
    fn a_token_takes_every_matrix_once() {
        let tiny = Tiny { layers: 3, heads: 4, kv_heads: 2, ..Tiny::default() };
        let (width, kv) = (WIDTH as u64, WIDTH as u64 / 2);
        // Query, output, gate, up and down; and keys and values, which are half as wide.
        let weights = 3 * (5 * width * width + 2 * kv * width);
        let head = width * VOCABULARY as u64;
        let expected = Work {
            layer_operations: 2 * weights,
            head_operations: 2 * head,
            layer_bytes: weights / 32 * 20,
            head_bytes: head / 32 * 34,
            kv_bytes: 3 * 2 * 2 * kv,
        };
        assert_eq!(work(&tiny.file()), expected);
        assert_eq!(expected.prompt_operations(10), 20 * weights + 2 * head);
        assert_eq!(expected.step_operations(8), 16 * (weights + head));
        assert_eq!(expected.step_bytes(8, 100), expected.layer_bytes + expected.head_bytes + 800 * expected.kv_bytes);
    }

    #[test]
    fn an_output_matrix_of_its_own_counts_instead_of_the_embedding() {
        let found = work(&Tiny { own_output: true, ..Tiny::default() }.file());
        assert_eq!(found.head_bytes, (WIDTH * VOCABULARY / 32 * 20) as u64);
    }

    #[test]
    fn of_experts_only_those_count_that_are_used() {
        // Two are used, of however many there are; the router knows them all.
        let with = |experts| work(&Tiny { architecture: "qwen3moe", layers: 3, experts, ..Tiny::default() }.file());
        let (four, eight) = (with(4), with(8));
        let router = (3 * 4 * WIDTH) as u64;
        assert_eq!(eight.layer_operations - four.layer_operations, 2 * router);
        assert_eq!(eight.layer_bytes - four.layer_bytes, 4 * router);
        assert_eq!(four.head_bytes, eight.head_bytes);
    }
}
