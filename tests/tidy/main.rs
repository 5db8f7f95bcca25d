//! The rules of the code that can be checked by reading it: who imports whom, sizes, markers, forbidden calls.
//!
//! CONTRIBUTING.md gives the reasons. A finding names the file, the line, the rule and why the rule exists.
//! Reads files only; knows nothing of what the code does.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot read the code has failed

mod layers;
mod source;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use layers::{LAYERS, RESERVED, imports, refusal};
use source::{Source, dependencies, functions, root, sources, statements, tracked, words};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_COLUMNS_MAX: usize = 120;
const FILE_BYTES_MAX: u64 = 1 << 20;

#[test]
fn every_layer_imports_only_what_its_row_allows() {
    let dependencies = dependencies();
    let mut findings = Findings::default();
    for file in sources("src/") {
        let layers = LAYERS.iter().filter(|layer| file.path.starts_with(layer.path));
        let Some(layer) = layers.max_by_key(|layer| layer.path.len()) else {
            findings.add(&file.path, 1, "import rules", "the file belongs to no row of LAYERS in tests/tidy.rs");
            continue;
        };
        for (line, statement) in statements(file.production()) {
            for import in imports(&statement, &file.path, &dependencies) {
                if let Some(why) = refusal(&import, layer) {
                    findings.add(&file.path, line, "import rules", &why);
                }
            }
        }
    }
    findings.report();
}

#[test]
fn reserved_calls_stay_in_their_places() {
    let mut findings = Findings::default();
    for file in sources("src/").into_iter().chain(sources("kernels/src/")) {
        for reserved in RESERVED.iter().filter(|reserved| !reserved.places.iter().any(|it| file.path.starts_with(it))) {
            for (index, line) in file.production().lines().enumerate() {
                if words(line, reserved.call).next().is_some() {
                    findings.add(&file.path, index + 1, reserved.call, reserved.why);
                }
            }
        }
    }
    findings.report();
}

#[test]
fn the_process_is_killed_at_every_crash_point_by_a_test() {
    let killed: String = sources("tests/crash/").into_iter().map(|file| file.text).collect();
    let mut findings = Findings::default();
    for file in sources("src/") {
        for (index, line) in file.production().lines().enumerate() {
            // Literals are blank in the code, so the name is read from the text.
            let text = file.text.lines().nth(index).unwrap_or_default();
            let name = text.split_once("crash::point(\"").and_then(|(_, rest)| rest.split_once('"'));
            if let Some((name, _)) = name.filter(|_| line.contains("crash::point("))
                && ![format!("\"{name}\""), format!("\"{name}:")].iter().any(|plan| killed.contains(plan))
            {
                findings.add(&file.path, index + 1, "crash points", &format!("no test in tests/crash names {name}"));
            }
        }
    }
    findings.report();
}

#[test]
fn unsafe_code_lives_in_the_kernels_only() {
    let mut findings = Findings::default();
    for file in sources("").iter().filter(|file| !file.path.starts_with("kernels/")) {
        for (index, line) in file.code.lines().enumerate() {
            if words(line, "unsafe").next().is_some() {
                findings.add(&file.path, index + 1, "unsafe", "all unsafe code lives in the kernels crate");
            }
        }
    }
    findings.report();
}

#[test]
fn files_functions_and_lines_are_short() {
    let mut findings = Findings::default();
    for file in sources("") {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            let why = format!("{lines} lines; {FILE_LINES_MAX} at most, so that a file has one subject");
            findings.add(&file.path, lines, "file size", &why);
        }
        for (start, length) in functions(&file.code) {
            if length > FUNCTION_LINES_MAX {
                let why = format!("{length} lines; {FUNCTION_LINES_MAX} at most, so that a function fits on a screen");
                findings.add(&file.path, start, "function size", &why);
            }
        }
        for (index, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > LINE_COLUMNS_MAX {
                let why = format!("{columns} columns; {LINE_COLUMNS_MAX} at most");
                findings.add(&file.path, index + 1, "line length", &why);
            }
        }
    }
    findings.report();
}

#[test]
fn every_file_opens_with_what_it_owns() {
    let mut findings = Findings::default();
    for file in sources("") {
        if !file.text.starts_with("//!") {
            findings.add(&file.path, 1, "module doc", "the first line is a //! that says what the file owns");
        }
    }
    findings.report();
}

#[test]
fn every_file_of_a_module_is_declared() {
    let mut findings = Findings::default();
    let all = sources("src/");
    for file in &all {
        let path = Path::new(&file.path);
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let folder = path.parent().unwrap();
        let (name, parent) = match stem {
            "lib" | "main" => continue,
            "mod" => (folder.file_name().unwrap().to_str().unwrap(), folder.parent().unwrap()),
            stem => (stem, folder),
        };
        let declaration = format!("mod {name}");
        let declares = |other: &Source| {
            let beside = [parent.join("mod.rs"), parent.join("lib.rs"), parent.with_extension("rs")];
            beside.contains(&PathBuf::from(&other.path)) && words(&other.code, &declaration).next().is_some()
        };
        if !all.iter().any(declares) {
            findings.add(&file.path, 1, "dead file", "no module declares it, so it is never compiled");
        }
    }
    findings.report();
}

#[test]
fn nothing_is_left_over_and_no_registry_is_named() {
    // Joined here, so that this file does not find itself.
    let markers = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["todo", "!("], ["unimplemented", "!("], ["dbg", "!("]];
    let hosts = [["crates", ".io"], ["pypi", ".org"], ["pythonhosted", ".org"], ["npmjs", ".org"], ["docs", ".rs/"]];
    let mut findings = Findings::default();
    for path in tracked().into_iter().filter(|path| !path.ends_with("Cargo.lock")) {
        let Ok(text) = fs::read_to_string(root().join(&path)) else {
            continue;
        };
        for (index, line) in text.lines().enumerate() {
            for marker in markers.map(|parts| parts.concat()) {
                if words(line, &marker).next().is_some() {
                    findings.add(&path, index + 1, &marker, "finish it, or file it as an issue");
                }
            }
            for host in hosts.map(|parts| parts.concat()) {
                if line.contains(&host) {
                    findings.add(&path, index + 1, &host, "packages are named, not the registry that has them");
                }
            }
        }
    }
    findings.report();
}

#[test]
fn every_folder_of_src_is_on_the_map() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut findings = Findings::default();
    let files = sources("src/").into_iter().filter(|file| !file.is_test);
    let folders: BTreeSet<_> = files.filter_map(|file| Some(file.path.rsplit_once('/')?.0.to_owned())).collect();
    for folder in folders.into_iter().filter(|folder| folder != "src") {
        if !map.contains(&format!("`{folder}/`")) {
            findings.add(&folder, 1, "map", "ARCHITECTURE.md does not say what the folder is for");
        }
    }
    findings.report();
}

#[test]
fn every_setting_is_read_somewhere() {
    let all = sources("src/");
    let config = all.iter().find(|file| file.path == "src/config.rs").unwrap();
    let settings = config.text.split("pub struct Config {").nth(1).unwrap().split("\n}").next().unwrap();
    let mut findings = Findings::default();
    for line in settings.lines().filter_map(|line| line.trim().strip_prefix("pub ")) {
        let use_of_it = format!(".{}", line.split(':').next().unwrap());
        let reads = |file: &Source| words(file.production(), &use_of_it).next().is_some();
        if !all.iter().any(|file| !file.path.starts_with("src/config") && reads(file)) {
            findings.add(&config.path, 1, &use_of_it, "nothing reads the setting, so it promises what does not happen");
        }
    }
    findings.report();
}

#[test]
fn no_large_file_is_in_git() {
    let mut findings = Findings::default();
    for path in tracked() {
        let bytes = fs::metadata(root().join(&path)).map_or(0, |metadata| metadata.len());
        if bytes > FILE_BYTES_MAX {
            let why = format!("{bytes} bytes; weights and data are fetched, never committed");
            findings.add(&path, 1, "file bytes", &why);
        }
    }
    findings.report();
}

#[derive(Default)]
struct Findings(Vec<String>);

impl Findings {
    fn add(&mut self, path: &str, line: usize, rule: &str, why: &str) {
        self.0.push(format!("{path}:{line}: {rule}: {why}"));
    }

    fn report(self) {
        let mut text = String::new();
        for finding in &self.0 {
            writeln!(text, "{finding}").unwrap();
        }
        assert!(self.0.is_empty(), "{} finding(s):\n{text}", self.0.len());
    }
}
