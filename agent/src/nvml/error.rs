//! NVML's errors, by what to do about them.

use nvml_wrapper::error::NvmlError;

/// What to do about an NVML error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Load and initialise the library again.
    DriverGone,
    /// This card is unhealthy; the others go on.
    DeviceLost,
    /// This card or driver never knows; take the default.
    Unsupported,
    /// Ask again at the next look.
    Transient,
    /// Ours, or a driver newer than the wrapper: report it, take the default.
    Bug,
}

/// Classifies an error that a call on one card, or on the library, gave.
pub(super) fn trouble(error: &NvmlError) -> Trouble {
    match error {
        NvmlError::Uninitialized
        | NvmlError::DriverNotLoaded
        | NvmlError::LibraryNotFound
        | NvmlError::LibRmVersionMismatch
        | NvmlError::LibloadingError(_)
        | NvmlError::OperatingSystem => Trouble::DriverGone,
        // 28 is GPU_NOT_FOUND, which the wrapper does not name.
        NvmlError::GpuLost
        | NvmlError::ResetRequired
        | NvmlError::NotFound
        | NvmlError::CorruptedInfoROM
        | NvmlError::UnexpectedVariant(28) => Trouble::DeviceLost,
        // 25: argument version mismatch, 26: deprecated.
        NvmlError::NotSupported
        | NvmlError::NoPermission
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::UnexpectedVariant(25 | 26) => Trouble::Unsupported,
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
        | NvmlError::UnexpectedVariant(23 | 27) => Trouble::Transient,
        _ => Trouble::Bug,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_says_what_to_do() {
        for (error, expected) in [
            (NvmlError::DriverNotLoaded, Trouble::DriverGone),
            (NvmlError::LibRmVersionMismatch, Trouble::DriverGone),
            (NvmlError::GpuLost, Trouble::DeviceLost),
            (NvmlError::UnexpectedVariant(28), Trouble::DeviceLost),
            (NvmlError::NotSupported, Trouble::Unsupported),
            (
                NvmlError::FailedToLoadSymbol(String::new()),
                Trouble::Unsupported,
            ),
            (NvmlError::InsufficientSize(None), Trouble::Transient),
            (NvmlError::Unknown, Trouble::Transient),
            (NvmlError::InvalidArg, Trouble::Bug),
        ] {
            assert_eq!(trouble(&error), expected, "{error:?}");
        }
    }
}
