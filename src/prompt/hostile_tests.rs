//! Templates that mean harm: each gets an error, or does no harm, in a thread with the stack that threads usually have.
//! A test that fails here may take the whole test process with it, or never end.

use serde_json::{Map, json};

use super::TemplateError::{Failed, Syntax, TooExpensive};
use super::{ChatTemplate, Message, PromptEnd, Rendering, Role, TemplateError, ToolCall, ToolDefinition};

const STACK: usize = 2 << 20;

/// Loads the template and renders a small conversation with it.
fn outcome(source: &str) -> Result<String, TemplateError> {
    let source = source.to_owned();
    let work = move || {
        let template = ChatTemplate::new(&source, "<s>", "</s>")?;
        let call = ToolCall {
            id: "1".to_owned(),
            native_id: None,
            name: "f".to_owned(),
            arguments: "{\"a\": [1.50]}".to_owned(),
        };
        let messages = [
            Message::text(Role::System, "Be kind."),
            Message::text(Role::User, "Hello"),
            Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "Hm") },
            Message::text(Role::Tool, "1"),
        ];
        let parameters = json!({"type": "object", "properties": {"a": {"type": "array"}}});
        let tools = [ToolDefinition { name: "f".to_owned(), description: None, parameters }];
        let (messages, tools, kwargs) = (&messages, &tools, &Map::new());
        let rendering =
            Rendering { messages, tools, end: PromptEnd::Answer, kwargs, now_unix_ms: 0, strip_preamble: false };
        template.render(&rendering)
    };
    std::thread::Builder::new().stack_size(STACK).spawn(work).unwrap().join().unwrap()
}

#[track_caller]
fn fails(words: &str, sources: &[String]) {
    for source in sources {
        match outcome(source) {
            Err(Failed(said)) => assert!(said.contains(words), "{source:.300}: {said}"),
            Err(other) => panic!("{source:.300}: {other}"),
            Ok(text) => panic!("{source:.300}: {text:.300}"),
        }
    }
}

#[track_caller]
fn is_too_expensive(sources: &[String]) {
    for source in sources {
        let outcome = outcome(source);
        assert_eq!(outcome.map(|text| text.len()), Err(TooExpensive), "{source:.300}");
    }
}

#[track_caller]
fn does_not_compile(sources: &[String]) {
    for source in sources {
        match outcome(source) {
            Err(Syntax(_)) => {}
            Err(other) => panic!("{source:.300}: {other}"),
            Ok(text) => panic!("{source:.300}: {text:.300}"),
        }
    }
}

fn shows(cases: &[(String, &str)]) {
    for (source, expected) in cases {
        assert_eq!(outcome(source).as_deref(), Ok(*expected), "{source:.300}");
    }
}

/// A namespace, and a body that is executed so often.
fn times(count: usize, body: &str, then: &str) -> String {
    format!("{{% set ns = namespace(x=[1]) %}}{{% for i in range({count}) %}}{body}{{% endfor %}}{then}")
}

/// The body, executed for ever after the setup.
fn for_ever(setup: &str, body: &str) -> String {
    let many = "{% for i in range(100000) %}";
    format!("{setup}{many}{many}{{{{ '' if {body} }}}}{{% endfor %}}{{% endfor %}}")
}

/// Part of a template, so often, between two others.
fn nested(open: &str, count: usize, close: &str) -> String {
    format!("{}{{{{ x }}}}{}", open.repeat(count), close.repeat(count))
}

#[test]
fn nothing_comes_to_hold_itself() {
    let inside = "must not be kept inside";
    let namespace = "{% set ns = namespace() %}";
    let of_namespaces = [
        "{% set ns.x = ns %}{{ ns }}",
        "{% set ns.x = [ns] %}{{ ns }}",
        "{% set ns.x = {'a': ns} %}{{ ns }}",
        "{% set ns.x = (ns, 1) %}{{ ns }}",
        "{% set ns.x | default(ns, true) %}{% endset %}{{ ns }}",
        "{% macro f(x) %}{% set x.x = x %}{{ x }}{% endmacro %}{{ f(ns) }}",
        "{% set ns.x = dict(a=ns) %}{{ ns }}",
        "{% set m = namespace(a=ns) %}{% set ns.x = m %}{{ ns }}",
        "{% set x, ns.y = [1, ns] %}{{ ns }}",
        "{% for x in [1] if true %}{% set ns.x = [x, ns][1:] %}{% endfor %}{{ ns }}",
    ];
    fails(inside, &of_namespaces.map(|source| format!("{namespace}{source}")));
    let chain = "{% for j in [ns.x] %}{% set ns.x = loop %}{% endfor %}";
    fails(
        inside,
        &[
            "{% for i in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}".to_owned(),
            "{% for i in [1, 2] %}{{ loop.changed([loop]) }}{% endfor %}".to_owned(),
            times(100_000, chain, "{{ ns }}"),
            format!("{namespace}{}", "{% set ns = namespace(a=ns) %}".repeat(3_000)),
        ],
    );
}

#[test]
fn values_that_double_are_too_expensive() {
    let steps = [
        "{% set x = [x, x] %}",
        "{% set x, y = [x, x], 1 %}",
        "{% set x = {'a': x, 'b': x} %}",
        "{% set x = {(x, x): 1} %}",
        "{% set x = (x, x) %}",
        "{% set x = dict(a=x, b=x) %}",
        "{% set x = dict(namespace(a=x, b=x)) %}",
        "{% set x = [1] | batch(2, x) | list + [x] %}",
    ];
    let shown = ["{{ x }}", "{{ x == x }}", "{{ x | join }}", "{{ x | tojson }}", "{{ x ~ '' }}", "{{ {x: 1} }}"];
    for (step, shown) in steps.iter().zip(shown.iter().cycle()) {
        is_too_expensive(&[format!("{{% set x = 1 %}}{}{shown}", step.repeat(40))]);
    }
    let doubled = "{% set ns.x = [ns.x, ns.x] %}";
    let groups = "{% set x = x | groupby('a') | list %}{% set x = [{'a': x}, {'a': x}] %}";
    is_too_expensive(&[
        times(40, doubled, "{{ ns.x | string }}"),
        times(60, "{% set ns.x = ns.x + ns.x %}", "{{ ns.x | length }}"),
        format!("{{% set x = [1] %}}{}{{{{ x | length }}}}", "{% set x = x + x %}".repeat(60)),
        format!("{{% set x = [{{'a': 1}}] %}}{}{{{{ x }}}}", groups.repeat(20)),
        format!("{{% set x = 'a' %}}{}{{{{ x }}}}", "{% set x = x ~ x %}".repeat(60)),
        format!("{{% set x = 1 %}}{}", nested("{% with x = [x, x] %}", 40, "{% endwith %}")),
        format!("{{% set x = 1 %}}{}", nested("{% for x in [[x, x]] %}", 40, "{% endfor %}")),
        "{% macro f(x, n) %}{{ f([x, x], n - 1) if n else x }}{% endmacro %}{{ f(1, 40) }}".to_owned(),
        "{% macro f(x, n, y) %}{% set y = y or [x, x] %}{{ f(y, n - 1) if n else x }}{% endmacro %}{{ f(1, 40) }}"
            .to_owned(),
        "{% macro f(x, n) %}{{ caller(x, n) }}{% endmacro %}\
         {% macro g(x, n) %}{% if n %}{% call(y, m) f([x, x], n) %}{{ g([y, y], m - 1) }}{% endcall %}\
         {% else %}{{ x }}{% endif %}{% endmacro %}{{ g(1, 20) }}"
            .to_owned(),
        "{% for x in [[1]] recursive %}{{ loop([[x, x]]) if loop.depth < 60 else x }}{% endfor %}".to_owned(),
        "{% set n = 1000 %}{% set l = [1] %}{% set l = l * n %}{% set l = [l] %}{% set l = l * n %}{{ l }}".to_owned(),
        "{% set n = 1000 %}{% set l = (1,) %}{{ ((l * n,) * n,) * n }}".to_owned(),
        "{% set n = 100000000 %}{% set l = [1] %}{% set a, b = l * n %}".to_owned(),
    ]);
}

#[test]
fn values_that_nest_have_an_end() {
    fails(
        "values are nested more than 160 deep",
        &[
            times(100_000, "{% set ns.x = [ns.x] %}", "{{ ns.x }}"),
            times(10_000, "{% set ns.x = {'a': ns.x | items} if i else {} %}", ""),
            times(10_000, "{% set ns.x = ns.x | batch(1) %}", ""),
            times(10_000, "{% set ns.x = {'f': dict}.f(a=ns.x) %}", ""),
            format!("{{% set x = 1 %}}{}", "{% set x = [x] %}".repeat(1_000)),
            format!("{{% set x = ('[' * 120 ~ ']' * 120) | from_json %}}{}", "{% set x = (x,) %}".repeat(50)),
        ],
    );
    // What the engine would compute when it is read, from what it would compute when that is read, and so on.
    let lazy = [
        "ns.x[0:]",
        "ns.x[::-1]",
        "ns.x | map('int')",
        "ns.x | reverse",
        "ns.x * 1",
        "(ns.x + [])[:1]",
        "ns.x | select",
        "(ns.x | groupby('z'))[0].list",
        "[ns.x] | map('reverse') | first",
        "dict(a=ns.x).values() | first",
    ];
    let lazy = lazy.map(|step| times(5_000, &format!("{{% set ns.x = {step} %}}"), "{{ ns.x }}"));
    shows(&lazy.map(|source| (source, "[1]")));
}

/// The deepest value, below the deepest macros.
#[test]
fn the_deepest_that_is_allowed_fits_in_the_stack() {
    let value = times(150, "{% set ns.x = [ns.x] %}", "");
    let used = "(x ~ (x == [x][0])) ~ ([x, x] | sort) ~ ({(x,): 1} == {(x,): 2}) ~ (x in [x]) ~ ([x, x] | unique)";
    let source = format!(
        "{value}{{% macro f(n, x) %}}{{{{ f(n - 1, x) if n else {}{used}{} }}}}{{% endmacro %}}\
         {{{{ f(38, ns.x) | length }}}}",
        "(".repeat(25),
        ")".repeat(25)
    );
    shows(&[(source, "1231")]);
    fails(
        "recursion limit exceeded",
        &[
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned(),
            "{% macro f() %}{{ f() }}{% endmacro %}{{ {'g': f}.g() }}".to_owned(),
            "{% macro f() %}{% call g() %}{{ f() }}{% endcall %}{% endmacro %}\
             {% macro g() %}{{ caller() }}{% endmacro %}{{ f() }}"
                .to_owned(),
            "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(),
        ],
    );
    let all = "{% set n = 20000 %}{% set l = ['map'] %}{% set l = l * n %}{{ 'a' | map(*l) }}";
    fails("more than 64 arguments", &[format!("{{{{ 'a' | map({}) }}}}", "'map', ".repeat(500)), all.to_owned()]);
    fails("filter name is required", &[format!("{{{{ 'a' | map({}) }}}}", "'map', ".repeat(62))]);
}

#[test]
fn sources_that_nest_too_deeply_or_are_too_long_do_not_compile() {
    let repeated = |text: &str, count: usize| text.repeat(count);
    does_not_compile(&[
        format!("{{% if 0 %}}{}{{% endif %}}", repeated("{% elif 0 %}", 20_000)),
        repeated("{% if 1 %}", 20_000),
        repeated("{% endif %}", 20_000),
        repeated("{% raw %}", 20_000),
        repeated("{{ 1 }}", 100_000),
        repeated("{{", 100_000),
        repeated("{%", 100_000),
        format!("{{{{ {}", repeated("(", 100_000)),
        format!("{{{{ {} }}}}", repeated(")", 100_000)),
        format!("{{{{ '{}", repeated("a", 200_000)),
        format!("{{{{ {} }}}}", repeated("1", 200_000)),
        format!("{{{{ 'it\\'s' ~ {}1 }}}}", repeated("-", 50_000)),
        format!("{{{{ a{} }}}}", repeated(".b", 50_000)),
        format!("{{{{ a{} }}}}", repeated("[0]", 50_000)),
        format!("{{{{ a{} }}}}", repeated("|trim", 40_000)),
        format!("{{{{ {}1 }}}}", repeated("not ", 50_000)),
        format!("{{{{ {}1 }}}}", repeated("1 if 0 else ", 20_000)),
        format!("{{% if 1{} %}}x{{% endif %}}", repeated("+1", 100_000)),
        nested("{% macro f() %}", 20, "{% endmacro %}"),
        repeated("{{ [0] * 100000000 == [0] * 100000000 }}", 20),
        "{% raw %}{{ ".to_owned(),
        "{# ".to_owned(),
        "{% include 'chat' %}".to_owned(),
        "{% block a %}{{ self.a() }}{% endblock %}".to_owned(),
    ]);
    // As deep and as long as it may be.
    let operators = format!("{{{{ x{} }}}}", repeated(" ~ 1", 190));
    for source in [
        nested("{% if 1 %}", 80, "{% endif %}"),
        nested("{% for x in [1] %}", 80, "{% endfor %}"),
        nested("{% macro f() %}", 10, "{% endmacro %}"),
        format!("{{% if 0 %}}{}{{% endif %}}", repeated("{% elif 0 %}", 79)),
        format!("{{{{ {}1{} }}}}", repeated("[", 32), repeated("]", 32)),
        format!("{{{{ {}1{} }}}}", repeated("(not not not not not ", 32), repeated(")", 32)),
        format!("{{{{ {}1 }}}}", repeated("-", 190)),
        format!("{{{{ {}1 }}}}", repeated("1 if 0 else ", 90)),
        format!("{{{{ a{} }}}}", repeated("|d", 190)),
        repeated(&operators, 300),
        repeated("{{ 1 }}", 8_000),
    ] {
        let outcome = outcome(&source);
        assert!(!matches!(outcome, Err(Syntax(_) | TooExpensive)), "{source:.100}: {outcome:?}");
    }
}

#[test]
fn texts_that_grow_are_too_expensive() {
    let list = "{% set n = 100000 %}{% set l = [''] %}{% set l = l * n %}{% set long = 'x' * 100000 %}";
    is_too_expensive(&[
        "{{ 'x' * 10000000000 }}".to_owned(),
        "{{ 'x' * 100000000 }}".to_owned(),
        "{{ ('x' * 100000) | replace('', 'y' * 100000) }}".to_owned(),
        "{{ ('x' * 100000).replace('', 'y' * 100000) }}".to_owned(),
        "{{ ('\\n' * 100000) | indent(100000, true, true) }}".to_owned(),
        "{{ 'a' | indent(100000000000) }}".to_owned(),
        "{{ 'a'.center(10000000000) }}".to_owned(),
        "{{ [1] | batch(1000000000000, 0) }}".to_owned(),
        "{{ [1] | slice(1000000000000) }}".to_owned(),
        "{{ ('{0}' * 100000).format('a' * 100000) }}".to_owned(),
        format!("{list}{{{{ l | join(long) }}}}"),
        format!("{list}{{{{ long.join(l) }}}}"),
        format!("{list}{{% set m = [long] %}}{{{{ ''.join(m * n) }}}}"),
        format!("{list}{{% set m = [long, long] %}}{{{{ l | tojson(separators=m) }}}}"),
        format!("{list}{{% set m = [long] %}}{{{{ (m * 70) | sum(start='') | length }}}}"),
        format!("{list}{{{{ l | map('default', long, true) | list }}}}"),
        "{{ ('[' ~ '[],' * 500000 ~ '1]') | from_json }}".to_owned(),
        "{{ ('a,' * 4000000).split(',') | length }}".to_owned(),
        "{{ ('x' * 10000000) | list | length }}".to_owned(),
        "{% autoescape true %}{{ '<' * 10000000 }}{% endautoescape %}".to_owned(),
    ]);
    match outcome("{{ raise_exception('x' * 3000000) }}") {
        Err(TemplateError::Raised(words)) => assert!(words.len() < 3_000),
        other => panic!("{:?}", other.map(|text| text.len())),
    }
    fails("a field is wider than", &["{{ '{:10000000000}'.format(1) }}".to_owned()]);
    fails("value is not a string", &["{{ [1] | map('format') | list }}".to_owned()]);
}

/// What the engine does with long texts for the price of one step.
#[test]
fn work_with_long_texts_is_paid_for() {
    let texts = "{% set a = 'é' * 4000000 %}{% set b = 'é' * 4000000 %}{% set k = 3999999 %}{% set m = {'a': 1} %}";
    let of_texts = [
        "a == b",
        "a == b == a",
        "a < b",
        "a is eq b",
        "[b] | select('eq', a)",
        "a[-1]",
        "a[k]",
        "a[-2:]",
        "a in m",
        "{a: 1}",
        "m[a]",
        "m.get(a)",
        "a is lower",
        "a.startswith(b)",
        "[a, b] | sort",
        "[a, b] | max",
    ];
    is_too_expensive(&of_texts.map(|body| for_ever(texts, body)));
    let quadratic = "{% set a = 'b' * 1000000 %}{% set c = ('a' * 1000000) ~ 'b' %}";
    is_too_expensive(&[
        format!("{quadratic}{{{{ a.strip(c) }}}}"),
        format!("{quadratic}{{{{ [a] | map('trim', c) }}}}"),
        format!("{quadratic}{{{{ a | trim('{}b') }}}}", "a".repeat(100_000)),
        for_ever("{% set p = '0.' * 100000 %}{% set s = 'a' %}", "[s] | selectattr(p)"),
        for_ever(texts, "x").replace("{{ '' if x }}", "{% for letter in a %}{% break %}{% endfor %}"),
        for_ever("", "x"),
    ]);
}

/// And with large lists.
#[test]
fn work_with_large_lists_is_paid_for() {
    let lists = "{% set n = 100000 %}{% set l = [1] %}{% set a = l * n %}{% set a = [a] %}\
                 {% set b = l * n %}{% set b = [b] %}{% set m = {'a': 1} %}";
    let of_lists = [
        "a == b",
        "a < b",
        "a in b in a",
        "b[0] in a",
        "a in 'abc'",
        "a is in([b])",
        "m[a]",
        "a.index(b[0])",
        "a.count(b[0])",
        "[a, b] | sort",
        "[a, b] | unique",
        "[a, b] | max",
        "a is startingwith 'a'",
        "a | trim",
        "a | tojson",
        "a ~ ''",
        "namespace(a=a) == namespace(a=b)",
        "[{'a': a}, {'a': b}] | groupby('a')",
    ];
    is_too_expensive(&of_lists.map(|body| for_ever(lists, body)));
    is_too_expensive(&[
        format!("{lists}{{{{ a[0] | select('in', b[0]) }}}}"),
        "{% for i in range(100000) %}{% macro f() %}{{ i }}{% endmacro %}{% endfor %}".to_owned(),
    ]);
}

#[test]
fn what_makes_the_engine_panic_is_a_failure() {
    fails(
        "in an unforeseen way",
        &["{% for i in [1] %}{{ loop.cycle() }}{% endfor %}".to_owned(), "{{ '%(é)s' | format({'é': 1}) }}".to_owned()],
    );
}

#[test]
fn what_does_no_harm_still_works() {
    let list = "{% set m = [{'role': 'system', 'content': 'Hm'}, {'role': 'user', 'content': '1'}] %}";
    let cases = [
        ("{{ [[1], [2, 3]] | sum(start=[]) }}{{ [1, 2] | sum }}{{ range(1000) | sum }}", "[1, 2, 3]3499500"),
        ("{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1], **{'b': 3}) }}{{ f(1) }}", "1312"),
        ("{{ 'a b'.split(*[' ']) }}{{ [3, 1] | sort(**{'reverse': true}) }}", "['a', 'b'][3, 1]"),
        ("{{ m[1:][0].content }}{{ m[::-1] | map(attribute='role') | first }}", "1user"),
        ("{{ (m + m) | length }}{{ m[-1].content in ['1', '2'] }}", "4True"),
        ("{% set outer = loop %}{{ outer is defined }}", "False"),
        ("{% for a in [1, 2] %}{% set o = loop %}{% for b in [3] %}{{ o.index }}{% endfor %}{% endfor %}", "12"),
        ("{% for a in [1, 1, 2] %}{{ 1 if loop.changed(a) else 0 }}{% endfor %}", "101"),
        (
            "{% set ns = namespace(a=[]) %}{% for x in m %}{% set ns.a = ns.a + [x.role] %}{% endfor %}{{ ns.a }}",
            "['system', 'user']",
        ),
        ("{{ 1 < 2 < 3 }}{{ 'a' < 'b' == true }}{{ 2 not in [1, 2] }}{{ ('a', 1)[0] }}", "TrueFalseFalsea"),
        ("{% for role, all in m | groupby('role') %}{{ role }}{{ all | length }} {% endfor %}", "system1 user1 "),
        (
            "{{ {'a': 1} == {'a': 1} }}{{ [1, [2]] == [1, [2]] }}{{ {(1, 2): 3}[(1, 2)] }}{{ 'é'[0] }}{{ 'aé'[-1] }}",
            "TrueTrue3éé",
        ),
        ("{% for x in [[1, [2]], [3]] recursive %}{{ x if x is number else loop(x) }};{% endfor %}", "1;2;;;3;;"),
    ];
    shows(&cases.map(|(source, expected)| (format!("{list}{source}"), expected)));
}

/// What the fuzzer begins with, or found something with.
#[test]
fn every_template_that_is_kept_does_no_harm() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/template");
    for file in std::fs::read_dir(folder).unwrap() {
        let source = String::from_utf8_lossy(&std::fs::read(file.unwrap().path()).unwrap()).into_owned();
        let check = move || super::checks::check(&source);
        std::thread::Builder::new().stack_size(STACK).spawn(check).unwrap().join().unwrap();
    }
}
