//! Rules that want too much: refused in words or followed, never the end of the process.

use proptest::prelude::*;

use super::*;

#[test]
fn hostile_rules_cost_bounded_work() {
    let mut deep = json!({"type": "string"});
    for _ in 0..100 {
        deep = json!({"type": "object", "properties": {"a": deep}, "required": ["a"]});
    }
    let wide: serde_json::Map<String, Value> = (0..2_000)
        .map(|index| (format!("field_{index}"), json!({"type": "string", "pattern": "^(a|b)*c{0,50}$"})))
        .collect();
    let hostile = [
        schema(deep),
        schema(json!({"type": "object", "properties": wide, "required": ["field_1999"]})),
        schema(json!({"$ref": "#", "type": "object"})),
        schema(json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})),
        schema(json!({"type": "array", "minItems": 1_000_000_000, "items": {"type": "string"}})),
        schema(json!({"type": "string", "minLength": 100_000_000})),
        text(TextRule::Regex { pattern: "((a{0,1000}){0,1000}){0,1000}".to_owned() }),
        text(TextRule::Regex { pattern: "(.*a){30}(.*b){30}[^x]{500}".to_owned() }),
        text(TextRule::Lark { grammar: format!("start: {}a{}\na: \"x\"\n", "(".repeat(5_000), ")".repeat(5_000)) }),
    ];
    for constraint in hostile {
        // Compiled or refused: but done, and what is compiled can be followed.
        if let Ok(compiled) = PLAIN.compile(&constraint) {
            let mut guide = compiled.guide(None);
            for _ in 0..50 {
                // Too much for one mask, which ends the answer with a reason; or else there is a way to go on.
                let Ok(Some(mask)) = guide.mask() else { break };
                let Some(token) = (0..256).rev().find(|token| mask.is_allowed(*token)) else {
                    assert!(mask.is_allowed(END), "{constraint:?}");
                    break;
                };
                if guide.accept(token).is_err() {
                    break;
                }
            }
        }
    }
}

#[test]
fn long_chains_are_refused_or_followed_and_never_end_the_process() {
    let rules = |count: usize| -> String {
        let chain = (1..count).map(|index| format!("r{index}: r{}\n", index + 1));
        format!("start: r1\n{}r{count}: \"x\"\n", chain.collect::<String>())
    };
    assert!(PLAIN.takes(&text(TextRule::Lark { grammar: rules(900) }), "x"));
    let refused = PLAIN.compile(&text(TextRule::Lark { grammar: rules(20_000) })).unwrap_err();
    assert!(refused.0.contains("at most"), "{refused}");
    let terminals = rules(900).replace('r', "R").replace("staRt: R1", "start: R1");
    let _ = PLAIN.compile(&text(TextRule::Lark { grammar: terminals }));

    let chain = |count: usize| {
        let mut definitions: serde_json::Map<String, Value> = (0..count)
            .map(|index| {
                (format!("d{index}"), json!({"type": "array", "items": {"$ref": format!("#/$defs/d{}", index + 1)}}))
            })
            .collect();
        definitions.insert(format!("d{count}"), json!({"type": "null"}));
        json!({"$defs": definitions, "$ref": "#/$defs/d0"})
    };
    let _ = PLAIN.compile(&schema(chain(900)));
    let refused = PLAIN.compile(&schema(chain(1_500))).unwrap_err();
    assert!(refused.0.contains("at most"), "{refused}");
    let mut deep = json!({"type": "null"});
    for _ in 0..400 {
        deep = json!({"items": deep});
    }
    assert!(PLAIN.compile(&schema(deep)).is_err());
    assert!(PLAIN.compile(&text(TextRule::Regex { pattern: "a?".repeat(5_000) })).unwrap_err().0.contains("bytes"));
    let long = schema(json!({"const": "x".repeat(5_000)}));
    assert!(PLAIN.compile(&long).unwrap_err().0.contains("bytes"));
}

/// Schemas of one keyword, with values that fit it and that do not.
fn any_keyword() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        Just(json!(0)),
        Just(json!(-1)),
        Just(json!(3)),
        Just(json!(1.5)),
        Just(json!(1e300)),
        Just(json!(u64::MAX)),
        Just(json!("3")),
        Just(json!(1_000_000)),
    ];
    let kind = prop::sample::select(vec![
        json!("object"),
        json!("array"),
        json!("string"),
        json!("integer"),
        json!("number"),
        json!("boolean"),
        json!("null"),
        json!(["string", "null"]),
        json!("thing"),
        json!([]),
        json!(7),
    ]);
    let pattern = prop::sample::select(vec![
        "^[a-z]{1,3}$",
        "(a|b)*",
        "(",
        "a{1000}",
        "(?=x)y",
        "\\p{L}+",
        "[^\"]*",
        "\\d{4}-\\d{2}",
        "",
        "(a*)*b",
        "\\1",
    ]);
    let format = prop::sample::select(vec!["date", "date-time", "email", "uuid", "ipv4", "nothing"]);
    let reference = prop::sample::select(vec!["#", "#/$defs/a", "#/properties/a", "#/nothing", "http://x/y", "a"]);
    prop_oneof![
        kind.prop_map(|kind| json!({"type": kind})),
        (
            prop::sample::select(vec![
                "minimum",
                "maximum",
                "multipleOf",
                "exclusiveMinimum",
                "minLength",
                "maxLength",
                "minItems",
                "maxItems",
                "minProperties",
                "maxProperties"
            ]),
            number
        )
            .prop_map(|(keyword, number)| json!({keyword: number})),
        pattern.prop_map(|pattern| json!({"type": "string", "pattern": pattern})),
        format.prop_map(|format| json!({"type": "string", "format": format})),
        reference.prop_map(|reference| json!({"$ref": reference})),
        Just(json!({"enum": [1, "a", null, {"b": [2]}]})),
        Just(json!({"enum": []})),
        Just(json!({"const": "\u{0}\"\\"})),
        Just(json!(true)),
        Just(json!(false)),
        Just(json!({"uniqueItems": true, "type": "array"})),
        Just(json!("text")),
    ]
}

/// The same inside each other.
fn any_schema() -> impl Strategy<Value = Value> {
    any_keyword().prop_recursive(4, 24, 4, |inner| {
        let name = prop::sample::select(vec!["a", "b", "$ref", "é\"", ""]);
        let named = prop::collection::vec((name, inner.clone()), 0..3);
        let list = prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            (named.clone(), any::<bool>()).prop_map(|(fields, closed)| {
                let properties: serde_json::Map<String, Value> =
                    fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
                let required: Vec<&String> = properties.keys().collect();
                let open = !closed;
                json!({"type": "object", "required": required, "properties": properties, "additionalProperties": open})
            }),
            named.prop_map(|fields| {
                let fields: serde_json::Map<String, Value> =
                    fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
                json!({"$defs": fields, "patternProperties": fields})
            }),
            (prop::sample::select(vec!["anyOf", "oneOf", "allOf", "prefixItems"]), list)
                .prop_map(|(keyword, list)| json!({keyword: list})),
            (
                prop::sample::select(vec!["items", "not", "additionalProperties", "contains", "if", "propertyNames"]),
                inner.clone()
            )
                .prop_map(|(keyword, schema)| json!({keyword: schema})),
            (inner.clone(), inner).prop_map(|(one, other)| match (one, other) {
                (Value::Object(mut one), Value::Object(other)) => {
                    one.extend(other);
                    Value::Object(one)
                }
                (one, _) => one,
            }),
        ]
    })
}

/// Follows what was compiled for a while, choosing by these numbers among what is allowed.
fn follow(compiled: &Compiled, choices: &[u8]) {
    let mut guide = compiled.guide(None);
    for choice in choices {
        let Ok(Some(mask)) = guide.mask() else { return };
        let allowed: Vec<u32> = (0..=END).filter(|token| mask.is_allowed(*token)).collect();
        let Some(token) = allowed.get(*choice as usize % allowed.len().max(1)).filter(|token| **token != END) else {
            return;
        };
        if guide.accept(*token).is_err() {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_schema_is_followed_or_refused_in_words(
        wanted in any_schema(),
        choices in prop::collection::vec(any::<u8>(), 60),
        as_arguments in any::<bool>(),
        family in prop::sample::select(vec!["hermes", "qwen3_coder", "deepseek_v4", "kimi_k3", "gemma4", "lfm2"]),
    ) {
        let scene = Scene { tools: vec![tool("weather", wanted.clone())], format: family, ..PLAIN };
        let calls = as_arguments.then(|| call_rule(&["weather"], true));
        let constraint = match calls {
            Some(_) => Constraint { text: TextRule::Nothing, calls, at: None },
            None => schema(wanted),
        };
        match scene.compile(&constraint) {
            Ok(compiled) => follow(&compiled, &choices),
            Err(Uncompilable(why)) => {
                prop_assert!(!why.trim().is_empty());
                prop_assert!(!why.contains("the server failed") && !why.contains("panic"), "{}", why);
            }
        }
    }

    #[test]
    fn any_expression_or_grammar_is_followed_or_refused_in_words(
        parts in prop::collection::vec(prop::sample::select(vec![
            "a", ".", "*", "+", "?", "(", ")", "[", "]", "{2,}", "{1000}", "|", "^", "$", "\\d", "\\", "/", "\n", " ",
            "\"x\"",
            "start", ":", "rule", "X", "%ignore", "/a+/", "@a", "<[1]>", "%json", "~", "&", "[suffix=\"a\"]",
        ]), 0..24),
        choices in prop::collection::vec(any::<u8>(), 40),
        is_grammar in any::<bool>(),
    ) {
        let rule = parts.concat();
        let constraint = text(if is_grammar {
            TextRule::Lark { grammar: format!("start: rule\nrule: {rule}\nX: \"x\"\n") }
        } else {
            TextRule::Regex { pattern: rule }
        });
        match PLAIN.compile(&constraint) {
            Ok(compiled) => follow(&compiled, &choices),
            Err(Uncompilable(why)) => {
                prop_assert!(!why.trim().is_empty());
                prop_assert!(!why.contains("the server failed"), "{}", why);
            }
        }
    }
}

#[test]
fn what_takes_too_long_is_refused_and_is_nobody_elses_trouble() {
    let grammars = grammars();
    let scene = PLAIN;
    let surroundings = scene.surroundings();
    let easy = text(TextRule::Choice { texts: vec!["a".to_owned()] });
    let none = Some(std::time::Duration::ZERO);
    let soon = || grammars.compile_within(&easy, &surroundings, none);
    let turn = grammars.workshop.turn(None);
    assert!(matches!(soon(), Err(Refused::Busy)));
    drop(turn);
    // In no time it may be done or not; it goes on to its end, and is found when its turn is over.
    assert!(!matches!(soon(), Err(Refused::Busy)));
    let turn = grammars.workshop.turn(None);
    assert!(soon().is_ok(), "it is found, whoever compiles");
    let other = text(TextRule::Choice { texts: vec!["b".to_owned()] });
    assert!(matches!(grammars.compile_within(&other, &surroundings, none), Err(Refused::Busy)));
    drop(turn);
    assert!(grammars.compile(&other, &surroundings).is_ok());
}

#[test]
fn whoever_waits_for_others_is_told_in_the_end_and_not_kept() {
    let grammars = grammars();
    let scene = PLAIN;
    let _turn = grammars.workshop.turn(None);
    let choice = text(TextRule::Choice { texts: vec!["a".to_owned()] });
    assert!(matches!(grammars.compile_soon(&choice, &scene.surroundings()), Err(Refused::Busy)));
}
