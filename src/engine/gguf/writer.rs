//! Writes GGUF files: for tests and for tools that make small models. Never used while serving.

use super::{ALIGNMENT_DEFAULT, ALIGNMENT_KEY, Array, MAGIC, TensorType, Value};

/// Builds a file in memory. Writes what it is told, also what no reader accepts: tests need broken files.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    entries: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<usize>, TensorType, Vec<u8>)>,
}

impl Writer {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata entry.
    #[must_use]
    pub fn entry(mut self, key: impl Into<String>, value: Value) -> Self {
        self.entries.push((key.into(), value));
        self
    }

    /// Adds a tensor; `data` is its packed content.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>, shape: &[usize], kind: TensorType, data: Vec<u8>) -> Self {
        self.tensors.push((name.into(), shape.to_vec(), kind, data));
        self
    }

    /// The file's bytes.
    pub fn finish(&self) -> Vec<u8> {
        let alignment = self
            .entries
            .iter()
            .find(|(key, _)| key == ALIGNMENT_KEY)
            .and_then(|(_, value)| value.as_u64())
            .unwrap_or(ALIGNMENT_DEFAULT)
            .max(1) as usize;
        let mut out = MAGIC.to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            write_string(&mut out, key);
            write_value(&mut out, value);
        }
        let mut offset = 0;
        for (name, shape, kind, data) in &self.tensors {
            write_string(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            for &length in shape {
                out.extend((length as u64).to_le_bytes());
            }
            out.extend(kind.id().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += data.len().next_multiple_of(alignment);
        }
        for (_, _, _, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(alignment), 0);
            out.extend(data);
        }
        out
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |id: i32, bytes: &[u8]| {
        out.extend(id.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(number) => put(0, &number.to_le_bytes()),
        Value::I8(number) => put(1, &number.to_le_bytes()),
        Value::U16(number) => put(2, &number.to_le_bytes()),
        Value::I16(number) => put(3, &number.to_le_bytes()),
        Value::U32(number) => put(4, &number.to_le_bytes()),
        Value::I32(number) => put(5, &number.to_le_bytes()),
        Value::F32(number) => put(6, &number.to_le_bytes()),
        Value::Bool(truth) => put(7, &[u8::from(*truth)]),
        Value::U64(number) => put(10, &number.to_le_bytes()),
        Value::I64(number) => put(11, &number.to_le_bytes()),
        Value::F64(number) => put(12, &number.to_le_bytes()),
        Value::String(text) => {
            put(8, &[]);
            write_string(out, text);
        }
        Value::Array(array) => {
            put(9, &[]);
            write_array(out, array);
        }
    }
}

fn write_array(out: &mut Vec<u8>, array: &Array) {
    fn put<T: Copy, const N: usize>(out: &mut Vec<u8>, id: i32, elements: &[T], convert: fn(T) -> [u8; N]) {
        out.extend(id.to_le_bytes());
        out.extend((elements.len() as u64).to_le_bytes());
        for &element in elements {
            out.extend(convert(element));
        }
    }
    match array {
        Array::U8(elements) => put(out, 0, elements, u8::to_le_bytes),
        Array::I8(elements) => put(out, 1, elements, i8::to_le_bytes),
        Array::U16(elements) => put(out, 2, elements, u16::to_le_bytes),
        Array::I16(elements) => put(out, 3, elements, i16::to_le_bytes),
        Array::U32(elements) => put(out, 4, elements, u32::to_le_bytes),
        Array::I32(elements) => put(out, 5, elements, i32::to_le_bytes),
        Array::F32(elements) => put(out, 6, elements, f32::to_le_bytes),
        Array::Bool(elements) => put(out, 7, elements, |truth| [u8::from(truth)]),
        Array::U64(elements) => put(out, 10, elements, u64::to_le_bytes),
        Array::I64(elements) => put(out, 11, elements, i64::to_le_bytes),
        Array::F64(elements) => put(out, 12, elements, f64::to_le_bytes),
        Array::String(texts) => {
            out.extend(8i32.to_le_bytes());
            out.extend((texts.len() as u64).to_le_bytes());
            for text in texts {
                write_string(out, text);
            }
        }
    }
}
