//! The macro that declares the rules of a structure.

/// Declares an enum of rules: each with its documentation, which is also what a report says.
macro_rules! rules {
    (
        $(#[$outer:meta])*
        pub enum $name:ident of $structure:literal {
            $($(#[$inner:meta])* $variant:ident => $text:literal,)+
        }
    ) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $(
                $(#[$inner])*
                $variant,
            )+
        }

        impl platter_ondisk::Rule for $name {
            const STRUCTURE: &'static str = $structure;

            fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}
