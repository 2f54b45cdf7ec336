//! The caller: pid and uid from the socket, the rest from `/proc`.
//!
//! Owns the rules that the kernel keeps for real device nodes: which nodes a cgroup may open, and
//! which caller counts as administrator. In: a pid. Out: answers. Must never: believe anything that
//! the caller says about itself.

use std::fs;
use std::path::{Path, PathBuf};

/// A caller, as the kernel vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// Pid in our namespace; 0 where it is not visible from here.
    pub(super) pid: i32,
    /// User id.
    pub(super) uid: u32,
}

impl Peer {
    /// Executable's name, as `ps` would show it.
    pub(super) fn name(&self) -> String {
        let cmdline = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let first = cmdline.split(|b| *b == 0).next().unwrap_or_default();
        if first.is_empty() {
            let comm = fs::read_to_string(format!("/proc/{}/comm", self.pid));
            comm.unwrap_or_default().trim().to_owned()
        } else {
            String::from_utf8_lossy(first).into_owned()
        }
    }

    /// `/proc/<pid>/cgroup`, its lines joined with `;`.
    pub(super) fn cgroup(&self) -> String {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        text.trim().replace('\n', ";")
    }

    /// What the driver calls an administrator: `CAP_SYS_ADMIN`, which root in an
    /// ordinary container lacks. A driver without root takes its own user instead.
    pub(super) fn is_admin(&self) -> bool {
        if !nix::unistd::geteuid().is_root() {
            return self.uid == nix::unistd::geteuid().as_raw();
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        effective_capabilities(&status).is_some_and(|set| set & CAP_SYS_ADMIN != 0)
    }

    /// Whether the caller's devices cgroup (v1) lets it read and write a character device. Without
    /// a v1 devices hierarchy there is nothing to ask: v2 has that rule in a program that cannot be
    /// read back.
    pub(super) fn may_open(&self, major: u64, minor: u64) -> bool {
        let Some(mount) =
            devices_hierarchy(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
        else {
            return true;
        };
        let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        let Some(path) = devices_cgroup(&cgroup) else {
            return true;
        };
        let relative = path.strip_prefix(mount.root.as_str()).unwrap_or(path);
        let list = mount
            .point
            .join(relative.trim_start_matches('/'))
            .join("devices.list");
        match fs::read_to_string(list) {
            Ok(text) => allows(&text, major, minor),
            Err(_) => false,
        }
    }
}

const CAP_SYS_ADMIN: u64 = 1 << 21;

fn effective_capabilities(status: &str) -> Option<u64> {
    let hex = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

struct Hierarchy {
    root: String,
    point: PathBuf,
}

/// Finds the v1 devices hierarchy in `/proc/self/mountinfo`.
fn devices_hierarchy(mountinfo: &str) -> Option<Hierarchy> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, _source, options) = (right.next()?, right.next()?, right.next()?);
        if kind != "cgroup" || !options.split(',').any(|o| o == "devices") {
            return None;
        }
        let mut left = left.split(' ').skip(3);
        let root = left.next()?;
        let point = left.next()?;
        Some(Hierarchy {
            root: if root == "/" {
                String::new()
            } else {
                root.to_owned()
            },
            point: Path::new(point).to_owned(),
        })
    })
}

/// The path of a process in the v1 devices hierarchy.
fn devices_cgroup(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let path = parts.next()?;
        controllers
            .split(',')
            .any(|c| c == "devices")
            .then_some(path)
    })
}

/// Reads a `devices.list`: one grant a line, `c 195:0 rwm` or `a *:* rwm`.
fn allows(list: &str, major: u64, minor: u64) -> bool {
    let matches = |pattern: &str, number: u64| pattern == "*" || pattern.parse() == Ok(number);
    list.lines().any(|line| {
        let mut words = line.split_whitespace();
        let (Some(kind), Some(device), Some(access)) = (words.next(), words.next(), words.next())
        else {
            return false;
        };
        let Some((ma, mi)) = device.split_once(':') else {
            return false;
        };
        matches!(kind, "a" | "c")
            && matches(ma, major)
            && matches(mi, minor)
            && access.contains('r')
            && access.contains('w')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_list_is_read_as_the_kernel_means_it() {
        let runc = "c *:* m\nb *:* m\nc 1:3 rwm\nc 195:0 rwm\nc 195:255 rw\nc 136:* rwm\n";
        for (major, minor, expected) in [
            (195, 0, true),
            (195, 255, true),
            (195, 1, false),
            (510, 0, false),
            (136, 7, true),
        ] {
            assert_eq!(allows(runc, major, minor), expected, "{major}:{minor}");
        }
        assert!(allows("a *:* rwm\n", 195, 3));
        assert!(!allows("b 195:0 rwm\nc 195:0 r\nnonsense\n", 195, 0));
    }

    #[test]
    fn the_devices_hierarchy_is_found_among_mounts() {
        let info = "31 24 0:27 / /sys/fs/cgroup/devices rw,nosuid shared:11 - cgroup cgroup rw,devices\n\
                    32 24 0:28 /x /cg rw - cgroup2 cgroup2 rw\n";
        let found = devices_hierarchy(info).unwrap();
        assert_eq!(found.point, Path::new("/sys/fs/cgroup/devices"));
        assert!(devices_hierarchy("32 24 0:28 / /cg rw - cgroup2 cgroup2 rw\n").is_none());
        assert_eq!(
            devices_cgroup("9:name=systemd:/\n5:devices:/kubepods/x\n0::/\n"),
            Some("/kubepods/x")
        );
        assert_eq!(
            effective_capabilities("Name:\tx\nCapEff:\t00000000a80425fb\n"),
            Some(0xa804_25fb)
        );
        assert_eq!(
            0xa804_25fb & CAP_SYS_ADMIN,
            0,
            "a container's default set is no administrator"
        );
    }
}
