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

/// How a named pre-tokenizer cuts, and what else its name decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recipe {
    /// Patterns applied one after another; matches and what lies between them are pieces.
    pub(super) patterns: Vec<String>,
    /// A piece that is a token as a whole is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether texts begin with the BOS token when the file does not say.
    pub(super) add_bos: bool,
    /// The recipe is a guess.
    pub(super) guessed: bool,
}

/// The recipe for a name from a model file.
pub(super) fn recipe(name: Option<&str>) -> Result<Recipe, Error> {
    let plain = |patterns: Vec<String>| Recipe { patterns, ignore_merges: false, add_bos: false, guessed: false };
    let digits_first = || plain(vec![DIGIT.to_owned(), GPT2.to_owned()]);
    Ok(match name {
        None | Some("default") => Recipe {
            guessed: true,
            ..plain(vec![r"[\p{P}\$\+<=>\^~\|]+".into(), GPT2.into(), r"\p{N}+".into(), "[0-9]{3}".into()])
        },
        Some("llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2") => {
            Recipe { ignore_merges: true, add_bos: true, ..plain(vec![word_groups(r"\p{N}{1,3}")]) }
        }
        Some("glm4" | "chatglm-bpe" | "glm5") => {
            Recipe { ignore_merges: true, ..plain(vec![word_groups(r"\p{N}{1,3}")]) }
        }
        Some("dbrx" | "smaug-bpe") => plain(vec![word_groups(r"\p{N}{1,3}")]),
        Some(
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan" | "solar-open"
            | "grok-2",
        ) => plain(vec![word_groups(r"\p{N}")]),
        Some("qwen35") => plain(vec![word_groups_with_marks()]),
        Some("gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "exaone4" | "modern-bert" | "mellum" | "gigachat") => {
            plain(vec![GPT2.to_owned()])
        }
        Some("smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" | "mellum2") => {
            digits_first()
        }
        Some("gpt-4o" | "llama4" | "kanana2" | "minimax-m2") => plain(vec![cased_words(true, r"\p{N}{1,3}")]),
        Some("tekken") => Recipe { ignore_merges: true, add_bos: true, ..plain(vec![cased_words(false, r"\p{N}")]) },
        Some("falcon") => plain(vec![r"[\p{P}\$\+<=>\^~\|`]+".into(), GPT2.into(), "[0-9]{3}".into()]),
        Some(unknown) => return Err(Error::UnknownPreTokenizer(unknown.to_owned())),
    })
}

/// Words with one leading other character, numbers, symbols, white space: GPT-4's pattern and its kin.
fn word_groups(number: &str) -> String {
    format!(r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{WHITE_SPACE}")
}

/// As [`word_groups`], with combining marks as parts of words.
fn word_groups_with_marks() -> String {
    let words = format!(r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}");
    words + &format!(r"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{WHITE_SPACE}")
}

/// Words cut where the case changes from lower to upper.
fn cased_words(contractions: bool, number: &str) -> String {
    const UPPER: &str = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}";
    const LOWER: &str = r"\p{Ll}\p{Lm}\p{Lo}\p{M}";
    let suffix = if contractions { format!("{CONTRACTIONS}?") } else { String::new() };
    let words = format!(
        r"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{suffix}|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{suffix}"
    );
    words + &format!(r"|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{WHITE_SPACE}")
}
