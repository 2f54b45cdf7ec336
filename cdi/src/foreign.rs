//! NVIDIA's generated specs: the edits that one GPU needs, found by its UUID.
//!
//! Directories come in, in the runtime's order; merged edits go out. Reads only. The
//! toolkit writes `nvidia.yaml` or JSON under [`VENDORS`]; names are indices, UUIDs or
//! both, depending on how it was called. Management specs (every device at once) are not
//! among the vendors and are never handed to a tenant.

use crate::dir::{self, DirError, io_error, read_bounded};
use crate::name::{Kind, QualifiedName};
use crate::spec::{ContainerEdits, Spec};
use std::io;
use std::path::{Path, PathBuf};

/// Vendor and class of the kinds that define single GPUs, the first one preferred.
pub const VENDORS: [(&str, &str); 2] = [
    ("nvidia.com", "gpu"),
    ("k8s.device-plugin.nvidia.com", "gpu"),
];

/// One GPU's edits, the file's global ones included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As the runtime would apply them: global, then the device's.
    pub edits: ContainerEdits,
    /// What the device is called there.
    pub name: QualifiedName,
    /// Where it is defined.
    pub file: PathBuf,
}

/// The result, and the files that could not be read.
#[derive(Debug, Default)]
pub struct Search {
    /// `None`: no spec defines this GPU, or two of one directory do.
    pub found: Option<Found>,
    /// For the log: files that a runtime would skip too, and conflicts.
    pub complaints: Vec<String>,
}

/// Searches the GPU in all specs of `dirs`, lowest priority first, as a runtime is configured
/// (`/etc/cdi`, `/var/run/cdi`).
///
/// Within one directory two definitions of a name make it unusable; a later directory
/// wins over an earlier one.
///
/// # Errors
/// A directory that exists and cannot be listed. A file that cannot be read is a
/// complaint, as it is to a runtime.
pub fn find_gpu(dirs: &[PathBuf], uuid: &str) -> Result<Search, DirError> {
    let mut search = Search::default();
    let mut specs = Vec::new();
    for dir in dirs {
        specs.push(read_dir(dir, &mut search.complaints)?);
    }
    for (vendor, class) in VENDORS {
        let kind = Kind::new(vendor, class).expect("our own constants are in the grammar");
        let Ok(name) = kind.device(uuid) else {
            continue;
        };
        for specs in specs.iter().rev() {
            let mut here = specs.iter().filter_map(|(file, spec)| {
                if spec.kind != kind.to_string() {
                    return None;
                }
                let device = spec.devices.iter().find(|device| device.name == uuid)?;
                Some((file, spec, device))
            });
            let Some((file, spec, device)) = here.next() else {
                continue;
            };
            if let Some((other, ..)) = here.next() {
                search.complaints.push(format!(
                    "{name} is defined in {} and {}: a runtime takes neither",
                    file.display(),
                    other.display()
                ));
                break;
            }
            let mut edits = spec.container_edits.clone();
            edits.merge(device.container_edits.clone());
            search.found = Some(Found {
                edits,
                name,
                file: file.clone(),
            });
            return Ok(search);
        }
    }
    Ok(search)
}

fn read_dir(dir: &Path, complaints: &mut Vec<String>) -> Result<Vec<(PathBuf, Spec)>, DirError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error("list", dir, error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|e| io_error("list", dir, e))?.path());
    }
    // The order of a directory's entries is chance; a conflict must read alike each time.
    paths.sort_unstable();
    let mut specs = Vec::new();
    for path in paths {
        let Some(parse) = parser_of(&path) else {
            continue;
        };
        let spec = read_bounded(&path)
            .map_err(|error| error.to_string())
            .and_then(|text| parse(&text).map_err(|e| format!("{}: {e}", path.display())));
        match spec {
            Ok(spec) => specs.push((path, spec)),
            Err(complaint) => complaints.push(complaint),
        }
    }
    Ok(specs)
}

type Parse = fn(&[u8]) -> Result<Spec, String>;

/// By the file's ending, as runtimes choose; `None` for files that they do not read.
fn parser_of(path: &Path) -> Option<Parse> {
    match path.extension()?.to_str()? {
        "json" => Some(dir::parse),
        "yaml" => Some(parse_yaml),
        _ => None,
    }
}

/// A spec from its YAML.
///
/// # Errors
/// Why it is none.
pub fn parse_yaml(text: &[u8]) -> Result<Spec, String> {
    serde_saphyr::from_slice(text).map_err(|error| error.to_string())
}
