//! `midstream conversations`: the journal for operators: look at it, take it elsewhere as JSON lines, tidy it, mend it.
//!
//! Works on a data folder that no server uses; the store's own lock sees to that. Standard output carries the data and
//! nothing else, standard error what is said about it.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::clock::rfc3339;
use crate::config::{Config, Flags, LogFormat};
use crate::conversation::{Recorded, State, Usage, title};
use crate::engine::settings::units;
use crate::ids::ConversationId;
use crate::log;
use crate::store::{
    Batch, DamageReport, Error, Journal, KvFiles, SledJournal, compact, dump, find_damage, holds_journal, inspect,
    load, mend,
};

/// Conversations or events read at a time.
const PAGE: usize = 512;

/// How it is used.
const EXAMPLES: &str = "\
Examples:
  midstream conversations list --data-dir /var/lib/midstream
  midstream conversations show conv_018f0000000070008000000000000000
  midstream conversations delete conv_018f0000000070008000000000000000
  midstream conversations dump > conversations.jsonl
  midstream conversations load --data-dir new < conversations.jsonl
  midstream conversations compact
  midstream conversations repair            # says what a repair would lose; with --apply, does it

They work on a data folder that no server uses. Without --data-dir it is the one that a server would use here.";

/// What is set on the command line.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write one JSON line about each conversation to standard output
    List(Folder),
    /// Write a conversation's events to standard output, one JSON line each
    Show(One),
    /// Delete a conversation for good
    Delete(One),
    /// Write all conversations to standard output
    Dump(Folder),
    /// Read a dump from standard input into an empty data folder
    Load(Folder),
    /// Write the journal anew, so that the bytes of what was deleted leave the disk
    Compact(Folder),
    /// Say what is damaged and what a repair would lose; with --apply, repair it
    Repair(Repair),
}

#[derive(Args, Debug)]
struct Folder {
    /// Where conversations are kept [default: midstream-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct One {
    /// The conversation
    #[arg(value_name = "ID")]
    id: ConversationId,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Args, Debug)]
struct Repair {
    /// Cut the journal of each damaged conversation in front of the damage
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    folder: Folder,
}

impl Folder {
    /// The settings with the folder that `serve` would use.
    fn settings(self) -> anyhow::Result<Config> {
        let variables =
            std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)));
        let flags = Flags { data_dir: self.data_dir, ..Flags::default() };
        Ok(Config::load(None, variables, flags)?)
    }

    /// As [`Folder::settings`], of a folder that is there.
    fn existing(self) -> anyhow::Result<Config> {
        let settings = self.settings()?;
        let path = &settings.data_dir;
        let shown = path.display();
        anyhow::ensure!(holds_journal(path), "{shown} is no data folder of midstream's; name one with --data-dir");
        Ok(settings)
    }

    /// Shows a copy of the journal, so that nothing in the folder changes, with what is left of it.
    fn look(self, show: impl FnOnce(&SledJournal) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let look = |journal: &SledJournal| (show(journal), journal.lost().map(str::to_owned));
        let (shown, lost) = inspect(&self.existing()?.data_dir, look)?;
        if let Some(lost) = lost {
            anyhow::bail!("{lost}; this is what is left, see midstream conversations repair");
        }
        shown
    }
}

/// Does what is asked.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    log::start(LogFormat::Text)?;
    match arguments.action {
        Action::List(folder) => folder.look(list),
        Action::Show(One { id, folder }) => folder.look(|journal| show(journal, id)),
        Action::Delete(One { id, folder }) => {
            let settings = folder.existing()?;
            delete(&open(&settings)?, id)?;
            KvFiles::open(&settings.data_dir, u64::MAX)?.discard(id);
            Ok(())
        }
        Action::Dump(folder) => folder.look(dump_all),
        Action::Load(folder) => {
            let summary = load(&open(&folder.settings()?)?, &mut io::stdin().lock())?;
            Ok(report(summary.conversations, summary.events)?)
        }
        Action::Compact(folder) => {
            let settings = folder.existing()?;
            let done = compact(&settings.data_dir, settings.journal_kept_bytes_max)?;
            report(done.conversations, done.events)?;
            Ok(writeln!(io::stderr(), "{} bytes before, {} bytes after", done.bytes_before, done.bytes_after)?)
        }
        Action::Repair(Repair { apply, folder }) => repair(&folder.existing()?.data_dir, apply),
    }
}

/// Opens the journal to change it: as `serve` does, which keeps one that is damaged as it was found.
fn open(settings: &Config) -> Result<SledJournal, Error> {
    SledJournal::open_keeping(&settings.data_dir, settings.journal_kept_bytes_max)
}

fn report(conversations: usize, events: usize) -> io::Result<()> {
    writeln!(io::stderr(), "{conversations} conversations, {events} events")
}

fn dump_all(journal: &SledJournal) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let summary = dump(journal, &mut out)?;
    out.flush()?;
    report(summary.conversations, summary.events)?;
    for damage in &summary.damaged {
        writeln!(io::stderr(), "{damage}")?;
    }
    let damaged = summary.damaged.len() + summary.damaged_records;
    anyhow::ensure!(
        damaged == 0,
        "{damaged} conversations or records are damaged and not whole in the dump; see midstream conversations repair"
    );
    Ok(())
}

fn list(journal: &SledJournal) -> anyhow::Result<()> {
    let active: std::collections::HashSet<_> = journal.active()?.into_iter().collect();
    let mut out = BufWriter::new(io::stdout().lock());
    let mut after = None;
    loop {
        let page = journal.conversations(after, PAGE)?;
        for id in &page {
            let mut line = about(journal, *id, active.contains(id)).unwrap_or_else(|_| json!({"conversation": id}));
            let mut state = State::default();
            let seen = visit(journal, *id, &mut |_, recorded| {
                state.apply(recorded);
                Ok(())
            });
            if state.id.is_some() {
                line["title"] = title(&state).into();
                line["created_at"] = rfc3339(state.created_ms / 1000).into();
            }
            if let Some(ms) = line["last_at_ms"].as_u64() {
                line["last_at"] = rfc3339(ms / 1000).into();
            }
            if let Err(damage) = seen {
                line["damaged"] = damage.to_string().into();
            }
            writeln!(out, "{line}")?;
        }
        match page.last() {
            Some(last) => after = Some(*last),
            None => return Ok(out.flush()?),
        }
    }
}

/// What can be told of a conversation without reading its events.
fn about(journal: &SledJournal, id: ConversationId, is_active: bool) -> Result<Value, Error> {
    let oldest_seq = journal.oldest_seq(id)?;
    let event_bytes = journal.event_bytes(id, oldest_seq)?;
    Ok(json!({
        "conversation": id, "oldest_seq": oldest_seq, "last_seq": journal.last_seq(id)?,
        "last_at_ms": journal.last_at_ms(id)?, "event_bytes": event_bytes,
        "kept_bytes": journal.event_bytes(id, 1)?.saturating_sub(event_bytes),
        "epoch": journal.epoch(id)?.epoch, "active": is_active,
    }))
}

/// Refuses an id that the store does not know; one whose head is damaged is known.
fn check_known(journal: &SledJournal, id: ConversationId) -> anyhow::Result<()> {
    anyhow::ensure!(journal.last_seq(id) != Ok(0), "there is no conversation {id}; see midstream conversations list");
    Ok(())
}

/// Shows what is kept of trimmed events, marked as such, then the events; and says what all of it came to.
fn show(journal: &SledJournal, id: ConversationId) -> anyhow::Result<()> {
    check_known(journal, id)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut state = State::default();
    let shown = visit(journal, id, &mut |is_kept, recorded| {
        state.apply(recorded);
        let mut line = serde_json::to_value(recorded)?;
        if is_kept {
            line["kept"] = true.into();
        }
        Ok(writeln!(out, "{line}")?)
    });
    out.flush()?;
    shown?;
    Ok(writeln!(io::stderr(), "{}", spent(&state))?)
}

/// The tokens of a conversation's responses, and what they cost where their model had a price.
fn spent(state: &State) -> String {
    let usages = || state.responses.iter().map(|response| &response.usage);
    let sum = |of: fn(&Usage) -> u32| usages().map(|usage| u64::from(of(usage))).sum::<u64>();
    let (input, cached, output) =
        (sum(|usage| usage.input_tokens), sum(|usage| usage.cached_tokens), sum(|usage| usage.output_tokens));
    let cost = usages().filter_map(|usage| usage.cost_nanos).reduce(u64::saturating_add);
    let cost = cost.map(|nanos| format!("; cost {}", units(nanos))).unwrap_or_default();
    format!("{input} tokens in ({cached} of them cached), {output} out{cost}")
}

/// Gives what is kept of trimmed events, then the events, to `each`, and says whether an event is of the first. What
/// lies in front of a damage is given before that is told.
fn visit(
    journal: &SledJournal,
    id: ConversationId,
    each: &mut dyn FnMut(bool, &Recorded) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let oldest = journal.oldest_seq(id)?;
    let mut after = 0;
    loop {
        let is_kept = after + 1 < oldest;
        let page = |limit| if is_kept { journal.kept(id, after, limit) } else { journal.read(id, after, limit) };
        // One at a time where a page holds damage.
        let page = page(PAGE).or_else(|_| page(1))?;
        page.iter().try_for_each(|recorded| each(is_kept, recorded))?;
        match page.last() {
            Some(last) => after = last.seq,
            None => return Ok(()),
        }
    }
}

fn delete(journal: &SledJournal, id: ConversationId) -> anyhow::Result<()> {
    check_known(journal, id)?;
    journal.append(&[Batch::deletion(id)])?;
    while journal.purge()? {}
    writeln!(io::stderr(), "{id} is deleted; its bytes leave the disk with midstream conversations compact")?;
    Ok(())
}

fn repair(folder: &Path, apply: bool) -> anyhow::Result<()> {
    let mended = if apply { Some(mend(folder)?) } else { None };
    let (found, kept) = match mended {
        Some(mended) => (mended.found, mended.kept),
        None => (inspect(folder, find_damage)??, None),
    };
    say_damage(&found, &mut io::stdout().lock())?;
    if found.is_empty() {
        writeln!(io::stderr(), "nothing is damaged")?;
    } else if let Some(kept) = kept {
        let kept = kept.display();
        writeln!(
            io::stderr(),
            "repaired; readers of what was cut are told with conversation.rewound; the journal as it was is kept as \
             {kept}"
        )?;
    } else {
        anyhow::bail!("nothing was changed; repair it with --apply, which keeps the journal as it is");
    }
    Ok(())
}

/// Says what is damaged, whose it is, and what a repair would lose.
pub(super) fn say_damage(found: &DamageReport, out: &mut dyn Write) -> io::Result<()> {
    if let Some(lost) = &found.lost {
        writeln!(
            out,
            "{lost}: any conversation may end earlier than a client has seen, or be back though it was deleted; a \
             repair goes on with what is left and tells the readers of all"
        )?;
    }
    for damage in &found.conversations {
        let (id, seq, why) = (damage.conversation, damage.seq, &damage.why);
        let events = match damage.last_seq {
            Some(last) => format!("{} events", (last + 1).saturating_sub(seq)),
            None => "what lies behind it".to_owned(),
        };
        let (responses, steers) = (damage.lost_responses.len(), damage.lost_interventions.len());
        let done = if seq == 1 { "deletes it" } else { "cuts it there" };
        writeln!(
            out,
            "{id} is damaged at seq {seq}: {why}; a repair {done} and loses {events}, {responses} responses and \
             {steers} interventions"
        )?;
        for lost in &damage.lost_responses {
            writeln!(out, "  {lost}")?;
        }
    }
    if found.is_unreadable {
        writeln!(out, "a part of the journal's files cannot be read; a repair writes anew what can be")?;
    }
    let (known, lost) = (found.records_known, found.records_lost);
    if known + lost > 0 {
        writeln!(
            out,
            "{} records of the index are damaged; a repair writes {known} anew and loses {lost}",
            known + lost
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Damage;

    #[test]
    fn a_damage_is_told_with_its_seq_and_with_what_a_repair_loses() {
        let damage = Damage {
            conversation: ConversationId::from_bytes([1; 16]),
            seq: 5,
            last_seq: Some(9),
            why: "the checksum does not match".into(),
            lost_responses: vec![crate::ids::ResponseId::from_bytes([2; 16])],
            lost_interventions: vec![],
        };
        let headless = Damage { seq: 1, last_seq: None, lost_responses: vec![], ..damage.clone() };
        let found = DamageReport {
            conversations: vec![damage, headless],
            records_known: 2,
            records_lost: 1,
            ..DamageReport::default()
        };
        let mut said = Vec::new();
        say_damage(&found, &mut said).unwrap();
        let said = String::from_utf8(said).unwrap();
        for part in [
            "is damaged at seq 5: the checksum does not match; a repair cuts it there and loses 5 events, 1 responses",
            "\n  resp_0202",
            "a repair deletes it and loses what lies behind it, 0 responses",
            "3 records of the index are damaged; a repair writes 2 anew and loses 1",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
}
