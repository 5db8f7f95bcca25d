//! The converters' promises: what was written in a model's form is, as JSON, what it was before.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Dialect, Keywords, Kinds, Literal, Typed};
use crate::parse::json_scanner::{JsonScanner, Scan};

/// Reads a whole value; what was written, and whether it is whole. Checks that everything written is the beginning of
/// a JSON value.
fn literal(dialect: Dialect, text: &str) -> Option<String> {
    let mut literal = Literal::new(dialect);
    let mut json = Vec::new();
    let mut over = false;
    for byte in text.bytes() {
        match literal.push(byte, &mut json) {
            Scan::More => {}
            Scan::Done => over = true,
            Scan::DoneBefore | Scan::Invalid => return None,
        }
        is_prefix(&json);
    }
    (over || literal.finish(&mut json)).then(|| String::from_utf8(json).unwrap())
}

fn is_prefix(json: &[u8]) {
    let mut scanner = JsonScanner::new();
    let whole = json.iter().all(|&byte| scanner.push(byte) != Scan::Invalid);
    assert!(whole, "{:?} begins no JSON value", String::from_utf8_lossy(json));
}

fn typed(kinds: Kinds, text: &str) -> String {
    let mut typed = Typed::new(kinds);
    let mut json = Vec::new();
    for byte in text.bytes() {
        assert!(typed.push(byte, &mut json), "{text:?}");
    }
    assert!(typed.finish(&mut json));
    String::from_utf8(json).unwrap()
}

fn keywords(names: &[&str], text: &str) -> Option<String> {
    let mut keywords = Keywords::new(names.iter().map(|&name| name.to_owned()).collect());
    let mut json = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        match keywords.push(byte, &mut json) {
            Scan::More => is_prefix(&json),
            Scan::Done if at + 1 == text.len() => return Some(String::from_utf8(json).unwrap()),
            _ => return None,
        }
    }
    None
}

fn python(text: &str) -> Option<Value> {
    literal(Dialect::Python, text).map(|json| serde_json::from_str(&json).unwrap())
}

#[test]
fn python_strings_mean_what_python_takes_them_for() {
    for (text, meaning) in [
        (r#"'it\'s "quoted"'"#, r#"it's "quoted""#),
        (r#""it's \"quoted\"""#, r#"it's "quoted""#),
        (r"'a\tb\n\\c\r\x41\u00e9\101\0'", "a\tb\n\\c\rA\u{e9}A\0"),
        (r"'\U0001F980 \ud83e\udd80 \ud83e \udd80'", "🦀 🦀 \u{fffd} \u{fffd}"),
        (r"'\d \a \v /\/'", "\\d \u{7} \u{b} /\\/"),
        (r"r'C:\new'", "C:\\new"),
        ("u'é'", "é"),
        ("'''a'b''c\n\"d'''", "a'b''c\n\"d"),
        (r#""""a""b""""#, "a\"\"b"),
        ("''", ""),
        ("''''''", ""),
        ("'a\\\nb'", "ab"),
        ("'line\nend'", "line\nend"),
        ("'</tool_call> [f(a=1)]'", "</tool_call> [f(a=1)]"),
    ] {
        assert_eq!(python(text), Some(json!(meaning)), "{text}");
    }
}

#[test]
fn python_values_become_json() {
    for (text, value) in [
        ("[1, -2.5, True, False, None,]", json!([1, -2.5, true, false, null])),
        ("{'a': 1, \"b\": {2: (), None: []}, True: 'x'}", json!({"a": 1, "b": {"2": [], "null": []}, "true": "x"})),
        ("(1, 'x')", json!([1, "x"])),
        ("('x')", json!("x")),
        ("((1), (2,), ((3)))", json!([1, [2], 3])),
        ("+1_000", json!(1000)),
        ("[.5, 5., -.5]", json!([0.5, 5.0, -0.5])),
        ("true", json!(true)),
    ] {
        assert_eq!(python(text), Some(value), "{text}");
    }
    let digits = "123456789012345678901234567890.1000";
    assert_eq!(literal(Dialect::Python, digits).as_deref(), Some(digits));
    for text in ["[1", "'a", "{'a'}", "{1, 2}", "[1 2]", "(1]", "f'x'", "1x", "Nonesuch", "{'a': }", "", "01", "[,]"] {
        assert_eq!(python(text), None, "{text}");
    }
}

#[test]
fn strict_json_is_json_alone() {
    for text in ["'a'", "True", "[1,]", "{'a':1}", "(1)", "+1", ".5", r#""\x41""#, "{1:2}", "{\"a\":1,}"] {
        assert_eq!(literal(Dialect::Json, text), None, "{text}");
    }
    assert_eq!(literal(Dialect::Json, "\"a\nb\"").as_deref(), Some("\"a\\nb\""));
}

#[test]
fn gemma_keys_and_strings_are_bare() {
    for (text, value) in [
        ("{}", json!({})),
        ("{a:1,b:<|\"|>x, \"y\"\n<|\"|>}", json!({"a": 1, "b": "x, \"y\"\n"})),
        ("{a : [ true , null ],b:{c:<|\"|><|\"|>}}", json!({"a": [true, null], "b": {"c": ""}})),
        ("{<|\"|>a b<|\"|>:-1.5e3,\"c\":\"d\"}", json!({"a b": -1500.0, "c": "d"})),
        ("{a:Paris France,b:0}", json!({"a": "Paris France", "b": 0})),
        ("{a:<|\"|>it is <|\"|> here \\n<|\"|>}", json!({"a": "it is <|\"|> here \\n"})),
        ("{a:<|\"|><|\"<|\"|>}", json!({"a": "<|\""})),
    ] {
        let json = literal(Dialect::Gemma, text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value, "{text}");
    }
    for text in ["{a}", "{a:}", "{a:1", "{a:<x>}", "{a:1]"] {
        assert_eq!(literal(Dialect::Gemma, text), None, "{text}");
    }
}

#[test]
fn keyword_arguments_become_an_object() {
    assert_eq!(keywords(&[], ")").as_deref(), Some("{}"));
    assert_eq!(keywords(&[], " a = 1 , b='x', )").as_deref(), Some(r#"{"a":1,"b":"x"}"#));
    assert_eq!(keywords(&[], "größe=[1, (2, 3)])").as_deref(), Some(r#"{"größe":[1, [2, 3]]}"#));
    assert_eq!(keywords(&["p", "q", "r"], "1, r'x', True)").as_deref(), Some(r#"{"p":1,"q":"x","r":true}"#));
    for text in ["1)", "a)", "a=)", "a=1 b=2)", "a=1", ",)", "a=b)", "**a)"] {
        assert_eq!(keywords(&[], text), None, "{text}");
    }
}

#[test]
fn text_between_tags_is_what_its_schema_takes() {
    let nullable = Kinds::STRING | Kinds::NULL;
    let number = Kinds::INTEGER | Kinds::FRACTION;
    for (kinds, text, expected) in [
        (Kinds::STRING, "null", "\"null\""),
        (Kinds::STRING, " \n42 ", "\" \\n42 \""),
        (Kinds::STRING, "a &amp; \"b\" \\n", r#""a &amp; \"b\" \\n""#),
        (Kinds::STRING, "", "\"\""),
        (Kinds::INTEGER, " 42\n", "42"),
        (Kinds::INTEGER, "12345678901234567890123", "12345678901234567890123"),
        (Kinds::INTEGER, "1.0", "1.0"),
        (Kinds::INTEGER, "1.5", "\"1.5\""),
        (Kinds::INTEGER, "42 apples", "\"42 apples\""),
        (Kinds::INTEGER, "", "\"\""),
        (number, "1.50e2", "1.50e2"),
        (number, "1e", "\"1e\""),
        (Kinds::BOOLEAN, "True", "true"),
        (Kinds::BOOLEAN, "false", "false"),
        (Kinds::BOOLEAN, "yes", "\"yes\""),
        (Kinds::BOOLEAN, "trueish", "\"trueish\""),
        (Kinds::NULL, "None", "null"),
        (nullable, "null", "null"),
        (nullable, "nullable", "\"nullable\""),
        (Kinds::OBJECT, "{\"a\" : [1.0]}", "{\"a\" : [1.0]}"),
        (Kinds::OBJECT, "{'a': None}", "{\"a\": null}"),
        (Kinds::OBJECT, "[1]", "\"[1]\""),
        (Kinds::OBJECT, "{\"a\":", "\"{\\\"a\\\":\""),
        (Kinds::ARRAY, "[1] and more", "\"[1] and more\""),
        (Kinds::UNKNOWN, "42", "42"),
        (Kinds::UNKNOWN, "{\"a\":1}", "{\"a\":1}"),
        (Kinds::UNKNOWN, "{'a': 1}", "\"{'a': 1}\""),
        (Kinds::UNKNOWN, "True", "\"True\""),
        (Kinds::UNKNOWN, "\"x\"", r#""\"x\"""#),
        (Kinds::UNKNOWN, "12:30", "\"12:30\""),
        (Kinds::NOT_TEXT, "plain", "\"plain\""),
    ] {
        assert_eq!(typed(kinds, text), expected, "{kinds:?} {text:?}");
    }
}

#[test]
fn text_streams_and_so_does_a_long_object() {
    let mut json = Vec::new();
    assert!(Typed::new(Kinds::STRING).push(b'x', &mut json));
    assert_eq!(json, b"\"x");
    let mut typed = Typed::new(Kinds::OBJECT);
    let mut json = Vec::new();
    let text = format!("{{\"a\":\"{}", "y".repeat(2000));
    assert!(text.bytes().all(|byte| typed.push(byte, &mut json)));
    assert_eq!(json, text.as_bytes());
    assert!(typed.in_string() && !typed.held());
    assert!(!typed.push(b'"', &mut json) || !typed.push(b'?', &mut json));
    assert!(!typed.finish(&mut json));
    assert!(json.ends_with(b"y\"?"));
}

#[test]
fn a_schema_says_which_kinds_it_takes() {
    let root = json!({"$defs": {"n": {"type": "integer"}}, "properties": {
        "a": {"$ref": "#/$defs/n"}, "b": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]},
        "c": {"enum": ["x", 1]}, "d": {"type": ["boolean", "null"]}, "e": {"type": "number", "nullable": true},
        "f": {}, "g": true, "h": {"$ref": "#/properties/h"}, "i": {"const": "x"}, "j": {"properties": {}},
        "k": {"allOf": [{"type": ["string", "null"]}, {"enum": ["x"]}]}, "l": {"type": "strange"},
    }});
    let number = Kinds::INTEGER | Kinds::FRACTION;
    for (name, kinds) in [
        ("a", Kinds::INTEGER),
        ("b", Kinds::STRING | Kinds::INTEGER),
        ("c", Kinds::STRING | Kinds::INTEGER),
        ("d", Kinds::BOOLEAN | Kinds::NULL),
        ("e", number | Kinds::NULL),
        ("f", Kinds::UNKNOWN),
        ("g", Kinds::UNKNOWN),
        ("h", Kinds::UNKNOWN),
        ("i", Kinds::STRING),
        ("j", Kinds::OBJECT),
        ("k", Kinds::STRING),
        ("l", Kinds::UNKNOWN),
        ("missing", Kinds::UNKNOWN),
    ] {
        assert_eq!(Kinds::of_parameter(Some(&root), name), kinds, "{name}");
    }
    assert_eq!(Kinds::of_parameter(None, "a"), Kinds::UNKNOWN);
    let open = json!({"additionalProperties": {"type": "string"}});
    assert_eq!(Kinds::of_parameter(Some(&open), "any"), Kinds::STRING);
}

fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("</parameter>".to_owned()),
        Just("<|\"|>x".to_owned()),
        Just("\\n\\u0041\\'".to_owned()),
        Just("null".to_owned()),
        "[ -~é🦀\n\t\"'\\\\{}\\[\\]:,]{0,6}",
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat())
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1_000_000..1_000_000).prop_map(|eighths| Value::from(f64::from(eighths) / 8.0)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// The value as Python prints it, with one of its quotes.
fn python_text(value: &Value, quote: &str, space: &str) -> String {
    let text = |text: &str| {
        let mut written = String::from(quote);
        for character in text.chars() {
            match character {
                '\\' => written.push_str("\\\\"),
                '\'' => written.push_str("\\'"),
                '"' => written.push_str("\\x22"),
                '\r' => written.push_str("\\r"),
                '\n' if quote.len() == 1 => written.push_str("\\n"),
                other => written.push(other),
            }
        }
        written + quote
    };
    let list = |values: Vec<String>| values.join(&format!(",{space}"));
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(string) => text(string),
        Value::Array(values) if values.len() > 1 && space.is_empty() => {
            format!("({})", list(values.iter().map(|value| python_text(value, quote, space)).collect()))
        }
        Value::Array(values) => {
            format!("[{space}{}{space}]", list(values.iter().map(|value| python_text(value, quote, space)).collect()))
        }
        Value::Object(fields) => {
            let field =
                |(key, value): (&String, &Value)| format!("{}{space}:{}", text(key), python_text(value, quote, space));
            format!("{{{}{space}}}", list(fields.iter().map(field).collect()))
        }
    }
}

fn gemma_text(value: &Value) -> String {
    let text = |text: &str| format!("<|\"|>{text}<|\"|>");
    match value {
        Value::String(string) => text(string),
        Value::Array(values) => format!("[{}]", values.iter().map(gemma_text).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| format!("{}:{}", text(key), gemma_text(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn json_passes_unchanged(value in value(), pretty in any::<bool>()) {
        let json = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        prop_assert_eq!(literal(Dialect::Json, &json), Some(json.clone()));
        prop_assert_eq!(literal(Dialect::Lenient, &json), Some(json));
    }

    #[test]
    fn python_keeps_every_value(
        value in value(),
        triple in any::<bool>(),
        double in any::<bool>(),
        dense in any::<bool>(),
    ) {
        let quote = match (triple, double) {
            (false, false) => "'",
            (false, true) => "\"",
            (true, false) => "'''",
            (true, true) => "\"\"\"",
        };
        let text = python_text(&value, quote, if dense { "" } else { " \n" });
        prop_assert_eq!(python(&text), Some(value.clone()), "{}", text);
        let call = format!("a={text}, b = {text})");
        let json = keywords(&[], &call).map(|json| serde_json::from_str::<Value>(&json).unwrap());
        prop_assert_eq!(json, Some(json!({"a": value, "b": value})), "{}", call);
    }

    #[test]
    fn gemma_keeps_every_value(value in value()) {
        // A quote in a string that goes on like the end of one ends it: nothing tells them apart.
        let object = json!({"a": value});
        let text = gemma_text(&object);
        let plain = serde_json::to_string(&object).unwrap();
        prop_assume!(!plain.contains("<|\\\"|>"));
        let json = literal(Dialect::Gemma, &text).map(|json| serde_json::from_str::<Value>(&json).unwrap());
        prop_assert_eq!(json, Some(object), "{}", text);
    }

    #[test]
    fn typed_text_keeps_every_value(value in value()) {
        let kinds = Kinds::of(&json!({"enum": [value]}), &Value::Null);
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let json = typed(kinds, &text);
        prop_assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value, "{}", json);
        if !text.is_empty() && kinds == Kinds::STRING {
            prop_assert_eq!(typed(Kinds::STRING, &text), typed(kinds, &text));
        }
    }

    #[test]
    fn anything_else_is_refused_and_nothing_of_it_is_lost(
        text in "[\\[\\]{}()\"'a-c<|>:,0-2._eE+\\-tTrueNn \\\\xu\n]{0,24}",
    ) {
        for dialect in [Dialect::Json, Dialect::Lenient, Dialect::Python, Dialect::Gemma] {
            if let Some(json) = literal(dialect, &text) {
                prop_assert!(serde_json::from_str::<Value>(&json).is_ok(), "{:?} {:?}: {}", dialect, text, json);
            }
        }
        if let Some(json) = keywords(&["p"], &text) {
            prop_assert!(serde_json::from_str::<Value>(&json).is_ok(), "{:?}: {}", text, json);
        }
        for kinds in [Kinds::STRING, Kinds::INTEGER, Kinds::OBJECT, Kinds::UNKNOWN, Kinds::STRING | Kinds::ARRAY] {
            let json = typed(kinds, &text);
            let value = serde_json::from_str::<Value>(&json);
            prop_assert!(value.is_ok(), "{:?} {:?}: {}", kinds, text, json);
            if let Ok(Value::String(string)) = value {
                prop_assert_eq!(&string, &text);
            }
        }
    }
}
