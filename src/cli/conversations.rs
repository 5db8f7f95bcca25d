//! `midstream conversations`: the journal as JSON lines, out and in again. The way to another machine or version.
//!
//! Works on a data folder that no server uses; the store's own lock sees to that.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::config::{Config, Flags};
use crate::store::{SledJournal, dump, load};

/// What is set on the command line.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write all conversations to standard output
    Dump(Folder),
    /// Read a dump from standard input into an empty data folder
    Load(Folder),
}

#[derive(Args, Debug)]
struct Folder {
    /// Where conversations are kept [default: midstream-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl Folder {
    /// The folder that `serve` would use with the same settings.
    fn path(self) -> anyhow::Result<PathBuf> {
        let variables =
            std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)));
        let flags = Flags { data_dir: self.data_dir, ..Flags::default() };
        Ok(Config::load(None, variables, flags)?.data_dir)
    }
}

/// Dumps or loads; counts go to standard error, so that a dump is nothing but the dump.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.action {
        Action::Dump(folder) => {
            let path = folder.path()?;
            anyhow::ensure!(path.is_dir(), "there is no data folder {}; name one with --data-dir", path.display());
            let mut out = BufWriter::new(io::stdout().lock());
            let summary = dump(&SledJournal::open(&path)?, &mut out)?;
            out.flush()?;
            report(summary.conversations, summary.events)?;
            let damaged = summary.damaged.len() + summary.damaged_records;
            anyhow::ensure!(damaged == 0, "{damaged} conversations or records are damaged and are not in the dump");
        }
        Action::Load(folder) => {
            let summary = load(&SledJournal::open(folder.path()?)?, &mut io::stdin().lock())?;
            report(summary.conversations, summary.events)?;
        }
    }
    Ok(())
}

fn report(conversations: usize, events: usize) -> io::Result<()> {
    writeln!(io::stderr(), "{conversations} conversations, {events} events")
}
