//! The driver's accounting: cards, processes, contexts, limits, faults.
//!
//! Owns every MiB of every card. In: calls by a connection, which represents one process. Out:
//! answers, and [`Event`]s for NVML. Pure: no clock, no randomness, no I/O, so that a test can
//! simulate a whole machine. Must never: let the sum on a card exceed what it has, or let a client
//! raise a limit that its server set.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::nvml_faults::{CallFaults, NvmlFaults};

pub use super::ids::{CardId, ConnId};
use crate::cuda::CudaError;
use crate::hardware::{CardSpec, Hardware};

/// What may hold a context, `nvidia-smi -c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any process.
    Default,
    /// No process.
    Prohibited,
    /// One process, which can be an MPS server.
    ExclusiveProcess,
}

/// What a context is to its card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextKind {
    /// A process on its own.
    Direct,
    /// An MPS server.
    Server,
    /// A client of the server with this connection.
    Client {
        /// The server.
        server: ConnId,
        /// Most that the client may hold on the card, MiB, its context included.
        limit_mib: Option<u64>,
        /// Most of the multiprocessors that it may use, per cent.
        percent: u32,
    },
    /// A graphics context (OpenGL, Vulkan). Neither the compute mode nor MPS has a say.
    Graphics,
    /// Memory of a client of the kernel module that made no context; in none of NVML's lists.
    Unlisted,
}

impl ContextKind {
    /// How `ctl status` calls it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Server => "server",
            Self::Client { .. } => "client",
            Self::Graphics => "graphics",
            Self::Unlisted => "unlisted",
        }
    }
}

/// A context and what it holds.
#[derive(Clone, Debug)]
pub struct Context {
    /// Whose.
    pub kind: ContextKind,
    /// Its overhead, MiB.
    pub overhead_mib: u64,
    /// Live allocations, MiB each.
    pub allocations: BTreeMap<u64, u64>,
    /// How busy it keeps the card, per cent.
    pub busy: u32,
    /// When it was made, by [`State::now`].
    pub made: Duration,
}

impl Context {
    /// Everything that it asked for, MiB: what a limit of MPS counts.
    pub fn held(&self) -> u64 {
        self.overhead_mib + self.allocations.values().sum::<u64>()
    }

    /// What that takes of the card, MiB, and what NVML shows.
    pub fn taken(&self) -> u64 {
        self.overhead_mib
            + self
                .allocations
                .values()
                .map(|mib| pages(*mib))
                .sum::<u64>()
    }
}

/// What an allocation takes, MiB: pages of 2 MiB, of which small ones share one (measured on
/// driver 580.159.04).
fn pages(mib: u64) -> u64 {
    if mib > 1 {
        mib.next_multiple_of(2)
    } else {
        mib
    }
}

/// One process, as far as the driver sees it.
#[derive(Clone, Debug)]
pub struct Process {
    /// Pid in the driver's namespace.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Name of its executable.
    pub name: String,
    /// Content of `/proc/<pid>/cgroup`, lines joined with `;`.
    pub cgroup: String,
    /// Cards whose node it presented.
    pub opened: Vec<CardId>,
    /// MIG capabilities whose node it presented, by minor.
    pub capabilities: BTreeSet<u32>,
    /// It presented `nvidiactl`.
    pub control: bool,
    /// It presented `nvidia-uvm`.
    pub uvm: bool,
    /// Contexts by card.
    pub contexts: BTreeMap<CardId, Context>,
    /// Every further call answers this.
    pub sticky: Option<CudaError>,
    /// The MPS ticket that it came with.
    pub ticket: Option<String>,
}

/// One card and what can change about it.
#[derive(Clone, Debug)]
pub struct Card {
    /// What it is.
    pub spec: CardSpec,
    /// Fallen off the bus.
    pub lost: bool,
    /// Compute mode.
    pub mode: ComputeMode,
    /// Time slice, 0 to 3.
    pub timeslice: u32,
    /// The holder of the right to create contexts in an exclusive mode.
    pub reservation: Option<ConnId>,
    /// Uncorrected and corrected ECC errors.
    pub ecc: (u64, u64),
    /// Remapped rows: corrected, uncorrected, pending, failed.
    pub remapped: (u64, u64, bool, bool),
    /// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
    pub recovery_action: u32,
    /// Degrees Celsius.
    pub temperature: u32,
    /// Limits of cgroups (r615 and later), by their path below the root of cgroup v2.
    pub cgroup_limits: BTreeMap<String, CgroupLimits>,
    /// How NVML answers for this card.
    pub nvml: NvmlFaults,
    /// Of an instance: what of it is there.
    pub made: Made,
}

impl Card {
    /// One that works, with nothing on it.
    pub(super) fn new(spec: CardSpec) -> Self {
        Self {
            spec,
            lost: false,
            mode: ComputeMode::Default,
            timeslice: 0,
            reservation: None,
            ecc: (0, 0),
            remapped: (0, 0, false, false),
            recovery_action: 0,
            temperature: 36,
            cgroup_limits: BTreeMap::new(),
            nvml: NvmlFaults::default(),
            made: Made::Whole,
        }
    }
}

/// The limits of a cgroup on a card. It counts the processes in it and below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupLimits {
    /// MiB.
    pub soft: u64,
    /// MiB; `u64::MAX` for none.
    pub hard: u64,
    /// An allocation above the hard limit fails.
    pub enforced: bool,
    /// The kernel's dmem controller holds it, for which every limited ancestor counts; in misc the
    /// nearest alone does.
    pub dmem: bool,
}

/// A refusal: a code and a sentence.
pub type Refusal = (CudaError, String);

/// The machine.
#[derive(Debug)]
pub struct State {
    /// What it was made from.
    pub hardware: Hardware,
    /// The cards, by index, then all MIG instances.
    pub cards: Vec<Card>,
    /// The connected processes.
    pub processes: BTreeMap<ConnId, Process>,
    pub(super) servers: BTreeMap<ConnId, Server>,
    pub(super) tickets: BTreeMap<String, Ticket>,
    /// The latest events, oldest first.
    pub events: VecDeque<Event>,
    /// Sequence number of the last event.
    pub last_event: u64,
    /// The faults that are set for calls of NVML.
    pub calls: CallFaults,
    /// What NVML waits for each answer, ms.
    pub answer_ms: u64,
    /// Time since the driver started, as its caller says.
    pub now: Duration,
    next: u64,
}

impl State {
    /// A machine without processes.
    pub fn new(hardware: Hardware, mut cards: Vec<CardSpec>) -> Self {
        for at in 0..cards.len() {
            for instance in cards[at].instances.clone() {
                let index = u32::try_from(cards.len()).unwrap_or(u32::MAX);
                cards.push(cards[at].of_instance(&instance, index));
            }
        }
        let cards = cards.into_iter().map(Card::new).collect();
        Self {
            hardware,
            cards,
            processes: BTreeMap::new(),
            servers: BTreeMap::new(),
            tickets: BTreeMap::new(),
            events: VecDeque::new(),
            last_event: 0,
            calls: CallFaults::default(),
            answer_ms: 0,
            now: Duration::ZERO,
            next: 1,
        }
    }

    /// A process has connected.
    pub fn connect(&mut self, conn: ConnId, pid: i32, uid: u32, name: String, cgroup: String) {
        self.processes.insert(
            conn,
            Process {
                pid,
                uid,
                name,
                cgroup,
                opened: Vec::new(),
                capabilities: BTreeSet::new(),
                control: false,
                uvm: false,
                contexts: BTreeMap::new(),
                sticky: None,
                ticket: None,
            },
        );
    }

    /// A connection is closed: everything that it held is free again. `clean`
    /// says that the process took its leave.
    pub fn disconnect(&mut self, conn: ConnId, clean: bool) {
        let Some(process) = self.processes.remove(&conn) else {
            return;
        };
        for card in &mut self.cards {
            if card.reservation == Some(conn) {
                card.reservation = None;
            }
        }
        if let Some(ticket) = process.ticket.as_ref().and_then(|t| self.tickets.remove(t)) {
            let working = process.sticky.is_none() && !process.contexts.is_empty();
            if !clean && working && self.hardware.mps.sigkill_faults_server {
                let cards: Vec<CardId> = process.contexts.keys().copied().collect();
                self.fault_server(ticket.server, &cards, CudaError::LaunchFailed);
            }
            self.settle(ticket.server);
        }
        if self.servers.remove(&conn).is_some() {
            let gone: Vec<String> = self
                .tickets
                .iter()
                .filter(|(_, t)| t.server == conn)
                .map(|(k, _)| k.clone())
                .collect();
            for key in gone {
                if let Some(client) = self.tickets.remove(&key).and_then(|t| t.claimed)
                    && let Some(process) = self.processes.get_mut(&client)
                {
                    process.sticky.get_or_insert(CudaError::MpsRpcFailure);
                }
            }
        }
    }

    /// The card of this UUID.
    pub fn card_by_uuid(&self, uuid: &str) -> Option<CardId> {
        self.cards.iter().position(|c| c.spec.uuid == uuid)
    }

    /// MiB in use on a card, its instances included and the driver's reserve not.
    pub fn used(&self, card: CardId) -> u64 {
        let taken = |id: CardId| -> u64 {
            let contexts = self.processes.values().filter_map(|p| p.contexts.get(&id));
            contexts.map(Context::taken).sum()
        };
        taken(card) + self.instances(card).map(taken).sum::<u64>()
    }

    /// MiB free on a card.
    pub fn free(&self, card: CardId) -> u64 {
        let spec = &self.cards[card].spec;
        (spec.total_mib - spec.reserved_mib).saturating_sub(self.used(card))
    }

    /// Makes a context. `ticket` makes it a client of the server that gave it.
    pub fn make_context(
        &mut self,
        conn: ConnId,
        card: CardId,
        ticket: Option<&str>,
    ) -> Result<(), Refusal> {
        let process = self.process(conn)?;
        if process.contexts.contains_key(&card) {
            return Ok(());
        }
        if process.ticket.is_some() && ticket.is_none() {
            return Err((
                CudaError::InvalidContext,
                "this process is an MPS client".to_owned(),
            ));
        }
        self.reachable(conn, card)?;
        let kind = match ticket {
            None => ContextKind::Direct,
            Some(ticket) => self.claim(conn, card, ticket)?,
        };
        if kind == ContextKind::Direct {
            self.reserve(conn, card)?;
        }
        let overhead_mib = self.cards[card].spec.context_mib;
        if let Err(refusal) = self.fits(conn, card, &kind, overhead_mib) {
            self.release(conn, card);
            return Err(refusal);
        }
        self.insert_context(conn, card, kind, overhead_mib);
        Ok(())
    }

    /// Takes memory. Answers the allocation's id.
    pub fn allocate(&mut self, conn: ConnId, card: CardId, mib: u64) -> Result<u64, Refusal> {
        let process = self.process(conn)?;
        let kind = context(process, card)?.kind.clone();
        self.alive(card)?;
        self.fits(conn, card, &kind, mib)?;
        let id = self.fresh();
        if let Some(context) = self
            .processes
            .get_mut(&conn)
            .and_then(|p| p.contexts.get_mut(&card))
        {
            context.allocations.insert(id, mib);
        }
        Ok(id)
    }

    /// Gives memory back. Answers its MiB.
    pub fn release_memory(&mut self, conn: ConnId, card: CardId, id: u64) -> Result<u64, Refusal> {
        self.process(conn)?;
        self.processes
            .get_mut(&conn)
            .and_then(|p| p.contexts.get_mut(&card))
            .and_then(|c| c.allocations.remove(&id))
            .ok_or_else(|| (CudaError::InvalidValue, "no such allocation".to_owned()))
    }

    /// Total and free as reported to this context's process, MiB. CUDA's total leaves the driver's
    /// reserve out; a limit bounds free, never total.
    pub fn memory_info(&self, conn: ConnId, card: CardId) -> Result<(u64, u64), Refusal> {
        let context = context(self.process(conn)?, card)?;
        self.alive(card)?;
        let spec = &self.cards[card].spec;
        // Unlike MPS's limit, one of the driver's is the total that its processes see.
        let (bound, room) = match self.tightest(conn, card) {
            Some((limit, held)) => (limit, limit.saturating_sub(held)),
            None => (u64::MAX, u64::MAX),
        };
        let free = match &context.kind {
            ContextKind::Client {
                limit_mib: Some(limit),
                ..
            } => self
                .free(card)
                .min(limit.saturating_sub(self.held_by_process(conn, card))),
            _ => self.free(card),
        };
        let total = spec.total_mib - spec.reserved_mib;
        Ok((total.min(bound), free.min(room)))
    }

    /// Runs work: keeps the card busy, up to the thread percentage.
    pub fn work(&mut self, conn: ConnId, card: CardId, busy: u32) -> Result<u32, Refusal> {
        self.process(conn)?;
        self.alive(card)?;
        let context = self
            .processes
            .get_mut(&conn)
            .and_then(|p| p.contexts.get_mut(&card))
            .ok_or_else(|| {
                (
                    CudaError::InvalidContext,
                    "no context on this card".to_owned(),
                )
            })?;
        context.busy = match context.kind {
            ContextKind::Client { percent, .. } => busy.min(percent),
            _ => busy.min(100),
        };
        Ok(context.busy)
    }

    /// Ends a process's contexts on a card.
    pub fn destroy_context(&mut self, conn: ConnId, card: CardId) -> Result<(), Refusal> {
        let process = self.processes.get_mut(&conn).ok_or_else(no_process)?;
        if process.contexts.remove(&card).is_none() {
            return Err((
                CudaError::InvalidContext,
                "no context on this card".to_owned(),
            ));
        }
        self.release(conn, card);
        Ok(())
    }

    pub(super) fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn process(&self, conn: ConnId) -> Result<&Process, Refusal> {
        let process = self.processes.get(&conn).ok_or_else(no_process)?;
        match process.sticky {
            Some(error) => Err((
                error,
                "an earlier error broke this process's contexts".to_owned(),
            )),
            None => Ok(process),
        }
    }

    pub(super) fn alive(&self, card: CardId) -> Result<(), Refusal> {
        let parent = self.card_of(card);
        if !self.is_there(card) {
            return Err((CudaError::InvalidDevice, "no such instance".to_owned()));
        }
        if self.cards[parent].lost {
            Err((
                CudaError::Unknown,
                "the card has fallen off the bus".to_owned(),
            ))
        } else {
            Ok(())
        }
    }

    /// The nodes without which the kernel module does nothing.
    pub(super) fn opened(&self, conn: ConnId, card: CardId) -> Result<(), Refusal> {
        let process = self.process(conn)?;
        if !process.control || !process.opened.contains(&self.card_of(card)) {
            return Err((
                CudaError::NoDevice,
                "the card's device node was not opened".to_owned(),
            ));
        }
        self.given(process, card)?;
        self.alive(card)
    }

    /// The nodes that libcuda needs, as it needs them.
    pub(super) fn reachable(&self, conn: ConnId, card: CardId) -> Result<(), Refusal> {
        self.opened(conn, card)?;
        if !self.process(conn)?.uvm {
            return Err((CudaError::Unknown, "nvidia-uvm was not opened".to_owned()));
        }
        Ok(())
    }

    /// The right to make contexts. As in the kernel module's `AcquireComputeModeReservation`: every
    /// process gets it in DEFAULT mode, the last one keeps it, and only a kept one blocks later
    /// processes.
    pub(super) fn reserve(&mut self, conn: ConnId, card: CardId) -> Result<(), Refusal> {
        let busy = || {
            (
                CudaError::DeviceUnavailable,
                "all CUDA-capable devices are busy or unavailable".to_owned(),
            )
        };
        let held = self.cards[card].reservation;
        match self.cards[card].mode {
            ComputeMode::Prohibited => return Err(busy()),
            ComputeMode::ExclusiveProcess if held.is_some_and(|holder| holder != conn) => {
                return Err(busy());
            }
            ComputeMode::Default | ComputeMode::ExclusiveProcess => {}
        }
        self.cards[card].reservation = Some(conn);
        Ok(())
    }

    pub(super) fn release(&mut self, conn: ConnId, card: CardId) {
        if self.cards[card].reservation == Some(conn) {
            self.cards[card].reservation = None;
        }
    }

    /// Memory that one process holds on a card under the server of this
    /// connection: limits are per process, however many handles it opens.
    fn held_by_process(&self, conn: ConnId, card: CardId) -> u64 {
        let Some(me) = self.processes.get(&conn) else {
            return 0;
        };
        self.processes
            .values()
            .filter(|p| p.pid == me.pid)
            .filter_map(|p| p.contexts.get(&card))
            .filter(|c| matches!(c.kind, ContextKind::Client { .. }))
            .map(Context::held)
            .sum()
    }

    pub(super) fn fits(
        &self,
        conn: ConnId,
        card: CardId,
        kind: &ContextKind,
        mib: u64,
    ) -> Result<(), Refusal> {
        if let ContextKind::Client {
            limit_mib: Some(limit),
            ..
        } = kind
        {
            let held = self.held_by_process(conn, card);
            if held.checked_add(mib).is_none_or(|sum| sum > *limit) {
                let text = format!(
                    "{mib} MiB more than the {held} MiB held pass the limit of {limit} MiB"
                );
                return Err((CudaError::OutOfMemory, text));
            }
        }
        if let Some((limit, held)) = self.tightest(conn, card)
            && held.checked_add(mib).is_none_or(|sum| sum > limit)
        {
            let text = format!(
                "{mib} MiB more than the {held} MiB held pass the cgroup's limit of {limit} MiB"
            );
            return Err((CudaError::OutOfMemory, text));
        }
        let free = self.free(card);
        if pages(mib) > free {
            return Err((
                CudaError::OutOfMemory,
                format!("{mib} MiB asked for, {free} MiB free on the card"),
            ));
        }
        Ok(())
    }

    pub(super) fn insert_context(
        &mut self,
        conn: ConnId,
        card: CardId,
        kind: ContextKind,
        overhead_mib: u64,
    ) {
        let made = self.now;
        if let Some(process) = self.processes.get_mut(&conn) {
            process.contexts.insert(
                card,
                Context {
                    kind,
                    overhead_mib,
                    allocations: BTreeMap::new(),
                    busy: 0,
                    made,
                },
            );
        }
    }
}

fn no_process() -> Refusal {
    (CudaError::NotInitialized, "not connected".to_owned())
}

fn context(process: &Process, card: CardId) -> Result<&Context, Refusal> {
    process.contexts.get(&card).ok_or_else(|| {
        (
            CudaError::InvalidContext,
            "no context on this card".to_owned(),
        )
    })
}

/// What NVML's event sets hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Ascending, without gaps.
    pub seq: u64,
    /// The card.
    pub card: CardId,
    /// `nvmlEventType*`.
    pub kind: u64,
    /// For an XID, its number.
    pub data: u64,
    /// The GPU instance that it is of, where it is of one alone.
    pub instance: Option<u32>,
}

/// How much of a MIG instance is there. A card is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// With its compute instance: a MIG device.
    Whole,
    /// The GPU instance alone.
    GpuInstance,
    /// It was destroyed. The next one of its number takes its place in [`State::cards`].
    Nothing,
}

/// State of an MPS server, as `get_server_status` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStatus {
    /// Makes its contexts.
    Initializing,
    /// Takes clients.
    Active,
    /// A client faulted; accepts no client until the current ones have ended.
    Fault,
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) status: ServerStatus,
    /// The client that faulted, by its pid in the driver's namespace; 0: none did.
    pub(super) faulter: i32,
}

/// A server's leave for one client to come to the driver.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub(super) server: ConnId,
    pub(super) limits: BTreeMap<CardId, u64>,
    pub(super) percent: u32,
    pub(super) claimed: Option<ConnId>,
}
