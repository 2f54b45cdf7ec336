//! CUDA driver API error codes, as the simulated driver answers them.
//! Owns the numbers and their names (`cuda.h`); decides nothing.

use std::fmt;

/// One `CUresult` that the simulation can produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum CudaError {
    /// The caller's arguments are wrong.
    InvalidValue = 1,
    /// The limit, or the card, has no room left. The process survives.
    OutOfMemory = 2,
    /// Used without a context of its own, for example after a fork.
    NotInitialized = 3,
    /// Compute mode or another holder forbids a context.
    DeviceUnavailable = 46,
    /// No card is visible.
    NoDevice = 100,
    /// The card named is not one of the visible ones.
    InvalidDevice = 101,
    /// The context was destroyed, or never made.
    InvalidContext = 201,
    /// Sticky: this client, or a neighbour under the same server, faulted.
    IllegalAddress = 700,
    /// Sticky: work was lost, for example because a neighbour was killed.
    LaunchFailed = 719,
    /// The caller may not do this.
    NotPermitted = 800,
    /// The control daemon accepted but could not connect us.
    MpsConnectionFailed = 805,
    /// The server died.
    MpsRpcFailure = 806,
    /// The server is in FAULT.
    MpsServerNotReady = 807,
    /// 48 (60 from r590) clients already hold the card.
    MpsMaxClientsReached = 808,
    /// This client was ended by `terminate_client`.
    MpsClientTerminated = 810,
    /// Anything else, a lost card included.
    Unknown = 999,
}

impl CudaError {
    /// The numeric `CUresult`.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The name in `cuda.h`.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidValue => "CUDA_ERROR_INVALID_VALUE",
            Self::OutOfMemory => "CUDA_ERROR_OUT_OF_MEMORY",
            Self::NotInitialized => "CUDA_ERROR_NOT_INITIALIZED",
            Self::DeviceUnavailable => "CUDA_ERROR_DEVICE_UNAVAILABLE",
            Self::NoDevice => "CUDA_ERROR_NO_DEVICE",
            Self::InvalidDevice => "CUDA_ERROR_INVALID_DEVICE",
            Self::InvalidContext => "CUDA_ERROR_INVALID_CONTEXT",
            Self::IllegalAddress => "CUDA_ERROR_ILLEGAL_ADDRESS",
            Self::LaunchFailed => "CUDA_ERROR_LAUNCH_FAILED",
            Self::NotPermitted => "CUDA_ERROR_NOT_PERMITTED",
            Self::MpsConnectionFailed => "CUDA_ERROR_MPS_CONNECTION_FAILED",
            Self::MpsRpcFailure => "CUDA_ERROR_MPS_RPC_FAILURE",
            Self::MpsServerNotReady => "CUDA_ERROR_MPS_SERVER_NOT_READY",
            Self::MpsMaxClientsReached => "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
            Self::MpsClientTerminated => "CUDA_ERROR_MPS_CLIENT_TERMINATED",
            Self::Unknown => "CUDA_ERROR_UNKNOWN",
        }
    }

    /// The name of a numeric code, for messages that crossed a socket.
    pub fn name_of(code: u32) -> &'static str {
        const ALL: [CudaError; 16] = [
            CudaError::InvalidValue,
            CudaError::OutOfMemory,
            CudaError::NotInitialized,
            CudaError::DeviceUnavailable,
            CudaError::NoDevice,
            CudaError::InvalidDevice,
            CudaError::InvalidContext,
            CudaError::IllegalAddress,
            CudaError::LaunchFailed,
            CudaError::NotPermitted,
            CudaError::MpsConnectionFailed,
            CudaError::MpsRpcFailure,
            CudaError::MpsServerNotReady,
            CudaError::MpsMaxClientsReached,
            CudaError::MpsClientTerminated,
            CudaError::Unknown,
        ];
        ALL.into_iter()
            .find(|e| e.code() == code)
            .map_or("CUDA_ERROR_UNKNOWN", Self::name)
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.code())
    }
}

/// `NVML` return codes used on the driver's socket (`nvml.h`).
pub mod nvml {
    pub const INVALID_ARGUMENT: u32 = 2;
    pub const NOT_SUPPORTED: u32 = 3;
    pub const NO_PERMISSION: u32 = 4;
    pub const NOT_FOUND: u32 = 6;
    pub const GPU_IS_LOST: u32 = 15;
    pub const IN_USE: u32 = 19;
    pub const OPERATING_SYSTEM: u32 = 17;
    pub const INSUFFICIENT_RESOURCES: u32 = 23;
}
