//! The split patterns of the pre-tokenizers that model files name.

use super::Error;

/// English contractions in any case.
const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
/// Runs of white space: a line end takes what is before it, other runs leave one space to the next word.
const WHITE_SPACE: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Digits alone, before anything else is cut.
const DIGIT: &str = r"\p{N}";

/// Lines and what lies between them.
const LINES: &str = r"[^\n]+|\n+";
/// Chinese and Japanese.
const CJK: &str = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+";
/// East Asian letters as the first models of `DeepSeek` cut them.
const EAST_ASIAN: &str = r"[\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+";
/// East and South East Asian letters as `AFMoE` cuts them.
const ASIAN: &str = concat!(
    r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{30ff}\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}",
    r"\x{e00}-\x{e7f}\x{e80}-\x{eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}",
    r"\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+"
);
/// Numbers in groups of three from behind.
const GROUPED_DIGITS: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";
/// Words with marks, a sign in front of ASCII letters, runs of signs.
const SIGNED_WORDS: &str = concat!(
    r"[!-/:-~&&[^A-Za-z]][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// How a named pre-tokenizer cuts, and what else its name decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each says something of its own about the pieces")]
pub(super) struct Recipe {
    /// Patterns applied one after another; matches and what lies between them are pieces.
    pub(super) patterns: Vec<String>,
    /// Pieces are characters with U+2581 for spaces, and bytes where a character is no token, instead of GPT-2's bytes.
    pub(super) characters: bool,
    /// A piece that is a token as a whole is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether texts begin with the BOS token when the file does not say.
    pub(super) add_bos: bool,
    /// The recipe is a guess.
    pub(super) guessed: bool,
}

/// A recipe of these patterns and nothing else.
fn plain<const N: usize>(patterns: [&str; N]) -> Recipe {
    Recipe {
        patterns: patterns.map(str::to_owned).to_vec(),
        characters: false,
        ignore_merges: false,
        add_bos: false,
        guessed: false,
    }
}

/// The recipe for a name from a model file.
pub(super) fn recipe(name: Option<&str>) -> Result<Recipe, Error> {
    let threes = word_groups(r"\p{N}{1,3}");
    Ok(match name {
        None | Some("default") => {
            Recipe { guessed: true, ..plain([r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9]{3}"]) }
        }
        Some(
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
            | "jina-v5-nano",
        ) => Recipe { ignore_merges: true, add_bos: true, ..plain([&threes]) },
        Some("glm4" | "glm5") => Recipe { ignore_merges: true, ..plain([&threes]) },
        Some("chatglm-bpe" | "dbrx" | "smaug-bpe") => plain([&threes]),
        Some(
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan" | "solar-open"
            | "grok-2",
        ) => plain([&word_groups(DIGIT)]),
        Some("laguna") => plain([LINES, &word_groups(DIGIT)]),
        Some("qwen35") => plain([&word_groups_with_marks()]),
        Some(
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "exaone4" | "modern-bert" | "mellum" | "gigachat"
            | "roberta-bpe",
        ) => plain([GPT2]),
        Some(jina) if jina.starts_with("jina-") => plain([GPT2]),
        Some("smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" | "mellum2") => {
            plain([DIGIT, GPT2])
        }
        Some("gpt-4o" | "llama4" | "kanana2" | "minimax-m2") => plain([&cased_words(true, r"\p{N}{1,3}", "")]),
        Some("tekken") => Recipe { ignore_merges: true, add_bos: true, ..plain([&cased_words(false, DIGIT, "")]) },
        Some("kimi-k2") => plain([&format!(r"\p{{Han}}+|{}", cased_words(true, r"\p{N}{1,3}", r"&&[^\p{Han}]"))]),
        Some("deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4") => plain([r"\p{N}{1,3}", CJK, SIGNED_WORDS]),
        Some("afmoe") => plain([GROUPED_DIGITS, ASIAN, SIGNED_WORDS]),
        Some("deepseek-coder") => plain([r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, DIGIT]),
        Some("deepseek-llm") => plain([
            r"[\r\n]",
            &format!(r"\s?[{}]+", class(DEEPSEEK_LETTERS)),
            &format!(r"\s?[{}]+", class(DEEPSEEK_SIGNS)),
            r"\s+$",
            EAST_ASIAN,
            r"\p{N}+",
        ]),
        Some("falcon") => plain([r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9]{3}"]),
        Some("gemma4") => Recipe { characters: true, add_bos: true, ..plain([LINES]) },
        Some(unknown) => return Err(Error::UnknownPreTokenizer(unknown.to_owned())),
    })
}

/// Ranges of characters as the inside of a character class.
fn class(ranges: &[(u32, u32)]) -> String {
    ranges.iter().map(|(first, last)| format!(r"\x{{{first:x}}}-\x{{{last:x}}}")).collect::<Vec<_>>().concat()
}

/// The letters that deepseek-llm takes together, first and last of each range: those with case, but not all.
#[rustfmt::skip]
const DEEPSEEK_LETTERS: &[(u32, u32)] = &[
    (0x41, 0x5a), (0x61, 0x7a), (0xb5, 0xb5), (0xc0, 0xd6), (0xd8, 0xf6), (0xf8, 0x1ba), (0x1bc, 0x1bf),
    (0x1c4, 0x293), (0x295, 0x2af), (0x370, 0x373), (0x376, 0x377), (0x37b, 0x37d), (0x37f, 0x37f), (0x386, 0x386),
    (0x388, 0x38a), (0x38c, 0x38c), (0x38e, 0x3a1), (0x3a3, 0x3f5), (0x3f7, 0x481), (0x48a, 0x52f), (0x531, 0x556),
    (0x10a0, 0x10c5), (0x13a0, 0x13f5), (0x13f8, 0x13fd), (0x1c90, 0x1cba), (0x1cbd, 0x1cbf), (0x1d00, 0x1d2b),
    (0x1d6b, 0x1d77), (0x1d79, 0x1d9a), (0x1e00, 0x1f15), (0x1f18, 0x1f1d), (0x1f20, 0x1f45), (0x1f48, 0x1f4d),
    (0x1f50, 0x1f57), (0x1f59, 0x1f59), (0x1f5b, 0x1f5b), (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d), (0x1f80, 0x1fb4),
    (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe), (0x1fc2, 0x1fc4), (0x1fc6, 0x1fcc), (0x1fd0, 0x1fd3), (0x1fd6, 0x1fdb),
    (0x1fe0, 0x1fec), (0x1ff2, 0x1ff4), (0x1ff6, 0x1ffc), (0x2102, 0x2102), (0x2107, 0x2107), (0x210a, 0x2113),
    (0x2115, 0x2115), (0x2119, 0x211d), (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128), (0x212a, 0x212d),
    (0x212f, 0x2134), (0x2139, 0x2139), (0x213c, 0x213f), (0x2145, 0x2149), (0x214e, 0x214e), (0x2183, 0x2184),
    (0x2c00, 0x2c7b), (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee), (0x2cf2, 0x2cf3), (0xa640, 0xa66d), (0xa680, 0xa69b),
    (0xa722, 0xa76f), (0xa771, 0xa787), (0xa78b, 0xa78e), (0xab70, 0xabbf), (0xfb00, 0xfb06), (0xfb13, 0xfb17),
    (0xff21, 0xff3a), (0xff41, 0xff5a), (0x10400, 0x1044f), (0x104b0, 0x104d3), (0x104d8, 0x104fb),
    (0x10c80, 0x10cb2), (0x10cc0, 0x10cf2), (0x118a0, 0x118df), (0x1e900, 0x1e943),
];
/// The signs that deepseek-llm takes together.
const DEEPSEEK_SIGNS: &[(u32, u32)] =
    &[(0x21, 0x2f), (0x3a, 0x7e), (0xff01, 0xff0f), (0xff1a, 0xff5e), (0x2018, 0x201f), (0x3000, 0x3002)];

/// Words with one leading other character, numbers, symbols, white space: GPT-4's pattern and its kin.
fn word_groups(number: &str) -> String {
    format!(r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{WHITE_SPACE}")
}

/// As [`word_groups`], with combining marks as parts of words.
fn word_groups_with_marks() -> String {
    let words = format!(r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}");
    words + &format!(r"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{WHITE_SPACE}")
}

/// Words cut where the case changes from lower to upper; `limit` narrows the letters down.
fn cased_words(contractions: bool, number: &str, limit: &str) -> String {
    const UPPER: &str = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}";
    const LOWER: &str = r"\p{Ll}\p{Lm}\p{Lo}\p{M}";
    let suffix = if contractions { format!("{CONTRACTIONS}?") } else { String::new() };
    let (upper, lower) = (format!("[{UPPER}{limit}]"), format!("[{LOWER}{limit}]"));
    let lead = r"[^\r\n\p{L}\p{N}]?";
    let words = format!("{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}");
    words + &format!(r"|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{WHITE_SPACE}")
}
