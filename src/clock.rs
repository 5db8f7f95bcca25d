//! The one place that reads time; only the threads of the kernels time their own waits. Everything else is handed a
//! [`Clock`] or a value.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A source of wall-clock time, real or driven by a test.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's clock.
    #[default]
    System,
    /// A clock that moves only when a test says so; the value is in milliseconds since the Unix epoch.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Milliseconds since the Unix epoch.
    pub fn unix_ms(&self) -> u64 {
        match self {
            #[allow(clippy::disallowed_methods)] // this is the one place
            Self::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
            }
            Self::Manual(now_ms) => now_ms.load(Ordering::SeqCst),
        }
    }
}

/// A point on the monotonic clock, for measuring how long something took.
#[allow(clippy::disallowed_methods)] // this is the one place
pub fn monotonic() -> Instant {
    Instant::now()
}

/// A time in seconds since the Unix epoch as RFC 3339: the proleptic Gregorian calendar, counted in 400-year cycles
/// from the first of March of the year 0, so that leap days are the last of their years.
pub fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year_of_cycle = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month_from_march + 2) / 5 + 1, (month_from_march + 2) % 12 + 1);
    let year = cycle * 400 + year_of_cycle + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_a_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
