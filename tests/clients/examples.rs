//! The examples in `examples/clients`, as they are.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::confined::{self, PATIENCE_S};
use crate::install;
use crate::sdks::{JAVASCRIPT, PYTHON};
use crate::server::Site;

/// What runs TypeScript.
const TSX: &str = "4.23.15";

/// Runs an example to its end: it steers a story about a ship, and reads on.
fn steers(command: &dyn Fn(&Path) -> Command) {
    let ship: Vec<String> = (0..10_000).map(|number| format!("wave {number}, ")).collect();
    let replies = json!([
        {"match": "ship", "deltas": ship, "delay_ms": 5},
        {"match": "train", "deltas": ["The train ", "arrived."]},
    ]);
    let site = Site::new(&replies);
    let server = site.start();
    let home = TempDir::new_in(install::folder()).unwrap();
    let url = format!("http://{}", server.address);
    let output = command(home.path()).env("MIDSTREAM_URL", url).output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{wrong}");
    let lines: Vec<_> = said.lines().collect();
    let [before, steered, after, ended] = lines[..] else { panic!("{said}\n{wrong}") };
    assert!(before.starts_with("wave 0, wave 1"), "{before}");
    assert!(steered.starts_with("--- steered: resp_"), "{steered}");
    assert_eq!((after, ended), ("The train arrived.", "--- incomplete, completed"));
}

/// The example of this name.
fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/clients").join(name)
}

#[test]
fn python_steers() {
    let script = std::fs::read_to_string(example("steer.py")).unwrap();
    steers(&|home| confined::python(PYTHON, &script, home));
}

#[test]
fn typescript_steers() {
    let place = install::npm_all(&[("tsx", TSX), ("openai", JAVASCRIPT)]);
    // A module finds packages beside itself.
    let script = place.join("steer.mts");
    std::fs::copy(example("steer.ts"), &script).unwrap();
    steers(&|home| {
        let mut command = confined::command(&install::node(), home, PATIENCE_S);
        command.arg(place.join("node_modules/tsx/dist/cli.mjs")).arg(&script);
        command
    });
}

#[test]
fn curl_steers() {
    steers(&|home| confined::command(&example("steer.sh"), home, PATIENCE_S));
}
