//! JSON as Python's `json.dumps` writes it, because chat templates were written and models trained with it.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::{CallArguments, RawNumber};
use super::values::plain;

/// Nested values deeper than this are refused; real schemas have a dozen levels.
const DEPTH_MAX: usize = 128;

/// Letters of one step of indentation.
const INDENT_MAX: usize = 16;

/// Longer texts are refused while they are written: with deep indentation a small value makes a large one.
const BYTES_MAX: usize = 64 << 20;

/// The `from_json` filter. Two letters may make a list, so a text is paid for in front, letter by letter.
pub(super) fn from_json(state: &State<'_, '_>, text: &str) -> Result<Value, Error> {
    state.consume_fuel(text.len() as u64 / 4)?;
    serde_json::from_str(text)
        .map(|json| plain(&json))
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// The keyword arguments of `json.dumps` that templates use.
struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// The `tojson` filter.
#[allow(clippy::needless_pass_by_value)] // the signature of a filter
pub(super) fn tojson(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let style = style(&options)?;
    let mut out = String::new();
    write(&mut out, value, &style, 0)?;
    state.consume_fuel(out.len() as u64 / 16)?;
    Ok(Value::from(out))
}

fn style(options: &Kwargs) -> Result<Style, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => match value.as_str() {
            Some(text) => Some(text.chars().take(INDENT_MAX).collect()),
            None => Some(" ".repeat(usize::try_from(value)?.min(INDENT_MAX))),
        },
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "separators must be two strings"));
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    Ok(Style { ensure_ascii, sort_keys, indent, item_separator, key_separator })
}

fn write(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if out.len() > BYTES_MAX {
        return Err(Error::new(ErrorKind::OutOfFuel, "the JSON text is too long"));
    }
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::BadSerialization, "the value is nested too deeply for JSON"));
    }
    if let Some(arguments) = value.downcast_object_ref::<CallArguments>() {
        out.push_str(arguments.raw());
        return Ok(());
    }
    if let Some(number) = value.downcast_object_ref::<RawNumber>() {
        out.push_str(number.raw());
        return Ok(());
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_list(out, "[]", items.len(), style, depth, |out, index| write(out, &items[index], style, depth + 1))?;
        }
        ValueKind::Map => write_map(out, value, style, depth)?,
        kind => {
            return Err(Error::new(ErrorKind::BadSerialization, format!("{kind} is not JSON serializable")));
        }
    }
    Ok(())
}

fn write_map(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    let mut entries = Vec::new();
    for key in value.try_iter()? {
        let text = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
        entries.push((text, value.get_item(&key)?));
    }
    if style.sort_keys {
        entries.sort_by(|left, right| left.0.cmp(&right.0));
    }
    write_list(out, "{}", entries.len(), style, depth, |out, index| {
        let (key, value) = &entries[index];
        write_string(out, key, style.ensure_ascii);
        out.push_str(&style.key_separator);
        write(out, value, style, depth + 1)
    })
}

fn write_list(
    out: &mut String,
    brackets: &str,
    count: usize,
    style: &Style,
    depth: usize,
    mut write_item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    if count == 0 {
        out.push_str(brackets);
        return Ok(());
    }
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push_str(&brackets[..1]);
    for index in 0..count {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1);
        write_item(out, index)?;
    }
    new_line(out, depth);
    out.push_str(&brackets[1..]);
    Ok(())
}

/// A number as `tojson` writes it.
pub(super) fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), python_float)
}

/// The shortest text that reads back as the same number, in Python's notation.
fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || number == 0.0 {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    use std::fmt::Write;
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", character as u32);
            }
            // Marks that this program put into the text are taken out after rendering and must survive until then.
            _ if ensure_ascii && !character.is_ascii() && !super::guard::is_mark(character) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts are Python's: `json.dumps(json.loads(text), **options)`.
    fn check(text: &str, options: &str, expected: &str) {
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", tojson);
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        let value = super::super::values::plain(&json);
        let source = format!("{{{{ value | tojson{options} }}}}");
        let shown = environment.render_str(&source, Value::from_pairs([("value", value)]));
        assert_eq!(shown.unwrap(), expected);
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        check(r#"{"b":[1,2.0,"<&>'"],"a":null}"#, "", r#"{"b": [1, 2.0, "<&>'"], "a": null}"#);
        check("[1e-7,1e20,0.0001,-0.0,1e16,123456.789]", "", "[1e-07, 1e+20, 0.0001, -0.0, 1e+16, 123456.789]");
        check(r#"["é🦀\u007f\u0001\n"]"#, "", "[\"é🦀\u{7f}\\u0001\\n\"]");
        check(r#"["é🦀"]"#, "(ensure_ascii=True)", r#"["\u00e9\ud83e\udd80"]"#);
        check(r#"{"b":1,"a":{}}"#, "(sort_keys=True)", r#"{"a": {}, "b": 1}"#);
        check(r#"{"a":[1,[]]}"#, "(indent=2)", "{\n  \"a\": [\n    1,\n    []\n  ]\n}");
        check("[1,2]", "(separators=(',', ':'))", "[1,2]");
    }
}
