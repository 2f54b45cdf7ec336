//! NVML's errors, by what to do about them.

use nvml_wrapper::error::NvmlError;

/// What to do about an NVML error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorClass {
    /// Load and initialise the library again.
    DriverGone,
    /// This card is unhealthy; the others are not affected.
    DeviceLost,
    /// This card or driver never knows; take the default.
    Unsupported,
    /// Ask again at the next look.
    Transient,
    /// Ours, or a driver newer than the wrapper: report it, take the default.
    Bug,
}

/// Classifies an error that a call on one card, or on the library, gave.
pub(super) fn trouble(error: &NvmlError) -> ErrorClass {
    match error {
        NvmlError::Uninitialized
        | NvmlError::DriverNotLoaded
        | NvmlError::LibraryNotFound
        | NvmlError::LibRmVersionMismatch
        | NvmlError::LibloadingError(_)
        | NvmlError::OperatingSystem => ErrorClass::DriverGone,
        // 28 is GPU_NOT_FOUND, which the wrapper does not name.
        NvmlError::GpuLost
        | NvmlError::ResetRequired
        | NvmlError::NotFound
        | NvmlError::CorruptedInfoROM
        | NvmlError::UnexpectedVariant(28) => ErrorClass::DeviceLost,
        // 25: argument version mismatch, 26: deprecated.
        NvmlError::NotSupported
        | NvmlError::NoPermission
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::UnexpectedVariant(25 | 26) => ErrorClass::Unsupported,
        // 23: insufficient resources, 27: not ready. A burst of process starts between
        // the count and the list gives InsufficientSize.
        NvmlError::Timeout
        | NvmlError::InsufficientSize(_)
        | NvmlError::InsufficientMemory
        | NvmlError::InsufficientPower
        | NvmlError::InUse
        | NvmlError::IrqIssue
        | NvmlError::NoData
        | NvmlError::Unknown
        | NvmlError::UnexpectedVariant(23 | 27) => ErrorClass::Transient,
        _ => ErrorClass::Bug,
    }
}

/// Returns the message that users see: the wrapper's text, except for the two errors that they see
/// most often.
pub(super) fn words(error: &NvmlError) -> String {
    match error {
        NvmlError::GpuLost => {
            "the GPU has fallen off the bus or is otherwise inaccessible".to_owned()
        }
        NvmlError::ResetRequired => "the GPU must be reset before it can be used again".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_says_what_to_do() {
        for (error, expected) in [
            (NvmlError::DriverNotLoaded, ErrorClass::DriverGone),
            (NvmlError::LibRmVersionMismatch, ErrorClass::DriverGone),
            (NvmlError::GpuLost, ErrorClass::DeviceLost),
            (NvmlError::UnexpectedVariant(28), ErrorClass::DeviceLost),
            (NvmlError::NotSupported, ErrorClass::Unsupported),
            (
                NvmlError::FailedToLoadSymbol(String::new()),
                ErrorClass::Unsupported,
            ),
            (NvmlError::InsufficientSize(None), ErrorClass::Transient),
            (NvmlError::Unknown, ErrorClass::Transient),
            (NvmlError::InvalidArg, ErrorClass::Bug),
        ] {
            assert_eq!(trouble(&error), expected, "{error:?}");
        }
    }
}
