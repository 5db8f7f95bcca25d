//! Python's methods of strings, lists and mappings that templates use and the language's own set lacks, or has without
//! keywords. What changes its object is not here: the environment that templates are made for refuses that too.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// Called for a method that the language itself does not know.
pub(super) fn call(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => of_string(state, text, method, args)?,
        (ValueKind::Seq, _) if method == "index" => Some(index_of_item(value, args)?),
        (ValueKind::Seq | ValueKind::Map, _) if method == "copy" => {
            let () = from_args(args)?;
            Some(value.clone())
        }
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// As Jinja2's test `callable`.
pub(super) fn is_callable(value: &Value) -> bool {
    // A macro looks like a mapping and is known by what it says about itself; messages have no such fields.
    let says = |name: &str| value.get_attr(name).is_ok_and(|said| !said.is_undefined());
    match value.kind() {
        ValueKind::Plain => true,
        ValueKind::Map => ["name", "arguments", "caller"].into_iter().all(says),
        _ => false,
    }
}

fn of_string(state: &State<'_, '_>, text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let plain = |changed: &dyn Fn() -> String| {
        let () = from_args(args)?;
        Ok::<_, Error>(Value::from(changed()))
    };
    Ok(Some(match method {
        "split" | "rsplit" => split(text, method == "rsplit", args)?,
        "partition" | "rpartition" => partition(text, method == "rpartition", args)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let place = if method == "index" { text.find(part) } else { text.rfind(part) };
            let place = place.ok_or_else(|| invalid("substring not found"))?;
            Value::from(text[..place].chars().count())
        }
        "format" => super::format::braces(state, text, args)?,
        "zfill" | "ljust" | "rjust" | "center" => fill(state, text, method, args)?,
        "swapcase" => plain(&|| text.chars().flat_map(swapped).collect())?,
        "casefold" => plain(&|| text.to_lowercase().replace('ß', "ss"))?,
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
        }
        _ => return Ok(None),
    }))
}

fn split(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, max, keywords): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(separator) => Some(separator),
        None => keywords.get::<Option<Value>>("sep")?,
    };
    let max = max.or(keywords.get("maxsplit")?).unwrap_or(-1);
    keywords.assert_all_used()?;
    let separator = separator.filter(|separator| !separator.is_none());
    let separator = match &separator {
        None => None,
        Some(value) => Some(
            value
                .as_str()
                .filter(|text| !text.is_empty())
                .ok_or_else(|| invalid("the separator must be a string that is not empty, or none"))?,
        ),
    };
    let parts = usize::try_from(max).map_or(usize::MAX, |max| max.saturating_add(1));
    let mut list: Vec<&str> = match (separator, from_right) {
        (Some(separator), false) => text.splitn(parts, separator).collect(),
        (Some(separator), true) => text.rsplitn(parts, separator).collect(),
        (None, false) => words(text, parts),
        (None, true) => words_from_right(text, parts),
    };
    if from_right {
        list.reverse();
    }
    Ok(list.into_iter().map(Value::from).collect())
}

/// Words from the left; the last part is the rest, with the space at its end.
fn words(text: &str, parts: usize) -> Vec<&str> {
    let mut list = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = rest.find(char::is_whitespace).filter(|_| list.len() + 1 < parts).unwrap_or(rest.len());
        list.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    list
}

/// Words from the right, the last first; the last part is the rest, with the space at its beginning.
fn words_from_right(text: &str, parts: usize) -> Vec<&str> {
    let mut list = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        let space = rest.char_indices().rev().find(|(_, letter)| letter.is_whitespace());
        let begin = space.filter(|_| list.len() + 1 < parts).map_or(0, |(place, space)| place + space.len_utf8());
        list.push(&rest[begin..]);
        rest = rest[..begin].trim_end();
    }
    list
}

fn partition(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(invalid("the separator is empty"));
    }
    let found = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, behind)) => [before, separator, behind],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// `zfill`, `ljust`, `rjust`, `center`.
fn fill(state: &State<'_, '_>, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, letter): (i64, Option<&str>) = from_args(args)?;
    let mut letters = letter.unwrap_or(if method == "zfill" { "0" } else { " " }).chars();
    let (Some(letter), None) = (letters.next(), letters.next()) else {
        return Err(invalid("the fill character must be exactly one character long"));
    };
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(text.chars().count());
    // Paid for before it is made.
    state.consume_fuel(missing as u64 / 16)?;
    let left = match method {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let pad = |count: usize| std::iter::repeat_n(letter, count);
    let sign = text.chars().next().filter(|sign| method == "zfill" && matches!(sign, '+' | '-'));
    let digits = sign.map_or(text, |_| &text[1..]);
    Ok(Value::from(
        sign.into_iter().chain(pad(left)).chain(digits.chars()).chain(pad(missing - left)).collect::<String>(),
    ))
}

fn swapped(letter: char) -> Vec<char> {
    if letter.is_uppercase() { letter.to_lowercase().collect() } else { letter.to_uppercase().collect() }
}

fn index_of_item(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (&Value,) = from_args(args)?;
    let place = list.try_iter()?.position(|item| item == *wanted);
    place.map(Value::from).ok_or_else(|| invalid("the value is not in the list"))
}

fn invalid(text: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    fn render(source: &str) -> Result<String, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(100_000));
        environment.set_unknown_method_callback(super::call);
        environment.add_test("callable", super::is_callable);
        environment.render_str(source, ())
    }

    /// Expected texts are those of Jinja2 3.1 on Python.
    #[test]
    fn methods_give_what_python_gives() {
        for (source, expected) in [
            ("'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"),
            ("' a  b c '.rsplit(none, 1)", "[' a  b', 'c']"),
            ("' a  b c '.rsplit()", "['a', 'b', 'c']"),
            ("'a,b,c'.rsplit(',')", "['a', 'b', 'c']"),
            ("'abc'.rsplit('x', maxsplit=2)", "['abc']"),
            ("'a b  c'.split(maxsplit=1)", "['a', 'b  c']"),
            ("'a,b,c'.split(',', maxsplit=1)", "['a', 'b,c']"),
            ("'a,b,c'.split(sep=',')", "['a', 'b', 'c']"),
            ("' a b  c '.split(none, 1)", "['a', 'b  c ']"),
            ("'a,b'.split(',', 0)", "['a,b']"),
            ("'  a b'.split(maxsplit=0)", "['a b']"),
            ("'a=b=c'.partition('=')", "('a', '=', 'b=c')"),
            ("'abc'.partition('=')", "('abc', '', '')"),
            ("'a=b=c'.rpartition('=')", "('a=b', '=', 'c')"),
            ("'abc'.rpartition('=')", "('', '', 'abc')"),
            ("'éabc'.removeprefix('éa')", "bc"),
            ("'abc'.removeprefix('x')", "abc"),
            ("'abc'.removesuffix('c')", "ab"),
            ("'éabcb'.index('b')", "2"),
            ("'éabcb'.rindex('b')", "4"),
            ("'-42'.zfill(6)", "-00042"),
            ("'+é'.zfill(4)", "+00é"),
            ("'abc'.zfill(2)", "abc"),
            ("'é'.ljust(3, '.') ~ 'é'.rjust(3)", "é..  é"),
            ("'ab'.center(5, '*') ~ 'abc'.center(6, '*') ~ 'abc'.center(2)", "**ab**abc**abc"),
            ("'aBé'.swapcase()", "AbÉ"),
            ("'STRAßE'.casefold()", "strasse"),
            ("'x'.isdecimal() ~ '12'.isdecimal()", "FalseTrue"),
            ("[1, 2, 3].index(2)", "1"),
            ("{'a': 1}.copy().a", "1"),
            ("' a '.strip() ~ 'x'.upper()", "aX"),
        ] {
            let rendered = render(&format!("{{{{ {source} }}}}"));
            assert_eq!(rendered.map_err(|error| error.to_string()), Ok(expected.to_owned()), "{source}");
        }
        let callable = "{% macro m() %}{% endmacro %}{{ m is callable }} {{ 'a' is callable }} {{ range is callable }}";
        assert_eq!(render(callable).unwrap(), "True False True");
    }

    #[test]
    fn what_python_refuses_is_refused() {
        for source in [
            "'abc'.index('x')",
            "'a'.ljust(3, 'xy')",
            "'a'.split('')",
            "'a'.partition('')",
            "[1].index(2)",
            "'a'.split(',', nonsense=1)",
            "'a'.ljust(9000000000)",
            "[1].append(2)",
        ] {
            assert!(render(&format!("{{{{ {source} }}}}")).is_err(), "{source}");
        }
    }
}
