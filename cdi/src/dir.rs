//! Our files in a CDI directory.
//!
//! Specs come in, files go out; every file starts with our prefix and no other file is
//! ever opened for writing or removed. Runtimes watch the directory for Write, Rename and
//! Remove but not for Create, so a file is written under a dot name in the same directory
//! (which no runtime reads) and renamed over the final one: a rename from elsewhere would
//! go unnoticed, and a direct write could be read half.

use crate::check::CheckError;
use crate::spec::Spec;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// No spec of ours is larger: one GPU with its driver's mounts is under 64 KiB.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Our part of a CDI directory.
#[derive(Clone, Debug)]
pub struct OwnDir {
    path: PathBuf,
    prefix: String,
}

/// What [`OwnDir::write`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The file had these very bytes: nothing was touched and no runtime woken.
    Unchanged,
    /// There was no such file.
    Created,
    /// There was one with other bytes.
    Replaced,
}

/// Why a file was not written, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// Retry: the directory may come, the disk may empty.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// "read", "write", ...
        doing: &'static str,
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The id would leave the directory or the grammar. Never retry.
    #[error("{0:?} cannot be part of a file name: letters, digits, _ and - can")]
    Id(String),
    /// A runtime would refuse the spec. Never retry.
    #[error("spec of {id} is not valid: {source}")]
    Invalid {
        /// Whose.
        id: String,
        /// The rule it breaks.
        #[source]
        source: CheckError,
    },
    /// The file is not a spec.
    #[error("{} is not a CDI spec: {reason}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl OwnDir {
    /// The files `<prefix><id>.json` in `path`. Nothing is touched.
    pub fn new(path: impl Into<PathBuf>, prefix: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            prefix: prefix.into(),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the file of this id is or would be.
    ///
    /// # Errors
    /// [`DirError::Id`].
    pub fn path_of(&self, id: &str) -> Result<PathBuf, DirError> {
        check_id(id)?;
        Ok(self.path.join(format!("{}{id}.json", self.prefix)))
    }

    /// Makes the file say this, atomically and durably. Makes the directory when it is
    /// missing.
    ///
    /// # Errors
    /// [`DirError::Invalid`] before anything is touched; else the step that failed, and
    /// the old file, if there was one, is whole.
    pub fn write(&self, id: &str, spec: &Spec) -> Result<Written, DirError> {
        let path = self.path_of(id)?;
        spec.check().map_err(|source| DirError::Invalid {
            id: id.to_owned(),
            source,
        })?;
        let text = spec.to_json();
        let written = match fs::read(&path) {
            Ok(old) if old == text.as_bytes() => return Ok(Written::Unchanged),
            Ok(_) => Written::Replaced,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Written::Created,
            Err(error) => return Err(io_error("read", &path, error)),
        };
        fs::create_dir_all(&self.path).map_err(|e| io_error("make", &self.path, e))?;
        let temporary = self.temporary_of(id);
        let put = || -> io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        if let Err(error) = put() {
            // The temporary is swept at the next start if even this fails.
            let _ = fs::remove_file(&temporary);
            return Err(io_error("write", &path, error));
        }
        self.sync()?;
        Ok(written)
    }

    /// Removes the file; false when there was none.
    ///
    /// # Errors
    /// [`DirError::Id`], [`DirError::Io`].
    pub fn remove(&self, id: &str) -> Result<bool, DirError> {
        let path = self.path_of(id)?;
        match fs::remove_file(&path) {
            Ok(()) => {
                self.sync()?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error("remove", &path, error)),
        }
    }

    /// What the file of this id says; `None` when there is none.
    ///
    /// # Errors
    /// [`DirError::Unreadable`] when it is not a spec of at most 4 MiB.
    pub fn read(&self, id: &str) -> Result<Option<Spec>, DirError> {
        let path = self.path_of(id)?;
        match read_spec(&path) {
            Err(DirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// The ids of all our files, sorted; empty when the directory is missing.
    ///
    /// # Errors
    /// [`DirError::Io`].
    pub fn ids(&self) -> Result<Vec<String>, DirError> {
        let mut ids: Vec<String> = self
            .names()?
            .iter()
            .filter_map(|name| name.strip_prefix(&self.prefix)?.strip_suffix(".json"))
            .filter(|id| check_id(id).is_ok())
            .map(str::to_owned)
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Removes what a crash between writing and renaming left behind; how many.
    /// Call it while nothing writes.
    ///
    /// # Errors
    /// [`DirError::Io`].
    pub fn sweep_temporaries(&self) -> Result<usize, DirError> {
        let start = format!(".{}", self.prefix);
        let mut swept = 0;
        for name in self.names()? {
            let temporary = name
                .strip_prefix(&start)
                .is_some_and(|rest| rest.strip_suffix(".tmp").is_some());
            if temporary {
                let path = self.path.join(name);
                fs::remove_file(&path).map_err(|e| io_error("remove", &path, e))?;
                swept += 1;
            }
        }
        Ok(swept)
    }

    fn temporary_of(&self, id: &str) -> PathBuf {
        self.path.join(format!(".{}{id}.tmp", self.prefix))
    }

    fn names(&self) -> Result<Vec<String>, DirError> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error("list", &self.path, error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| io_error("list", &self.path, e))?;
            // A name that is not UTF-8 is not ours.
            if let Ok(name) = entry.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// A rename or removal survives a power cut only when its directory was synced.
    fn sync(&self) -> Result<(), DirError> {
        File::open(&self.path)
            .and_then(|directory| directory.sync_all())
            .map_err(|e| io_error("sync", &self.path, e))
    }
}

/// One JSON spec from anywhere.
///
/// # Errors
/// [`DirError::Io`]; [`DirError::Unreadable`] when it is not a spec of at most 4 MiB.
pub fn read_spec(path: &Path) -> Result<Spec, DirError> {
    let text = read_bounded(path)?;
    parse(&text).map_err(|reason| DirError::Unreadable {
        path: path.to_owned(),
        reason,
    })
}

/// A spec from its JSON.
///
/// # Errors
/// Why it is none, in one sentence.
pub fn parse(text: &[u8]) -> Result<Spec, String> {
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

pub(crate) fn read_bounded(path: &Path) -> Result<Vec<u8>, DirError> {
    use io::Read as _;
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text))
        .map_err(|e| io_error("read", path, e))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(DirError::Unreadable {
            path: path.to_owned(),
            reason: format!("larger than {MAX_FILE_BYTES} bytes"),
        });
    }
    Ok(text)
}

pub(crate) fn io_error(doing: &'static str, path: &Path, source: io::Error) -> DirError {
    DirError::Io {
        doing,
        path: path.to_owned(),
        source,
    }
}

fn check_id(id: &str) -> Result<(), DirError> {
    let good = !id.is_empty()
        && id.len() <= 128
        && id
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if good {
        Ok(())
    } else {
        Err(DirError::Id(id.to_owned()))
    }
}
