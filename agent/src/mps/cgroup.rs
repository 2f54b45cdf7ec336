//! A cgroup for each daemon, beside the supervisor's own in its pod.
//!
//! containerd kills every process of a container that shares the node's pids when the container's
//! first process ends, and finds them by the container's cgroup: a crash of the supervisor would
//! end all servers of the node. In a cgroup beside the container's they keep running and the next
//! supervisor adopts them. They still count against the pod's limits, and end with the pod: the
//! kubelet kills what is left in a pod's cgroup. In: `/proc/self/cgroup`, the node's mounts.
//! Outside of a pod it does nothing.

use crate::attribute::cgroup::{MPS_DAEMON, Membership};
use aliquot_hook::backend::Cgroup;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The name of the cgroup in which cards are probed.
const PROBE: &str = "aliquot-probe";

/// Where daemons go: one folder in each hierarchy, as this process reaches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonCgroups {
    pods: Vec<PathBuf>,
    /// The pod's cgroup of version 2. `None`: the node has none.
    unified: Option<Cgroup>,
}

impl DaemonCgroups {
    /// Of this process. A node's first process shows the node's own mounts, which a container
    /// has only parts of.
    pub fn own() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/1/mountinfo").unwrap_or_default();
        Self::new(&own, &mounts, Path::new("/proc/1/root"))
    }

    fn new(own: &str, mounts: &str, root: &Path) -> Self {
        let pod = |own: Membership| {
            let pod = own.pod()?;
            let mounted = mounts
                .lines()
                .find_map(|line| mount_of(line, own.controllers))?;
            let inside = mounted.trim_start_matches('/');
            Some(Cgroup {
                root: root.join(inside),
                path: pod.trim_start_matches('/').into(),
            })
        };
        let pods = Membership::all(own).filter_map(pod);
        let mut unified = Membership::all(own).filter(|own| own.controllers.is_empty());
        Self {
            pods: pods.map(|pod| pod.folder()).collect(),
            unified: unified.find_map(pod),
        }
    }

    /// Returns the cgroup in which cards are probed. It stands in the pod, beside its containers.
    pub fn for_probes(&self) -> Option<Cgroup> {
        let mut cgroup = self.unified.clone()?;
        cgroup.path.push(PROBE);
        Some(cgroup)
    }

    /// Moves a process; what it starts later follows.
    ///
    /// # Errors
    /// The first hierarchy in which it stays where it is.
    pub fn take(&self, pid: u32, name: &str) -> io::Result<()> {
        for pod in &self.pods {
            let folder = pod.join(format!("{MPS_DAEMON}{name}"));
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            // Version 1 takes no process before it knows its processors and memory.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let (from, to) = (pod.join(file), folder.join(file));
                let empty = fs::read_to_string(&to).is_ok_and(|text| text.trim().is_empty());
                if empty && folder.join("tasks").exists() {
                    fs::write(to, fs::read_to_string(from)?)?;
                }
            }
            fs::write(folder.join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
    }

    /// Once nothing runs in it; a leftover does no harm.
    pub fn remove(&self, name: &str) {
        for pod in &self.pods {
            let _ = fs::remove_dir(pod.join(format!("{MPS_DAEMON}{name}")));
        }
    }
}

/// Where a line of mountinfo mounts the whole hierarchy of these controllers; none: version 2.
fn mount_of<'a>(line: &'a str, controllers: &str) -> Option<&'a str> {
    let (head, tail) = line.split_once(" - ")?;
    let mut head = head.split(' ').skip(3);
    let (root, at) = (head.next()?, head.next()?);
    let mut tail = tail.split(' ');
    let (kind, options) = (tail.next()?, tail.nth(1)?);
    let same = if controllers.is_empty() {
        kind == "cgroup2"
    } else {
        let has = |one: &str| options.split(',').any(|option| option == one);
        kind == "cgroup" && controllers.split(',').all(has)
    };
    (same && root == "/").then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f6b1c1e-4d5c-4f5e-9a64-3a1f0e5d7c21";
    const UID_: &str = "0f6b1c1e_4d5c_4f5e_9a64_3a1f0e5d7c21";

    #[test]
    fn a_pods_folder_is_found_in_every_hierarchy_of_either_version() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      32 25 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                      33 25 0:29 /part /other rw - cgroup cgroup rw,memory\n\
                      34 25 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = format!(
            "4:cpu,cpuacct:/kubepods/pod{UID}/a\n3:memory:/kubepods/pod{UID}/a\n\
             1:name=systemd:/kubepods/pod{UID}/a\n0::/\n"
        );
        let pod = |at: &str| PathBuf::from(format!("/root/sys/fs/cgroup/{at}/kubepods/pod{UID}"));
        let cgroups = DaemonCgroups::new(&own, mounts, Path::new("/root"));
        assert_eq!(
            cgroups.pods,
            [pod("cpu,cpuacct"), pod("memory"), pod("systemd")]
        );
        let unified = DaemonCgroups::new(
            &format!("0::/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-a.scope\n"),
            "34 25 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            Path::new("/root"),
        );
        assert_eq!(
            unified.pods,
            [PathBuf::from(format!(
                "/root/sys/fs/cgroup/kubepods.slice/kubepods-pod{UID_}.slice"
            ))]
        );
        let probe = unified.for_probes().unwrap();
        let below = format!("kubepods.slice/kubepods-pod{UID_}.slice/aliquot-probe");
        assert_eq!(probe.root, PathBuf::from("/root/sys/fs/cgroup"));
        assert_eq!(probe.path, PathBuf::from(below));
        assert_eq!(cgroups.for_probes(), None, "of version 1");
        // CRI-O with runc, and with crun, which puts the processes one level deeper: its scope
        // ends with the container.
        for inner in ["crio-a.scope", "crio-a.scope/container"] {
            let own = format!("0::/kubepods.slice/kubepods-pod{UID_}.slice/{inner}\n");
            let mounts = "34 25 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
            let found = DaemonCgroups::new(&own, mounts, Path::new("/root"));
            assert_eq!(found, unified, "{inner}");
        }
        let nobodys = "3:memory:/user/a\n0::/\n";
        assert_eq!(
            DaemonCgroups::new(nobodys, mounts, Path::new("/")),
            DaemonCgroups::default()
        );
        // A container's cgroup that is in no pod's: containerd and the kubelet have cgroup
        // drivers that disagree.
        let below_root = format!("3:memory:/kubepods-burstable-pod{UID_}.slice:cri-containerd:a\n");
        assert_eq!(
            DaemonCgroups::new(&below_root, mounts, Path::new("/")),
            DaemonCgroups::default()
        );
    }
}
