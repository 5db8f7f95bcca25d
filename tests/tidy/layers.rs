//! The table of layers: what each folder of `src/` may import, and which calls only some places may make.

use super::source::{is_word, words};

/// What one folder or file of `src/` may import.
pub(crate) struct Layer {
    /// The folder or file; the longest match counts.
    pub(crate) path: &'static str,
    /// Modules of this crate; the layer's own module is always allowed.
    pub(crate) modules: &'static [&'static str],
    /// Crates that Cargo.toml names.
    pub(crate) crates: &'static [&'static str],
    /// Pure: neither time nor threads, files, sockets, processes or variables.
    pub(crate) pure: bool,
}

const ANY: &[&str] = &["*"];

#[rustfmt::skip] // a table: one row per layer
pub(crate) const LAYERS: &[Layer] = &[
    Layer { path: "src/lib.rs", modules: ANY, crates: &[], pure: true },
    Layer { path: "src/main.rs", modules: &[], crates: &[], pure: false },
    Layer { path: "src/app", modules: ANY, crates: ANY, pure: false },
    Layer { path: "src/log.rs", modules: &["config"], crates: &["thiserror", "tracing_subscriber"], pure: false },
    Layer { path: "src/cli/", modules: ANY, crates: ANY, pure: false },
    Layer {
        path: "src/config", modules: &["engine::settings", "parse", "prompt"],
        crates: &["figment", "serde", "thiserror"], pure: false,
    },
    Layer {
        path: "src/telemetry.rs", modules: &["clock", "conversation", "engine"],
        crates: &["metrics", "metrics_exporter_prometheus", "tokio"], pure: false,
    },
    Layer { path: "src/models/", modules: &[], crates: &["indicatif", "sha2", "thiserror"], pure: false },
    Layer {
        path: "src/access/", modules: &["clock", "crash", "ids"],
        crates: &["base64", "ctutils", "serde", "serde_json", "sha2", "thiserror", "tokio", "tracing"], pure: false,
    },
    Layer { path: "src/access/key.rs", modules: &["access", "ids"], crates: &["serde"], pure: true },
    Layer { path: "src/access/limits.rs", modules: &["access"], crates: &["serde"], pure: true },
    Layer { path: "src/crash.rs", modules: &[], crates: &[], pure: false },
    Layer { path: "src/clock.rs", modules: &[], crates: &[], pure: false },
    Layer { path: "src/ids.rs", modules: &[], crates: &["serde", "thiserror", "uuid"], pure: true },
    Layer { path: "src/error.rs", modules: &[], crates: &["serde"], pure: true },
    Layer { path: "src/protocol/", modules: &[], crates: &["schemars", "serde", "serde_json"], pure: true },
    Layer {
        path: "src/parse/", modules: &["prompt", "engine::tokenizer"],
        crates: &["serde", "serde_json", "thiserror"], pure: true,
    },
    Layer {
        path: "src/prompt/", modules: &["parse", "engine::tokenizer", "engine::gguf"],
        crates: &["minijinja", "minijinja_contrib", "serde", "serde_json", "thiserror"], pure: true,
    },
    Layer {
        path: "src/conversation/", modules: &["engine::settings", "error", "ids", "parse", "prompt"],
        crates: &["serde", "serde_json", "thiserror"], pure: true,
    },
    Layer {
        path: "src/store/",
        modules: &["clock", "config", "conversation", "crash", "error", "ids", "migrations", "telemetry"],
        crates: &["crc32fast", "rustix", "serde", "serde_json", "sha2", "sled", "thiserror", "tokio", "tracing"],
        pure: false,
    },
    Layer {
        path: "src/store/kv_files", modules: &["crash", "ids"],
        crates: &["crc32fast", "sha2", "thiserror", "tracing"], pure: false,
    },
    Layer {
        path: "src/engine/", modules: &["clock", "config", "crash", "parse", "prompt"],
        crates: &[
            "futures_util", "llguidance", "midstream_kernels", "serde", "serde_json", "sha2", "thiserror", "tokenizers",
            "tokio", "tracing",
        ],
        pure: false,
    },
    Layer {
        path: "src/upstream/", modules: &["clock", "config", "engine", "ids", "parse", "prompt"],
        crates: &[
            "futures_util", "httpdate", "hyper", "hyper_util", "rustls", "rustls_native_certs", "serde", "serde_json",
            "sha2", "thiserror", "tokio", "tokio_rustls", "tracing",
        ],
        pure: false,
    },
    Layer {
        path: "src/upstream/responses", modules: &["engine", "parse", "prompt", "upstream"],
        crates: &["serde", "serde_json"], pure: true,
    },
    Layer {
        path: "src/upstream/chat", modules: &["config", "engine", "parse", "prompt", "upstream"],
        crates: &["serde", "serde_json"], pure: true,
    },
    Layer {
        path: "src/upstream/messages", modules: &["engine", "parse", "prompt", "upstream"],
        crates: &["serde", "serde_json"], pure: true,
    },
    Layer { path: "src/upstream/sse.rs", modules: &[], crates: &["thiserror"], pure: true },
    Layer { path: "src/engine/settings", modules: &[], crates: &["serde", "serde_json"], pure: true },
    Layer { path: "src/engine/sampling", modules: &["engine"], crates: &["thiserror"], pure: true },
    Layer { path: "src/engine/scheduler", modules: &["engine"], crates: &["thiserror"], pure: true },
    Layer {
        path: "src/engine/tokenizer", modules: &["engine::gguf"],
        crates: &["serde", "serde_json", "thiserror", "tokenizers"], pure: true,
    },
    Layer { path: "src/engine/gguf", modules: &[], crates: &["serde_json", "thiserror"], pure: true },
    Layer {
        path: "src/actors/",
        modules: &[
            "access", "clock", "config", "conversation", "crash", "engine", "error", "ids", "parse", "prompt", "store",
            "telemetry",
        ],
        crates: &[
            "anyhow", "futures_util", "ractor", "serde", "serde_json", "sha2", "thiserror", "tokio", "tracing",
        ],
        pure: false,
    },
    Layer {
        path: "src/api/",
        modules: &[
            "access", "actors", "clock", "config", "conversation", "engine", "error", "ids", "parse", "prompt",
            "protocol", "telemetry",
            // How an idempotency key is named and answered; the journal itself stays out of reach.
            "store::KeyScope", "store::KeyedAnswer", "store::Operation",
        ],
        crates: &[
            "axum", "base64", "chacha20poly1305", "flate2", "futures_util", "hyper", "hyper_util", "rustls", "schemars",
            "serde", "serde_json", "serde_path_to_error", "sha2", "thiserror", "tokio", "tokio_rustls",
            "tokio_tungstenite", "tracing", "zstd",
        ],
        pure: false,
    },
];

/// Parts of `std` that a pure layer does without.
const IMPURE: [&str; 7] =
    ["std::env", "std::fs", "std::net", "std::process", "std::thread", "std::time", "std::sync::mpsc"];

/// Calls that only the named places make.
pub(crate) struct Reserved {
    pub(crate) call: &'static str,
    pub(crate) places: &'static [&'static str],
    pub(crate) why: &'static str,
}

pub(crate) const RESERVED: &[Reserved] = &[
    // The kernels' team looks how long it waits: it decides who computes, and nothing that a test could see.
    Reserved {
        call: "Instant::now",
        places: &["src/clock.rs", "kernels/src/team.rs"],
        why: "only clock.rs reads time, so that tests can",
    },
    Reserved { call: "SystemTime::now", places: &["src/clock.rs"], why: "only clock.rs reads time, so that tests can" },
    Reserved { call: "Uuid::now_v7", places: &["src/ids.rs"], why: "only ids.rs draws ids, so that decisions replay" },
    Reserved {
        call: "tokio::spawn",
        places: &["src/actors/", "src/app.rs"],
        why: "tasks are started where they are supervised",
    },
    Reserved {
        call: "unbounded_channel",
        places: &[],
        why: "every queue has a bound, and the bound has a name in config.rs",
    },
    Reserved { call: "block_in_place", places: &[], why: "it starves the runtime; use a thread" },
    Reserved { call: "thread::sleep", places: &[], why: "wait for the event instead" },
    Reserved { call: "flush_async", places: &[], why: "two calls at once hang in sled 0.34" },
];

/// What one line of a file imports or names by its full path: `crate::…`, `super::…`, `std::…` or a dependency's.
pub(crate) fn imports(line: &str, file: &str, dependencies: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for start in ["crate", "super", "std"].into_iter().chain(dependencies.iter().map(String::as_str)) {
        if line.trim_start().strip_prefix("use ").is_some_and(|rest| rest.trim_end_matches(';') == start) {
            found.push(start.to_owned());
        }
        for at in words(line, start).filter(|at| !line[..*at].ends_with("::")) {
            let Some(path) = line[at + start.len()..].strip_prefix("::") else {
                continue;
            };
            let head = path_of(path);
            let prefix = if head.is_empty() { start.to_owned() } else { format!("{start}::{head}") };
            let group = path[head.len()..].trim_start_matches("::").strip_prefix('{');
            match group.filter(|_| line.trim_start().starts_with("use ") || line.trim_start().starts_with("pub")) {
                Some(group) => found.extend(group_heads(group).iter().map(|name| format!("{prefix}::{name}"))),
                None => found.push(prefix),
            }
        }
    }
    found.into_iter().map(|path| without_super(&path, file)).collect()
}

/// The paths at the heads of a group's members; what groups inside it hold is below those.
fn group_heads(group: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut heads = vec![path_of(group.trim_start())];
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(path_of(group[at + 1..].trim_start())),
            _ => {}
        }
    }
    heads.retain(|head| !head.is_empty());
    heads
}

/// The path from the crate's root.
fn without_super(path: &str, file: &str) -> String {
    let module = module_of(file);
    let mut parents: Vec<_> = module.split("::").collect();
    let mut rest = path;
    while let Some(below) = rest.strip_prefix("super::") {
        parents.pop();
        rest = below;
    }
    if rest == path {
        return path.to_owned();
    }
    let parts = ["crate"].into_iter().chain(parents).chain([rest]);
    parts.collect::<Vec<_>>().join("::")
}

/// A file's or folder's module, as a path from the crate's root without `crate`.
fn module_of(path: &str) -> String {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    path.trim_end_matches('/').replace('/', "::")
}

/// The path at the head of the text.
fn path_of(text: &str) -> &str {
    let end = text.find(|letter: char| !is_word(letter) && letter != ':').unwrap_or(text.len());
    text[..end].trim_end_matches(':')
}

/// Why the layer may not import the path, if it may not.
pub(crate) fn refusal(import: &str, layer: &Layer) -> Option<String> {
    let covers = |allowed: &str, path: &str| path == allowed || path.starts_with(&format!("{allowed}::"));
    let start = import.split("::").next().unwrap_or_default();
    let is_allowed = match (start, import.strip_prefix("crate::")) {
        ("std", _) => !layer.pure || !IMPURE.iter().any(|impure| covers(impure, import)),
        (_, Some(path)) => {
            let is_own = covers(&module_of(layer.path), path);
            is_own || layer.modules.iter().any(|allowed| *allowed == "*" || covers(allowed, path))
        }
        ("crate", None) => true,
        _ => layer.crates.iter().any(|allowed| *allowed == "*" || *allowed == start),
    };
    (!is_allowed).then(|| format!("{} may not use {import}", layer.path))
}

#[test]
fn imports_are_seen_in_every_form() {
    let dependencies = ["tokio".to_owned()];
    let seen = |line: &str| imports(line, "src/parse/hermes.rs", &dependencies);
    assert_eq!(seen("use crate::ids::{A, B};"), ["crate::ids::A", "crate::ids::B"]);
    assert_eq!(seen("use crate::{ids, parse::Piece};"), ["crate::ids", "crate::parse::Piece"]);
    assert_eq!(seen("let x = tokio::time::Sleep::new(std::env::var);"), ["std::env::var", "tokio::time::Sleep::new"]);
    assert_eq!(seen("use super::Piece; use super::super::actors;"), ["crate::parse::Piece", "crate::actors"]);
    assert_eq!(seen("use crate::{ a::{b, c}, d, };"), ["crate::a", "crate::d"]);
    assert_eq!(seen("use tokio;"), ["tokio"]);
    assert_eq!(seen("use my_tokio::x; let tokio = 1;"), [""; 0]);
}

#[test]
fn a_layer_refuses_what_its_row_does_not_name() {
    let layer = |path: &str| LAYERS.iter().find(|layer| layer.path == path).unwrap();
    let may = |path: &str, import: &str| refusal(import, layer(path)).is_none();
    assert!(may("src/conversation/", "crate::ids::ResponseId"));
    assert!(may("src/conversation/", "crate::conversation::State"));
    assert!(!may("src/conversation/", "crate::actors"));
    assert!(!may("src/conversation/", "tokio::sync::mpsc"));
    assert!(!may("src/conversation/", "std::time::Duration"));
    assert!(!may("src/parse/", "crate::engine::Engine"));
    assert!(may("src/parse/", "crate::engine::tokenizer::Tokenizer"));
    assert!(!may("src/engine/gguf", "crate::engine::Engine"));
}
