//! How large the values of a template may become, and what work with them costs.
//!
//! The engine pays for what an instruction makes, and not for what lies inside it: ten lists that each hold the one
//! before twice are a thousand lists to whoever prints, compares or drops the last. So no value is deeper or larger
//! than the bounds here, lists that are computed when they are read are read at once, and nothing holds what could
//! come to hold it in turn. `meter.rs` has the instructions call these functions; all of them look at a value once.

use minijinja::value::{DynObject, ObjectRepr, Tuple};
use minijinja::{Error, ErrorKind, State, Value};

/// Values inside values. Schemas of tools come as deep as JSON may be, 128; what a template makes of it is deeper.
const DEPTH_MAX: usize = 160;
/// Weight of a value apart from its text: what a slot and the value in it take.
const NODE: u64 = 32;
/// Weight that is paid for with one unit of fuel, as in the engine.
const WEIGHT_PER_FUEL: u64 = 64;
/// Arguments of a filter, test or method. Some call others by name with the rest of their arguments, which nests.
const ARGUMENTS_MAX: usize = 64;

/// The value, where it is within the bounds: as it is, or with all that was not yet computed in it.
pub(super) fn checked(state: &State<'_, '_>, value: Value, weight_max: u64) -> Result<Value, Error> {
    let Some(object) = value.as_object() else {
        return Ok(value);
    };
    let mut walk = Walk { left: weight_max, to_pay: 0 };
    let computed = match reference(object) {
        // What a namespace holds may change, but not into something that was not looked at.
        Some(Reference::Namespace) => walk.fields(object, 1).map(|_| None),
        Some(Reference::Loop) => Ok(None),
        None => walk.value(&value, 0),
    };
    state.consume_fuel(walk.to_pay / WEIGHT_PER_FUEL)?;
    Ok(computed?.unwrap_or(value))
}

/// The value, where it may be kept in a namespace.
pub(super) fn kept(value: Value) -> Result<Value, Error> {
    match value.as_object().and_then(reference) {
        Some(kind) => Err(kind.misplaced()),
        None => Ok(value),
    }
}

/// Pays for what the operation does with its operands beyond what the engine pays for.
pub(super) fn pay(state: &State<'_, '_>, operands: &[Value], operation: &str, weight_max: u64) -> Result<(), Error> {
    if operands.len() > ARGUMENTS_MAX {
        return Err(invalid(format!("more than {ARGUMENTS_MAX} arguments")));
    }
    if operation == ".changed" {
        // The loop keeps them.
        operands.iter().skip(1).try_for_each(|value| kept(value.clone()).map(drop))?;
    }
    let work = Work { weight_max }.of(operation, operands)?;
    state.consume_fuel(work / WEIGHT_PER_FUEL)
}

/// The weight of a value with all that is in it.
pub(super) fn weight(value: &Value, weight_max: u64) -> Result<u64, Error> {
    let mut walk = Walk { left: weight_max, to_pay: 0 };
    match value.as_object().filter(|object| reference(object).is_some()) {
        Some(object) => walk.fields(object, 1)?,
        None => walk.value(value, 0)?,
    };
    Ok(weight_max - walk.left)
}

/// What holds values that change.
enum Reference {
    Namespace,
    Loop,
}

impl Reference {
    fn misplaced(&self) -> Error {
        let what = match self {
            Self::Namespace => "a namespace",
            Self::Loop => "a loop",
        };
        invalid(format!("{what} must not be kept inside a list, a mapping or a namespace"))
    }
}

/// The engine keeps these types to itself, so only their names tell them.
fn reference(object: &DynObject) -> Option<Reference> {
    match object.type_name().rsplit("::").next() {
        Some("Namespace") => Some(Reference::Namespace),
        Some("Loop") => Some(Reference::Loop),
        _ => None,
    }
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}

/// A walk through a value and all that is in it.
struct Walk {
    left: u64,
    to_pay: u64,
}

impl Walk {
    fn take(&mut self, text: usize) -> Result<(), Error> {
        let weight = NODE + text as u64;
        self.to_pay += WEIGHT_PER_FUEL;
        self.left =
            self.left.checked_sub(weight).ok_or_else(|| Error::new(ErrorKind::OutOfFuel, "a value is too large"))?;
        Ok(())
    }

    /// The value with everything in it computed, where something was not.
    fn value(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        self.take(value.as_str().map_or(0, str::len))?;
        let Some(object) = value.as_object() else {
            return Ok(None);
        };
        if depth > DEPTH_MAX {
            return Err(invalid(format!("values are nested more than {DEPTH_MAX} deep")));
        }
        if let Some(kind) = reference(object) {
            return Err(kind.misplaced());
        }
        if let Some(items) = object.downcast_ref::<Vec<Value>>() {
            return Ok(self.items(items, depth + 1)?.map(Value::from));
        }
        if let Some(items) = object.downcast_ref::<Tuple>() {
            return Ok(self.items(items, depth + 1)?.map(|items| Value::from(Tuple::from(items))));
        }
        match object.repr() {
            ObjectRepr::Map => {
                let computed = self.fields(object, depth + 1)?;
                Ok(computed.filter(|_| !value.is_kwargs()))
            }
            ObjectRepr::Iterable => {
                let mut items = Vec::new();
                for item in value.try_iter()?.checked() {
                    let item = item?;
                    let computed = self.value(&item, depth + 1)?;
                    items.push(computed.unwrap_or(item));
                }
                Ok(Some(Value::from(items)))
            }
            // The engine's groups: they make their list anew for each reader, out of items that are in it.
            ObjectRepr::Seq => {
                for item in value.try_iter()?.checked() {
                    self.value(&item?, depth + 1)?;
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn items(&mut self, items: &[Value], depth: usize) -> Result<Option<Vec<Value>>, Error> {
        let mut all: Option<Vec<Value>> = None;
        for (index, item) in items.iter().enumerate() {
            if let Some(computed) = self.value(item, depth)? {
                all.get_or_insert_with(|| items.to_vec())[index] = computed;
            }
        }
        Ok(all)
    }

    fn fields(&mut self, object: &DynObject, depth: usize) -> Result<Option<Value>, Error> {
        let (mut all, mut changed) = (Vec::new(), false);
        for (key, value) in object.try_iter_pairs().into_iter().flatten() {
            // Whoever made the mapping hashed it.
            self.to_pay += key.as_str().map_or(0, str::len) as u64;
            let computed = (self.value(&key, depth)?, self.value(&value, depth)?);
            changed |= computed.0.is_some() || computed.1.is_some();
            all.push((computed.0.unwrap_or(key), computed.1.unwrap_or(value)));
        }
        Ok(changed.then(|| Value::from_pairs(all)))
    }
}

/// What operations cost, in weight, beyond what the engine takes for them. Rough and never too little: what is not
/// known costs as much as everything it is given.
struct Work {
    weight_max: u64,
}

impl Work {
    fn of(&self, operation: &str, operands: &[Value]) -> Result<u64, Error> {
        let text = |value: &Value| value.as_str().map_or(0, str::len) as u64;
        match (operation, operands) {
            ("==", [left, right]) if left.as_object().is_some() && right.as_object().is_some() => {
                Ok(self.weight(left)?.min(self.weight(right)?))
            }
            ("==", [left, right]) => Ok(text(left).min(text(right))),
            ("in", [value, container]) => self.contains(value, container),
            ("[]", [container, key]) => Ok(text(container) + self.weight(key)?),
            ("[:]", [value, ..]) => Ok(text(value)),
            (_, [first, rest @ ..]) => {
                let items = first.len().unwrap_or(1) as u64;
                if let Some(test) = operation.strip_prefix("is ") {
                    self.test(test, || self.weight(first), 1, rest)
                } else {
                    self.call(operation, self.weight(first)?, items, rest)
                }
            }
            _ => Ok(0),
        }
    }

    fn weight(&self, value: &Value) -> Result<u64, Error> {
        weight(value, self.weight_max)
    }

    fn all(&self, values: &[Value]) -> Result<u64, Error> {
        values.iter().try_fold(0, |sum, value| Ok(sum + self.weight(value)?))
    }

    fn contains(&self, value: &Value, container: &Value) -> Result<u64, Error> {
        match container.as_object().map(DynObject::repr) {
            // It is written as a text first.
            None if value.as_object().is_some() => Ok(8 * self.weight(value)?),
            None => Ok(0),
            Some(ObjectRepr::Map | ObjectRepr::Plain) => self.weight(value),
            Some(_) => self.weight(container),
        }
    }

    /// A filter or method on a value of this weight that has so many items.
    fn call(&self, operation: &str, first: u64, items: u64, rest: &[Value]) -> Result<u64, Error> {
        let nodes = first / NODE;
        Ok(match (operation, rest) {
            ("|sort" | "|unique" | "|groupby" | "|dictsort" | "|min" | "|max", _) => {
                first * u64::from(u64::BITS - nodes.leading_zeros()) + self.all(rest)?
            }
            // Adds to what it has, again and again; numbers take no place.
            ("|sum", _) if first > NODE * (items + 1) => first.saturating_mul(nodes),
            // Each letter may be compared with all of those that are taken off.
            ("|trim" | ".strip" | ".lstrip" | ".rstrip", _) => first.saturating_mul(1 + self.all(rest)?),
            ("|map", [name, rest @ ..]) if name.as_str().is_some() => {
                let each = items.saturating_mul(self.all(rest)?);
                let filter = format!("|{}", name.as_str().unwrap_or_default());
                self.call(&filter, first, nodes, rest)?.saturating_add(each)
            }
            ("|select" | "|reject", [test, rest @ ..]) | ("|selectattr" | "|rejectattr", [_, test, rest @ ..]) => {
                self.test(test.as_str().unwrap_or_default(), || Ok(first), items, rest)?
            }
            // By an attribute, whose path is walked in each item.
            ("|map" | "|selectattr" | "|rejectattr", _) => first.saturating_add(items.saturating_mul(self.all(rest)?)),
            _ => first + self.all(rest)?,
        })
    }

    /// A test on so many values, which have a weight together.
    fn test(
        &self,
        name: &str,
        first: impl Fn() -> Result<u64, Error>,
        count: u64,
        rest: &[Value],
    ) -> Result<u64, Error> {
        let each = count.saturating_mul(self.all(rest)?);
        // Two values are compared only as far as the smaller one goes.
        if is_of(COMPARING, name) { Ok(each) } else { Ok(first()?.saturating_add(each)) }
    }
}

/// Tests that compare two values.
pub(super) const COMPARING: &str = "eq equalto == ne != lt lessthan < le <= gt greaterthan > ge >= sameas";

/// Whether the name is one of these.
pub(super) fn is_of(names: &str, name: &str) -> bool {
    names.split(' ').any(|known| known == name)
}
