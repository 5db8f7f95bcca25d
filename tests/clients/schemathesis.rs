//! Schemathesis: requests of every kind, right and wrong ones, made of `/openapi.json`; every answer must be one that
//! the description names, and none may say that the server failed.

use serde_json::json;
use tempfile::TempDir;

use crate::confined;
use crate::install;
use crate::server::Site;

const SCHEMATHESIS: &str = "schemathesis==4.32.5";
/// What every answer is held to.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance";
/// Seconds after which it hangs.
const PATIENCE_S: &str = "400";

#[test]
fn no_request_meets_a_fault_or_an_answer_that_is_not_described() {
    let site = Site::new(&json!([{"deltas": ["Hello ", "there."]}]));
    let server = site.start();
    let home = TempDir::new_in(install::folder()).unwrap();
    let (python, packages) = install::pip(SCHEMATHESIS);
    let mut command = confined::command(&python, home.path(), PATIENCE_S);
    command.env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
    command.args(["-m", "schemathesis.cli", "run", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing"]);
    // The same requests every time; streams of events without an end are left after a while.
    command.args(["--seed", "1", "--max-examples", "20", "--request-timeout", "10", "--workers", "2"]);
    command.args(["--suppress-health-check", "all", "--warnings", "off"]);
    let output = command.arg(format!("http://{}/openapi.json", server.address)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    // It ran: a run that found no operation would end well too.
    assert!(said.contains("No issues found"), "{said}");
}
