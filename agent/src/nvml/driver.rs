//! The thread for calls about the driver as a whole: to load the library, and to count the cards.

use super::report::{Loaded, Report};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

/// What it is asked for. Each job but the last has one report.
pub(super) enum DriverJob {
    /// Gives the library back that was in use, and loads it again.
    Load(Option<Arc<Nvml>>),
    /// Counts the cards.
    Count(Arc<Nvml>),
    /// Gives the library back.
    End(Arc<Nvml>),
}

/// Works until no more jobs can come.
pub(super) fn run(library: &Path, jobs: &Receiver<DriverJob>, out: &Sender<Report>) {
    for job in jobs {
        let report = match job {
            DriverJob::Load(old) => {
                drop(old);
                Report::Loaded(load(library))
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

fn load(library: &Path) -> Result<Loaded, NvmlError> {
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init()?;
    Ok(Loaded {
        version: nvml.sys_driver_version()?,
        counted: nvml.device_count()?,
        nvml: Arc::new(nvml),
    })
}
