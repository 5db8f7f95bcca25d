//! What the sources of settings give together, and what is refused of them.

use super::*;
use crate::prompt::Effort;

fn load(file: &str, variables: &[(&str, &str)], flags: Flags) -> Result<Config, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.toml");
    std::fs::write(&path, file).unwrap();
    let variables = variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Config::load(Some(&path), variables, flags)
}

fn refusal(file: &str, variables: &[(&str, &str)]) -> String {
    load(file, variables, Flags::default()).unwrap_err().to_string()
}

#[test]
fn nothing_set_gives_the_defaults() {
    assert_eq!(load("", &[], Flags::default()).unwrap(), Config::default());
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let file = "silence_ms = 1\nthreads = 2\nlisten = '127.0.0.1:1'";
    let variables = [("MIDSTREAM_THREADS", "3"), ("MIDSTREAM_LISTEN", "127.0.0.1:2"), ("HOME", "/")];
    let listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 3)));
    let config = load(file, &variables, Flags { listen, ..Flags::default() }).unwrap();
    assert_eq!((config.silence_ms, config.threads, config.listen.port()), (1, 3, 3));
    assert_eq!(config.kv_bytes, Config::default().kv_bytes);
}

#[test]
fn lists_come_as_one_text_as_a_list_and_with_commas() {
    assert_eq!(load("models = 'a'", &[], Flags::default()).unwrap().models, ["a"]);
    assert_eq!(load("models = ['a', 'b']", &[], Flags::default()).unwrap().models, ["a", "b"]);
    let config = load("", &[("MIDSTREAM_MODELS", "123, x.gguf")], Flags::default()).unwrap();
    assert_eq!(config.models, ["123", "x.gguf"]);
}

#[test]
fn a_name_that_is_nearly_one_is_answered_with_the_one() {
    assert!(refusal("body_bytes = 3", &[]).ends_with("did you mean `body_bytes_max`?"));
    assert_eq!(refusal("thread = 3", &[]), "unknown setting `thread`; did you mean `threads`?");
    let refused = refusal("", &[("MIDSTREAM_SILENCE", "3")]);
    assert_eq!(refused, "unknown setting `MIDSTREAM_SILENCE`; did you mean `MIDSTREAM_SILENCE_MS`?");
    assert_eq!(refusal("colour = 3", &[]), "unknown setting `colour`; midstream.example.toml shows all");
}

#[test]
fn a_value_of_the_wrong_type_is_answered_with_the_right_one() {
    let begins = |file: &str, said: &str| {
        let refused = refusal(file, &[]);
        assert!(refused.starts_with(said) && refused.ends_with("settings.toml)"), "{refused}");
    };
    begins("threads = 'many'", "`threads` must be a whole number (in ");
    begins("threads = -1", "`threads` must be a whole number of 0 or more (in ");
    begins("data_dir = 3", "`data_dir` must be a text (in ");
    begins("models = 3", "`models` must be one text or a list of texts (in ");
    begins("listen = 8081", "`listen`: write ADDRESS:PORT, such as 127.0.0.1:8080 (in ");
    let refused = refusal("", &[("MIDSTREAM_THREADS", "many")]);
    assert_eq!(refused, "`MIDSTREAM_THREADS` must be a whole number");
}

#[test]
fn variables_of_others_with_our_prefix_are_left_alone() {
    let variables = [
        ("MIDSTREAM_API_KEY", "of the chat"),
        ("MIDSTREAM_ISA", "scalar"),
        ("MIDSTREAM_TEST_VOCABULARIES", "/tmp/vocabularies"),
        ("MIDSTREAM_CACHE_DIR", "/tmp"),
        ("MIDSTREAM_SERVICE_HOST", "10.0.0.1"),
        ("MIDSTREAM_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
    ];
    assert_eq!(load("", &variables, Flags::default()).unwrap(), Config::default());
}

#[test]
fn a_certificate_and_its_key_are_given_together() {
    let both = "tls_cert_file = 'a.pem'\ntls_key_file = 'b.pem'";
    assert_eq!(load(both, &[], Flags::default()).unwrap().tls_key_file, Some(PathBuf::from("b.pem")));
    for half in both.lines() {
        assert!(refusal(half, &[]).contains("tls_cert_file and tls_key_file belong together"));
    }
}

#[test]
fn a_queue_without_room_is_refused() {
    assert_eq!(refusal("reader_queue_events = 0", &[]), "the setting reader_queue_events must be at least 1");
}

#[test]
fn a_named_file_must_exist_and_the_usual_one_need_not() {
    assert_eq!(Config::load(None, [], Flags::default()).unwrap(), Config::default());
    let absent = Config::load(Some(Path::new("/no/such.toml")), [], Flags::default());
    assert_eq!(absent.unwrap_err().to_string(), "the configuration file /no/such.toml does not exist");
}

#[test]
fn the_example_file_sets_every_name_to_its_default() {
    let example = include_str!("../../midstream.example.toml");
    let is_setting = |line: &str| !line.starts_with([' ', '#']);
    let settings = example.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| is_setting(line));
    let settings: Vec<_> = settings.collect();
    let config = load(&settings.join("\n"), &[], Flags::default()).unwrap();
    let models = vec![crate::models::DEFAULT_MODEL.to_owned()];
    let scripted = Some(PathBuf::from("replies.json"));
    let (tls_cert_file, tls_key_file) = (Some(PathBuf::from("cert.pem")), Some(PathBuf::from("key.pem")));
    let chat_template = Some("hermes".to_owned());
    let own = ModelConfig {
        aliases: vec!["gpt-5".to_owned()],
        chat_template: Some("my.jinja".to_owned()),
        tool_format: Some("hermes".to_owned()),
        reasoning: None,
        efforts: [("low".to_owned(), Effort { budget_tokens: Some(64), ..Effort::default() })].into(),
        price: None,
        capabilities: Capabilities::default(),
    };
    let model = BTreeMap::from([("own".to_owned(), own)]);
    assert_eq!(config.chat_template_of("own"), Some("my.jinja"));
    assert_eq!(config.chat_template_of("other"), Some("hermes"));
    let upstream = BTreeMap::from([("gpu".to_owned(), config.upstream["gpu"].clone())]);
    assert_eq!(config.upstream["gpu"].models, ["Qwen/Qwen3-32B"]);
    let tls = Config { tls_cert_file, tls_key_file, ..Config::default() };
    let expected = Config { models, scripted, upstream, chat_template, model, ..tls };
    assert_eq!(config, expected);
    let debugged = format!("{:?}", Config::default());
    assert_eq!(settings.len(), debugged.matches(": ").count(), "a setting is missing in the example");
}

#[test]
fn a_price_is_of_a_million_tokens_and_no_less_than_nothing() {
    let file = "[model.m.price]\ninput = 3\ncached_input = 0.3\noutput = 15";
    let price = load(file, &[], Flags::default()).unwrap().price_of("m").unwrap();
    assert_eq!((price.input, price.cached_input, price.output), (3.0, Some(0.3), 15.0));
    assert_eq!(refusal(&file.replace("15", "-1"), &[]), "[model.\"m\"]: price must have numbers from 0 to a million");
    assert!(refusal(&file.replace("output = 15", ""), &[]).contains("output"));
}
