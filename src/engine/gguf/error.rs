//! Why a file is refused. The texts name the place and what was found, for the person who chose the file.

/// Why bytes are not a usable GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file does not begin as a GGUF file does.
    #[error("not a GGUF file: it does not begin with \"GGUF\"")]
    NotGguf,
    /// The file cannot be read.
    #[error("reading at byte {at} failed: {reason}")]
    Read {
        /// Where.
        at: u64,
        /// What the system says.
        reason: String,
    },
    /// A version that is not read.
    #[error("GGUF version {0} is not supported; versions 2 and 3 are")]
    Version(u32),
    /// The file was written on a big-endian machine.
    #[error("the file is big-endian; convert it to little-endian first")]
    BigEndian,
    /// The file ends inside something.
    #[error("the file is cut off at byte {at}: {what} needs {needed} bytes, {left} are left; download it again")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where.
        at: u64,
        /// Bytes it needs.
        needed: u64,
        /// Bytes there are.
        left: u64,
    },
    /// A count or length is more than any real file has.
    #[error("{what} at byte {at} is {value}, which is not possible; the file is damaged")]
    Implausible {
        /// Which count.
        what: &'static str,
        /// Where.
        at: u64,
        /// Its value.
        value: i128,
    },
    /// Text is not UTF-8.
    #[error("{what} at byte {at} is not UTF-8; the file is damaged")]
    NotUtf8 {
        /// Which text.
        what: &'static str,
        /// Where.
        at: u64,
    },
    /// A metadata key is empty.
    #[error("a metadata key at byte {0} is empty")]
    EmptyKey(u64),
    /// A metadata key comes twice.
    #[error("the metadata key {0:?} comes twice")]
    DuplicateKey(String),
    /// A value type that does not exist.
    #[error("the metadata key {key:?} has the unknown value type {id}")]
    ValueType {
        /// The key.
        key: String,
        /// The type's number.
        id: i32,
    },
    /// An array of arrays.
    #[error("the metadata key {0:?} holds an array of arrays, which is not supported")]
    NestedArray(String),
    /// A boolean that is neither 0 nor 1.
    #[error("a boolean at byte {at} is {value}, not 0 or 1")]
    Boolean {
        /// Where.
        at: u64,
        /// What it is.
        value: u8,
    },
    /// The alignment is not a power of two.
    #[error("general.alignment is {0}, which is not a power of two")]
    Alignment(u64),
    /// The file is one part of several, which its name does not say.
    #[error(
        "the file is part {number} of {count}; name the parts NAME-{number:05}-of-{count:05}.gguf and so on, beside \
         each other"
    )]
    Split {
        /// Which part, from 1.
        number: u32,
        /// Of how many.
        count: u32,
    },
    /// The files are not the parts of one model.
    #[error("the files are not the parts of one model: {0}")]
    Parts(String),
    /// A tensor's name is empty or too long.
    #[error("the tensor name {0:?} is empty or longer than 63 bytes")]
    TensorName(String),
    /// A tensor name comes twice.
    #[error("the tensor {0:?} comes twice")]
    DuplicateTensor(String),
    /// A tensor's dimensions are not possible.
    #[error("the tensor {name:?} has impossible dimensions: {reason}")]
    Shape {
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A tensor type that is not known.
    #[error("the tensor {name:?} has type {id}, which {reason}")]
    TensorType {
        /// The tensor.
        name: String,
        /// The type's number.
        id: i32,
        /// Retired or unknown.
        reason: &'static str,
    },
    /// A tensor's data does not lie where it must.
    #[error("the data of tensor {name:?} starts at offset {found} but must start at {expected}")]
    Offset {
        /// The tensor.
        name: String,
        /// Where the file says it starts.
        found: u64,
        /// Where the data before it ends, padded.
        expected: u64,
    },
    /// A tensor's data goes beyond the file.
    #[error("the data of tensor {name:?} ends at byte {end}, but the file has {len}; download it again")]
    BeyondFile {
        /// The tensor.
        name: String,
        /// Where the data would end.
        end: u64,
        /// Length of the file.
        len: u64,
    },
    /// A key the model needs is not there.
    #[error("the metadata key {0:?} is missing")]
    MissingKey(String),
    /// A tensor the model needs is not there.
    #[error("the tensor {0:?} is missing")]
    MissingTensor(String),
    /// A value has another type than the key demands.
    #[error("the metadata key {key:?} holds {found}, not {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// An array has the wrong number of elements.
    #[error("the metadata key {key:?} has {found} elements, not {expected}")]
    WrongLength {
        /// The key.
        key: String,
        /// Elements it has.
        found: usize,
        /// Elements it should have.
        expected: usize,
    },
}
