//! What of the machine matters to a server: processor, memory, open files, disk, port, clock. Looks, and changes
//! nothing.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use midstream_kernels::{Isa, Team};
use rustix::process::{Resource, getrlimit};

use super::findings::Section;
use crate::clock::{Clock, rfc3339};
use crate::config::Config;
use crate::engine::Room;

/// Free bytes on a disk below which a journal may soon be full.
const DISK_FREE_BYTES_MIN: u64 = 1 << 30;

/// Open files that a server wants beside its connections: the journal's, KV files, models.
const FILES_BESIDE_CONNECTIONS: u64 = 256;

/// The earliest time that a clock may show which was ever set: the first second of 2025, in milliseconds.
const CLOCK_MS_MIN: u64 = 1_735_689_600_000;

/// Looks at everything.
pub(super) fn examine(config: &Config, room: Option<Room>) -> Section {
    let mut section = Section::new("machine");
    processor(config, &mut section);
    match room {
        Some(Room { bytes, bound }) => section.fine("memory", format!("{} may be taken; {bound}", size(bytes))),
        None => section.doubtful("memory", "the system does not say how much there is"),
    }
    let files = getrlimit(Resource::Nofile).maximum;
    open_files(files, config, &mut section);
    disk(&config.data_dir, &mut section);
    port(config.listen, &mut section);
    clock(Clock::System.unix_ms(), &mut section);
    section.fine("GPU", "none is used: models run on the processor");
    section
}

fn processor(config: &Config, section: &mut Section) {
    let known = Isa::available().into_iter().map(Isa::name).collect::<Vec<_>>().join(", ");
    match Isa::select() {
        Ok(isa) => section.fine("processor", format!("{} is used, of {known}", isa.name())),
        Err(error) => section.wrong("processor", format!("{error}; unset MIDSTREAM_ISA")),
    }
    let (may_use, set) = (Team::default_size(), config.threads);
    match set {
        0 => section.fine("threads", format!("{may_use}, as many as the process may use")),
        set if set > may_use => {
            let text = format!("{set} are set, and the process may use {may_use}; set threads to {may_use} or to 0");
            section.doubtful("threads", text);
        }
        set => section.fine("threads", format!("{set}, of {may_use} that the process may use")),
    }
}

fn open_files(most: Option<u64>, config: &Config, section: &mut Section) {
    let wanted = config.connections_max as u64 + config.requests_in_flight_max as u64 + FILES_BESIDE_CONNECTIONS;
    match most {
        None => section.fine("open files", "no bound"),
        Some(most) if most >= wanted => section.fine("open files", format!("{most} at most")),
        Some(most) => {
            let text = format!(
                "{most} at most, which is less than connections_max ({}) wants; raise it to {wanted} (ulimit -Hn, or \
                 LimitNOFILE of a systemd unit), or fewer connections are taken",
                config.connections_max
            );
            section.doubtful("open files", text);
        }
    }
}

/// The disk of a folder that may not be there yet.
fn disk(folder: &Path, section: &mut Section) {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    match rustix::fs::statvfs(if there.as_os_str().is_empty() { Path::new(".") } else { there }) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let text = format!("{} free where {} is", size(free), folder.display());
            if free < DISK_FREE_BYTES_MIN {
                section
                    .doubtful("disk", format!("{text}; a full disk ends all writing, so free some, or set data_dir"));
            } else {
                section.fine("disk", text);
            }
        }
        Err(error) => section.doubtful("disk", format!("how much is free is not known: {error}")),
    }
}

fn port(address: SocketAddr, section: &mut Section) {
    match TcpListener::bind(address) {
        Ok(_) => section.fine("port", format!("{address} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            section
                .doubtful("port", format!("{address} is in use; unless that is this server, choose another: --listen"));
        }
        Err(error) => {
            section.wrong("port", format!("{address} cannot be listened on: {error}; choose another: --listen"));
        }
    }
}

fn clock(now_ms: u64, section: &mut Section) {
    let text = rfc3339(now_ms / 1000);
    if now_ms < CLOCK_MS_MIN {
        section.doubtful("clock", format!("{text}: it was never set; retention and quotas go by it"));
    } else {
        section.fine("clock", text);
    }
}

/// Bytes as people say them.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::write_lines;
    use super::*;

    /// The line of what a look at something adds.
    fn line(look: impl FnOnce(&mut Section)) -> String {
        let (mut section, mut text) = (Section::new("machine"), Vec::new());
        look(&mut section);
        write_lines(&[section], &mut text).unwrap();
        String::from_utf8(text).unwrap().lines().last().unwrap().to_owned()
    }

    #[test]
    fn too_few_open_files_are_told_with_the_number_that_is_wanted() {
        let config = Config { connections_max: 1_000, requests_in_flight_max: 100, ..Config::default() };
        assert!(line(|it| open_files(None, &config, it)).starts_with("  "));
        assert!(line(|it| open_files(Some(1_356), &config, it)).starts_with("  "));
        let few = line(|it| open_files(Some(1_355), &config, it));
        assert!(few.starts_with("! ") && few.contains("1355 at most") && few.contains("raise it to 1356"), "{few}");
    }

    #[test]
    fn a_port_is_free_or_in_use_and_an_address_of_others_is_refused() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        let used = line(|it| port(address, it));
        assert!(used.starts_with("! ") && used.contains("is in use") && used.contains("--listen"), "{used}");
        assert!(line(|it| port(SocketAddr::from(([127, 0, 0, 1], 0)), it)).contains("is free"));
        // An address of documents, which no machine has.
        let others = line(|it| port(SocketAddr::from(([192, 0, 2, 1], 1)), it));
        assert!(others.starts_with("! ") && others.contains("--listen"), "{others}");
    }

    #[test]
    fn a_clock_that_was_never_set_is_doubtful_and_a_folder_that_is_not_there_has_a_disk() {
        assert!(line(|it| clock(1_000, it)).starts_with("! "));
        assert!(line(|it| clock(CLOCK_MS_MIN, it)).contains("2025-01-01"));
        assert!(line(|it| disk(Path::new("nobody/made/this"), it)).contains("free where nobody/made/this is"));
        assert_eq!((size(12_000_000).as_str(), size(2_500_000_000).as_str()), ("12 MB", "2.5 GB"));
    }

    #[test]
    fn more_threads_than_the_process_may_use_are_doubtful() {
        let config = Config { threads: 100_000, ..Config::default() };
        assert!(line(|it| processor(&config, it)).contains("100000 are set"));
        assert!(line(|it| processor(&Config::default(), it)).starts_with("  threads"));
    }
}
