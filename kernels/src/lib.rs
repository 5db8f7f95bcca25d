//! The arithmetic of midstream: quantised matrix products, paged attention, small vector operations, and the
//! thread team they run on. This crate owns all `unsafe` of the project.
//!
//! It must never know about models, requests, files' metadata or tokens: it sees slices, shapes and block formats.
//! Public functions are safe. Sizes that come from a file are answered with an [`Error`]; sizes that only a bug in the
//! caller can get wrong are asserted, and the function's documentation says so.
//!
//! Three promises hold for every function that computes:
//! * **Batch invariance**: a row's result has the same bits whatever other rows are computed with it.
//! * **Team invariance**: results do not depend on the number of threads.
//! * **ISA invariance**: scalar, AVX2, AVX-512 and NEON give the same bits. All of them use one accumulation order, and
//!   the fused multiply-add wherever one of them does. (Only a NaN's payload may differ.)

#![allow(clippy::inline_always, reason = "a body is compiled per instruction set only when it is inlined there")]
#![allow(clippy::doc_markdown, reason = "Q4_1 and its like are names of formats, not of items")]
#![allow(clippy::needless_range_loop, reason = "kernels walk several arrays in step; the index is the lane")]

mod activation;
mod attention;
mod crowd;
mod dequant;
mod error;
mod format;
mod half;
mod isa;
mod kv;
mod kv_block;
mod layout;
mod limits;
mod math;
mod matmul;
mod memory;
mod ops;
mod pack;
mod rope;
mod shared;
mod simd;
mod team;
mod weights;

pub use attention::{AttentionArgs, AttentionRow, AttentionScratch, attention};
pub use dequant::dequantise;
pub use error::Error;
pub use format::Format;
pub use half::{f16_to_f32, f16_to_f32_slice, f32_to_f16, f32_to_f16_slice};
pub use isa::Isa;
pub use kv::{HEAD_DIM_MAX, KV_BLOCK, KvFormat, KvLayer};
pub use limits::{Burst, ReadBuffer, multiply_burst};
pub use matmul::{Product, Scratch, matmul, matmul_all};
pub use memory::WeightMemory;
pub use ops::{
    Activation, Branch, activate_rows, add_branch, add_in_place, add_products_in_place, add_scaled_in_place,
    add_to_rows, argmax, clamped_silu_mul, gelu_mul, mul_in_place, rms_norm, rms_norm_heads, rms_norm_rows,
    scale_in_place, silu_mul, softmax_in_place,
};
pub use rope::{RopeStyle, Rotation, rope, rope_angles};
pub use team::Team;
pub use weights::{WeightMatrix, WeightShape};
