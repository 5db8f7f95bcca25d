//! What is logged: lines on standard error, as text or as JSON. `MIDSTREAM_LOG` says which.

use std::env::{self, VarError};
use std::io;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// What is logged where nothing is asked for.
const USUAL: &str = "midstream=info,warn";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// What stands in `MIDSTREAM_LOG` means nothing.
#[derive(Debug, thiserror::Error)]
#[error("MIDSTREAM_LOG: {0}; set a level ({levels}), or levels of parts: {USUAL}", levels = LEVELS.join(", "))]
pub struct Unreadable(String);

/// Begins to log, to standard error.
pub fn start(format: LogFormat) -> Result<(), Unreadable> {
    let log = tracing_subscriber::fmt().with_env_filter(filter()?).with_writer(io::stderr).with_ansi(false);
    // A second start in one process keeps the first log.
    let _ = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init(),
    };
    Ok(())
}

/// Refuses what cannot be read, before anything is done that would be logged.
pub fn check() -> Result<(), Unreadable> {
    filter().map(drop)
}

fn filter() -> Result<EnvFilter, Unreadable> {
    match env::var("MIDSTREAM_LOG") {
        Ok(text) => read(&text),
        Err(VarError::NotPresent) => read(USUAL),
        Err(VarError::NotUnicode(_)) => Err(Unreadable("it is no text".to_owned())),
    }
}

fn read(text: &str) -> Result<EnvFilter, Unreadable> {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let parts: Vec<_> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    // The filter would take a word that is no level for the name of a part, and log nothing else.
    for part in &parts {
        let level = part.rsplit_once('=').map_or(*part, |(_, level)| level.trim());
        if !is_level(level) {
            return Err(Unreadable(format!("{level:?} is no level")));
        }
    }
    let wanted = if parts.is_empty() { USUAL.to_owned() } else { parts.join(",") };
    EnvFilter::try_new(wanted).map_err(|error| Unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_and_what_is_none_is_refused_in_words() {
        for text in ["", "debug", "WARN", "midstream=debug,warn", " midstream::api=trace , off ", "info,"] {
            assert!(read(text).is_ok(), "{text}");
        }
        for text in ["bogus", "midstream", "midstream=loud", "info,verbose", "3"] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.contains("is no level") && said.contains("error, warn, info, debug"), "{said}");
        }
    }
}
