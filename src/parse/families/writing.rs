//! How a family writes calls, for whoever holds a model to that form. Read may be more than is written.

/// Calls that stand together: `open`, a call, as many times `between` and a call as there are more, `close`.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    /// In front of the first call.
    pub open: &'static str,
    /// The beginning of every call.
    pub begin: &'static str,
    /// How a call goes on: in the family's own way, or in another that its parser reads.
    pub ways: &'static [&'static [CallPart]],
    /// Between two calls.
    pub between: &'static str,
    /// Behind the last call.
    pub close: &'static str,
    /// Whether there can be several.
    pub several: bool,
    /// Whether it takes no mark to tell a call: then it is one where the answer begins so.
    pub unmarked: bool,
}

/// A part of a call.
#[derive(Clone, Copy, Debug)]
pub enum CallPart {
    /// This.
    Text(&'static str),
    /// The tool's name.
    Name,
    /// The same as a JSON string.
    QuotedName,
    /// Any number.
    Number,
    /// All arguments as a JSON object.
    Object,
    /// The arguments, one behind the other.
    Each(&'static Each),
}

/// How arguments are written that stand for themselves. In the texts `$key` is the name of the argument, and `$kind`
/// that of its JSON type.
#[derive(Clone, Copy, Debug)]
pub struct Each {
    /// In front of a string, and behind it.
    pub text: [&'static str; 2],
    /// Whether a string is written as it is, up to what stands behind it; else it is a JSON string.
    pub is_raw: bool,
    /// In front of what is no string, and behind it.
    pub other: [&'static str; 2],
    /// How true, false and nothing are written.
    pub words: [&'static str; 3],
    /// Whether arrays and objects are JSON.
    pub nests_json: bool,
    /// Between two arguments.
    pub between: &'static str,
}

/// JSON's own words.
pub(super) const JSON_WORDS: [&str; 3] = ["true", "false", "null"];

/// A JSON object with name and arguments, in the text between two others.
macro_rules! call_object {
    ($key:literal, $behind:literal) => {
        &[
            CallPart::Text("{\"name\": "),
            CallPart::QuotedName,
            CallPart::Text(concat!(", \"", $key, "\": ")),
            CallPart::Object,
            CallPart::Text(concat!("}", $behind)),
        ]
    };
}
pub(super) use call_object;

/// A call object that is the whole answer: every model can write it, and every family's parser reads it where calls
/// need no mark.
pub const BARE_CALL: Writing = Writing {
    open: "",
    begin: "",
    ways: &[call_object!("arguments", "")],
    between: "",
    close: "",
    several: false,
    unmarked: true,
};

/// Call objects in an array between two marks.
pub(super) const fn listed(open: &'static str, close: &'static str) -> Writing {
    Writing { open, between: ", ", close, several: true, unmarked: false, ..BARE_CALL }
}

/// The form of Qwen3-Coder behind `<tool_call>`.
pub(super) const XML: &[CallPart] = &[
    CallPart::Text("<function="),
    CallPart::Name,
    CallPart::Text(">\n"),
    CallPart::Each(&Each {
        text: ["<parameter=$key>\n", "\n</parameter>\n"],
        is_raw: true,
        other: ["<parameter=$key>\n", "\n</parameter>\n"],
        words: JSON_WORDS,
        nests_json: true,
        between: "",
    }),
    CallPart::Text("</function>\n</tool_call>"),
];

/// The form of Hermes behind `<tool_call>`.
pub(super) const OBJECT: &[CallPart] = call_object!("arguments", "\n</tool_call>");

/// Calls in `<tool_call>`, each way behind it.
pub(super) const fn in_tool_call(ways: &'static [&'static [CallPart]]) -> Writing {
    Writing { begin: "<tool_call>\n", ways, between: "\n", several: true, unmarked: false, ..BARE_CALL }
}
