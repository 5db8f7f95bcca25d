//! What `midstream doctor` found, as lines for people or as JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Grade {
    /// As it should be.
    Fine,
    /// A server starts, and somebody may be surprised.
    Doubtful,
    /// It stands in the way.
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    what: &'static str,
    text: String,
    grade: Grade,
}

/// What was looked at together.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    name: String,
    findings: Vec<Finding>,
}

impl Section {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), findings: Vec::new() }
    }

    pub(super) fn fine(&mut self, what: &'static str, text: impl Into<String>) {
        self.add(what, text, Grade::Fine);
    }

    pub(super) fn doubtful(&mut self, what: &'static str, text: impl Into<String>) {
        self.add(what, text, Grade::Doubtful);
    }

    pub(super) fn wrong(&mut self, what: &'static str, text: impl Into<String>) {
        self.add(what, text, Grade::Wrong);
    }

    pub(super) fn add(&mut self, what: &'static str, text: impl Into<String>, grade: Grade) {
        self.findings.push(Finding { what, text: text.into(), grade });
    }

    /// The worst of it.
    fn grade(&self) -> Grade {
        let has = |grade| self.findings.iter().any(|finding| finding.grade == grade);
        [Grade::Wrong, Grade::Doubtful].into_iter().find(|grade| has(*grade)).unwrap_or(Grade::Fine)
    }
}

/// Whether nothing stands in the way.
pub(super) fn are_well(sections: &[Section]) -> bool {
    sections.iter().all(|section| section.grade() != Grade::Wrong)
}

/// Writes them as lines: what is doubtful or wrong is marked.
pub(super) fn write_lines(sections: &[Section], out: &mut impl Write) -> io::Result<()> {
    for Section { name, findings } in sections {
        writeln!(out, "{name}")?;
        for Finding { what, text, grade } in findings {
            let mark = if *grade == Grade::Fine { ' ' } else { '!' };
            writeln!(out, "{mark} {what:<15}{text}")?;
        }
    }
    out.flush()
}

/// Writes them as one JSON object.
pub(super) fn write_json(sections: &[Section], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{:#}", json!({"ok": are_well(sections), "sections": sections}))?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn people_see_a_mark_where_programs_see_a_grade() {
        let mut section = Section::new("machine");
        section.fine("memory", "4 GB");
        section.doubtful("open files", "64");
        let mut text = Vec::new();
        write_lines(&[section], &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "machine\n  memory         4 GB\n! open files     64\n");
        let mut section = Section::new("journal");
        section.wrong("damaged", "all");
        let mut text = Vec::new();
        write_json(&[section], &mut text).unwrap();
        let said: Value = serde_json::from_slice(&text).unwrap();
        let finding = json!({"what": "damaged", "text": "all", "grade": "wrong"});
        assert_eq!(said, json!({"ok": false, "sections": [{"name": "journal", "findings": [finding]}]}));
    }
}
