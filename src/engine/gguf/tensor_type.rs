//! The tensor types: their ids, names, block lengths and block sizes. Nothing about what is inside a block.

macro_rules! tensor_types {
    ($($name:ident = $id:literal, $block_len:literal, $block_bytes:literal;)*) => {
        /// How a tensor's values are packed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)] // the names the field uses
        #[repr(i32)]
        pub enum TensorType {
            $(#[doc = concat!("Type ", $id, ": ", $block_len, " values in ", $block_bytes, " bytes.")] $name = $id,)*
        }

        impl TensorType {
            /// Every type.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The type with this number.
            pub fn from_id(id: i32) -> Option<Self> {
                match id { $($id => Some(Self::$name),)* _ => None }
            }

            /// The number that stands in files.
            pub fn id(self) -> i32 {
                self as i32
            }

            /// The name in the field's own spelling.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Values in one block.
            pub fn block_len(self) -> usize {
                match self { $(Self::$name => $block_len,)* }
            }

            /// Bytes of one block.
            pub fn block_bytes(self) -> usize {
                match self { $(Self::$name => $block_bytes,)* }
            }
        }
    };
}

tensor_types! {
    F32 = 0, 1, 4;
    F16 = 1, 1, 2;
    Q4_0 = 2, 32, 18;
    Q4_1 = 3, 32, 20;
    Q5_0 = 6, 32, 22;
    Q5_1 = 7, 32, 24;
    Q8_0 = 8, 32, 34;
    Q8_1 = 9, 32, 36;
    Q2_K = 10, 256, 84;
    Q3_K = 11, 256, 110;
    Q4_K = 12, 256, 144;
    Q5_K = 13, 256, 176;
    Q6_K = 14, 256, 210;
    Q8_K = 15, 256, 292;
    IQ2_XXS = 16, 256, 66;
    IQ2_XS = 17, 256, 74;
    IQ3_XXS = 18, 256, 98;
    IQ1_S = 19, 256, 50;
    IQ4_NL = 20, 32, 18;
    IQ3_S = 21, 256, 110;
    IQ2_S = 22, 256, 82;
    IQ4_XS = 23, 256, 136;
    I8 = 24, 1, 1;
    I16 = 25, 1, 2;
    I32 = 26, 1, 4;
    I64 = 27, 1, 8;
    F64 = 28, 1, 8;
    IQ1_M = 29, 256, 56;
    BF16 = 30, 1, 2;
    TQ1_0 = 34, 256, 54;
    TQ2_0 = 35, 256, 66;
    MXFP4 = 39, 32, 17;
    NVFP4 = 40, 64, 36;
    Q1_0 = 41, 128, 18;
    Q2_0 = 42, 64, 18;
}

impl TensorType {
    /// Why a number that is no type is none.
    pub(super) fn refusal(id: i32) -> &'static str {
        match id {
            4 | 5 | 31..=33 | 36..=38 => {
                "is retired; convert the model again from its original, to F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, \
                 Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS or MXFP4"
            }
            _ => {
                "is unknown; a newer midstream may read it, this one reads F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, \
                 Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS and MXFP4"
            }
        }
    }
}
