//! Python's ways to put values into a text, with a bound on how wide each is written: the engine makes a text of
//! any width that a template asks for.

use minijinja::formatting::{self, FormatStyle};
use minijinja::value::{Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};

use super::bounds;

/// The widest field, and the most digits behind a point.
const WIDTH_MAX: usize = 10_000;
/// Heavier arguments are refused: they are written as often as the text says.
const WEIGHT_MAX: u64 = 64 << 20;

/// The `format` filter: `"%d of %s" | format(1, "x")`.
#[allow(clippy::needless_pass_by_value)] // the signature of a filter
pub(super) fn printf(state: &State<'_, '_>, text: &str, values: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    written(state, FormatStyle::Printf, text, &values.into_values())
}

/// The method `format` of texts: `"{} of {name}".format(1, name="x")`.
pub(super) fn braces(state: &State<'_, '_>, text: &str, values: &[Value]) -> Result<Value, Error> {
    written(state, FormatStyle::StrFormat, text, values)
}

/// The operator `%`: `"%d of %s" % (1, "x")`, and the remainder of numbers, which has the sign of the divisor.
#[allow(clippy::needless_pass_by_value)] // the signature of a filter
pub(super) fn percent(state: &State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        let several = right.downcast_object_ref::<Tuple>();
        return written(state, FormatStyle::Printf, text, several.map_or(std::slice::from_ref(&right), |all| all));
    }
    let whole = |value: &Value| {
        let is_whole = value.is_integer() || value.kind() == ValueKind::Bool;
        i128::try_from(value.clone()).ok().filter(|_| is_whole)
    };
    let number = |value: &Value| f64::try_from(value.clone()).ok();
    let remainder = match (whole(&left), whole(&right)) {
        (Some(left), Some(right)) => left.checked_rem(right).map(|rest| {
            let signs_differ = rest != 0 && (rest < 0) != (right < 0);
            Value::from(if signs_differ { rest + right } else { rest })
        }),
        _ => number(&left).zip(number(&right)).filter(|(_, right)| *right != 0.0).map(|(left, right)| {
            let rest = left % right;
            let signs_differ = (rest < 0.0) != (right < 0.0);
            Value::from(match rest {
                0.0 => 0.0_f64.copysign(right),
                rest if signs_differ => rest + right,
                rest => rest,
            })
        }),
    };
    let refusal = || format!("there is no {} % {}", left.kind(), right.kind());
    remainder.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, refusal()))
}

fn written(state: &State<'_, '_>, style: FormatStyle, text: &str, values: &[Value]) -> Result<Value, Error> {
    let (border, unescaped) = match style {
        FormatStyle::Printf => ('%', text.replace("%%", "")),
        FormatStyle::StrFormat => ('{', text.replace("{{", "").replace("}}", "")),
    };
    let fields = unescaped.matches(border).count() as u64;
    let widest = unescaped.split(border).skip(1).map(|field| widest(style, text, field)).max().unwrap_or(0);
    if widest > WIDTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("a field is wider than {WIDTH_MAX}")));
    }
    let mut heaviest = 0;
    for value in values {
        heaviest = heaviest.max(bounds::weight(value, WEIGHT_MAX)?);
    }
    // Paid for before it is made.
    let each = (2 * widest) as u64 + heaviest;
    state.consume_fuel((text.len() as u64).saturating_add(each.saturating_mul(fields)) / 64)?;
    formatting::format(style, text, values).map(Value::from)
}

/// The largest number in a field, which stands in front of more text.
fn widest(style: FormatStyle, text: &str, field: &str) -> usize {
    let end = match style {
        // A field may name a key, and a key may hold anything.
        FormatStyle::StrFormat => field.rfind('}'),
        FormatStyle::Printf if text.contains("%(") => None,
        FormatStyle::Printf => field.find(char::is_alphabetic),
    };
    let numbers = field[..end.unwrap_or(field.len())].split(|letter: char| !letter.is_ascii_digit());
    let numbers = numbers.filter(|digits| !digits.is_empty()).map(|digits| digits.parse().unwrap_or(usize::MAX));
    numbers.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    fn render(source: &str) -> Result<String, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(10_000));
        environment.set_unknown_method_callback(super::super::methods::call);
        environment.add_filter("format", super::printf);
        environment.render_str(source, ())
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        for (source, expected) in [
            ("'{0}|{1:>5}|{0:.2f}'.format(1.5, 'ab')", "1.5|   ab|1.50"),
            ("'{n:03d} of 131072 {{}}'.format(n=7)", "007 of 131072 {}"),
            ("'%s %5.1f%% 131072 %d' | format('a', 2.25, 3)", "a   2.2% 131072 3"),
            ("'%(a)s' | format(a=1)", "1"),
        ] {
            let rendered = render(&format!("{{{{ {source} }}}}"));
            assert_eq!(rendered.map_err(|error| error.to_string()), Ok(expected.to_owned()), "{source}");
        }
    }

    #[test]
    fn nothing_is_written_wider_than_a_page() {
        for source in [
            "'{:10000000000}'.format(1)",
            "'{:>9999999999}'.format(1)",
            "'{:.9999999999f}'.format(1.0)",
            "'{0[}]:9999999999}'.format({'}': 1})",
            "'{:{<9999999999}'.format(1)",
            "'{:{}}'.format(1, 9999999999)",
            "'%9999999999d' | format(1)",
            "'%-9999999999s' | format(1)",
            "'%.70000f' | format(1)",
            "'%(a%b)9999999999d' | format({'a%b': 1})",
            "('{:9999}' * 1000).format(*([1] * 1000))",
            "('{0}' * 100000).format('a' * 100000)",
        ] {
            assert!(render(&format!("{{{{ {source} }}}}")).is_err(), "{source}");
        }
    }
}
