//! Reads the container. Every length is compared with the bytes left before anything is allocated for it.

use std::collections::{BTreeMap, HashMap};

use super::{
    ALIGNMENT_DEFAULT, ALIGNMENT_KEY, Array, DIMENSIONS_MAX, Error, Gguf, MAGIC, Source, TENSOR_NAME_BYTES_MAX, Tensor,
    TensorType, Value,
};

/// No count or length in a file is larger; real ones are far below.
const COUNT_MAX: u64 = 1 << 30;
/// Bytes of the smallest possible metadata entry: key length, one byte of key, type, one byte of value.
const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Bytes of the smallest possible tensor entry: name length, one byte of name, dimensions, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Bytes that are read from a file at a time.
const READ_BYTES: u64 = 1 << 18;

pub(super) fn parse(files: &dyn Source, part: usize, length: u64) -> Result<Gguf, Error> {
    let mut reader = Reader { files, part, length, at: 0, bytes: Vec::new(), next: 0 };
    if length < MAGIC.len() as u64 || reader.array("the magic number")? != MAGIC {
        return Err(Error::NotGguf);
    }
    let version = u32::from_le_bytes(reader.array("the version")?);
    match version {
        2 | 3 => {}
        _ if version != 0 && version.trailing_zeros() >= 16 => return Err(Error::BigEndian),
        _ => return Err(Error::Version(version)),
    }
    let tensor_count = reader.count("the number of tensors", TENSOR_BYTES_MIN)?;
    let entry_count = reader.count("the number of metadata entries", ENTRY_BYTES_MIN)?;
    let mut metadata = BTreeMap::new();
    for _ in 0..entry_count {
        let (key, value) = read_entry(&mut reader)?;
        if metadata.contains_key(&key) {
            return Err(Error::DuplicateKey(key));
        }
        metadata.insert(key, value);
    }
    let mut gguf = Gguf { version, metadata, ..Gguf::default() };
    let alignment = alignment(&gguf)?;
    let mut placed = Vec::with_capacity(tensor_count);
    for _ in 0..tensor_count {
        placed.push(read_tensor(&mut reader)?);
    }
    place_tensors(&mut gguf, placed, align_up(reader.at, alignment), alignment, length)?;
    Ok(gguf)
}

/// Reads one file from its beginning on.
struct Reader<'a> {
    files: &'a dyn Source,
    part: usize,
    length: u64,
    /// Where in the file it is.
    at: u64,
    /// A piece of the file, and where in it the reader is.
    bytes: Vec<u8>,
    next: usize,
}

impl Reader<'_> {
    fn left(&self) -> u64 {
        self.length - self.at
    }

    fn take(&mut self, what: &'static str, count: u64) -> Result<&[u8], Error> {
        if count > self.left() {
            return Err(Error::Truncated { what, at: self.at, needed: count, left: self.left() });
        }
        if count > (self.bytes.len() - self.next) as u64 {
            self.bytes.resize(count.max(READ_BYTES).min(self.left()) as usize, 0);
            self.next = 0;
            let read = self.files.read(self.part, self.at, &mut self.bytes);
            read.map_err(|error| Error::Read { at: self.at, reason: error.to_string() })?;
        }
        let start = self.next;
        self.next += count as usize;
        self.at += count;
        Ok(&self.bytes[start..self.next])
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(what, N as u64)?);
        Ok(array)
    }

    /// A count of things of which each takes at least `bytes_each`.
    fn count(&mut self, what: &'static str, bytes_each: u64) -> Result<usize, Error> {
        let at = self.at;
        let value = u64::from_le_bytes(self.array(what)?);
        if value > COUNT_MAX {
            // Lengths are signed in older writers, so a huge one is shown as the negative number it was.
            return Err(Error::Implausible { what, at, value: (value as i64).into() });
        }
        let needed = value * bytes_each;
        if needed > self.left() {
            return Err(Error::Truncated { what, at: self.at, needed, left: self.left() });
        }
        Ok(value as usize)
    }

    fn string(&mut self, what: &'static str) -> Result<String, Error> {
        let len = self.count(what, 1)?;
        let at = self.at;
        let bytes = self.take(what, len as u64)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Error::NotUtf8 { what, at })
    }

    fn bool(&mut self) -> Result<bool, Error> {
        let at = self.at;
        match self.array("a boolean")? {
            [0] => Ok(false),
            [1] => Ok(true),
            [value] => Err(Error::Boolean { at, value }),
        }
    }

    fn numbers<T, const N: usize>(&mut self, convert: fn([u8; N]) -> T) -> Result<Vec<T>, Error> {
        let count = self.count("an array", N as u64)?;
        let bytes = self.take("an array", (count * N) as u64)?;
        let mut numbers = Vec::with_capacity(count);
        for chunk in bytes.chunks_exact(N) {
            let mut array = [0; N];
            array.copy_from_slice(chunk);
            numbers.push(convert(array));
        }
        Ok(numbers)
    }
}

fn read_entry(reader: &mut Reader<'_>) -> Result<(String, Value), Error> {
    let at = reader.at;
    let key = reader.string("a metadata key")?;
    if key.is_empty() {
        return Err(Error::EmptyKey(at));
    }
    let value = read_value(reader, &key)?;
    Ok((key, value))
}

fn read_value(reader: &mut Reader<'_>, key: &str) -> Result<Value, Error> {
    const WHAT: &str = "a metadata value";
    Ok(match i32::from_le_bytes(reader.array("a value type")?) {
        0 => Value::U8(u8::from_le_bytes(reader.array(WHAT)?)),
        1 => Value::I8(i8::from_le_bytes(reader.array(WHAT)?)),
        2 => Value::U16(u16::from_le_bytes(reader.array(WHAT)?)),
        3 => Value::I16(i16::from_le_bytes(reader.array(WHAT)?)),
        4 => Value::U32(u32::from_le_bytes(reader.array(WHAT)?)),
        5 => Value::I32(i32::from_le_bytes(reader.array(WHAT)?)),
        6 => Value::F32(f32::from_le_bytes(reader.array(WHAT)?)),
        7 => Value::Bool(reader.bool()?),
        8 => Value::String(reader.string("a string value")?),
        9 => Value::Array(read_array(reader, key)?),
        10 => Value::U64(u64::from_le_bytes(reader.array(WHAT)?)),
        11 => Value::I64(i64::from_le_bytes(reader.array(WHAT)?)),
        12 => Value::F64(f64::from_le_bytes(reader.array(WHAT)?)),
        id => {
            return Err(Error::ValueType { key: key.to_owned(), id });
        }
    })
}

fn read_array(reader: &mut Reader<'_>, key: &str) -> Result<Array, Error> {
    Ok(match i32::from_le_bytes(reader.array("an array's element type")?) {
        0 => Array::U8(reader.numbers(u8::from_le_bytes)?),
        1 => Array::I8(reader.numbers(i8::from_le_bytes)?),
        2 => Array::U16(reader.numbers(u16::from_le_bytes)?),
        3 => Array::I16(reader.numbers(i16::from_le_bytes)?),
        4 => Array::U32(reader.numbers(u32::from_le_bytes)?),
        5 => Array::I32(reader.numbers(i32::from_le_bytes)?),
        6 => Array::F32(reader.numbers(f32::from_le_bytes)?),
        7 => {
            let count = reader.count("an array", 1)?;
            Array::Bool((0..count).map(|_| reader.bool()).collect::<Result<_, _>>()?)
        }
        8 => {
            let count = reader.count("an array of strings", 8)?;
            Array::String((0..count).map(|_| reader.string("a string in an array")).collect::<Result<_, _>>()?)
        }
        9 => return Err(Error::NestedArray(key.to_owned())),
        10 => Array::U64(reader.numbers(u64::from_le_bytes)?),
        11 => Array::I64(reader.numbers(i64::from_le_bytes)?),
        12 => Array::F64(reader.numbers(f64::from_le_bytes)?),
        id => {
            return Err(Error::ValueType { key: key.to_owned(), id });
        }
    })
}

/// A tensor entry and the offset of its data from the start of all data.
struct Entry {
    name: String,
    shape: Vec<usize>,
    kind: TensorType,
    bytes: u64,
    offset: u64,
}

fn read_tensor(reader: &mut Reader<'_>) -> Result<Entry, Error> {
    let name = reader.string("a tensor name")?;
    if name.is_empty() || name.len() >= TENSOR_NAME_BYTES_MAX {
        return Err(Error::TensorName(name.chars().take(TENSOR_NAME_BYTES_MAX).collect()));
    }
    let dimensions = u32::from_le_bytes(reader.array("a tensor's dimensions")?) as usize;
    if dimensions == 0 || dimensions > DIMENSIONS_MAX {
        return Err(Error::Shape {
            name,
            reason: format!("{dimensions} of them, but 1 to {DIMENSIONS_MAX} are allowed"),
        });
    }
    let mut lengths = Vec::with_capacity(dimensions);
    for _ in 0..dimensions {
        lengths.push(i64::from_le_bytes(reader.array("a tensor's dimensions")?));
    }
    let id = i32::from_le_bytes(reader.array("a tensor's type")?);
    let offset = u64::from_le_bytes(reader.array("a tensor's offset")?);
    let Some(kind) = TensorType::from_id(id) else {
        return Err(Error::TensorType { name, id, reason: TensorType::refusal(id) });
    };
    match measure(&lengths, kind) {
        Ok((shape, bytes)) => Ok(Entry { name, shape, kind, bytes, offset }),
        Err(reason) => Err(Error::Shape { name, reason }),
    }
}

/// The shape and the size in bytes, or what is wrong with the lengths.
fn measure(lengths: &[i64], kind: TensorType) -> Result<(Vec<usize>, u64), String> {
    let mut shape = Vec::with_capacity(lengths.len());
    let mut values: u64 = 1;
    for &length in lengths {
        if length <= 0 {
            return Err(format!("a length is {length}"));
        }
        values = values
            .checked_mul(length as u64)
            .filter(|&values| i64::try_from(values).is_ok())
            .ok_or_else(|| format!("{lengths:?} is more than can be counted"))?;
        shape.push(length as usize);
    }
    if !shape[0].is_multiple_of(kind.block_len()) {
        return Err(format!("a row of {} is no multiple of {}'s {}", shape[0], kind.name(), kind.block_len()));
    }
    let bytes = (values / kind.block_len() as u64)
        .checked_mul(kind.block_bytes() as u64)
        .ok_or_else(|| format!("{lengths:?} is more than can be stored"))?;
    Ok((shape, bytes))
}

fn alignment(gguf: &Gguf) -> Result<u64, Error> {
    let alignment = gguf.u32(ALIGNMENT_KEY)?.map_or(ALIGNMENT_DEFAULT, u64::from);
    if alignment.is_power_of_two() { Ok(alignment) } else { Err(Error::Alignment(alignment)) }
}

fn align_up(value: u64, alignment: u64) -> u64 {
    value.next_multiple_of(alignment)
}

/// Gives every tensor its place: data lies in table order, padded, without gaps, inside the file.
fn place_tensors(gguf: &mut Gguf, entries: Vec<Entry>, start: u64, alignment: u64, len: u64) -> Result<(), Error> {
    let mut expected: u64 = 0;
    let mut by_name = HashMap::with_capacity(entries.len());
    for entry in entries {
        let Entry { name, shape, kind, bytes, offset } = entry;
        if offset != expected {
            return Err(Error::Offset { name, found: offset, expected });
        }
        // `expected` and `start` are below the file's length plus padding, so only `bytes` can overflow.
        let begin = start + offset;
        let end = begin.saturating_add(bytes);
        if end > len {
            return Err(Error::BeyondFile { name, end, len });
        }
        expected = align_up(offset + bytes, alignment);
        if by_name.insert(name.clone(), gguf.tensors.len()).is_some() {
            return Err(Error::DuplicateTensor(name));
        }
        gguf.tensors.push(Tensor { name, shape, kind, part: 0, range: begin as usize..end as usize });
    }
    gguf.by_name = by_name;
    Ok(())
}
