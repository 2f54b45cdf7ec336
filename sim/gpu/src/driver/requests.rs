//! The driver's verbs: one message in, one message out.
//!
//! Owns the mapping from lines to the accounting. In: a parsed request with its
//! caller. Out: an answer; whatever is malformed gets an `err` line.
//! Must never: panic on input, or decide what [`State`] decides.

use std::collections::BTreeMap;

use super::describe::{describe_card, describe_machine, find_card};
use super::nodes::{DeviceFileStat, Node, Nodes, numbers};
use super::peer::Peer;
use super::state::{
    CardId, ComputeMode, ConnId, Context, ContextKind, Refusal, ServerStatus, State,
};
use crate::cuda::{CudaError, nvml};
use crate::wire::{Message, WireError};

/// The caller, and the machine's nodes.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    /// The connection.
    pub(super) conn: ConnId,
    /// Its owner.
    pub(super) peer: &'a Peer,
    /// The device nodes.
    pub(super) nodes: &'a Nodes,
    /// Nodes presented with this line.
    pub(super) presented: Vec<DeviceFileStat>,
}

enum Failure {
    Cuda(Refusal),
    Nvml(u32, &'static str, String),
    Wire(WireError),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Cuda(refusal)
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// Answers one request.
pub(super) fn handle(state: &mut State, caller: &Caller<'_>, request: &Message) -> Message {
    match dispatch(state, caller, request) {
        Ok(answer) => answer,
        Err(Failure::Cuda((error, text))) => Message::err(error.code(), error.name(), &text),
        Err(Failure::Nvml(code, name, text)) => Message::err(code, name, &text),
        Err(Failure::Wire(error)) => Message::err(
            CudaError::InvalidValue.code(),
            CudaError::InvalidValue.name(),
            &format!("{}: {error}", request.verb),
        ),
    }
}

fn dispatch(state: &mut State, caller: &Caller<'_>, request: &Message) -> Result<Message, Failure> {
    let conn = caller.conn;
    match request.verb.as_str() {
        // What NVML asks.
        "machine" => Ok(describe_machine(state)),
        "card" => Ok(describe_card(state, nvml_card(state, request)?)),
        "set-mode" => set_mode(state, caller, request),
        "set-slice" => set_slice(state, caller, request),
        "memory-limits" => memory_limits(state, caller, request),
        "mig" => Ok(super::instances::describe(
            state,
            nvml_card(state, request)?,
        )),
        "mig-create" | "mig-compute" | "mig-destroy" | "mig-destroy-compute" => {
            admin(caller)?;
            let (card, id) = (nvml_card(state, request)?, request.parsed("id")?);
            let made = match request.verb.as_str() {
                "mig-create" => state.create_gpu_instance(card, id),
                "mig-compute" => state.create_compute_instance(card, id),
                "mig-destroy" => state.destroy_gpu_instance(card, id),
                _ => state.destroy_compute_instance(card, id),
            };
            let made = made.map_err(|(code, name)| Failure::Nvml(code, name, name.to_owned()))?;
            Ok(Message::ok().with("id", made))
        }
        // What a CUDA process does.
        "open" => open(state, caller),
        "context" => {
            let card = cuda_card(state, request)?;
            state.make_context(conn, card, request.get("ticket").as_deref())?;
            memory(state, conn, card)
        }
        "graphics" | "raw" => {
            let card = cuda_card(state, request)?;
            let kind = match request.verb.as_str() {
                "graphics" => ContextKind::Graphics,
                _ => ContextKind::Unlisted,
            };
            state.hold_outside_cuda(conn, card, kind, request.parsed("mib")?)?;
            memory(state, conn, card)
        }
        "instances" => Ok(instances(state, conn)),
        "destroy" => {
            let card = cuda_card(state, request)?;
            state.destroy_context(conn, card)?;
            Ok(Message::ok())
        }
        "alloc" => {
            let card = cuda_card(state, request)?;
            let id = state.allocate(conn, card, request.parsed("mib")?)?;
            Ok(memory(state, conn, card)?.with("id", id))
        }
        "free" => {
            let card = cuda_card(state, request)?;
            let mib = state.release_memory(conn, card, request.parsed("id")?)?;
            Ok(memory(state, conn, card)?.with("mib", mib))
        }
        "memory" => memory(state, conn, cuda_card(state, request)?),
        "work" => {
            let card = cuda_card(state, request)?;
            let busy = state.work(conn, card, request.parsed("percent")?)?;
            Ok(Message::ok().with("percent", busy))
        }
        "fault" => {
            state.fault(conn)?;
            Ok(Message::ok())
        }
        // What an MPS server does.
        "server-context" => {
            state.make_server_context(conn, cuda_card(state, request)?)?;
            Ok(Message::ok())
        }
        "server-ready" => {
            state.server_ready(conn)?;
            Ok(Message::ok())
        }
        "server-status" => Ok(Message::ok()
            .with("status", status_name(state.server_status(conn)))
            .with_some("faulter", state.faulter(conn))),
        "server-fault" => {
            state.fault_whole_server(conn)?;
            Ok(Message::ok())
        }
        "attach" => attach(state, conn, request),
        "clients" => Ok(clients(state, conn)),
        "terminate" => {
            state.terminate(conn, &request.need("ticket")?)?;
            Ok(Message::ok())
        }
        "habits" => Ok(Message::ok()
            .with("needs_shm", state.hardware.needs_shm())
            .with(
                "limits_read_back_in_gib",
                state.hardware.mps.limits_read_back_in_gib,
            )
            .with("driver", &state.hardware.driver_version)
            .with("cuda", state.hardware.cuda_version())),
        verb if verb.starts_with("ctl-") => {
            admin(caller)?;
            super::control::handle(state, request).map_err(Failure::Wire)
        }
        verb => Err(Failure::Wire(WireError::NoValue(format!(
            "unknown request {verb}"
        )))),
    }
}

fn open(state: &mut State, caller: &Caller<'_>) -> Result<Message, Failure> {
    let refused = |text: String| Failure::Cuda((CudaError::NoDevice, text));
    let Some(presented) = caller.presented.first() else {
        return Err(refused("no descriptor came with the request".to_owned()));
    };
    let node = caller
        .nodes
        .identify(*presented)
        .ok_or_else(|| refused("the descriptor is none of the driver's device nodes".to_owned()))?;
    let (major, minor) = numbers(node);
    if caller.nodes.are_devices() && !caller.peer.may_open(major, minor) {
        return Err(refused(format!(
            "the caller's devices cgroup forbids {major}:{minor}"
        )));
    }
    let Some(process) = state.processes.get_mut(&caller.conn) else {
        return Err(refused("not connected".to_owned()));
    };
    let answer = match node {
        Node::Card(minor) => {
            let card = minor as CardId;
            if !process.opened.contains(&card) {
                process.opened.push(card);
            }
            let card = &state.cards[card];
            if card.lost {
                return Err(refused("the card has fallen off the bus".to_owned()));
            }
            Message::ok()
                .with("kind", "card")
                .with("minor", minor)
                .with("gpu", &card.spec.uuid)
                .with("mig", u8::from(card.spec.mig))
        }
        Node::Control => {
            process.control = true;
            Message::ok().with("kind", "control")
        }
        Node::Uvm => {
            process.uvm = true;
            Message::ok().with("kind", "uvm")
        }
        Node::UvmTools => Message::ok().with("kind", "uvm-tools"),
        Node::Capability(minor) => {
            process.capabilities.insert(minor);
            Message::ok().with("kind", "capability")
        }
    };
    Ok(answer)
}

/// UUIDs of the MIG instances that the caller can use.
fn instances(state: &State, conn: ConnId) -> Message {
    let found = (0..state.card_count()).flat_map(|card| state.instances(card));
    let found = found.filter(|id| state.opened(conn, *id).is_ok());
    let rows: Vec<Vec<String>> = found
        .map(|id| vec![state.cards[id].spec.uuid.clone()])
        .collect();
    Message::ok().with_rows("instances", &rows)
}

fn memory(state: &State, conn: ConnId, card: CardId) -> Result<Message, Failure> {
    let (total, free) = state.memory_info(conn, card)?;
    let context = state
        .processes
        .get(&conn)
        .and_then(|p| p.contexts.get(&card));
    let held = context.map_or(0, Context::held);
    let overhead = context.map_or(0, |c| c.overhead_mib);
    let (limit, percent) = match context.map(|c| &c.kind) {
        Some(ContextKind::Client {
            limit_mib, percent, ..
        }) => (*limit_mib, *percent),
        _ => (None, 100),
    };
    Ok(Message::ok()
        .with("total_mib", total)
        .with("free_mib", free)
        .with("held_mib", held)
        .with("context_mib", overhead)
        .with("percent", percent)
        .with_some("limit_mib", limit))
}

fn attach(state: &mut State, conn: ConnId, request: &Message) -> Result<Message, Failure> {
    let mut limits = BTreeMap::new();
    for row in request.rows("limits") {
        let (Some(uuid), Some(mib)) = (row.first(), row.get(1).and_then(|m| m.parse().ok())) else {
            return Err(WireError::Field("limits").into());
        };
        if let Some(card) = state.card_by_uuid(uuid) {
            limits.insert(card, mib);
        }
    }
    let ticket = state.attach(conn, limits, request.parsed::<u32>("percent")?.min(100))?;
    Ok(Message::ok().with("ticket", ticket))
}

fn clients(state: &State, conn: ConnId) -> Message {
    let rows: Vec<Vec<String>> = state
        .clients(conn)
        .into_iter()
        .filter_map(|(ticket, client)| {
            let process = state.processes.get(&client)?;
            let cards: Vec<&str> = process
                .contexts
                .keys()
                .map(|c| state.cards[*c].spec.uuid.as_str())
                .collect();
            Some(vec![
                ticket,
                process.pid.to_string(),
                cards.join("+"),
                process.name.clone(),
            ])
        })
        .collect();
    Message::ok()
        .with("status", status_name(state.server_status(conn)))
        .with_rows("clients", &rows)
}

fn status_name(status: Option<ServerStatus>) -> &'static str {
    match status {
        Some(ServerStatus::Initializing) => "INITIALIZING",
        Some(ServerStatus::Active) => "ACTIVE",
        Some(ServerStatus::Fault) => "FAULT",
        None => "NONE",
    }
}

fn set_mode(state: &mut State, caller: &Caller<'_>, request: &Message) -> Result<Message, Failure> {
    admin(caller)?;
    let card = nvml_card(state, request)?;
    let mode = match request.need("mode")?.as_str() {
        "0" => ComputeMode::Default,
        "2" => ComputeMode::Prohibited,
        "1" | "3" => ComputeMode::ExclusiveProcess,
        _ => {
            return Err(Failure::Nvml(
                nvml::INVALID_ARGUMENT,
                "NVML_ERROR_INVALID_ARGUMENT",
                "no such mode".into(),
            ));
        }
    };
    if state.cards[card].spec.mig || state.cards[card].spec.instance.is_some() {
        return Err(Failure::Nvml(
            nvml::NOT_SUPPORTED,
            "NVML_ERROR_NOT_SUPPORTED",
            "MIG mode is on".into(),
        ));
    }
    // The kernel module stores the rule and does not check existing processes.
    state.cards[card].mode = mode;
    Ok(Message::ok())
}

fn set_slice(
    state: &mut State,
    caller: &Caller<'_>,
    request: &Message,
) -> Result<Message, Failure> {
    admin(caller)?;
    let card = nvml_card(state, request)?;
    let slice: u32 = request.parsed("slice")?;
    if slice > 3 || state.cards[card].spec.mig {
        return Err(Failure::Nvml(
            nvml::NOT_SUPPORTED,
            "NVML_ERROR_NOT_SUPPORTED",
            "no such time slice".into(),
        ));
    }
    state.cards[card].timeslice = slice;
    Ok(Message::ok())
}

/// Sets the limits of a cgroup where the request has some, else returns them.
fn memory_limits(
    state: &mut State,
    caller: &Caller<'_>,
    request: &Message,
) -> Result<Message, Failure> {
    let card = nvml_card(state, request)?;
    let path = request.need("namespace")?;
    let refused = |(code, name, text): (u32, _, &str)| Failure::Nvml(code, name, text.to_owned());
    let (Some(soft), Some(hard)) = (request.get("soft"), request.get("hard")) else {
        let (limits, used) = state.memory_limits(card, &path).map_err(refused)?;
        let hard = match limits.hard {
            u64::MAX => "max".to_owned(),
            mib => mib.to_string(),
        };
        return Ok(Message::ok()
            .with("soft", limits.soft)
            .with("hard", hard)
            .with("used", used));
    };
    admin(caller)?;
    let mib = |text: &str, default| match text {
        "max" => u64::MAX,
        "default" => default,
        mib => mib.parse().unwrap_or(u64::MAX),
    };
    state
        .set_memory_limits(card, &path, mib(&soft, 0), mib(&hard, u64::MAX))
        .map_err(refused)?;
    Ok(Message::ok())
}

fn admin(caller: &Caller<'_>) -> Result<(), Failure> {
    if caller.peer.is_admin() {
        Ok(())
    } else {
        Err(Failure::Nvml(
            nvml::NO_PERMISSION,
            "NVML_ERROR_NO_PERMISSION",
            "this needs an administrator of the node".to_owned(),
        ))
    }
}

/// The card of a CUDA request: by UUID only.
fn cuda_card(state: &State, request: &Message) -> Result<CardId, Failure> {
    let uuid = request.need("gpu")?;
    state
        .card_by_uuid(&uuid)
        .ok_or_else(|| Failure::Cuda((CudaError::InvalidDevice, format!("no card {uuid}"))))
}

/// The card of an NVML request: by index, UUID or bus id; a lost one answers so.
fn nvml_card(state: &State, request: &Message) -> Result<CardId, Failure> {
    let card = find_card(state, request).ok_or_else(|| {
        Failure::Nvml(
            nvml::NOT_FOUND,
            "NVML_ERROR_NOT_FOUND",
            "no such card".to_owned(),
        )
    })?;
    let parent = state.card_of(card);
    if !state.is_there(card) {
        Err(Failure::Nvml(
            nvml::NOT_FOUND,
            "NVML_ERROR_NOT_FOUND",
            "no such instance".to_owned(),
        ))
    } else if state.cards[parent].lost {
        Err(Failure::Nvml(
            nvml::GPU_IS_LOST,
            "NVML_ERROR_GPU_IS_LOST",
            "the GPU is lost".to_owned(),
        ))
    } else {
        Ok(card)
    }
}
