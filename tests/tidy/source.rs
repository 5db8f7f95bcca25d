//! Reads the project's Rust files: which there are, what is code in them and what is test code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A Rust file: its text, and the same without comments and literals.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) code: String,
    pub(crate) is_test: bool,
}

impl Source {
    /// The code that is not test code.
    pub(crate) fn production(&self) -> &str {
        if self.is_test {
            return "";
        }
        let inline_tests = "#[cfg(test)]\nmod ";
        let starts = self.code.match_indices(inline_tests).map(|(start, _)| start);
        let mut blocks = starts.filter(|start| {
            let declaration = &self.code[start + inline_tests.len()..];
            declaration.lines().next().is_some_and(|line| line.ends_with('{'))
        });
        &self.code[..blocks.next().unwrap_or(self.code.len())]
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file that git has or would take.
pub(crate) fn tracked() -> Vec<String> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root()).output().expect("git lists the files");
    assert!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let paths: BTreeSet<_> = listed.split('\0').filter(|path| root().join(path).is_file()).map(str::to_owned).collect();
    assert!(paths.contains("Cargo.toml"), "git does not list the files of {}", root().display());
    paths.into_iter().collect()
}

/// The Rust files below the folder.
pub(crate) fn sources(below: &str) -> Vec<Source> {
    let paths = tracked()
        .into_iter()
        .filter(|path| path.starts_with(below) && Path::new(path).extension().is_some_and(|it| it == "rs"));
    let mut all: Vec<_> = paths
        .map(|path| {
            let text = fs::read_to_string(root().join(&path)).unwrap();
            let code = without_comments_and_literals(&text);
            Source { path, text, code, is_test: false }
        })
        .collect();
    let test_modules: Vec<_> = all.iter().flat_map(test_modules).collect();
    for file in &mut all {
        let module = file.path.trim_end_matches(".rs").trim_end_matches("/mod");
        let is_below = |test: &String| module == test || module.starts_with(&format!("{test}/"));
        file.is_test = test_modules.iter().any(is_below) || module.starts_with("tests/");
    }
    all
}

/// Modules in files of their own that the file declares for tests only, as paths without ending.
fn test_modules(file: &Source) -> Vec<String> {
    let path = Path::new(&file.path);
    let folder = match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") => path.parent().unwrap().to_owned(),
        _ => path.with_extension(""),
    };
    let after = |(start, attribute): (usize, &str)| file.code[start + attribute.len()..].trim_start();
    let name = |rest: &str| {
        let line = rest.lines().next()?;
        let (_, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
        Some(folder.join(name).to_str()?.to_owned())
    };
    file.code.match_indices("#[cfg(test)]").map(after).filter_map(name).collect()
}

/// The crates that Cargo.toml names, as they are written in code.
pub(crate) fn dependencies() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let section = manifest.split("\n[dependencies]\n").nth(1).expect("there are dependencies");
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| Some(line.split_once(" = ")?.0.replace('-', "_"))).collect()
}

pub(crate) fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Where the word stands by itself, not inside a longer one.
pub(crate) fn words(text: &str, word: &str) -> impl Iterator<Item = usize> {
    text.match_indices(word).map(|(start, _)| start).filter(move |start| {
        let (before, after) = (&text[..*start], &text[start + word.len()..]);
        let begins = !word.starts_with(is_word) || !before.ends_with(|letter: char| is_word(letter) || letter == '$');
        let ends = !word.ends_with(is_word) || !after.starts_with(is_word);
        begins && ends
    })
}

/// The lines with their numbers; a `use` over several lines is one.
pub(crate) fn statements(code: &str) -> Vec<(usize, String)> {
    let mut statements: Vec<(usize, String)> = Vec::new();
    for (index, line) in code.lines().enumerate() {
        match statements.last_mut() {
            Some((_, open)) if open.trim_start().starts_with("use ") && !open.contains(';') => open.push_str(line),
            _ => statements.push((index + 1, line.to_owned())),
        }
    }
    statements
}

/// First line and number of lines of every function with a body.
pub(crate) fn functions(code: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for start in words(code, "fn").filter(|start| code[start + 2..].starts_with(' ')) {
        let rest = &code[start..];
        let mut depth = 0;
        let body = rest.char_indices().find(|&(_, letter)| {
            depth += i32::from("([".contains(letter)) - i32::from(")]".contains(letter));
            depth == 0 && (letter == '{' || letter == ';')
        });
        let Some((open, '{')) = body else { continue };
        let mut braces = 0;
        let close = rest[open..].char_indices().find(|&(_, letter)| {
            braces += i32::from(letter == '{') - i32::from(letter == '}');
            braces == 0
        });
        let Some((length, _)) = close else { continue };
        found.push((code[..=start].lines().count(), rest[..=open + length].lines().count()));
    }
    found
}

/// The same text with comments and the insides of literals blanked; lines stay where they are.
fn without_comments_and_literals(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < letters.len() {
        let end = literal_or_comment_end(&letters, at).unwrap_or(at);
        if end > at {
            code.extend(letters[at..end].iter().map(|letter| if *letter == '\n' { '\n' } else { ' ' }));
            at = end;
            continue;
        }
        // A word is taken whole, so that the r of `for"` begins no raw string.
        loop {
            code.push(letters[at]);
            at += 1;
            if at == letters.len() || !is_word(letters[at - 1]) || !is_word(letters[at]) {
                break;
            }
        }
    }
    code
}

/// Where the comment or literal that begins here ends.
fn literal_or_comment_end(letters: &[char], at: usize) -> Option<usize> {
    let letter = |index: usize| letters.get(index).copied().unwrap_or('\0');
    let find = |from: usize, end: &[char]| {
        let found = letters[from.min(letters.len())..].windows(end.len()).position(|window| window == end);
        found.map_or(letters.len(), |offset| from + offset + end.len())
    };
    let prefixed = usize::from(matches!(letter(at), 'b' | 'c') && matches!(letter(at + 1), '"' | 'r' | '\''));
    let start = at + prefixed;
    match (letter(start), letter(start + 1)) {
        ('/', '/') => Some(letters[at..].iter().position(|it| *it == '\n').map_or(letters.len(), |it| at + it)),
        ('/', '*') => Some(find(at + 2, &['*', '/'])),
        ('r', '"' | '#') => {
            let hashes = letters[start + 1..].iter().take_while(|it| **it == '#').count();
            let mut end = vec!['"'];
            end.extend(std::iter::repeat_n('#', hashes));
            (letter(start + 1 + hashes) == '"').then(|| find(start + 2 + hashes, &end))
        }
        ('"', _) => Some(quoted_end(letters, start, '"')),
        ('\'', '\\') => Some(quoted_end(letters, start, '\'')),
        ('\'', _) if letter(start + 2) == '\'' => Some(start + 3),
        _ => None,
    }
}

fn quoted_end(letters: &[char], start: usize, quote: char) -> usize {
    let mut at = start + 1;
    while at < letters.len() && letters[at] != quote {
        at += 1 + usize::from(letters[at] == '\\');
    }
    (at + 1).min(letters.len())
}

#[test]
fn comments_and_literals_are_blanked_and_lines_kept() {
    let text = "a // unsafe\nb \"x\\\"unsafe\ny\" 'c' '\\'' r#\"un\"safe\"# b\"q\" &'static for/* z */d";
    let code = without_comments_and_literals(text);
    assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "&'static", "for", "d"]);
    assert_eq!(code.lines().count(), text.lines().count());
}

#[test]
fn a_function_is_measured_from_its_name_to_its_last_brace() {
    let code = "fn a() -> [u8; 2]\nwhere\n{\n    |x| { x }\n}\ntrait T { fn b(&self); }\ntype F = fn(u8);\n";
    assert_eq!(functions(code), [(1, 5)]);
}
