//! One call whose name stands in front of its arguments, which are a JSON object: the part that several families
//! share. What stands around it is theirs.

use super::Step;
use super::arguments::Arguments;
use super::literal::Until;
use crate::parse::calls::Calls;
use crate::parse::json_scanner::Scan;

/// Where the call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The byte is kept; whether it is a call is not known yet.
    Held,
    /// The byte belongs to the call.
    Taken,
    /// The arguments ended with this byte, and the call is announced.
    Complete,
    /// This is no call.
    NotACall,
    /// The arguments broke; what follows up to the closing literal is theirs too. Which literal is whole now.
    Closed(usize),
}

/// Reads a call's arguments.
#[derive(Debug)]
pub(super) struct NamedCall {
    name: String,
    id: Option<String>,
    arguments: Arguments,
    announced: bool,
    closing: &'static [&'static str],
    broken: Option<Until>,
}

impl NamedCall {
    /// A call of this name, whose arguments, should they break, end at one of these.
    pub(super) fn new(name: String, id: Option<String>, closing: &'static [&'static str]) -> Self {
        Self { name, id, arguments: Arguments::new(), announced: false, closing, broken: None }
    }

    pub(super) fn push(&mut self, byte: u8, calls: &mut Calls) -> Progress {
        if self.broken.is_some() {
            return self.broken(byte, calls);
        }
        let scan = self.arguments.push(byte);
        if self.arguments.is_ready() && self.arguments.is_object() {
            if !self.announced {
                calls.start_with_id(&self.name, self.id.as_deref());
                self.announced = true;
            }
            self.arguments.pass(calls);
        }
        match scan {
            Scan::More if self.announced => Progress::Taken,
            Scan::More => Progress::Held,
            Scan::Done if self.announced => Progress::Complete,
            _ if !self.announced => Progress::NotACall,
            _ => {
                self.broken = Some(Until::new(self.closing));
                self.broken(byte, calls)
            }
        }
    }

    fn broken(&mut self, byte: u8, calls: &mut Calls) -> Progress {
        let Some(until) = &mut self.broken else {
            return Progress::NotACall;
        };
        if let Some(which) = until.push_which(byte, |bytes| calls.append(bytes)) {
            calls.done(false);
            return Progress::Closed(which);
        }
        if until.kept().is_empty() { Progress::Taken } else { Progress::Held }
    }

    /// The output ends inside the arguments.
    pub(super) fn finish(&mut self, calls: &mut Calls) {
        if let Some(until) = &self.broken {
            calls.append(until.kept());
        }
        calls.done(false);
    }
}

impl From<Progress> for Step {
    fn from(progress: Progress) -> Self {
        match progress {
            Progress::Held => Self::Held,
            Progress::NotACall => Self::NotACall,
            Progress::Taken | Progress::Complete | Progress::Closed(_) => Self::Taken,
        }
    }
}
