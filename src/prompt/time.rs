//! `strftime_now`: the date in templates, from the time the caller hands in, always UTC.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

struct Parts {
    year: i64,
    month: usize,
    day: usize,
    day_of_year: usize,
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

/// The time in the notation of C's `strftime`; what is not known stays as it is.
pub(super) fn format(unix_ms: u64, pattern: &str) -> String {
    let parts = parts(unix_ms / 1000);
    let mut out = String::new();
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = characters.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = characters.next();
        }
        let Some(directive) = directive else {
            out.push('%');
            break;
        };
        let Some(text) = expand(&parts, directive) else {
            out.extend(['%', directive]);
            continue;
        };
        out.push_str(if unpadded && text.len() > 1 { text.trim_start_matches('0') } else { &text });
    }
    out
}

fn expand(parts: &Parts, directive: char) -> Option<String> {
    let hour_of_half = (parts.hour + 11) % 12 + 1;
    Some(match directive {
        'Y' => parts.year.to_string(),
        'y' => format!("{:02}", parts.year % 100),
        'm' => format!("{:02}", parts.month + 1),
        'd' => format!("{:02}", parts.day),
        'e' => format!("{:2}", parts.day),
        'j' => format!("{:03}", parts.day_of_year),
        'B' => MONTHS[parts.month].to_owned(),
        'b' | 'h' => MONTHS[parts.month][..3].to_owned(),
        'A' => WEEKDAYS[parts.weekday].to_owned(),
        'a' => WEEKDAYS[parts.weekday][..3].to_owned(),
        'H' => format!("{:02}", parts.hour),
        'I' => format!("{hour_of_half:02}"),
        'M' => format!("{:02}", parts.minute),
        'S' => format!("{:02}", parts.second),
        'p' => if parts.hour < 12 { "AM" } else { "PM" }.to_owned(),
        'F' => format!("{}-{:02}-{:02}", parts.year, parts.month + 1, parts.day),
        'T' => format!("{:02}:{:02}:{:02}", parts.hour, parts.minute, parts.second),
        'Z' => "UTC".to_owned(),
        'z' => "+0000".to_owned(),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

fn parts(unix_s: u64) -> Parts {
    let days = unix_s / 86_400;
    let mut year = 1970;
    let mut day_of_year = days as usize;
    // Whole cycles of the calendar first, so that the loop is short for any input.
    year += (day_of_year / 146_097) as i64 * 400;
    day_of_year %= 146_097;
    while day_of_year >= year_days(year) {
        day_of_year -= year_days(year);
        year += 1;
    }
    let mut month = 0;
    let mut day = day_of_year;
    while day >= month_days(year, month) {
        day -= month_days(year, month);
        month += 1;
    }
    Parts {
        year,
        month,
        day: day + 1,
        day_of_year: day_of_year + 1,
        weekday: (days as usize + 3) % 7,
        hour: unix_s / 3600 % 24,
        minute: unix_s / 60 % 60,
        second: unix_s % 60,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn year_days(year: i64) -> usize {
    if is_leap(year) { 366 } else { 365 }
}

fn month_days(year: i64, month: usize) -> usize {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(format(0, "%A %d %B %Y %H:%M:%S %j"), "Thursday 01 January 1970 00:00:00 001");
        assert_eq!(format(1_709_210_096_000, "%a %F %T %-d %I%p"), "Thu 2024-02-29 12:34:56 29 12PM");
        assert_eq!(format(1_735_689_599_000, "%b %e %y %% %Q %-m"), "Dec 31 24 % %Q 12");
        assert_eq!(format(4_102_444_800_000, "%Y-%m-%d"), "2100-01-01");
        assert!(!format(u64::MAX, "%F %").is_empty());
    }
}
