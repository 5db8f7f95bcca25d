//! Fetches clients from npm and pip, once for all test processes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where clients and their homes are; it is there.
pub(crate) fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The folder of this name, once it is installed; `install` puts everything into it.
fn once(name: &str, install: impl FnOnce(&Path) -> Command) -> PathBuf {
    let place = folder().join(name);
    // Other test processes wait here for the first one.
    let lock = File::create(place.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let done = place.join("installed");
    if !done.exists() {
        fs::create_dir_all(&place).unwrap();
        let output = install(&place).output().expect("npm and pip are needed to install the clients that are tested");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} cannot be installed: {said}");
        File::create(done).unwrap();
    }
    place
}

/// The folder in which this version of an npm package is installed, with what it depends on.
pub(crate) fn npm(package: &str, version: &str) -> PathBuf {
    npm_all(&[(package, version)])
}

/// The same of several packages.
pub(crate) fn npm_all(packages: &[(&str, &str)]) -> PathBuf {
    let (first, version) = packages[0];
    once(&format!("{}-{version}", first.trim_start_matches('@').replace('/', "-")), |place| {
        let mut install = Command::new("npm");
        install.args(["install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--prefix"]);
        install.arg(place).args(packages.iter().map(|(package, version)| format!("{package}@{version}")));
        install
    })
}

/// The program that runs Python, and the folder in which this requirement is installed for it.
pub(crate) fn pip(requirement: &str) -> (PathBuf, PathBuf) {
    let python = said(Command::new("python3").args(["-c", "import sys; print(sys.executable)"]));
    let name: String = requirement.chars().map(|it| if it.is_alphanumeric() || it == '.' { it } else { '-' }).collect();
    let place = once(&format!("pip-{name}"), |place| {
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]);
        install.arg(place).arg(requirement);
        install
    });
    (python.into(), place)
}

/// The program that runs JavaScript.
pub(crate) fn node() -> PathBuf {
    said(Command::new("node").args(["-p", "process.execPath"])).into()
}

/// What a command prints.
fn said(command: &mut Command) -> String {
    let output = command.output().expect("Python and Node.js are needed to run the clients that are tested");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The file of this name below a folder, wherever the package keeps it for this platform.
pub(crate) fn find(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let look = |path: PathBuf| if path.is_dir() { find(&path, wanted) } else { Some(path).filter(|path| wanted(path)) };
    entries.into_iter().find_map(look)
}
