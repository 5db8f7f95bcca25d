//! Where in prose a marker is only spoken of: in a fenced block, in a code span, behind an opening quotation mark.

/// Follows the text of one channel.
#[derive(Clone, Debug)]
pub(super) struct Prose {
    /// The fence that is open: its character and length.
    fence: Option<(u8, usize)>,
    /// The length of the backtick run that opened a code span in this line.
    span: usize,
    line: Line,
    /// The run of fence characters or backticks that is being read.
    run: (u8, usize),
    /// The last byte, if it is an opening quotation mark.
    quoted: Option<u8>,
    /// Whether a quotation mark now would open.
    opens: bool,
}

/// Where in a line the text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Only spaces so far.
    Start(usize),
    /// In a run of fence characters at its beginning.
    Fence,
    /// Behind a run that may close the fence, if only white space follows.
    Behind,
    Inside,
}

/// A fence that is indented further is code by its indentation.
const INDENT_MAX: usize = 3;
const FENCE_MIN: usize = 3;

impl Prose {
    pub(super) fn new() -> Self {
        Self { fence: None, span: 0, line: Line::Start(0), run: (0, 0), quoted: None, opens: true }
    }

    /// Whether what begins here is spoken of, not said.
    pub(super) fn quotes(&self) -> bool {
        let fence_begins = self.line == Line::Fence && self.run.1 >= FENCE_MIN;
        // A run of backticks that ends here opens or closes a span.
        let span = match self.run {
            (b'`', length) if self.line == Line::Inside || length < FENCE_MIN => match self.span {
                0 => length,
                open if open == length => 0,
                open => open,
            },
            _ => self.span,
        };
        self.quoted.is_some() || self.fence.is_some() || fence_begins || span > 0
    }

    /// What closes the quotation or the code span that opens directly in front of this place.
    pub(super) fn opened(&self) -> Option<u8> {
        let spans =
            |length| self.fence.is_none() && self.span == 0 && (self.line == Line::Inside || length < FENCE_MIN);
        match self.run {
            (b'`', length) if spans(length) => Some(b'`'),
            _ => self.quoted,
        }
    }

    pub(super) fn push(&mut self, text: &str) {
        for &byte in text.as_bytes() {
            self.byte(byte);
        }
    }

    fn byte(&mut self, byte: u8) {
        if self.run.1 > 0 && byte == self.run.0 {
            self.run.1 += 1;
            self.quoted = None;
            return;
        }
        if self.run.1 > 0 {
            self.end_run();
        }
        match byte {
            b'\n' => self.line_ends(),
            b'`' | b'~' => self.begin_run(byte),
            b' ' if matches!(self.line, Line::Start(_)) => {
                if let Line::Start(indent) = self.line {
                    self.line = Line::Start(indent + 1);
                }
            }
            b' ' | b'\t' | b'\r' => {}
            _ => self.line = Line::Inside,
        }
        self.quoted = Some(byte).filter(|byte| matches!(byte, b'"' | b'\'') && self.opens);
        self.opens = matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'(' | b'[' | b'{' | b'=' | b':' | b',');
    }

    fn begin_run(&mut self, byte: u8) {
        match self.line {
            Line::Start(indent) if indent <= INDENT_MAX => self.line = Line::Fence,
            _ => self.line = Line::Inside,
        }
        self.run = (byte, 1);
    }

    /// A run of fence characters or backticks has ended.
    fn end_run(&mut self) {
        let (byte, length) = std::mem::take(&mut self.run);
        if self.line == Line::Fence && length >= FENCE_MIN {
            match self.fence {
                None => {
                    self.fence = Some((byte, length));
                    self.line = Line::Inside;
                }
                Some((open, least)) if open == byte && length >= least => self.line = Line::Behind,
                Some(_) => self.line = Line::Inside,
            }
            return;
        }
        self.line = Line::Inside;
        if byte == b'`' && self.fence.is_none() {
            self.span = match self.span {
                0 => length,
                open if open == length => 0,
                open => open,
            };
        }
    }

    /// A code span that is not closed in its line is none: a stray backtick must not swallow the calls behind it.
    fn line_ends(&mut self) {
        if self.line == Line::Behind {
            self.fence = None;
        }
        self.span = 0;
        self.line = Line::Start(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotes(text: &str) -> bool {
        let mut prose = Prose::new();
        prose.push(text);
        prose.quotes()
    }

    #[test]
    fn what_stands_in_code_is_spoken_of() {
        for text in
            ["```\n", "```", "a\n  ~~~ xml\nb", "`", "say `a", "``a`", "\"", "write '", "````\n```\n", "``` a\nb `c"]
        {
            assert!(quotes(text), "{text:?}");
        }
        for text in [
            "",
            "a",
            "```\na\n```\n",
            "`a`",
            "`a` b",
            "a ` b\n",
            "it's",
            "\"a\"",
            "5\"",
            "a ``` b\n",
            "~~~\n~~~~ \n",
            "``a``",
        ] {
            assert!(!quotes(text), "{text:?}");
        }
    }
}
