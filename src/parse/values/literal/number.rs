//! A number, digit by digit as it is written.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// Behind a sign.
    Sign,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    /// The number's first byte. Python also writes `+1` and `.5`.
    pub(super) fn begin(byte: u8, python: bool, out: &mut Vec<u8>) -> Option<Self> {
        match byte {
            b'+' if python => Some(Self::Sign),
            b'-' | b'0'..=b'9' => {
                out.push(byte);
                Some(match byte {
                    b'-' => Self::Sign,
                    b'0' => Self::Zero,
                    _ => Self::Integer,
                })
            }
            b'.' if python => {
                out.extend(b"0.");
                Some(Self::Point)
            }
            _ => None,
        }
    }

    /// The next byte, if the number goes on with it. Python also writes `1_000`.
    pub(super) fn next(self, byte: u8, python: bool, out: &mut Vec<u8>) -> Option<Self> {
        let next = match (self, byte) {
            (Self::Sign, b'0') => Self::Zero,
            (Self::Sign, b'1'..=b'9') | (Self::Integer, b'0'..=b'9') => Self::Integer,
            (Self::Integer | Self::Fraction, b'_') if python => return Some(self),
            (Self::Sign, b'.') if python => {
                out.push(b'0');
                Self::Point
            }
            (Self::Zero | Self::Integer, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Point, b'e' | b'E') if python => {
                out.push(b'0');
                Self::Exponent
            }
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Self::Exponent,
            (Self::Exponent, b'+' | b'-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, b'0'..=b'9') => Self::ExponentDigits,
            _ => return None,
        };
        out.push(byte);
        Some(next)
    }

    /// The number ends; whether it is one.
    pub(super) fn end(self, python: bool, out: &mut Vec<u8>) -> bool {
        if self == Self::Point && python {
            out.push(b'0');
        }
        match self {
            Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits => true,
            Self::Point => python,
            Self::Sign | Self::Exponent | Self::ExponentSign => false,
        }
    }
}
