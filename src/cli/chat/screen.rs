//! Where a chat's answers and notices go: lines that do not run into each other, on a terminal or in a pipe.
//!
//! Knows nothing of the conversation. A pipe whose reader is gone is no error here; it is remembered.

use std::io::{ErrorKind, Result, Write};

/// Where the next text would be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cursor {
    LineStart,
    /// Behind text on the same line.
    InLine,
    /// Behind the prompt, and nothing was typed there.
    AtPrompt,
}

/// The terminal, or the pipe, and standard error.
pub(super) struct Screen<O, N> {
    out: O,
    notes: N,
    pub(super) is_interactive: bool,
    cursor: Cursor,
    /// Whether nobody reads any more.
    is_unread: bool,
}

impl<O: Write, N: Write> Screen<O, N> {
    pub(super) fn new(out: O, notes: N, is_interactive: bool) -> Self {
        Self { out, notes, is_interactive, cursor: Cursor::LineStart, is_unread: false }
    }

    pub(super) fn text(&mut self, text: &str) -> Result<()> {
        self.leave_prompt()?;
        if !text.is_empty() {
            self.cursor = if text.ends_with('\n') { Cursor::LineStart } else { Cursor::InLine };
        }
        self.write(text)
    }

    pub(super) fn reasoning(&mut self, text: &str) -> Result<()> {
        if self.is_interactive { self.text(&format!("\x1b[2m{text}\x1b[0m")) } else { Ok(()) }
    }

    pub(super) fn end_line(&mut self) -> Result<()> {
        if self.cursor == Cursor::InLine { self.text("\n") } else { Ok(()) }
    }

    /// The answer was cut here; a pipe gets answers only.
    pub(super) fn steered(&mut self, text: &str) -> Result<()> {
        if !self.is_interactive {
            return Ok(());
        }
        self.end_line()?;
        self.text(&format!("> {text}\n"))
    }

    pub(super) fn notice(&mut self, text: &str) -> Result<()> {
        self.leave_prompt()?;
        self.end_line()?;
        writeln!(self.notes, "midstream: {text}")
    }

    pub(super) fn prompt(&mut self) -> Result<()> {
        if !self.is_interactive || self.cursor == Cursor::AtPrompt {
            return Ok(());
        }
        self.end_line()?;
        self.cursor = Cursor::AtPrompt;
        self.write("> ")
    }

    /// A line was typed; the terminal showed it together with its end.
    pub(super) fn on_typed_line(&mut self) {
        if self.cursor == Cursor::AtPrompt {
            self.cursor = Cursor::LineStart;
        }
    }

    /// Ctrl-C was typed; the terminal shows `^C` without a line's end.
    pub(super) fn on_interrupt(&mut self) {
        if self.is_interactive {
            self.cursor = Cursor::InLine;
        }
    }

    /// Whatever is shown next on the terminal is not of the chat.
    pub(super) fn leave(&mut self) -> Result<()> {
        self.leave_prompt()?;
        self.end_line()
    }

    /// Whether the reader of the answers is gone.
    pub(super) fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// What comes now was not typed, so it begins on a line of its own.
    fn leave_prompt(&mut self) -> Result<()> {
        if self.cursor != Cursor::AtPrompt {
            return Ok(());
        }
        self.cursor = Cursor::LineStart;
        self.write("\n")
    }

    fn write(&mut self, text: &str) -> Result<()> {
        if self.is_unread {
            return Ok(());
        }
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        self.is_unread = written.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe);
        if self.is_unread { Ok(()) } else { written }
    }
}
