//! A process with libcuda in it: finds its cards, uses MPS if its environment says so, creates
//! contexts, takes memory.
//!
//! Owns what the real library decides on the client's side. In: an environment
//! and a driver root. Out: a [`CudaProcess`], or CUDA's error. As with the real
//! one, a process whose control daemon cannot be reached runs *without* MPS.
//! Must never: enforce a limit; that is the driver's.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::{CallError, Driver, read_message};
use crate::cuda::CudaError;
use crate::paths::{self, Root};
use crate::wire::Message;

/// The real library's default.
pub const DEFAULT_PIPE_DIRECTORY: &str = "/tmp/nvidia-mps";

/// The environment, as far as the library reads it.
pub type Environment = BTreeMap<String, String>;

/// Whether to look for a control daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// As libcuda does: MPS if its control daemon answers.
    Usual,
    /// Straight to the device, as a program without libcuda's manners would.
    Direct,
}

/// An initialised process.
#[derive(Debug)]
pub struct CudaProcess {
    driver: Driver,
    /// Visible cards, in the order of their ordinals.
    pub visible: Vec<String>,
    /// The server, where the process is an MPS client.
    pub mps: Option<MpsSession>,
}

/// What ties a client to its server.
#[derive(Debug)]
pub struct MpsSession {
    /// The server's pid.
    pub server: u32,
    /// The pipe directory that was used.
    pub pipe: PathBuf,
    ticket: String,
    // The server notices the end of the client by the end of this connection.
    _control: UnixStream,
}

/// Memory as a context's process sees it, MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryView {
    /// CUDA's total.
    pub total: u64,
    /// CUDA's free.
    pub free: u64,
    /// Held here, the context included.
    pub held: u64,
    /// The context's own part.
    pub context: u64,
    /// The limit in force, where there is one.
    pub limit: Option<u64>,
    /// Active thread percentage.
    pub percent: u32,
}

impl CudaProcess {
    /// `cuInit`.
    pub fn init(root: &Root, env: &Environment, route: Route) -> Result<Self, CallError> {
        let mut driver = Driver::connect(root)
            .map_err(|e| CallError::refused(CudaError::NoDevice, format!("no driver: {e}")))?;
        driver.open(&root.dev().join("nvidiactl"))?;
        // libcuda starts without uvm and fails at the first context.
        let _ = driver.open(&root.dev().join("nvidia-uvm"));
        let (mut openable, mut in_mig_mode) = (Vec::new(), false);
        for minor in root.card_minors() {
            if let Ok(answer) = driver.open(&root.dev().join(format!("nvidia{minor}"))) {
                // Such a card is its instances.
                let mig = answer.get("mig").as_deref() == Some("1");
                in_mig_mode |= mig;
                openable.extend(answer.get("gpu").filter(|_| !mig));
            }
        }
        if in_mig_mode {
            for node in root.capabilities() {
                let _ = driver.open(&node);
            }
            let found = driver.call(&Message::new("instances"))?.rows("instances");
            openable.extend(found.into_iter().flatten());
        }
        let pipe = pipe_directory(root, env);
        let control = match route {
            Route::Direct => None,
            Route::Usual => paths::connect(&pipe.join("control")).ok(),
        };
        let (visible, mps) = match control {
            None => (confined(visible(&openable, env)), None),
            Some(control) => {
                let (visible, session) = join_server(control, &pipe, root, &openable, env)?;
                (visible, Some(session))
            }
        };
        if visible.is_empty() {
            return Err(CallError::refused(
                CudaError::NoDevice,
                "no CUDA-capable device is visible",
            ));
        }
        Ok(Self {
            driver,
            visible,
            mps,
        })
    }

    /// `cuCtxCreate` on the card with this ordinal.
    pub fn context(&mut self, ordinal: usize) -> Result<MemoryView, CallError> {
        let request = self.request("context", ordinal)?;
        let request = request.with_some("ticket", self.mps.as_ref().map(|m| &m.ticket));
        view(&self.driver.call(&request)?)
    }

    /// `cuMemAlloc`, MiB. Returns the allocation's id and the memory held then.
    pub fn allocate(&mut self, ordinal: usize, mib: u64) -> Result<(u64, MemoryView), CallError> {
        let request = self.request("alloc", ordinal)?.with("mib", mib);
        let answer = self.driver.call(&request)?;
        Ok((answer.parsed("id").map_err(malformed)?, view(&answer)?))
    }

    /// `cuMemFree`.
    pub fn free(&mut self, ordinal: usize, id: u64) -> Result<MemoryView, CallError> {
        let request = self.request("free", ordinal)?.with("id", id);
        view(&self.driver.call(&request)?)
    }

    /// `cuMemGetInfo`, and values that only the simulation has.
    pub fn memory(&mut self, ordinal: usize) -> Result<MemoryView, CallError> {
        let request = self.request("memory", ordinal)?;
        view(&self.driver.call(&request)?)
    }

    /// Keeps the card busy by this many per cent until the next call.
    pub fn work(&mut self, ordinal: usize, percent: u32) -> Result<u32, CallError> {
        let request = self.request("work", ordinal)?.with("percent", percent);
        self.driver
            .call(&request)?
            .parsed("percent")
            .map_err(malformed)
    }

    /// Reads an address that is not ours.
    pub fn fault(&mut self) -> Result<(), CallError> {
        self.driver.call(&Message::new("fault")).map(drop)
    }

    /// Destroys all contexts and leaves, as a process that ends well does.
    pub fn finish(self) {
        self.driver.bye();
    }

    /// A handle that notices the driver's end.
    pub fn watch(&self) -> std::io::Result<UnixStream> {
        self.driver.watch()
    }

    fn request(&self, verb: &str, ordinal: usize) -> Result<Message, CallError> {
        let uuid = self.visible.get(ordinal).ok_or_else(|| {
            CallError::refused(CudaError::InvalidDevice, format!("no card {ordinal}"))
        })?;
        Ok(Message::new(verb).with("gpu", uuid))
    }
}

/// Takes memory on the first card that the caller can open, past CUDA and past MPS. `verb`:
/// `graphics` for a graphics context, `raw` for memory without any. It is held until the
/// connection is dropped.
pub fn hold_outside_cuda(
    root: &Root,
    verb: &str,
    mib: u64,
) -> Result<(Driver, MemoryView), CallError> {
    let mut driver = Driver::connect(root)?;
    driver.open(&root.dev().join("nvidiactl"))?;
    let card = root
        .card_minors()
        .into_iter()
        .find_map(|minor| {
            let answer = driver.open(&root.dev().join(format!("nvidia{minor}")));
            answer.ok()?.get("gpu")
        })
        .ok_or_else(|| CallError::refused(CudaError::NoDevice, "no card can be opened"))?;
    let request = Message::new(verb).with("gpu", card).with("mib", mib);
    let held = view(&driver.call(&request)?)?;
    Ok((driver, held))
}

/// The pipe directory of an environment, as this root's processes reach it.
pub fn pipe_directory(root: &Root, env: &Environment) -> PathBuf {
    let named = env.get("CUDA_MPS_PIPE_DIRECTORY").filter(|p| !p.is_empty());
    root.resolve(Path::new(
        named.map_or(DEFAULT_PIPE_DIRECTORY, String::as_str),
    ))
}

/// Registers with the control daemon and waits for admission; a client of another user waits here
/// until the present server's clients have ended.
fn join_server(
    control: UnixStream,
    pipe: &Path,
    root: &Root,
    openable: &[String],
    env: &Environment,
) -> Result<(Vec<String>, MpsSession), CallError> {
    let lost = |e: std::io::Error| {
        CallError::refused(
            CudaError::MpsConnectionFailed,
            format!("control daemon: {e}"),
        )
    };
    let mut writer = control.try_clone().map_err(lost)?;
    let mut reader = BufReader::new(control.try_clone().map_err(lost)?);
    let mut ask = |request: &Message| -> Result<Message, CallError> {
        writer
            .write_all(format!("{request}\n").as_bytes())
            .map_err(lost)?;
        let answer = read_message(&mut reader).map_err(lost)?;
        if answer.is_ok() {
            return Ok(answer);
        }
        let code = answer
            .parsed("code")
            .unwrap_or(CudaError::MpsConnectionFailed.code());
        Err(CallError::Refused {
            code,
            name: CudaError::name_of(code).to_owned(),
            message: answer.get("message").unwrap_or_default(),
        })
    };
    let welcome = ask(&Message::new("CLIENT"))?;
    let served: Vec<String> = welcome
        .rows("devices")
        .into_iter()
        .filter_map(|row| row.into_iter().next())
        .filter(|uuid| openable.contains(uuid))
        .collect();
    let visible = visible(&served, env);
    if visible.is_empty() {
        return Err(CallError::refused(
            CudaError::NoDevice,
            "the MPS server serves no visible card",
        ));
    }
    let rows: Vec<Vec<String>> = visible.iter().map(|uuid| vec![uuid.clone()]).collect();
    let secret = welcome.get("shm").map(|path| {
        std::fs::read_to_string(root.resolve(Path::new(&path)))
            .unwrap_or_default()
            .trim()
            .to_owned()
    });
    let attach = Message::new("ATTACH")
        .with_rows("visible", &rows)
        .with_some("pinned", env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"))
        .with_some("percent", env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"))
        .with_some("shm", secret);
    let admitted = ask(&attach)?;
    let session = MpsSession {
        server: welcome.parsed("server").map_err(malformed)?,
        pipe: pipe.to_owned(),
        ticket: admitted.need("ticket").map_err(malformed)?,
        _control: control,
    };
    Ok((visible, session))
}

/// `CUDA_VISIBLE_DEVICES` over a list of cards: ordinals and UUIDs or their
/// beginnings; the first entry that is neither ends the list.
pub(crate) fn visible(cards: &[String], env: &Environment) -> Vec<String> {
    let Some(wanted) = env.get("CUDA_VISIBLE_DEVICES") else {
        return cards.to_vec();
    };
    let mut found = Vec::new();
    for entry in wanted.split(',').map(str::trim) {
        let card = match entry.parse::<usize>() {
            Ok(ordinal) => cards.get(ordinal),
            Err(_)
                if entry.len() > 4 && (entry.starts_with("GPU-") || entry.starts_with("MIG-")) =>
            {
                cards.iter().find(|c| c.starts_with(entry))
            }
            Err(_) => None,
        };
        match card {
            Some(card) if !found.contains(card) => found.push(card.clone()),
            _ => break,
        }
    }
    found
}

/// Where a MIG instance is visible, a process enumerates that one alone: NVIDIA's MIG user guide,
/// "CUDA Device Enumeration".
fn confined(visible: Vec<String>) -> Vec<String> {
    let instance = visible.iter().find(|uuid| uuid.starts_with("MIG-"));
    match instance {
        Some(instance) => vec![instance.clone()],
        None => visible,
    }
}

fn view(answer: &Message) -> Result<MemoryView, CallError> {
    Ok(MemoryView {
        total: answer.parsed("total_mib").map_err(malformed)?,
        free: answer.parsed("free_mib").map_err(malformed)?,
        held: answer.parsed("held_mib").map_err(malformed)?,
        context: answer.parsed("context_mib").map_err(malformed)?,
        limit: answer.parsed("limit_mib").ok(),
        percent: answer.parsed("percent").map_err(malformed)?,
    })
}

fn malformed(error: crate::wire::WireError) -> CallError {
    CallError::Gone(std::io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_count_as_cuda_counts() {
        let cards: Vec<String> = ["GPU-aa11", "GPU-bb22", "GPU-cc33"]
            .map(String::from)
            .to_vec();
        for (setting, expected) in [
            (None, vec![0, 1, 2]),
            (Some(""), vec![]),
            (Some("1"), vec![1]),
            (Some("2,0"), vec![2, 0]),
            (Some("GPU-bb22"), vec![1]),
            (Some("GPU-c"), vec![2]),
            (Some("0,7,1"), vec![0]),
            (Some("0,0"), vec![0]),
            (Some("GPU-zz"), vec![]),
            (Some("void"), vec![]),
        ] {
            let mut env = Environment::new();
            if let Some(setting) = setting {
                env.insert("CUDA_VISIBLE_DEVICES".into(), setting.into());
            }
            let expected: Vec<String> = expected
                .into_iter()
                .map(|i: usize| cards[i].clone())
                .collect();
            assert_eq!(visible(&cards, &env), expected, "{setting:?}");
        }
    }
}
