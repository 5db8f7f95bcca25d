//! KV files: whatever happens to one, it gives what was written or an error, and all together stay within the bound.

use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use crate::ids::ConversationId;
use crate::store::{KvContent, KvFileError, KvFiles};

const ROOMY: u64 = 1 << 20;

fn id(number: u8) -> ConversationId {
    ConversationId::from_bytes([number; 16])
}

fn content(seed: u32, blocks: usize) -> KvContent {
    let block = |block: usize| (0..100).map(|byte| (seed as usize * 7 + block * 31 + byte) as u8).collect();
    KvContent {
        fingerprint: format!("model-{seed}"),
        salt: u64::from(seed),
        tokens: (0..blocks as u32 * 4).map(|token| token * seed).collect(),
        blocks: (0..blocks).map(block).collect(),
    }
}

fn write(files: &KvFiles, number: u8, content: &KvContent) -> Result<(), KvFileError> {
    files.draft(id(number)).write(content, 1_000 + u64::from(number))
}

/// The whole file, if there is one.
fn read(files: &KvFiles, number: u8) -> Result<Option<KvContent>, KvFileError> {
    let Some(reader) = files.read(id(number), 5_000)? else { return Ok(None) };
    let (fingerprint, salt, tokens) = (reader.fingerprint().to_owned(), reader.salt(), reader.tokens().to_vec());
    Ok(Some(KvContent { fingerprint, salt, tokens, blocks: reader.blocks(usize::MAX)? }))
}

fn path(folder: &TempDir, number: u8) -> PathBuf {
    folder.path().join("kv").join(format!("{}.kv", id(number)))
}

fn bytes_on_disk(folder: &TempDir) -> u64 {
    std::fs::read_dir(folder.path().join("kv")).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn what_was_written_is_read_back_as_a_whole_or_from_the_front() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), ROOMY).unwrap();
    assert_eq!(read(&files, 1), Ok(None));
    write(&files, 1, &content(3, 5)).unwrap();
    assert_eq!(read(&files, 1), Ok(Some(content(3, 5))));
    write(&files, 1, &content(4, 2)).unwrap();
    let reopened = KvFiles::open(folder.path(), ROOMY).unwrap();
    assert_eq!(read(&reopened, 1), Ok(Some(content(4, 2))));
    let reader = reopened.read(id(1), 0).unwrap().unwrap();
    assert_eq!(reader.block_tokens(), 4);
    assert_eq!(reader.blocks(1).unwrap(), content(4, 2).blocks[..1]);
}

#[test]
fn a_file_cut_at_any_length_is_an_error() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), ROOMY).unwrap();
    write(&files, 1, &content(3, 2)).unwrap();
    let whole = std::fs::read(path(&folder, 1)).unwrap();
    for length in 0..whole.len() {
        std::fs::write(path(&folder, 1), &whole[..length]).unwrap();
        assert!(matches!(read(&files, 1), Err(KvFileError::Damaged(_))), "cut to {length}");
    }
}

#[test]
fn a_file_of_another_conversation_is_an_error() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), ROOMY).unwrap();
    write(&files, 1, &content(3, 2)).unwrap();
    write(&files, 2, &content(4, 2)).unwrap();
    std::fs::copy(path(&folder, 1), path(&folder, 2)).unwrap();
    assert_eq!(read(&files, 2), Err(KvFileError::Damaged("it belongs to another conversation")));
}

/// What can happen to a file: bits turn over, a part is lost, overwritten or added.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Cut(usize),
    Zero(usize, usize),
    Overwrite(usize, Vec<u8>),
    Append(Vec<u8>),
    Remove(usize, usize),
    Replace(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let some = || proptest::collection::vec(any::<u8>(), 1..200);
    let place = any::<usize>;
    prop_oneof![
        (place(), 0..8_u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        place().prop_map(Damage::Cut),
        (place(), 1..300_usize).prop_map(|(at, count)| Damage::Zero(at, count)),
        (place(), some()).prop_map(|(at, bytes)| Damage::Overwrite(at, bytes)),
        some().prop_map(Damage::Append),
        (place(), 1..300_usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        some().prop_map(Damage::Replace),
    ]
}

fn damaged(mut bytes: Vec<u8>, damage: Damage) -> Vec<u8> {
    let length = bytes.len().max(1);
    match damage {
        Damage::Flip(at, bit) => {
            if let Some(byte) = bytes.get_mut(at % length) {
                *byte ^= 1 << bit;
            }
        }
        Damage::Cut(at) => bytes.truncate(at % length),
        Damage::Zero(at, count) => bytes.iter_mut().skip(at % length).take(count).for_each(|byte| *byte = 0),
        Damage::Overwrite(at, with) => {
            bytes.iter_mut().skip(at % length).zip(with).for_each(|(byte, with)| *byte = with);
        }
        Damage::Append(more) => bytes.extend(more),
        Damage::Remove(at, count) => {
            let start = at % length;
            drop(bytes.drain(start.min(bytes.len())..(start + count).min(bytes.len())));
        }
        Damage::Replace(with) => bytes = with,
    }
    bytes
}

proptest! {
    // Each case writes and syncs files.
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_file_gives_what_was_written_or_an_error_whatever_happened_to_it(
        damages in proptest::collection::vec(damage(), 1..4)
    ) {
        let folder = TempDir::new().unwrap();
        let files = KvFiles::open(folder.path(), ROOMY).unwrap();
        write(&files, 1, &content(3, 6)).unwrap();
        write(&files, 2, &content(4, 2)).unwrap();
        let whole = std::fs::read(path(&folder, 1)).unwrap();
        let spoilt = damages.into_iter().fold(whole.clone(), damaged);
        std::fs::write(path(&folder, 1), &spoilt).unwrap();
        let found = read(&files, 1);
        if spoilt == whole {
            prop_assert_eq!(found, Ok(Some(content(3, 6))));
        } else {
            prop_assert!(matches!(found, Err(KvFileError::Damaged(_))), "{:?}", found);
        }
        prop_assert_eq!(read(&files, 2), Ok(Some(content(4, 2))));
    }

    #[test]
    fn all_files_together_stay_within_the_bound_at_every_moment(
        writes in proptest::collection::vec((1..6_u8, 1..8_usize), 1..16)
    ) {
        let folder = TempDir::new().unwrap();
        let bound = 3_000;
        let files = KvFiles::open(folder.path(), bound).unwrap();
        for (number, blocks) in writes {
            write(&files, number, &content(u32::from(number), blocks)).unwrap();
            prop_assert_eq!(read(&files, number), Ok(Some(content(u32::from(number), blocks))));
            prop_assert!(bytes_on_disk(&folder) <= bound);
            prop_assert_eq!(files.total_bytes(), bytes_on_disk(&folder));
        }
    }
}

#[test]
fn the_file_that_was_unused_for_longest_makes_room_also_across_a_start() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), ROOMY).unwrap();
    for number in 1..=3 {
        write(&files, number, &content(1, 4)).unwrap();
    }
    // Read at a later time than any was written.
    read(&files, 1).unwrap().unwrap();
    let one = files.total_bytes() / 3;
    let files = KvFiles::open(folder.path(), 3 * one).unwrap();
    write(&files, 4, &content(1, 4)).unwrap();
    let left = |files: &KvFiles| (1..=5).filter(|number| files.contains(id(*number))).collect::<Vec<_>>();
    assert_eq!(left(&files), [1, 3, 4]);
    read(&files, 3).unwrap().unwrap();
    write(&files, 5, &content(1, 4)).unwrap();
    assert_eq!(left(&files), [3, 4, 5]);
    assert_eq!(left(&KvFiles::open(folder.path(), 3 * one).unwrap()), [3, 4, 5]);
}

#[test]
fn a_file_larger_than_the_bound_is_refused_and_pushes_nothing_out() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), 1_500).unwrap();
    write(&files, 1, &content(1, 4)).unwrap();
    assert!(matches!(write(&files, 2, &content(1, 40)), Err(KvFileError::TooLarge { .. })));
    assert_eq!(read(&files, 1), Ok(Some(content(1, 4))));
}

#[test]
fn a_start_removes_what_was_not_finished_and_what_is_beyond_the_bound() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), ROOMY).unwrap();
    for number in 1..=3 {
        write(&files, number, &content(1, 4)).unwrap();
    }
    let one = files.total_bytes() / 3;
    let part = folder.path().join("kv").join(format!("{}.7.part", id(9)));
    std::fs::write(&part, [0; 5_000]).unwrap();
    let files = KvFiles::open(folder.path(), 2 * one).unwrap();
    assert!(!part.exists());
    assert_eq!((bytes_on_disk(&folder), files.contains(id(1))), (2 * one, false));
    KvFiles::open(folder.path(), 0).unwrap();
    assert_eq!(bytes_on_disk(&folder), 0);
}

#[test]
fn a_removed_file_does_not_come_back_from_a_draft_begun_before_or_after() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), ROOMY).unwrap();
    write(&files, 1, &content(1, 4)).unwrap();
    let draft = files.draft(id(1));
    files.remove(id(1));
    assert_eq!(draft.write(&content(1, 4), 0), Err(KvFileError::Unwanted));
    assert_eq!(write(&files, 1, &content(1, 4)), Err(KvFileError::Unwanted));
    assert_eq!((read(&files, 1), bytes_on_disk(&folder)), (Ok(None), 0));
}

#[test]
fn files_of_conversations_that_are_not_known_go_and_the_others_stay() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), ROOMY).unwrap();
    for number in 1..=3 {
        write(&files, number, &content(1, 4)).unwrap();
    }
    files.retain(|conversation| conversation != id(2));
    assert_eq!([1, 2, 3].map(|number| path(&folder, number).exists()), [true, false, true]);
    assert_eq!(files.total_bytes(), bytes_on_disk(&folder));
    // Nothing speaks against a later file, as there would after a deletion.
    write(&files, 2, &content(1, 4)).unwrap();
}

#[test]
fn the_newest_draft_of_a_conversation_wins() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), ROOMY).unwrap();
    let (old, new) = (files.draft(id(1)), files.draft(id(1)));
    new.write(&content(2, 4), 0).unwrap();
    assert_eq!(old.write(&content(1, 4), 0), Err(KvFileError::Unwanted));
    assert_eq!(read(&files, 1), Ok(Some(content(2, 4))));
}

#[test]
fn a_write_that_fails_leaves_nothing_behind_and_the_old_file_in_place() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), ROOMY).unwrap();
    write(&files, 1, &content(1, 4)).unwrap();
    let before = bytes_on_disk(&folder);
    // What is to be the new file's place cannot be replaced by a file.
    std::fs::create_dir_all(path(&folder, 2).join("in the way")).unwrap();
    assert!(matches!(write(&files, 2, &content(1, 4)), Err(KvFileError::Io { .. })));
    assert_eq!(files.total_bytes(), before);
    std::fs::remove_dir_all(path(&folder, 2)).unwrap();
    assert_eq!(bytes_on_disk(&folder), before);
    assert_eq!(read(&files, 1), Ok(Some(content(1, 4))));
}

#[test]
fn uneven_blocks_are_refused() {
    let folder = TempDir::new().unwrap();
    let files = KvFiles::open(folder.path(), ROOMY).unwrap();
    let mut uneven = content(1, 4);
    uneven.blocks[2].pop();
    assert_eq!(write(&files, 1, &uneven), Err(KvFileError::Uneven));
    let empty = KvContent { tokens: vec![], blocks: vec![], ..content(1, 1) };
    assert_eq!(write(&files, 1, &empty), Err(KvFileError::Uneven));
}
