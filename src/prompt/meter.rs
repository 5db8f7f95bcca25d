//! A compiled template with the bounds of its values built in.
//!
//! The engine counts its steps and pays for what it makes, but neither for what lies inside a value nor for what some
//! operations do with a long one. The calls that do (`bounds.rs`) are put between its instructions: behind each that
//! may make a value that holds others, one that checks it; in front of each that may take long for nothing, one that
//! pays. Values that a template cannot have enlarged, constants and what comes out of most filters, need neither, so
//! a usual template has a few of them in each message.

use std::collections::BTreeSet;

use minijinja::machinery::{Instruction, Instructions};
use minijinja::{Environment, State, Value};

use super::bounds::{self, COMPARING, is_of};
use super::format;

/// Gives back the value, or a refusal where it is beyond the bounds.
const CHECK: &str = "|check";
/// Takes a list of operands and the name of what is done with them; pays and gives the list back.
const PAY: &str = "|pay";
/// Gives back the value; the engine itself pays for the text that a filter is given.
const TOUCH: &str = "|touch";
/// Gives back a value that is to be kept in a namespace.
const KEEP: &str = "|keep";
/// What stands in place of the operator `%`: the engine's own knows numbers only.
const PERCENT: &str = "|percent";

/// Filters that give back a text or a number, or one of the values they were given.
const PLAIN_FILTERS: &str = "abs attr bool capitalize count d default e escape first float format indent int join last \
                             length lower replace round safe string title tojson trim upper";
/// Filters that the engine takes enough for, or that take no time, as long as their arguments are short.
const CHEAP_FILTERS: &str = "abs attr batch bool capitalize count d default e escape first float format from_json \
                             fromjson indent int items join last length list lower map reject rejectattr replace \
                             reverse round safe select selectattr slice string title tojson trim upper";
/// Tests that look at no more than the kind of a value.
const CHEAP_TESTS: &str = "boolean callable defined divisibleby escaped even false float int integer iterable mapping \
                           none number odd safe sequence string test true undefined";
/// Methods that look at every item of a list, or keep their arguments.
const DEAR_METHODS: &str = "changed count index join";

/// More arguments than this are counted however short they are.
const FEW: u16 = 8;
/// Bytes of a short constant text.
const SHORT: usize = 256;
/// Items of a short constant list.
const SHORT_LIST: usize = 64;
/// As many filters and tests have a place in the engine's table of those it looked up.
const LOOKED_UP: u8 = 50;
/// Stands for none of them.
const NOT_LOOKED_UP: u8 = u8::MAX;

/// Lets the environment know what metered instructions call. No value gets heavier than `weight_max`.
pub(super) fn register(environment: &mut Environment<'_>, weight_max: u64) {
    environment.add_filter(CHECK, move |state: &State<'_, '_>, value: Value| bounds::checked(state, value, weight_max));
    environment.add_filter(PAY, move |state: &State<'_, '_>, operands: Value, operation: &str| {
        let all = operands.downcast_object_ref::<Vec<Value>>().map_or(&[][..], Vec::as_slice);
        bounds::pay(state, all, operation, weight_max).map(|()| operands)
    });
    environment.add_filter(TOUCH, |value: Value| value);
    environment.add_filter(KEEP, |value: Value| bounds::kept(value));
    environment.add_filter(PERCENT, format::percent);
}

/// The instructions with checks and payments between them.
pub(super) fn metered<'s>(plain: &Instructions<'s>) -> Instructions<'s> {
    let meter = Meter::new(plain);
    let mut out = Instructions::new(plain.name(), plain.source());
    let mut places = Vec::new();
    let mut next = 0;
    for (at, instruction) in instructions(plain) {
        places.push(next);
        let (span, line) = (plain.get_span(at), plain.get_line(at));
        let mut add = |instruction| {
            next = 1 + match (span, line) {
                (Some(span), _) => out.add_with_span(instruction, span),
                (None, Some(line)) => out.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX)),
                (None, None) => out.add(instruction),
            };
        };
        meter.in_front(at, instruction).into_iter().for_each(&mut add);
        add(meter.instead(instruction));
        meter.behind(at, instruction).into_iter().for_each(&mut add);
    }
    places.push(next);
    for at in 0..next {
        if let Some(target) = out.get_mut(at).and_then(target_mut) {
            *target = places[*target as usize];
        }
    }
    out
}

fn instructions<'a, 's>(plain: &'a Instructions<'s>) -> impl Iterator<Item = (u32, &'a Instruction<'s>)> {
    (0..).map_while(|at| Some((at, plain.get(at)?)))
}

/// Where an instruction goes on, if not with the next. What is added between instructions goes nowhere.
fn target_mut<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match instruction {
        Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// What is known about the instructions of a template.
struct Meter<'a, 's> {
    plain: &'a Instructions<'s>,
    /// Where instructions jump to: what stands in front of such a place may not be what was executed before it.
    targets: BTreeSet<u32>,
    /// The first place in the table of filters that the template does not use.
    free_place: u8,
}

impl<'a, 's> Meter<'a, 's> {
    fn new(plain: &'a Instructions<'s>) -> Self {
        let targets = instructions(plain).filter_map(|(_, instruction)| target_mut(&mut instruction.clone()).copied());
        let places = instructions(plain).filter_map(|(_, instruction)| match instruction {
            Instruction::ApplyFilter(_, _, NOT_LOOKED_UP) => None,
            Instruction::ApplyFilter(_, _, place) => Some(place + 1),
            _ => None,
        });
        Self { plain, targets: targets.collect(), free_place: places.max().unwrap_or(0) }
    }

    /// The call of one of the filters of this file.
    fn apply(&self, filter: &'static str, arguments: u16) -> Instruction<'s> {
        let order = [CHECK, PAY, TOUCH, KEEP, PERCENT].iter().position(|name| *name == filter).unwrap_or(0);
        let place = self.free_place.saturating_add(order as u8);
        Instruction::ApplyFilter(filter, Some(arguments), if place < LOOKED_UP { place } else { NOT_LOOKED_UP })
    }

    /// The instruction, or the one that is executed in its place.
    fn instead(&self, instruction: &Instruction<'s>) -> Instruction<'s> {
        match instruction {
            Instruction::Rem => self.apply(PERCENT, 2),
            other => other.clone(),
        }
    }

    fn in_front(&self, at: u32, instruction: &Instruction<'s>) -> Vec<Instruction<'s>> {
        match instruction {
            Instruction::SetAttr(_) => vec![Instruction::Swap, self.apply(KEEP, 1), Instruction::Swap],
            // The letters of a text are counted, and it is copied.
            Instruction::PushLoop(_) | Instruction::FastRecurse | Instruction::CallFunction("loop", Some(1)) => {
                vec![self.apply(TOUCH, 1)]
            }
            Instruction::Eq
            | Instruction::Ne
            | Instruction::Lt
            | Instruction::Lte
            | Instruction::Gt
            | Instruction::Gte
                if !self.short(at, 1) =>
            {
                self.pay(Some(2), "==")
            }
            Instruction::CompareAndPreserve(_) if !self.short(at, 1) => self.pay(Some(2), "compare"),
            // Whatever is looked for in a text is made a text.
            Instruction::In
                if !self.short(at, 1) || self.constant(at, 1).is_some_and(|list| list.as_str().is_some()) =>
            {
                self.pay(Some(2), "in")
            }
            // The letters of a text are counted up to the wanted one.
            Instruction::GetItem if !self.short(at, 1) || self.constant(at, 1).is_some_and(is_far) => {
                self.pay(Some(2), "[]")
            }
            Instruction::Slice => self.pay(Some(4), "[:]"),
            Instruction::ApplyFilter(name, count, _) if !(is_of(CHEAP_FILTERS, name) && self.few(at, *count)) => {
                self.pay(*count, &format!("|{name}"))
            }
            Instruction::PerformTest(name, count, _) => {
                let cheap = is_of(CHEAP_TESTS, name) || is_of(COMPARING, name);
                if cheap && self.few(at, *count) { Vec::new() } else { self.pay(*count, &format!("is {name}")) }
            }
            Instruction::CallMethod(name, count) if is_of(DEAR_METHODS, name) || !self.few(at, *count) => {
                self.pay(*count, &format!(".{name}"))
            }
            _ => Vec::new(),
        }
    }

    fn behind(&self, at: u32, instruction: &Instruction<'s>) -> Option<Instruction<'s>> {
        let may_hold = match instruction {
            Instruction::BuildList(Some(_))
            | Instruction::BuildTuple(_)
            | Instruction::BuildMap(_)
            | Instruction::CallFunction(..)
            | Instruction::CallMethod(..)
            | Instruction::CallObject(_)
            | Instruction::Slice => true,
            // A text or number is added to its kind only.
            Instruction::Add => !(self.short(at, 1) && self.constant(at, 1).is_some_and(|it| it.as_object().is_none())),
            Instruction::Mul => !(self.short(at, 1) && self.constant(at, 1).is_some_and(|it| it.as_str().is_some())),
            Instruction::ApplyFilter(name, ..) => !is_of(PLAIN_FILTERS, name),
            _ => false,
        };
        may_hold.then(|| self.apply(CHECK, 1))
    }

    /// Lets an operation pay for the operands that are on the stack. Without a count, it is on the stack as well.
    fn pay(&self, count: Option<u16>, operation: &str) -> Vec<Instruction<'s>> {
        let mut paying = vec![
            Instruction::BuildList(count.map(usize::from)),
            Instruction::LoadConst(Value::from(operation)),
            self.apply(PAY, 2),
            // Puts the items back, and their count.
            Instruction::UnpackLists(1),
        ];
        if count.is_some() {
            paying.push(Instruction::DiscardTop);
        }
        paying
    }

    /// Whether all arguments of a call but the first, which it works on, are short constants.
    fn few(&self, at: u32, count: Option<u16>) -> bool {
        count.is_some_and(|count| count <= FEW && self.short(at, u32::from(count).saturating_sub(1)))
    }

    /// Whether so many operands on the top of the stack are short constants.
    fn short(&self, at: u32, operands: u32) -> bool {
        (1..=operands).all(|back| self.constant(at, back).is_some_and(is_short))
    }

    /// The operand of an instruction, counted from the top of the stack, where that is a constant.
    fn constant(&self, at: u32, back: u32) -> Option<&'a Value> {
        let place = at.checked_sub(back)?;
        match self.plain.get(place)? {
            // Nothing may come to the instruction another way.
            Instruction::LoadConst(value) if self.targets.range(place + 1..=at).next().is_none() => Some(value),
            _ => None,
        }
    }
}

fn is_short(value: &Value) -> bool {
    let short = |value: &Value| value.as_object().is_none() && value.as_str().is_none_or(|text| text.len() <= SHORT);
    let few = |value: &Value| value.len().is_some_and(|items| items <= SHORT_LIST);
    match value.as_object() {
        None => short(value),
        Some(list) => few(value) && list.try_iter_pairs().is_some_and(|mut all| all.all(|(_, item)| short(&item))),
    }
}

/// Whether the key may be the place of an item that is not among the first.
fn is_far(key: &Value) -> bool {
    key.is_number() && key.as_usize().is_none_or(|index| index > SHORT)
}

#[cfg(test)]
mod tests {
    use minijinja::Error;
    use serde_json::json;

    use super::super::environment::{Limits, TEMPLATE, environment, render};
    use super::super::{builtin_template, builtin_template_names, values};
    use super::*;

    const LIMITS: Limits = Limits { fuel: 1_000_000, weight: 1 << 20 };

    fn both(source: &str, context: &Value) -> [Result<String, String>; 2] {
        let say = |error: Error| format!("{:?} {:?}", error.line(), error.detail());
        let environment = environment(source).unwrap();
        let plain = environment.get_template(TEMPLATE).unwrap().render(context);
        [plain.map_err(say), render(&environment, context.clone(), LIMITS).map_err(say)]
    }

    #[test]
    fn metered_templates_say_what_they_say_without_it() {
        let call = json!({"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
        let context = values::plain(&json!({
            "messages": [
                {"role": "system", "content": " Be kind. "},
                {"role": "user", "content": "Hello\n"},
                {"role": "assistant", "content": "Hm", "reasoning_content": "why", "tool_calls": [call]},
                {"role": "tool", "content": "1", "tool_call_id": "abcdefghi", "name": "f"},
                {"role": "assistant", "content": "<think>why</think>So."},
                {"role": "user", "content": "And?"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
        }));
        for name in builtin_template_names() {
            let [plain, metered] = both(builtin_template(name).unwrap(), &context);
            assert!(metered.is_ok() || name == "gemma", "{name}: {metered:?}");
            assert_eq!(plain, metered, "{name}");
        }
    }

    #[test]
    fn errors_keep_their_line() {
        for source in [
            "a\n{{ [1] | nothing }}",
            "\n\n{{ [1] + 'a' }}",
            "{% for x in [1] %}\n{{ x[0:] }}{% endfor %}",
            "{{ [1] }}\n{% macro f(a) %}\n{{ a.b.c }}{% endmacro %}{{ f([1]) }}",
        ] {
            let [plain, metered] = both(source, &Value::from(()));
            assert!(plain.is_err(), "{source}");
            assert_eq!(plain, metered, "{source}");
        }
    }

    /// Expected texts are those of Jinja2 3.1 on Python.
    #[test]
    fn percent_writes_values_into_texts_and_divides_numbers() {
        let context = values::plain(&json!({"n": 7, "text": "%s-%s", "map": {"a": 1.5}, "list": [1, 2]}));
        let show = |source: &str| both(&format!("{{{{ {source} }}}}"), &context)[1].clone();
        for (source, expected) in [
            ("'%s of %d' % ('a', n)", "a of 7"),
            ("'<%5.1f>' % 2.25", "<  2.2>"),
            ("'%(a)s%%' % map", "1.5%"),
            ("'%s' % list", "[1, 2]"),
            ("text % ('x', none)", "x-None"),
            ("'%s' % 'a' ~ '!'", "a!"),
            ("'is %s' % true", "is True"),
            ("n % 4", "3"),
            ("-7 % 4", "1"),
            ("7 % -4", "-1"),
            ("true % 2", "1"),
            ("7.5 % 2", "1.5"),
            ("-7.5 % 2", "0.5"),
            ("4.0 % -2", "-0.0"),
            ("170141183460469231731687303715884105727 % 10", "7"),
            ("n % 2 == 0", "False"),
        ] {
            assert_eq!(show(source).as_deref(), Ok(expected), "{source}");
        }
        for source in ["1 % 0", "1.0 % 0", "none % 2", "list % 2", "1 % 'a'", "'%s %s' % 1", "'%9999999999d' % 1"] {
            assert!(show(source).is_err(), "{source}");
        }
    }

    #[test]
    fn constants_need_no_payment() {
        let environment =
            environment("{{ a == 'b' }}{{ a in ['b', 'c'] }}{{ a[0] }}{{ a | trim }}{{ a is string }}").unwrap();
        let template = environment.get_template(TEMPLATE).unwrap();
        let plain = &minijinja::machinery::get_compiled_template(&template).instructions;
        assert_eq!(instructions(&metered(plain)).count(), instructions(plain).count());
    }
}
