//! Masks of constrained sequences, computed beside the forward pass whose logits they are for. A sequence without its
//! mask must fail, never be sampled freely.

use std::collections::{BTreeMap, HashMap};

use super::super::contract::SequenceId;
use super::super::grammar::{Guide, Lost, TokenSet};
use super::super::scheduler::Chunk;
use super::run::Live;

/// Which tokens one row of logits may give; absent where all may.
pub(super) type Mask = Result<Option<TokenSet>, Lost>;

/// The masks of a chunk's rows, one for each up to the first guess that is not allowed.
pub(super) type Masks = Vec<Mask>;

/// Runs `forward`, and beside it computes the masks of the chunks that are sampled. Without constraints it only runs
/// `forward`.
pub(super) fn masks_beside<T>(
    live: &mut BTreeMap<SequenceId, Live>,
    chunks: &[Chunk],
    forward: impl FnOnce() -> T,
) -> (T, HashMap<SequenceId, Masks>) {
    let guides: Vec<(SequenceId, &mut Guide, &[u32])> = live
        .iter_mut()
        .filter_map(|(id, live)| {
            let guide = live.guide.as_mut()?;
            let chunk = chunks.iter().find(|chunk| chunk.sequence == *id && chunk.sampled > 0)?;
            Some((*id, guide, chunk.guessed()))
        })
        .collect();
    if guides.is_empty() {
        return (forward(), HashMap::new());
    }
    let compute = || guides.into_iter().map(|(id, guide, guessed)| (id, masks(guide, guessed))).collect();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("masks".to_owned()).spawn_scoped(scope, compute);
        let done = forward();
        // Where there is no thread, or it died, constrained sequences have no masks: they fail, and no others do.
        let masks = thread.ok().and_then(|thread| thread.join().ok());
        (done, masks.unwrap_or_default())
    })
}

fn masks(guide: &mut Guide, guessed: &[u32]) -> Masks {
    let mut masks = vec![guide.mask()];
    if guessed.is_empty() {
        return masks;
    }
    let mut ahead = guide.clone();
    for token in guessed {
        let is_allowed = match masks.last() {
            Some(Ok(Some(mask))) => mask.is_allowed(*token),
            Some(Ok(None)) => true,
            Some(Err(_)) | None => false,
        };
        // Behind a guess that cannot be right nothing is sampled.
        if !is_allowed || ahead.accept(*token).is_err() {
            break;
        }
        masks.push(ahead.mask());
    }
    masks
}
