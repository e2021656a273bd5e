//! What is written once for all enums and records.

/// An enum of the C interface. A value that this version does not know is kept in `Other`.
macro_rules! c_enum {
    ($(#[$doc:meta])* pub enum $name:ident: $int:ty { $($(#[$vdoc:meta])* $v:ident = $c:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$vdoc])* $v,)*
            /// A value that this version of the crate has no name for.
            Other($int),
        }

        impl $name {
            /// The value of the C interface.
            pub fn raw(self) -> $int {
                match self {
                    $($name::$v => kvcsa_sys::$c,)*
                    $name::Other(value) => value,
                }
            }

            /// The name of a value of the C interface.
            pub fn from_raw(value: $int) -> Self {
                match value {
                    $(kvcsa_sys::$c => $name::$v,)*
                    other => $name::Other(other),
                }
            }
        }

        impl crate::raw::Take<$int> for $name {
            fn take(raw: $int) -> Self {
                $name::from_raw(raw)
            }
        }
    };
}

/// A struct that the library fills, with the types of Rust and without what is for the ABI alone.
macro_rules! record {
    ($(#[$doc:meta])* pub struct $name:ident from $raw:ident { $($(#[$fdoc:meta])* $f:ident: $t:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$fdoc])* pub $f: $t,)*
        }

        impl $name {
            #[allow(dead_code)] // of a record that comes in an array, its owner's Take alone is used
            pub(crate) fn from_raw(raw: &kvcsa_sys::$raw) -> Self {
                $name { $($f: crate::raw::Take::take(raw.$f),)* }
            }
        }

        impl crate::raw::Take<kvcsa_sys::$raw> for $name {
            fn take(raw: kvcsa_sys::$raw) -> Self {
                $name::from_raw(&raw)
            }
        }
    };
}

/// Structs of the C interface that begin with their size.
macro_rules! tagged {
    ($($raw:ident),* $(,)?) => {
        $(
            impl crate::raw::Tagged for kvcsa_sys::$raw {
                fn tagged() -> Self {
                    // SAFETY: numbers and pointers, for which zero bytes are values.
                    let mut raw: Self = unsafe { std::mem::zeroed() };
                    raw.struct_size = std::mem::size_of::<Self>();
                    raw
                }
            }
        )*
    };
}
