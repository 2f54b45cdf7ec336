//! The errors for which a hardware description is refused.

use std::fmt;

/// A hardware description is refused for this reason.
#[derive(Debug)]
pub enum HardwareError {
    /// The file cannot be read.
    Read(std::path::PathBuf, std::io::Error),
    /// The file is no hardware description.
    Parse(serde_json::Error),
    /// The description contradicts itself.
    Invalid(String),
}

impl fmt::Display for HardwareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, source) => write!(f, "cannot read {}: {source}", path.display()),
            Self::Parse(source) => write!(f, "not a hardware description: {source}"),
            Self::Invalid(reason) => write!(f, "{reason}"),
        }
    }
}

impl std::error::Error for HardwareError {}
