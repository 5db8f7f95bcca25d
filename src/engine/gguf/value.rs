//! Metadata values as they stand in the file, and the conversions that lose nothing.

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // each variant is named after its type
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of values of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // each variant is named after its element type
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// A whole number that is not negative, of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::U32(number) => Some(number.into()),
            Self::U64(number) => Some(number),
            Self::I8(number) => number.try_into().ok(),
            Self::I16(number) => number.try_into().ok(),
            Self::I32(number) => number.try_into().ok(),
            Self::I64(number) => number.try_into().ok(),
            _ => None,
        }
    }

    /// A floating-point number of either width.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(number) => Some(number),
            Self::F64(number) => Some(number as f32),
            _ => None,
        }
    }

    /// A truth value.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(truth) = *self { Some(truth) } else { None }
    }

    /// The texts of an array of strings.
    pub fn as_strings(&self) -> Option<&[String]> {
        if let Self::Array(Array::String(texts)) = self { Some(texts) } else { None }
    }

    /// The numbers of an array of 32-bit floats.
    pub fn as_f32s(&self) -> Option<&[f32]> {
        if let Self::Array(Array::F32(numbers)) = self { Some(numbers) } else { None }
    }

    /// The truth values of an array of booleans.
    pub fn as_bools(&self) -> Option<&[bool]> {
        if let Self::Array(Array::Bool(truths)) = self { Some(truths) } else { None }
    }

    /// The whole numbers of an array of any width, if none is negative or too large.
    pub fn to_u32s(&self) -> Option<Vec<u32>> {
        fn convert<T: Copy + TryInto<u32>>(numbers: &[T]) -> Option<Vec<u32>> {
            numbers.iter().map(|&number| number.try_into().ok()).collect()
        }
        let Self::Array(array) = self else { return None };
        match array {
            Array::U8(numbers) => convert(numbers),
            Array::I8(numbers) => convert(numbers),
            Array::U16(numbers) => convert(numbers),
            Array::I16(numbers) => convert(numbers),
            Array::U32(numbers) => Some(numbers.clone()),
            Array::I32(numbers) => convert(numbers),
            Array::U64(numbers) => convert(numbers),
            Array::I64(numbers) => convert(numbers),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::String(_) => None,
        }
    }

    /// The value's type in words, for error texts.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::U8(number) => format!("the number {number}"),
            Self::I8(number) => format!("the number {number}"),
            Self::U16(number) => format!("the number {number}"),
            Self::I16(number) => format!("the number {number}"),
            Self::U32(number) => format!("the number {number}"),
            Self::I32(number) => format!("the number {number}"),
            Self::U64(number) => format!("the number {number}"),
            Self::I64(number) => format!("the number {number}"),
            Self::F32(number) => format!("the float {number}"),
            Self::F64(number) => format!("the float {number}"),
            Self::Bool(truth) => format!("the boolean {truth}"),
            Self::String(_) => "a string".to_owned(),
            Self::Array(array) => format!("an array of {} {}", array.len(), array.element_name()),
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(elements) => elements.len(),
            Self::I8(elements) => elements.len(),
            Self::U16(elements) => elements.len(),
            Self::I16(elements) => elements.len(),
            Self::U32(elements) => elements.len(),
            Self::I32(elements) => elements.len(),
            Self::F32(elements) => elements.len(),
            Self::Bool(elements) => elements.len(),
            Self::String(elements) => elements.len(),
            Self::U64(elements) => elements.len(),
            Self::I64(elements) => elements.len(),
            Self::F64(elements) => elements.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn element_name(&self) -> &'static str {
        match self {
            Self::F32(_) | Self::F64(_) => "floats",
            Self::Bool(_) => "booleans",
            Self::String(_) => "strings",
            _ => "whole numbers",
        }
    }
}
