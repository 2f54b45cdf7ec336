//! NVIDIA's programs, run in the driver's own root.
//!
//! In: a root and a program below it. Out: a [`Command`] that has not been started.
//!
//! A driver root is often another distribution: the GPU operator's driver container, or the
//! node itself as a container sees it. Its programs need its C library with its dynamic
//! loader; the two are one version, and our image's loader with its library ends with
//! `undefined symbol ..., version GLIBC_PRIVATE`. Starting its loader by hand is no way
//! either, since the MPS daemon starts the MPS server by itself. So a program is started with
//! the root as its `/` (chroot), as NVIDIA's own components do it, in a mount namespace of its
//! own that has this system's `/proc` and `/sys`, its device nodes where the root has none, and
//! the directories that the program shares with others, at the same paths.
//!
//! A root without a loader holds files for this system's loader: no C library is in it, and
//! its programs run as ours do.

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Dynamic loaders by their names in ELF files: a root that has one has a C library, too.
const LOADERS: [&str; 4] = [
    "lib64/ld-linux-x86-64.so.2",
    "lib/ld-linux-aarch64.so.1",
    "lib/ld-musl-x86_64.so.1",
    "lib/ld-musl-aarch64.so.1",
];
/// Folders of NVIDIA's libraries, relative to a root, as distributions have them.
pub const LIBRARIES: [&str; 3] = [
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
];
/// Where programs are in every root.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A driver root, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverRoot {
    here: PathBuf,
    has_loader: bool,
}

/// Directories that a program has in common with processes outside of its root.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared<'a> {
    /// At the same path in the root.
    pub folder: Option<&'a Path>,
    /// As `/dev/shm`.
    pub shm: Option<&'a Path>,
}

impl DriverRoot {
    /// Checks whether the root has a dynamic loader.
    #[must_use]
    pub fn at(here: &Path) -> Self {
        // Links in it are its own: an absolute one leads elsewhere from here.
        let is_there = |loader: &&str| here.join(loader).symlink_metadata().is_ok();
        Self {
            here: here.to_owned(),
            has_loader: here != Path::new("/") && LOADERS.iter().any(is_there),
        }
    }

    /// `PATH` and `LD_LIBRARY_PATH` for programs of this root, over those of `own`.
    #[must_use]
    pub fn environment(&self, own: Vec<(OsString, OsString)>) -> Vec<(OsString, OsString)> {
        if self.here == Path::new("/") {
            return own;
        }
        let mut env = own;
        let mut take = |name: &str| {
            let at = env.iter().position(|(other, _)| other == name)?;
            Some(env.swap_remove(at).1)
        };
        let (path, libraries) = (take("PATH"), take("LD_LIBRARY_PATH"));
        if self.has_loader {
            // Its own loader knows where its libraries are.
            env.push(("PATH".into(), PATH.into()));
        } else {
            env.push(("PATH".into(), self.before(&["usr/bin"], path)));
            env.push(("LD_LIBRARY_PATH".into(), self.before(&LIBRARIES, libraries)));
        }
        env
    }

    /// An empty part of such a list would mean the current directory, from which no file is to
    /// be taken.
    fn before(&self, folders: &[&str], others: Option<OsString>) -> OsString {
        let own = folders.iter().map(|folder| self.here.join(folder).into());
        let others = others.unwrap_or_default();
        let others = others.as_bytes().split(|byte| *byte == b':');
        let others = others.map(|part| OsStr::from_bytes(part).to_owned());
        let parts: Vec<OsString> = own.chain(others).filter(|part| !part.is_empty()).collect();
        parts.join(OsStr::new(":"))
    }

    /// A program by its path as this process sees it. Shared directories are made visible to it;
    /// the caller sets its environment, by [`DriverRoot::environment`].
    ///
    /// # Errors
    /// A path with a zero byte. When the command is started: a mount point that the root lacks
    /// and that cannot be made, and whatever forbids a mount namespace or a chroot, which takes
    /// `CAP_SYS_ADMIN` and `CAP_SYS_CHROOT`.
    pub fn command(&self, program: &Path, shared: Shared<'_>) -> io::Result<Command> {
        let inside = program.strip_prefix(&self.here).ok();
        let (Some(inside), true) = (inside, self.has_loader) else {
            let mut command = Command::new(program);
            // As for those that enter a root.
            command.current_dir("/");
            if let Some(shm) = shared.shm {
                prepare(&mut command, vec![Step::bind(shm, Path::new("/dev/shm"))?]);
            }
            return Ok(command);
        };
        let mut command = Command::new(Path::new("/").join(inside));
        // Where it is mounted read-only it still needs mount points, which are folders.
        let here = c_string(self.here.as_os_str())?;
        let mut steps = vec![Step::Bind(here.clone(), here.clone()), Step::Writable(here)];
        for name in ["/proc", "/sys"] {
            self.bind(Path::new(name), Path::new(name), &mut steps)?;
        }
        if !self.here.join("dev/nvidiactl").exists() {
            self.bind(Path::new("/dev"), Path::new("/dev"), &mut steps)?;
        }
        if let Some(shm) = shared.shm {
            self.bind(shm, Path::new("/dev/shm"), &mut steps)?;
        }
        if let Some(folder) = shared.folder {
            self.bind(folder, folder, &mut steps)?;
        }
        steps.push(Step::Enter(c_string(self.here.as_os_str())?));
        prepare(&mut command, steps);
        Ok(command)
    }

    /// `from` of this system, at `inside` in the root.
    fn bind(&self, from: &Path, inside: &Path, steps: &mut Vec<Step>) -> io::Result<()> {
        let mut target = self.here.clone();
        for part in inside.components().skip(1) {
            target.push(part);
            steps.push(Step::Folder(c_string(target.as_os_str())?));
        }
        steps.push(Step::bind(from, &target)?);
        Ok(())
    }
}

/// One system call between fork and exec, with all that it needs allocated before.
#[derive(Debug)]
enum Step {
    /// Bind the first, with all below, on the second.
    Bind(CString, CString),
    /// What is mounted there may be written.
    Writable(CString),
    /// A folder, where there is none.
    Folder(CString),
    /// This is `/` from now on.
    Enter(CString),
}

impl Step {
    fn bind(from: &Path, to: &Path) -> io::Result<Self> {
        Ok(Self::Bind(
            c_string(from.as_os_str())?,
            c_string(to.as_os_str())?,
        ))
    }

    fn take(&self) -> io::Result<()> {
        const NOTHING: Option<&CStr> = None;
        match self {
            Self::Bind(from, to) => mount(
                Some(from.as_c_str()),
                to.as_c_str(),
                NOTHING,
                MsFlags::MS_BIND | MsFlags::MS_REC,
                NOTHING,
            )?,
            Self::Writable(at) => mount(
                NOTHING,
                at.as_c_str(),
                NOTHING,
                MsFlags::MS_REMOUNT | MsFlags::MS_BIND,
                NOTHING,
            )?,
            Self::Folder(at) => {
                match nix::unistd::mkdir(at.as_c_str(), Mode::from_bits_truncate(0o755)) {
                    Err(error) if error != Errno::EEXIST => return Err(error.into()),
                    _ => {}
                }
            }
            Self::Enter(root) => {
                nix::unistd::chroot(root.as_c_str())?;
                nix::unistd::chdir(c"/")?;
            }
        }
        Ok(())
    }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}

/// Lets the child take these steps in a mount namespace of its own, before its program.
#[expect(
    unsafe_code,
    reason = "there is no safe way to act between fork and exec"
)]
fn prepare(command: &mut Command, steps: Vec<Step>) {
    let act = move || -> io::Result<()> {
        let nothing = None::<&CStr>;
        unshare(CloneFlags::CLONE_NEWNS)?;
        // A mount that is unmounted outside must not be kept alive in here, and mounts in here do
        // not propagate.
        let follow = MsFlags::MS_REC | MsFlags::MS_SLAVE;
        mount(nothing, c"/", nothing, follow, nothing)?;
        steps.iter().try_for_each(Step::take)
    };
    // SAFETY: the closure runs in the forked child of a program with many threads, where
    // only async-signal-safe work is sound. It makes system calls on memory that was
    // allocated before the fork; nix hands C strings through without copying, and an errno
    // becomes an io::Error without allocating.
    // JUSTIFICATION: the mounts must belong to the child alone and be there before the
    // program's first instruction; a program in between would have to be in every root.
    unsafe {
        command.pre_exec(act);
    }
}

#[cfg(any(test, feature = "foreign"))]
pub mod foreign;
#[cfg(test)]
mod tests;
