//! The table of hostile tenants: what each does, and what it gets in which mode.
//!
//! Pure. It is on the page `docs/modes-and-fences.md`, word by word.

use std::fmt::Write as _;

use api::Mode;

/// What a context takes, MiB: less than any product's, so that a tenant's contexts use up the
/// clients of a server before they use up its share.
pub(super) const CONTEXT: u64 = 32;
/// Drivers whose rules differ: clients of a server (48, 60 from 590), `/dev/shm` (needed before
/// 580).
pub(super) const DRIVERS: [&str; 2] = ["570.172.08", "615.71.09"];

/// What becomes of a tenant's appetite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It gets its share and no more.
    Held,
    /// It gets no memory at all: CUDA's error.
    Refused(u64),
    /// It gets at most this, MiB, and the watchdog ends its container.
    Killed(u64),
    /// It gets this, MiB, and keeps it.
    Escapes(u64),
    /// It keeps this many of the clients that its server accepts.
    Clients(u64),
}

use Outcome::{Clients, Escapes, Held, Killed, Refused};

impl Outcome {
    pub(super) fn words(self) -> String {
        match self {
            Held => "held at its share".to_owned(),
            Refused(code) => format!("no memory: CUDA error {code}"),
            Killed(mib) => format!("{mib} MiB until the watchdog ends it"),
            Escapes(mib) => format!("**keeps {mib} MiB**"),
            Clients(count) => format!("keeps {count} clients, of its own server"),
        }
    }

    /// A tenant may be ended before it has taken all that it could.
    fn covers(self, seen: Self) -> bool {
        match (self, seen) {
            (Killed(most), Killed(mib)) => mib <= most,
            _ => self == seen,
        }
    }
}

/// A tenant's neighbour, and the mode.
#[derive(Clone, Copy)]
pub(super) struct Column {
    head: &'static str,
    pub(super) mode: Mode,
    /// What a neighbour is granted, MiB.
    pub(super) neighbour: u64,
    /// Every tenant has one, or one of them.
    pub(super) each: bool,
    /// What of each card is never granted, MiB: so much that a neighbour and a tenant fill it.
    pub(super) reserve: u64,
    /// Whether it is run for rows on whose outcome the neighbour's size has no influence.
    all: bool,
    drivers: &'static [&'static str],
}

pub(super) const COLUMNS: [Column; 4] = [
    Column {
        head: "`mps`, beside a share of 1000 MiB",
        mode: Mode::Mps,
        neighbour: 1000,
        each: true,
        reserve: 45_000,
        all: false,
        drivers: &[DRIVERS[0]],
    },
    Column {
        head: "`mps`, beside a share of 8000 MiB",
        mode: Mode::Mps,
        neighbour: 8000,
        each: true,
        reserve: 38_000,
        all: true,
        drivers: &DRIVERS,
    },
    Column {
        head: "`mps-isolated`",
        mode: Mode::MpsIsolated,
        neighbour: 1000,
        each: false,
        reserve: 45_000,
        all: true,
        drivers: &DRIVERS,
    },
    Column {
        head: "`time-slicing`",
        mode: Mode::TimeSlicing,
        neighbour: 1000,
        each: false,
        reserve: 45_000,
        all: true,
        drivers: &[DRIVERS[0]],
    },
];

/// A row: in words, the script before it takes all that it gets, what decides it, and what
/// comes of it in each column.
pub(super) struct Row {
    pub(super) what: &'static str,
    pub(super) before: &'static str,
    decides: Decides,
    outcomes: [Outcome; 4],
    /// Instead of them under 615, where a rule of the driver decides.
    newer: Option<[Outcome; 4]>,
    /// The agent undoes what it changed within some 250 ms: a process that starts later than that
    /// is held at its share.
    undone: bool,
}

/// What has a say in a row's outcome, so that it is run for more than one of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decides {
    /// The mode alone.
    Mode,
    /// How large the neighbour's share is.
    Neighbour,
    /// That and the driver.
    Both,
    /// The driver.
    Driver,
}

/// What a card of 48 GiB has for a tenant without a neighbour, in steps of 100 MiB.
const ALL: Outcome = Killed(48_632);

const fn row(
    what: &'static str,
    before: &'static str,
    decides: Decides,
    outcomes: [Outcome; 4],
) -> Row {
    Row {
        what,
        before,
        decides,
        outcomes,
        newer: None,
        undone: false,
    }
}

pub(super) const TABLE: [Row; 15] = [
    row(
        "takes all it can get",
        "",
        Decides::Both,
        [Held, Held, Held, ALL],
    ),
    row(
        "takes the MPS variables out of its environment",
        "unset-mps",
        Decides::Mode,
        [Refused(46), Refused(46), ALL, ALL],
    ),
    row(
        "opens the device itself",
        "direct",
        Decides::Mode,
        [Refused(46), Refused(46), ALL, ALL],
    ),
    row(
        "names a pipe directory where no daemon listens",
        "env CUDA_MPS_PIPE_DIRECTORY=/nowhere",
        Decides::Mode,
        [Refused(46), Refused(46), ALL, ALL],
    ),
    row(
        "takes the name of an MPS server and opens the device itself",
        "set-name nvidia-cuda-mps-server direct",
        Decides::Mode,
        [Refused(46), Refused(46), ALL, ALL],
    ),
    row(
        "raises the limit in its environment",
        "raise 30000",
        Decides::Neighbour,
        [Held, Killed(7932), Held, ALL],
    ),
    row(
        "takes the limit out of its environment",
        "unset-limits",
        Decides::Neighbour,
        [Held, Killed(7932), Held, ALL],
    ),
    row(
        "sets a limit in its environment that the driver does not understand, such as one for a card that it does not have",
        "env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=30000M,63=1M",
        Decides::Neighbour,
        [Killed(48_032), Killed(48_032), ALL, ALL],
    ),
    row(
        "forks three processes, each with less than the share",
        "fork 3 1500",
        Decides::Mode,
        [Killed(4596); 4],
    ),
    Row {
        newer: Some([Killed(1888), Killed(1888), Clients(60), Killed(2048)]),
        ..row(
            "starts 64 processes that hold a context each",
            "clients 64",
            Decides::Driver,
            [Killed(1504), Killed(1504), Clients(48), Killed(2048)],
        )
    },
    row(
        "takes 30000 MiB by a graphics context",
        "graphics 30000",
        Decides::Mode,
        [Killed(30_008); 4],
    ),
    row(
        "takes 30000 MiB of the kernel module, which NVML lists nowhere",
        "raw 30000",
        Decides::Mode,
        [Escapes(30_000); 4],
    ),
    Row {
        undone: true,
        ..row(
            "as root, raises the limit through the control pipe, for a process that comes later",
            "keep-going drive-raise 30000 unset-limits",
            Decides::Mode,
            [Killed(29_932), Killed(29_932), Killed(29_932), ALL],
        )
    },
    row(
        "sets the card's compute mode",
        "keep-going set-mode DEFAULT direct",
        Decides::Mode,
        [Refused(46), Refused(46), ALL, ALL],
    ),
    row(
        "as root, ends the control daemon, then goes without",
        QUIT,
        Decides::Mode,
        [ALL; 4],
    ),
];

impl Row {
    /// Whether that is what may come of it in a column under a driver.
    pub(super) fn allows(&self, column: usize, driver: usize, seen: Outcome) -> bool {
        self.outcome(column, driver).covers(seen) || self.undone && seen == Held
    }

    /// What comes of it in a column under a driver, by their positions.
    pub(super) fn outcome(&self, column: usize, driver: usize) -> Outcome {
        let newer = self.newer.filter(|_| driver > 0);
        newer.unwrap_or(self.outcomes)[column]
    }

    /// Whether it is run there.
    pub(super) fn is_run(&self, column: &Column, driver: usize) -> bool {
        let size = matches!(self.decides, Decides::Neighbour | Decides::Both);
        let version = matches!(self.decides, Decides::Driver | Decides::Both);
        (column.all || size)
            && (driver == 0 || version)
            && column.drivers.contains(&DRIVERS[driver])
    }
}

/// The only row that ends the work of a neighbour in mode `mps`.
pub(super) const QUIT: &str = "keep-going drive \"quit -t 0\" unset-mps";

/// The page's table.
pub(super) fn table() -> String {
    let mut text = String::from("| a tenant that |");
    for column in COLUMNS {
        let _ = write!(text, " {} |", column.head);
    }
    text.push_str("\n|---|---|---|---|---|\n");
    for row in TABLE {
        let _ = write!(text, "| {} |", row.what);
        for (at, column) in COLUMNS.iter().enumerate() {
            let _ = write!(text, " {} |", cell(&row, at, column));
        }
        text.push('\n');
    }
    text
}

/// One outcome, or those of the drivers where they differ.
fn cell(row: &Row, at: usize, column: &Column) -> String {
    let mut parts: Vec<(Vec<&str>, Outcome)> = Vec::new();
    for (driver, version) in DRIVERS.into_iter().enumerate() {
        if !row.is_run(column, driver) {
            continue;
        }
        let (branch, outcome) = (&version[..3], row.outcome(at, driver));
        match parts.last_mut() {
            Some((branches, last)) if *last == outcome => branches.push(branch),
            _ => parts.push((vec![branch], outcome)),
        }
    }
    match parts.as_slice() {
        [] => "-".to_owned(),
        [(_, outcome)] => outcome.words(),
        _ => {
            let words = parts
                .iter()
                .map(|(branches, outcome)| format!("{}: {}", branches.join(", "), outcome.words()));
            words.collect::<Vec<_>>().join("; ")
        }
    }
}
