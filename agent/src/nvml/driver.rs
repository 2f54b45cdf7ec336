//! This thread makes the calls about the driver as a whole: it loads the library and counts the
//! cards.

use super::report::{Loaded, Report};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

/// A job that the owner gives to the driver thread. Each job except `End` has one report.
pub(super) enum DriverJob {
    /// Unloads the library that was in use, and loads it again.
    Load(Option<Arc<Nvml>>),
    /// Counts the cards.
    Count(Arc<Nvml>),
    /// Unloads the library.
    End(Arc<Nvml>),
}

/// Works until the owner has dropped the sender of jobs.
pub(super) fn run(libraries: &[PathBuf], jobs: &Receiver<DriverJob>, out: &Sender<Report>) {
    for job in jobs {
        let report = match job {
            DriverJob::Load(old) => {
                drop(old);
                Report::Loaded(load(libraries))
            }
            DriverJob::Count(nvml) => Report::Counted(nvml.device_count()),
            DriverJob::End(nvml) => {
                drop(nvml);
                continue;
            }
        };
        if out.send(report).is_err() {
            return;
        }
    }
}

fn load(libraries: &[PathBuf]) -> Result<Loaded, NvmlError> {
    // Looked for at each attempt: a driver's container may install it after this process started.
    let found = libraries.iter().find(|library| library.exists());
    let library = found.or(libraries.last()).map(|path| path.as_os_str());
    let nvml = Nvml::builder()
        .lib_path(library.unwrap_or_default())
        .init()?;
    Ok(Loaded {
        version: nvml.sys_driver_version()?,
        counted: nvml.device_count()?,
        nvml: Arc::new(nvml),
    })
}
