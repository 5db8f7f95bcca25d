//! Runs clients where they reach nothing but loopback, in a home of their own and with nothing of the caller's
//! environment; and the checks of SDKs: scripts that ask a server, and end well or say what was wrong.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::install;
use crate::server::Site;

/// Seconds after which a client hangs.
pub(crate) const PATIENCE_S: &str = "120";

/// A client's program, which is ended with all that it started when it hangs.
pub(crate) fn command(program: &Path, home: &Path, patience_s: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", patience_s]).arg(program);
    command.current_dir(home).env_clear().env("HOME", home);
    let nowhere = "http://127.0.0.1:9";
    command.envs([("HTTP_PROXY", nowhere), ("HTTPS_PROXY", nowhere), ("NO_PROXY", "127.0.0.1")]);
    command.envs([("PATH", "/usr/bin:/bin"), ("TERM", "dumb")]).stdin(Stdio::null());
    command
}

/// Runs one check of an SDK's script to its end, against a server with these replies; `base` is behind its address.
pub(crate) fn check(replies: &Value, base: &str, command: &dyn Fn(&Path) -> Command, check: &str) {
    check_at(&Site::new(replies), base, command, check);
}

/// The same against this server.
pub(crate) fn check_at(site: &Site, base: &str, command: &dyn Fn(&Path) -> Command, check: &str) {
    let server = site.start();
    let home = TempDir::new_in(install::folder()).unwrap();
    let output = command(home.path()).arg(format!("http://{}{base}", server.address)).arg(check).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{check}: {}\n{said}", output.status);
}

/// A script for Python, run with the packages of this requirement.
pub(crate) fn python(requirement: &str, script: &str, home: &Path) -> Command {
    let (program, packages) = install::pip(requirement);
    // Under a name that no package has.
    let path = home.join("check.py");
    std::fs::write(&path, script).unwrap();
    let mut command = command(&program, home, PATIENCE_S);
    command.arg(path).env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A script for Node.js, run with these packages.
pub(crate) fn javascript(packages: &[(&str, &str)], script: &str, home: &Path) -> Command {
    let place = install::npm_all(packages);
    // A module finds packages beside itself. Other processes run the same.
    let path = place.join("check.mjs");
    let written = tempfile::NamedTempFile::new_in(&place).unwrap();
    std::fs::write(&written, script).unwrap();
    written.persist(&path).unwrap();
    let mut command = command(&install::node(), home, PATIENCE_S);
    command.arg(path);
    command
}

/// A test of each check.
macro_rules! checks {
    ($($name:ident: $run:ident($check:literal);)*) => {$(
        #[test]
        fn $name() {
            $run($check);
        }
    )*};
}
pub(crate) use checks;
