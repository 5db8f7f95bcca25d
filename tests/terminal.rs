//! The program in a terminal: `midstream chat` against `midstream serve`, both as processes, with scripted replies; and
//! its settings.
#![allow(clippy::unwrap_used)] // a test that cannot start a process has failed

#[path = "support/certificate.rs"]
mod certificate;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::{Value, json};

use certificate::{Certificate, pem};

const PROGRAM: &str = env!("CARGO_BIN_EXE_midstream");

/// `count` is slow enough to be interrupted; the others are not.
const SCRIPT: &str = r#"[
    {"match": "count", "deltas": ["one ", "two ", "three ", "four ", "five ", "six"], "delay_ms": 200},
    {"match": "story", "deltas": ["one ", "two ", STORY], "delay_ms": 100},
    {"match": "break", "deltas": ["so far"], "finish": "error"},
    {"deltas": ["Hello", " there"]}
]"#;

/// A server that is killed when the test is over.
struct Server {
    child: Child,
    address: String,
    greeting: String,
    /// Kept open: the server goes on writing its greeting.
    _out: BufReader<ChildStdout>,
}

impl Server {
    fn start(folder: &Path, listen: &str) -> Self {
        Self::start_with(folder, listen, &[])
    }

    fn start_with(folder: &Path, listen: &str, arguments: &[&str]) -> Self {
        let script = folder.join("replies.json");
        // Long enough to be running still when its reader goes, whatever the machine does.
        let story = vec![r#""on ""#; 3000].join(", ");
        std::fs::write(&script, SCRIPT.replace("STORY", &story)).unwrap();
        let mut command = Command::new(PROGRAM);
        command
            .args(["serve", "--listen", listen, "--data-dir"])
            .arg(folder.join("data"))
            .arg("--scripted")
            .arg(script)
            .args(arguments);
        let mut child = command.current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut greeting = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut greeting).unwrap();
        let (_, address) = greeting.trim().rsplit_once("://").unwrap();
        let address = address.to_owned();
        while !greeting.contains("try:") {
            out.read_line(&mut greeting).unwrap();
        }
        Self { address, child, greeting, _out: out }
    }

    fn chat(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["chat", "--url", &format!("http://{}", self.address)]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Exit code, standard output, standard error.
fn outcome(output: &Output) -> (i32, &str, &str) {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Reads until the text has come.
fn read_until(out: &mut ChildStdout, wanted: &str) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&read).contains(wanted) {
        out.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    String::from_utf8(read).unwrap()
}

#[test]
fn a_question_is_answered_by_the_answer_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "127.0.0.1:0");
    let output = server.chat(&["how", "are", "you?"]).output().unwrap();
    assert_eq!(outcome(&output), (0, "Hello there\n", ""));

    let mut chat = server.chat(&[]).stdin(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(b"how are you?\n").unwrap();
    assert_eq!(outcome(&chat.wait_with_output().unwrap()), (0, "Hello there\n", ""));
}

#[test]
fn without_an_address_the_one_of_the_settings_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "127.0.0.1:0");
    std::fs::write(folder.path().join("midstream.toml"), format!("listen = {:?}", server.address)).unwrap();
    let output = Command::new(PROGRAM).args(["chat", "hello"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(outcome(&output), (0, "Hello there\n", ""));
}

#[test]
fn who_reads_only_the_beginning_of_a_dump_is_told_of_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "127.0.0.1:0");
    assert!(server.chat(&["hello"]).output().unwrap().status.success());
    drop(server);
    for action in ["dump", "list"] {
        let mut command = Command::new(PROGRAM);
        command.args(["conversations", action, "--data-dir"]).arg(folder.path().join("data"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(outcome(&child.wait_with_output().unwrap()), (0, "", ""), "{action}");
    }
}

#[test]
fn what_goes_wrong_is_one_line_on_standard_error_and_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "127.0.0.1:0");
    let failed = |arguments: &[&str], said: &str| {
        let output = server.chat(arguments).output().unwrap();
        let (code, _, error) = outcome(&output);
        assert_eq!((code, error.lines().count()), (1, 1), "{error}");
        assert!(error.starts_with("midstream: ") && error.contains(said), "{error}");
    };
    failed(&["--model", "nobody", "hello"], "no model nobody is served here");
    failed(&["--conversation", "conv_nowhere", "hello"], "has no conversation conv_nowhere");
    failed(&["break"], "the answer failed");
}

#[test]
fn a_chat_outlives_a_server_that_is_killed_in_the_middle_of_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), "127.0.0.1:0");
    let mut chat = server.chat(&["count"]).spawn().unwrap();
    let mut out = chat.stdout.take().unwrap();
    let mut answer = read_until(&mut out, "two");
    server.child.kill().unwrap();
    server.child.wait().unwrap();

    let _again = Server::start(folder.path(), &server.address);
    out.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "one two three four five six\n");
    assert_eq!(outcome(&chat.wait_with_output().unwrap()), (0, "", ""));
}

/// Starts a chat whose answer runs for minutes, ends it, and sees whether the answer still runs.
fn end_a_running_chat(end: impl FnOnce(&mut Child, ChildStdout)) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), "127.0.0.1:0");
    let mut chat = server.chat(&["story"]).spawn().unwrap();
    let mut out = chat.stdout.take().unwrap();
    read_until(&mut out, "two");
    end(&mut chat, out);
    let output = chat.wait_with_output().unwrap();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let again = Server::start(folder.path(), "127.0.0.1:0");
    assert!(!again.greeting.contains("go on"), "{}", again.greeting);
    output
}

#[test]
fn a_chat_whose_reader_goes_cancels_its_answer_and_ends_silently_with_success() {
    let output = end_a_running_chat(|_, out| drop(out));
    assert_eq!(outcome(&output), (0, "", ""));
}

#[test]
fn a_chat_that_is_told_to_go_cancels_its_answer() {
    for (signal, said) in [("-TERM", "midstream: terminated\n"), ("-INT", "midstream: the answer was cancelled\n")] {
        let mut rest = String::new();
        let output = end_a_running_chat(|chat, mut out| {
            let kill = Command::new("kill").args([signal, &chat.id().to_string()]).status().unwrap();
            assert!(kill.success());
            out.read_to_string(&mut rest).unwrap();
        });
        assert_eq!(outcome(&output), (1, "", said));
    }
}

#[test]
fn an_address_that_others_reach_is_refused_in_one_sentence() {
    let output = Command::new(PROGRAM).args(["--listen", "0.0.0.0:0", "--scripted", "none.json"]).output().unwrap();
    let (code, _, error) = outcome(&output);
    assert_eq!((code, error.lines().count()), (1, 1), "{error}");
    assert!(error.contains("loopback only, and 0.0.0.0:0 is refused"), "{error}");
}

#[test]
fn shells_and_man_are_told_of_every_subcommand() {
    let ran = |arguments: &[&str]| Command::new(PROGRAM).args(arguments).output().unwrap();
    let help = ran(&["--help"]);
    let (_, help, _) = outcome(&help);
    let listed = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    let subcommands: Vec<_> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(subcommands.len() > 10, "{listed}");
    for arguments in [&["completions", "bash"][..], &["completions", "zsh"], &["completions", "fish"], &["man"]] {
        let output = ran(arguments);
        let (code, text, error) = outcome(&output);
        assert_eq!((code, error), (0, ""), "{arguments:?}");
        // In roff a hyphen has a backslash in front of it.
        let text = text.replace('\\', "");
        let missing: Vec<_> = subcommands.iter().filter(|name| !text.contains(**name)).collect();
        assert!(missing.is_empty(), "{arguments:?}: {missing:?}");
    }
    let output = ran(&["completions", "tcsh"]);
    let (code, _, error) = outcome(&output);
    assert!(code == 2 && error.contains("possible values: bash"), "{error}");
}

/// Whether the server shows this certificate.
fn shows(address: &str, certificate: &[u8]) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.to_vec().into()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let mut session = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    session.complete_io(&mut TcpStream::connect(address).unwrap()).is_ok()
}

#[test]
fn a_server_with_a_certificate_speaks_tls_and_reads_it_again_when_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let renew = || {
        let made = Certificate::of_localhost();
        std::fs::write(&cert, pem("CERTIFICATE", &made.cert)).unwrap();
        std::fs::write(&key, pem("PRIVATE KEY", &made.key)).unwrap();
        made.cert
    };
    let first = renew();
    let files = ["--tls-cert-file", cert.to_str().unwrap(), "--tls-key-file", key.to_str().unwrap()];
    let server = Server::start_with(folder.path(), "127.0.0.1:0", &files);
    assert!(server.greeting.starts_with("midstream listens on https://127.0.0.1:"), "{}", server.greeting);
    assert!(shows(&server.address, &first));
    let url = format!("https://localhost:{}", server.address.rsplit_once(':').unwrap().1);
    let mut chat = Command::new(PROGRAM);
    chat.args(["chat", "--url", &url, "hello"]).env("SSL_CERT_FILE", &cert).stdin(Stdio::null());
    assert_eq!(outcome(&chat.output().unwrap()), (0, "Hello there\n", ""));
    let second = renew();
    assert!(!shows(&server.address, &second));
    assert!(Command::new("kill").args(["-HUP", &server.child.id().to_string()]).status().unwrap().success());
    while !shows(&server.address, &second) {}
}

/// Runs `midstream config` in this folder, with this variable.
fn config(folder: &Path, arguments: &[&str], variable: (&str, &str)) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("config").args(arguments).current_dir(folder).env(variable.0, variable.1);
    command.output().unwrap()
}

const UPSTREAM: &str = "[upstream.gpu]
base_url = 'http://127.0.0.1:1/v1'
models = ['m']
api_key_env = 'GPU_KEY'
";

#[test]
fn the_settings_in_force_are_shown_with_where_they_come_from_and_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("midstream.toml"), format!("threads = 2\nsilence_ms = 7\n{UPSTREAM}")).unwrap();
    let show = |arguments: &[&str], variable: (&str, &str)| {
        let output = config(folder.path(), &[&["show", "--reasoning", "qwen3"], arguments].concat(), variable);
        let (code, said, error) = outcome(&output);
        assert_eq!((code, error), (0, ""));
        said.to_owned()
    };
    let text = show(&[], ("MIDSTREAM_THREADS", "3"));
    for line in [
        "threads = 3  # environment",
        "silence_ms = 7  # file",
        "reasoning = \"qwen3\"  # flag",
        "kv_type = \"f16\"  # default",
        "#scripted is not set",
    ] {
        assert!(text.lines().any(|said| said == line), "{line}: {text}");
    }
    let secret = show(&["--json"], ("GPU_KEY", "sk-secret"));
    let all: Value = serde_json::from_str(&secret).unwrap();
    assert_eq!(all["settings"]["silence_ms"], json!({"value": 7, "from": "file"}));
    assert_eq!(all["settings"]["upstream"]["value"]["gpu"]["api_key_env"], "GPU_KEY");
    assert_eq!(all["file"], "midstream.toml");
    assert!(!secret.contains("sk-secret"));
    // It is a file that sets the same.
    std::fs::write(folder.path().join("again.toml"), &text).unwrap();
    let again = show(&["--config", "again.toml"], ("HOME", "/"));
    let values = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("# "));
        lines.map(|line| line.split("  # ").next().unwrap().to_owned()).collect()
    };
    assert_eq!(values(&again), values(&text));
}

#[test]
fn settings_are_checked_as_a_start_would_and_nothing_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let check = |file: &str, arguments: &[&str]| {
        std::fs::write(folder.path().join("midstream.toml"), file).unwrap();
        let output = config(folder.path(), &[&["check"], arguments].concat(), ("GPU_KEY", "sk-secret"));
        let (code, said, error) = outcome(&output);
        assert!(!said.contains("sk-secret") && !error.contains("sk-secret"), "{said}{error}");
        (code, said.to_owned(), error.to_owned())
    };
    let keyless = UPSTREAM.replace("GPU_KEY", "NO_SUCH_KEY");
    let good = (0, "the settings of midstream.toml can be used\n".to_owned(), String::new());
    assert_eq!(check(UPSTREAM, &[]), good);
    let json: Value = serde_json::from_str(&check(UPSTREAM, &["--json"]).1).unwrap();
    assert_eq!(json, json!({"ok": true, "file": "midstream.toml"}));
    for (file, arguments, said) in [
        ("thread = 3", &[][..], "unknown setting `thread`; did you mean `threads`?"),
        ("threads = 'many'", &[], "`threads` must be a whole number"),
        ("", &["--listen", "0.0.0.0:1"], "0.0.0.0:1 is refused"),
        ("", &["--scripted", "none.json"], "none.json does not exist"),
        ("tls_cert_file = 'a.pem'", &[], "tls_cert_file and tls_key_file belong together"),
        ("tls_cert_file = 'a.pem'\ntls_key_file = 'b.pem'", &[], "a.pem cannot be read"),
        ("chat_template = 'none.jinja'", &[], "none.jinja"),
        (keyless.as_str(), &[], "NO_SUCH_KEY"),
    ] {
        let (code, out, error) = check(file, arguments);
        assert_eq!((code, out.as_str(), error.lines().count()), (1, "", 1), "{error}");
        assert!(error.starts_with("midstream: ") && error.contains(said), "{said}: {error}");
        let (code, out, _) = check(file, &[arguments, &["--json"]].concat());
        let json: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &json["ok"]), (1, &json!(false)));
        assert!(json["error"].as_str().unwrap().contains(said), "{json}");
    }
    assert_eq!(check("", &["--nonsense"]).0, 2);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["midstream.toml"], "nothing was made");
}

#[test]
fn whether_a_server_lives_and_is_ready_is_told_by_word_and_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_with(folder.path(), "127.0.0.1:0", &[]);
    let url = format!("http://{}", server.address);
    let ask = |arguments: &[&str]| Command::new(PROGRAM).arg("health").args(arguments).output().unwrap();
    for (arguments, word) in [(&["--url", &url][..], "ok\n"), (&["--ready", "--url", &url], "ready\n")] {
        assert_eq!(outcome(&ask(arguments)), (0, word, ""));
    }
    let output = ask(&["--url", "http://127.0.0.1:1"]);
    let (code, _, error) = outcome(&output);
    assert!(code == 1 && error.contains("cannot reach http://127.0.0.1:1"), "{error}");
}

#[test]
fn a_log_level_that_is_none_is_refused_before_anything_is_started() {
    for command in ["serve", "doctor"] {
        let output = Command::new(PROGRAM).arg(command).env("MIDSTREAM_LOG", "bogus").output().unwrap();
        let (code, out, error) = outcome(&output);
        assert_eq!((code, out, error.lines().count()), (1, "", 1), "{error}");
        assert!(error.contains("MIDSTREAM_LOG: \"bogus\" is no level"), "{error}");
    }
}

#[test]
fn an_archive_has_the_program_its_pages_and_everybodys_licences() {
    let folder = tempfile::tempdir().unwrap();
    let packed = Command::new("scripts/archive").args(["--program", PROGRAM, "--out"]).arg(folder.path()).output();
    let packed = packed.unwrap();
    if packed.status.code() == Some(3) {
        eprintln!("skipped: Cargo does not know the licences of all crates here");
        return;
    }
    let archive = String::from_utf8(packed.stdout).unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    let listed = Command::new("tar").arg("--list").arg("--file").arg(archive.trim()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for file in [
        "midstream",
        "LICENSE",
        "THIRD-PARTY-LICENCES.txt",
        "midstream.example.toml",
        "man/man1/midstream-conversations-repair.1",
        "completions/midstream.bash",
        "deploy/midstream.service",
        "docs/operations.md",
    ] {
        assert!(
            listed.lines().any(|line| line.split_once('/').is_some_and(|(_, name)| name == file)),
            "{file}: {listed}"
        );
    }
}
