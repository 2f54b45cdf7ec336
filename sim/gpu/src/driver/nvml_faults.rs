//! Calls of NVML that fail, as a test sets them.

/// What NVML may answer instead of the truth: return codes for the lists of processes (0: the
/// list), by the list's kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmlFaults {
    /// `nvmlDeviceGetComputeRunningProcesses`.
    pub compute: u32,
    /// `nvmlDeviceGetMPSComputeRunningProcesses`.
    pub mps: u32,
    /// `nvmlDeviceGetGraphicsRunningProcesses`.
    pub graphics: u32,
    /// Processes are listed without the memory that they hold (`NVML_VALUE_NOT_AVAILABLE`).
    pub memory_unavailable: bool,
    /// `nvmlDeviceCreateGpuInstance`; 0: it does what it is asked for.
    pub create_instance: u32,
    /// `nvmlDeviceGetMigDeviceHandleByIndex` of the second device and later ones; 0: the device.
    pub mig_device: u32,
    /// `nvmlDeviceGetSupportedEventTypes`; 0: the types.
    pub event_types: u32,
    /// `nvmlDeviceRegisterEvents`; 0: it does.
    pub register_events: u32,
    /// `nvmlDeviceGetAttributes` of a MIG device; 0: the attributes.
    pub attributes: u32,
}
