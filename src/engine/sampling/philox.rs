//! Philox4x32-10, the counter-based generator of Salmon et al. (SC 2011): a draw is a function of a key and a
//! counter, so there is no state to save and none to lose.

/// Multipliers and key increments of the published algorithm.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const INCREMENTS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: u32 = 10;

/// Two numbers in [0, 1), a function of (seed, choice, index) alone.
pub(super) fn uniform(seed: u64, choice: u32, index: u64) -> [f64; 2] {
    let counter = [index as u32, (index >> 32) as u32, choice, 0];
    let words = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
    [[words[0], words[1]], [words[2], words[3]]].map(|[high, low]| {
        let bits = u64::from(high) << 32 | u64::from(low);
        // 53 bits: as many as an f64 holds exactly.
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    })
}

fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(INCREMENTS[0]), key[1].wrapping_add(INCREMENTS[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gives_the_published_known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn it_stays_below_one() {
        assert!((0..10_000).flat_map(|index| uniform(3, 0, index)).all(|number| (0.0..1.0).contains(&number)));
    }
}
