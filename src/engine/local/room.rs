//! How much memory this process may still take: what the machine has left, its control groups allow, and its own limits
//! allow. Read from Linux's texts; elsewhere nothing is known. Must never decide what to do about it.

use std::fmt;
use std::fs;
use std::path::Path;

/// Memory that this process may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// What bounds it.
    pub bound: Bound,
}

/// What bounds the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The machine has no more.
    Machine,
    /// A control group, such as a container's, allows no more.
    ControlGroup,
    /// The process's limit of addresses (`ulimit -v`).
    Addresses,
    /// The process's limit of data (`ulimit -d`).
    Data,
}

impl fmt::Display for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Machine => "the machine has no more available",
            Self::ControlGroup => "its control group allows no more",
            Self::Addresses => "its limit of addresses allows no more (ulimit -v)",
            Self::Data => "its limit of data allows no more (ulimit -d)",
        })
    }
}

impl Room {
    /// The least of all bounds; none where the system says nothing.
    pub fn now() -> Option<Self> {
        Self::read(Path::new("/"))
    }

    /// Reads the files of the system below `root`.
    fn read(root: &Path) -> Option<Self> {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let status = text("proc/self/status");
        let limits = text("proc/self/limits");
        let own = |limit: &str, used: &str| {
            let limit =
                limits.lines().find_map(|line| line.strip_prefix(limit)?.split_whitespace().next()?.parse().ok());
            limit.map(|limit: u64| limit.saturating_sub(kilobytes(&status, used).unwrap_or(0)))
        };
        let bounds = [
            (kilobytes(&text("proc/meminfo"), "MemAvailable:"), Bound::Machine),
            (control_groups(root, &text("proc/self/cgroup")), Bound::ControlGroup),
            (own("Max address space", "VmSize:"), Bound::Addresses),
            (own("Max data size", "VmData:"), Bound::Data),
        ];
        let known = bounds.into_iter().filter_map(|(bytes, bound)| Some(Self { bytes: bytes?, bound }));
        known.min_by_key(|room| room.bytes)
    }
}

/// A line such as `VmSize:  1234 kB`, in bytes.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let number: u64 = text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok())?;
    number.checked_mul(1024)
}

/// What the process's control groups for memory, and those that hold them, have left.
fn control_groups(root: &Path, memberships: &str) -> Option<u64> {
    let mut least = None;
    for membership in memberships.lines() {
        let mut parts = membership.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let version = match controllers {
            "" => &VERSION_2,
            _ if controllers.split(',').any(|controller| controller == "memory") => &VERSION_1,
            _ => continue,
        };
        // A container often sees its own group as the root, and its path outside as well.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let left = version.left(&root.join(version.folder).join(group));
            least = least.into_iter().chain(left).min();
        }
    }
    least
}

/// How one version of control groups names its files.
struct Version {
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    /// What counts as used and is given back when memory is short: pages of files.
    given_back: [&'static str; 2],
}

const VERSION_1: Version = Version {
    folder: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    given_back: ["total_inactive_file", "total_active_file"],
};
const VERSION_2: Version = Version {
    folder: "sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    given_back: ["inactive_file", "active_file"],
};

impl Version {
    /// What the group in this folder has left; none where it has no limit.
    fn left(&self, group: &Path) -> Option<u64> {
        let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        let limit = number(self.limit)?;
        let statistics = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let of = |key: &str| {
            let value = |line: &str| line.strip_prefix(key)?.strip_prefix(' ')?.parse::<u64>().ok();
            statistics.lines().find_map(value).unwrap_or(0)
        };
        let given_back: u64 = self.given_back.map(of).iter().sum();
        Some(limit.saturating_sub(number(self.used).unwrap_or(0).saturating_sub(given_back)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known where the system has these files.
    fn room(files: &[(&str, &str)]) -> Option<Room> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Room::read(root.path())
    }

    const MEMORY: (&str, &str) = ("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    8000 kB\n");

    #[test]
    fn what_the_machine_has_available_is_the_room_where_nothing_else_bounds_it() {
        assert_eq!(room(&[]), None);
        let found = room(&[MEMORY, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")]);
        assert_eq!(found, Some(Room { bytes: 8_000 * 1024, bound: Bound::Machine }));
    }

    #[test]
    fn a_control_group_of_the_second_version_counts_with_those_around_it_and_without_pages_of_files() {
        let group = [
            MEMORY,
            ("proc/self/cgroup", "1:cpu:/x\n0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
            ("sys/fs/cgroup/outer/memory.max", "5000000\n"),
            ("sys/fs/cgroup/outer/memory.current", "3000000\n"),
            ("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 500000\nactive_file 300000\nfile 9\n"),
        ];
        assert_eq!(room(&group), Some(Room { bytes: 2_800_000, bound: Bound::ControlGroup }));
    }

    #[test]
    fn a_container_sees_its_group_of_the_first_version_at_the_root() {
        let group = [
            MEMORY,
            ("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 200000\ntotal_active_file 1\n"),
        ];
        assert_eq!(room(&group), Some(Room { bytes: 3_200_001, bound: Bound::ControlGroup }));
        let unlimited = [MEMORY, group[1], ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")];
        assert_eq!(room(&unlimited).unwrap().bound, Bound::Machine);
    }

    #[test]
    fn limits_of_the_process_count_what_it_has_taken() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax data size   unlimited  unlimited  bytes\n\
                      Max address space         6000000              unlimited            bytes\n";
        let status = "Name: x\nVmSize:     1000 kB\nVmData:      500 kB\n";
        let found = room(&[MEMORY, ("proc/self/limits", limits), ("proc/self/status", status)]);
        assert_eq!(found, Some(Room { bytes: 6_000_000 - 1_024_000, bound: Bound::Addresses }));
        let limits = "Max data size   600000  unlimited  bytes\n";
        let found = room(&[MEMORY, ("proc/self/limits", limits), ("proc/self/status", status)]);
        assert_eq!(found, Some(Room { bytes: 600_000 - 512_000, bound: Bound::Data }));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_some_room() {
        assert!(Room::now().unwrap().bytes > 0);
    }
}
