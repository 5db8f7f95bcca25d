//! The instruction sets there are kernels for, and the choice among them.
//! An [`Isa`] can only be made after the processor was seen to support it: holding one is the proof that the kernels'
//! `target_feature` functions may be called. It must never be built anywhere else.

use crate::Error;

/// An instruction set this processor is known to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Plain Rust, any processor.
    Scalar,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI, with everything of `Avx2`.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON with the dot product instructions.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// The variable that forces an instruction set.
const VARIABLE: &str = "MIDSTREAM_ISA";

/// The names of all instruction sets there are kernels for.
const NAMES: [&str; 4] = ["scalar", "avx2", "avx512", "neon"];

impl Isa {
    /// Plain Rust; every processor has it.
    pub const SCALAR: Self = Self(Kind::Scalar);

    /// The instruction sets of this processor, slowest first. The first is always [`Isa::SCALAR`].
    pub fn available() -> Vec<Self> {
        #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(unused_mut))]
        let mut found = vec![Self::SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vnni");
            if avx2 {
                found.push(Self(Kind::Avx2));
            }
            if avx2 && avx512 {
                found.push(Self(Kind::Avx512));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") && std::arch::is_aarch64_feature_detected!("dotprod") {
            found.push(Self(Kind::Neon));
        }
        found
    }

    /// The best instruction set of this processor, or the one `MIDSTREAM_ISA` names.
    pub fn select() -> Result<Self, Error> {
        match std::env::var_os(VARIABLE) {
            Some(name) if !name.is_empty() => Self::named(&name.to_string_lossy()),
            _ => Ok(Self::available().last().copied().unwrap_or(Self::SCALAR)),
        }
    }

    /// The instruction set of that name (`scalar`, `avx2`, `avx512`, `neon`), if this processor has it.
    pub fn named(name: &str) -> Result<Self, Error> {
        let Some(wanted) = NAMES.into_iter().find(|known| *known == name) else {
            return Err(Error::UnknownIsa(name.to_owned()));
        };
        let available = Self::available();
        available.iter().copied().find(|isa| isa.name() == wanted).ok_or_else(|| Error::UnsupportedIsa {
            wanted,
            available: available.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// The name [`Isa::named`] accepts.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
        }
    }

    pub(crate) fn kind(self) -> Kind {
        self.0
    }
}

/// Makes `fn name(isa, arguments)` that runs one generic, always-inlined body compiled once per instruction set. The
/// body takes the [`crate::simd::Simd`] of that instruction set as its type parameter. Plain Rust bodies keep their
/// order of operations on every instruction set, so all versions give the same bits.
macro_rules! for_each_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $body:ident;) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) {
                $body::<$crate::simd::Avx2>($($arg),*);
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
            fn avx512($($arg: $ty),*) {
                $body::<$crate::simd::Avx512>($($arg),*);
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon,dotprod")]
            fn neon($($arg: $ty),*) {
                $body::<$crate::simd::Neon>($($arg),*);
            }
            match isa.kind() {
                $crate::isa::Kind::Scalar => $body::<$crate::simd::Plain>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this kind exists only where the processor has these features.
                $crate::isa::Kind::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this kind exists only where the processor has these features.
                $crate::isa::Kind::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: an `Isa` of this kind exists only where the processor has these features.
                $crate::isa::Kind::Neon => unsafe { neon($($arg),*) },
            }
        }
    };
}
pub(crate) use for_each_isa;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_available_and_first() {
        assert_eq!(Isa::available()[0], Isa::SCALAR);
    }

    #[test]
    fn every_available_isa_is_found_by_its_name() {
        for isa in Isa::available() {
            assert_eq!(Isa::named(isa.name()).unwrap(), isa);
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_says_what_to_use() {
        let text = Isa::named("sse9").unwrap_err().to_string();
        assert!(text.contains("sse9") && text.contains("avx512") && text.contains("neon"), "{text}");
    }
}
