//! The driver process: a socket, a thread per connection, one [`State`] behind
//! one lock that never leaves this module.
//!
//! Owns the driver root and the socket in it. In: connections. Out: answers. A connection
//! represents its process: when it ends, what it held is free. As with a real device node, a forked
//! child that keeps the descriptor keeps the memory, and cannot use it. Must never: end because of
//! a client's input.

mod cgroup;
mod control;
mod describe;
pub mod events;
mod ids;
mod instances;
pub mod nodes;
pub mod nvml_faults;
mod outside;
mod peer;
mod requests;
mod sharing;
mod socket;
pub mod state;

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cuda::CudaError;
use crate::hardware::{CardSpec, Hardware};
use crate::paths::{self, Root};
use crate::wire::Message;
use nodes::Nodes;
use nvml_faults::CallFault;
use requests::Caller;
use socket::LineSocket;
use state::{ConnId, State};

/// The interval at which a call that hangs checks whether the driver ends.
const HANG_CHECK: Duration = Duration::from_millis(100);

/// What a driver is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where nodes, socket and programs go.
    pub root: PathBuf,
    /// The hardware. An empty seed becomes the root's path.
    pub hardware: Hardware,
    /// The NVML stand-in to copy into the root.
    pub nvml_library: Option<PathBuf>,
    /// Plain files for device nodes even where character devices could be made.
    pub plain_nodes: bool,
    /// The multi-call program to link as `nvidia-smi` and the MPS programs.
    pub binary: Option<PathBuf>,
}

/// A running driver. Dropping it stops it and removes the socket.
#[derive(Debug)]
pub struct Driver {
    shared: Arc<Shared>,
    socket: PathBuf,
    cards: Vec<CardSpec>,
    accept: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    nodes: Nodes,
    started: Instant,
    stopping: std::sync::atomic::AtomicBool,
    streams: Mutex<std::collections::BTreeMap<ConnId, UnixStream>>,
}

impl Driver {
    /// Makes the root and starts to listen. Ready when this returns.
    pub fn start(options: Options) -> io::Result<Self> {
        let root = Root::new(&options.root);
        let mut hardware = options.hardware;
        if hardware.seed.is_empty() {
            hardware.seed = options.root.display().to_string();
        }
        let cards = hardware.cards().map_err(io::Error::other)?;
        let count = u32::try_from(cards.len()).map_err(io::Error::other)?;
        let mig: Vec<u32> = (cards.iter().filter(|c| c.mig_capable))
            .map(|card| card.index)
            .collect();
        let nodes = Nodes::make(&root, count, &mig, options.plain_nodes)?;
        nodes::install(
            &root,
            options.nvml_library.as_deref(),
            options.binary.as_deref(),
        )?;
        let socket = root.socket();
        nodes::make_parent(&socket)?;
        if paths::connect(&socket).is_ok() {
            return Err(io::Error::other(format!(
                "a driver listens on {} already",
                socket.display()
            )));
        }
        let _ = std::fs::remove_file(&socket);
        let listener = paths::bind(&socket)?;
        // Connections inherit it on newer kernels, so that even their first line has its sender.
        nix::sys::socket::setsockopt(&listener, nix::sys::socket::sockopt::PassCred, &true)?;
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666))?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(hardware, cards.clone())),
            changed: Condvar::new(),
            nodes,
            started: Instant::now(),
            stopping: std::sync::atomic::AtomicBool::new(false),
            streams: Mutex::new(std::collections::BTreeMap::new()),
        });
        let accept = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("sim-gpu".to_owned())
                .spawn(move || accept_all(&listener, &shared))?
        };
        Ok(Self {
            shared,
            socket,
            cards,
            accept: Some(accept),
        })
    }

    /// The cards, filled in.
    pub fn cards(&self) -> &[CardSpec] {
        &self.cards
    }

    /// Runs until the process is stopped; for a process that does nothing else.
    pub fn join(mut self) {
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared
            .stopping
            .store(true, std::sync::atomic::Ordering::SeqCst);
        // Wakes the accept loop.
        let _ = paths::connect(&self.socket);
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
        let _ = std::fs::remove_file(&self.socket);
        for stream in lock(&self.shared.streams).values() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }
}

/// Starts a driver; its memory, cards and faults live as long as the answer.
pub fn serve(options: Options) -> io::Result<Driver> {
    Driver::start(options)
}

/// The accounting stays consistent between calls, so a panicked thread's lock is taken over.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept_all(listener: &UnixListener, shared: &Arc<Shared>) {
    let mut next: ConnId = 1;
    for stream in listener.incoming() {
        if shared.stopping.load(std::sync::atomic::Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors, most likely: those in use will come back.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let conn = next;
        next += 1;
        let shared = Arc::clone(shared);
        let _ = std::thread::Builder::new()
            .name(format!("sim-gpu-{conn}"))
            .stack_size(256 * 1024)
            .spawn(move || connection(stream, conn, &shared));
    }
}

fn connection(stream: UnixStream, conn: ConnId, shared: &Shared) {
    if let Ok(copy) = stream.try_clone() {
        lock(&shared.streams).insert(conn, copy);
    }
    let clean = converse(stream, conn, shared).unwrap_or(false);
    lock(&shared.state).disconnect(conn, clean);
    if let Some(stream) = lock(&shared.streams).remove(&conn) {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    shared.changed.notify_all();
}

/// Serves until the end. True: the process closed the connection in order.
fn converse(stream: UnixStream, conn: ConnId, shared: &Shared) -> io::Result<bool> {
    let (mut lines, peer) = LineSocket::accept(stream)?;
    if peer.pid <= 0 {
        lines.answer(
            &Message::err(
                CudaError::NotPermitted.code(),
                CudaError::NotPermitted.name(),
                "your process is not visible from the driver's pid namespace",
            )
            .to_string(),
        )?;
        return Ok(false);
    }
    lock(&shared.state).connect(conn, peer.pid, peer.uid, peer.name(), peer.cgroup());
    while let Some(incoming) = lines.next()? {
        let request = match Message::parse(&incoming.line) {
            Ok(request) => request,
            Err(error) => {
                let error = Message::err(
                    CudaError::InvalidValue.code(),
                    CudaError::InvalidValue.name(),
                    &error.to_string(),
                );
                lines.answer(&error.to_string())?;
                continue;
            }
        };
        // A line written before we asked for credentials may carry none: pid 0.
        if incoming
            .sender
            .is_some_and(|pid| pid > 0 && pid != peer.pid)
        {
            let error = Message::err(
                CudaError::NotInitialized.code(),
                CudaError::NotInitialized.name(),
                "this connection belongs to another process: a forked child must connect itself",
            );
            lines.answer(&error.to_string())?;
            continue;
        }
        if let Some(refusal) = refused_call(shared, &request, &mut lines)? {
            lines.answer(&refusal.to_string())?;
            continue;
        }
        match request.verb.as_str() {
            "bye" => {
                lock(&shared.state).disconnect(conn, true);
                shared.changed.notify_all();
                lines.answer(&Message::ok().to_string())?;
                return Ok(true);
            }
            "wait-event" => {
                let answer = wait_event(shared, &request);
                lines.answer(&answer.to_string())?;
            }
            _ => {
                let slow = match request.verb.as_str() {
                    "machine" | "card" => lock(&shared.state).answer_ms,
                    _ => 0,
                };
                std::thread::sleep(Duration::from_millis(slow));
                let caller = Caller {
                    conn,
                    peer: &peer,
                    nodes: &shared.nodes,
                    presented: incoming.presented,
                };
                let answer = {
                    let mut state = lock(&shared.state);
                    let before = state.last_event;
                    state.now = shared.started.elapsed();
                    let answer = requests::handle(&mut state, &caller, &request);
                    // Calls that hang go on when their fault is lifted.
                    if state.last_event != before || request.verb == "ctl-call" {
                        shared.changed.notify_all();
                    }
                    answer
                };
                lines.answer(&answer.to_string())?;
            }
        }
    }
    Ok(false)
}

/// Returns the answer to a call of NVML for which a fault is set, and waits here if the fault makes
/// it hang. Returns `None` if the call is answered as usual.
fn refused_call(
    shared: &Shared,
    request: &Message,
    lines: &mut LineSocket,
) -> io::Result<Option<Message>> {
    let Some(call) = request
        .get("call")
        .filter(|_| !request.verb.starts_with("ctl-"))
    else {
        return Ok(None);
    };
    let mut state = lock(&shared.state);
    // A request about an event set concerns the cards that the set lists.
    let listed = request
        .rows("cards")
        .first()
        .and_then(|row| row.first()?.parse().ok());
    let card = describe::find_card(&state, request).or(listed);
    match state.calls.meet(card, &call) {
        None => return Ok(None),
        Some(CallFault::Fails(code)) => {
            let text = format!("{call} was set to fail");
            return Ok(Some(Message::err(code, "NVML_ERROR_SET", &text)));
        }
        Some(CallFault::Hangs) => {}
    }
    drop(state);
    // After this line the library waits without its usual time limit.
    lines.answer("hangs")?;
    let stopping = || shared.stopping.load(std::sync::atomic::Ordering::SeqCst);
    let mut state = lock(&shared.state);
    while state.calls.hangs(card, &call) && !stopping() {
        let waited = shared.changed.wait_timeout(state, HANG_CHECK);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    Ok(None)
}

/// Waits for the first event after `after` on one of `cards` (indices, all
/// without it), at most `timeout_ms`. `none=1` says that there was none.
fn wait_event(shared: &Shared, request: &Message) -> Message {
    let after: u64 = request.parsed("after").unwrap_or(0);
    let timeout = Duration::from_millis(
        request
            .parsed::<u64>("timeout_ms")
            .unwrap_or(0)
            .min(3_600_000),
    );
    let cards: Vec<usize> = request
        .rows("cards")
        .into_iter()
        .filter_map(|row| row.first()?.parse().ok())
        .collect();
    let deadline = Instant::now() + timeout;
    let mut state = lock(&shared.state);
    loop {
        let found = state
            .events
            .iter()
            .find(|e| e.seq > after && (cards.is_empty() || cards.contains(&e.card)))
            .cloned();
        if let Some(event) = found {
            return Message::ok()
                .with("seq", event.seq)
                .with("index", event.card)
                .with("type", event.kind)
                .with("data", event.data)
                .with_some("gpu_instance", event.instance);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || shared.stopping.load(std::sync::atomic::Ordering::SeqCst) {
            return Message::ok()
                .with("none", 1)
                .with("seq", state.last_event.max(after));
        }
        state = shared
            .changed
            .wait_timeout(state, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}
