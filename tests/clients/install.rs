//! Fetches a client from npm, once for all test processes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where clients and their homes are.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients")
}

/// The folder in which this version of an npm package is installed, with what it depends on.
pub(crate) fn npm(package: &str, version: &str) -> PathBuf {
    let place = folder().join(format!("{}-{version}", package.trim_start_matches('@').replace('/', "-")));
    fs::create_dir_all(folder()).unwrap();
    // Other test processes wait here for the first one.
    let lock = File::create(place.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let done = place.join("installed");
    if !done.exists() {
        fs::create_dir_all(&place).unwrap();
        let mut install = Command::new("npm");
        install.args(["install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--prefix"]);
        install.arg(&place).arg(format!("{package}@{version}"));
        let output = install.output().expect("npm is needed to install the clients that are tested");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{package}@{version} cannot be installed: {said}");
        File::create(done).unwrap();
    }
    place
}

/// The file of this name below a folder, wherever the package keeps it for this platform.
pub(crate) fn find(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let look = |path: PathBuf| if path.is_dir() { find(&path, wanted) } else { Some(path).filter(|path| wanted(path)) };
    entries.into_iter().find_map(look)
}
