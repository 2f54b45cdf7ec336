//! `nvidia-smi`, as far as anything here calls it: the table, `-L`, `--query-gpu`,
//! `--query-compute-apps`, `-c`, `compute-policy`, `memory-limits` (in the words of NVIDIA's page on
//! memory partitioning alone).
//!
//! Owns the printing. In: the driver's answers. Out: text in the real one's
//! form. Inside a container it sees the cards whose nodes are there.
//! Must never: decide anything.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use crate::client::{CallError, Driver};
use crate::hardware::mig::capability_minor;
use crate::paths::Root;
use crate::wire::Message;

/// A failure with the exit code that goes with it.
struct Failure(u8, String);

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Gone(_) => no_driver(),
            CallError::Refused { name, message, .. } => match name.as_str() {
                "NVML_ERROR_NO_PERMISSION" => Self(4, "Insufficient Permissions".to_owned()),
                "NVML_ERROR_GPU_IS_LOST" => Self(15, "GPU is lost".to_owned()),
                "NVML_ERROR_NOT_SUPPORTED" => Self(3, "Not Supported".to_owned()),
                "NVML_ERROR_NOT_FOUND" => Self(6, "Not Found".to_owned()),
                _ => Self(255, message),
            },
        }
    }
}

fn no_driver() -> Failure {
    Failure(
        9,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.".to_owned(),
    )
}

/// What is asked for.
#[derive(Default)]
struct Asked {
    select: Option<String>,
    list: bool,
    mode: Option<String>,
    policy: bool,
    limits: Option<LimitsCommand>,
    slice: Option<String>,
    query_gpu: Option<String>,
    query_apps: Option<String>,
    format: String,
}

/// The words behind `memory-limits`.
#[derive(Default)]
struct LimitsCommand {
    help: bool,
    set: bool,
    get: bool,
    namespace: Option<String>,
    soft: Option<String>,
    hard: Option<String>,
}

/// Runs the program.
pub fn run(args: &[String]) -> ExitCode {
    let outcome = parse(args).and_then(|asked| answer(&asked));
    let (text, code) = match outcome {
        Ok(text) => (text, 0),
        Err(Failure(code, text)) => (format!("{text}\n"), code),
    };
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    ExitCode::from(code)
}

fn parse(args: &[String]) -> Result<Asked, Failure> {
    let mut asked = Asked::default();
    let mut args = args.iter();
    let mut first = true;
    while let Some(arg) = args.next() {
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        let mut value = || {
            inline
                .clone()
                .or_else(|| args.next().cloned())
                .ok_or_else(|| Failure(2, format!("Option {arg} needs a value")))
        };
        let first = std::mem::take(&mut first);
        if let (Some(limits), false) = (&mut asked.limits, name == "-i" || name == "--id") {
            match name {
                "-h" | "--help" => limits.help = true,
                "--set" => limits.set = true,
                "--get" => limits.get = true,
                "-n" | "--namespace" => limits.namespace = Some(value()?),
                "--soft-limit" => limits.soft = Some(limit_of(name, value()?)?),
                "--hard-limit" => limits.hard = Some(limit_of(name, value()?)?),
                _ => return Err(Failure(2, format!("Option {arg} is not recognized"))),
            }
            continue;
        }
        match name {
            "-L" | "--list-gpus" => asked.list = true,
            "-i" | "--id" => asked.select = Some(value()?),
            "-c" | "--compute-mode" => asked.mode = Some(value()?),
            "compute-policy" => asked.policy = true,
            "memory-limits" if first => asked.limits = Some(LimitsCommand::default()),
            "memory-limits" => {
                let text = "Option memory-limits is not recognized";
                return Err(Failure(2, text.to_owned()));
            }
            "--set-timeslice" if asked.policy => asked.slice = Some(value()?),
            "-l" | "--list" if asked.policy => {}
            "--query-gpu" => asked.query_gpu = Some(value()?),
            "--query-compute-apps" => asked.query_apps = Some(value()?),
            "--format" => asked.format = value()?,
            _ => {
                return Err(Failure(
                    2,
                    format!(
                        "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help. ({arg})"
                    ),
                ));
            }
        }
    }
    Ok(asked)
}

/// A value of `--soft-limit` or `--hard-limit`: MiB, `max` or `default`.
fn limit_of(option: &str, value: String) -> Result<String, Failure> {
    let words = ["max", "default"].contains(&value.as_str());
    if words || (!value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit())) {
        return Ok(value);
    }
    let text = format!("{option} must be a non-negative MebiByte value");
    Err(Failure(2, text))
}

fn answer(asked: &Asked) -> Result<String, Failure> {
    let root = Root::from_env();
    let mut driver = Driver::connect(&root).map_err(|_| no_driver())?;
    let machine = driver.call(&Message::new("machine"))?;
    let count: u32 = machine.parsed("count").map_err(|_| no_driver())?;
    let nodes = root.card_minors();
    let mut cards = Vec::new();
    for minor in nodes.into_iter().filter(|minor| *minor < count) {
        cards.push((
            minor,
            driver.call(&Message::new("card").with("index", minor)),
        ));
    }
    if cards.is_empty() {
        return Err(Failure(6, "No devices were found".to_owned()));
    }
    if let Some(select) = &asked.select {
        let wanted: Vec<&str> = select.split(',').collect();
        let matches = |at: usize, card: &Result<Message, CallError>| {
            wanted.iter().any(|w| {
                *w == at.to_string()
                    || card.as_ref().is_ok_and(|c| {
                        c.get("gpu").as_deref() == Some(w) || c.get("pci").as_deref() == Some(w)
                    })
            })
        };
        let mut at = 0;
        cards.retain(|(_, card)| {
            at += 1;
            matches(at - 1, card)
        });
        if cards.is_empty() {
            return Err(Failure(6, "No devices were found".to_owned()));
        }
    }
    if let Some(mode) = &asked.mode {
        return set_mode(&mut driver, &cards, mode);
    }
    if let Some(command) = &asked.limits {
        return limits(&mut driver, &machine, cards, command);
    }
    if asked.policy {
        return policy(&mut driver, cards, asked.slice.as_deref());
    }
    let cards: Vec<(u32, Message)> = cards
        .into_iter()
        .map(|(minor, card)| card.map(|c| (minor, c)))
        .collect::<Result<_, _>>()?;
    match (&asked.query_gpu, &asked.query_apps) {
        _ if asked.list => Ok(list(&root, &cards)),
        (Some(fields), _) => query(fields, &asked.format, cards.len(), |at, field| {
            gpu_field(&machine, &cards, at, field)
        }),
        (None, Some(fields)) => {
            let apps: Vec<(&Message, Vec<String>)> = cards
                .iter()
                .flat_map(|(_, c)| c.rows("processes").into_iter().map(move |row| (c, row)))
                .filter(|(_, row)| row.get(1).is_some_and(|kind| kind != "G"))
                .collect();
            query(fields, &asked.format, apps.len(), |at, field| {
                app_field(apps.get(at), field)
            })
        }
        (None, None) => Ok(table(&machine, &cards)),
    }
}

fn list(root: &Root, cards: &[(u32, Message)]) -> String {
    let mut text = String::new();
    for (at, (_, card)) in cards.iter().enumerate() {
        let _ = writeln!(
            text,
            "GPU {at}: {} (UUID: {})",
            value(card, "name"),
            value(card, "gpu")
        );
        for (at, [uuid, profile]) in instances(root, card).iter().enumerate() {
            let _ = writeln!(text, "  MIG {profile:<11} Device {at:>2}: (UUID: {uuid})");
        }
    }
    text
}

/// UUID and profile of the MIG instances of a card whose capability node is here.
fn instances(root: &Root, card: &Message) -> Vec<[String; 2]> {
    let index = card.parsed("index").unwrap_or(0);
    let rows = card.rows("instances").into_iter();
    let here = rows.filter_map(|row| {
        let id = row.get(3)?.parse().ok()?;
        let minor = capability_minor(index, id, None);
        let node = root.dev().join(format!("nvidia-caps/nvidia-cap{minor}"));
        node.exists().then(|| [row[1].clone(), row[2].clone()])
    });
    here.collect()
}

fn value(card: &Message, key: &str) -> String {
    card.get(key).unwrap_or_else(|| "[N/A]".to_owned())
}

fn set_mode(
    driver: &mut Driver,
    cards: &[(u32, Result<Message, CallError>)],
    mode: &str,
) -> Result<String, Failure> {
    let number = match mode.to_ascii_uppercase().as_str() {
        "0" | "DEFAULT" => 0,
        "2" | "PROHIBITED" => 2,
        "1" | "3" | "EXCLUSIVE_PROCESS" | "EXCLUSIVE_THREAD" => 3,
        _ => return Err(Failure(2, format!("Invalid compute mode: {mode}"))),
    };
    let mut text = String::new();
    for (minor, card) in cards {
        driver.call(
            &Message::new("set-mode")
                .with("index", minor)
                .with("mode", number),
        )?;
        let pci = card.as_ref().map(|c| value(c, "pci")).unwrap_or_default();
        let name = mode_name(&number.to_string()).to_ascii_uppercase();
        let was = card.as_ref().is_ok_and(|c| c.parsed("mode") == Ok(number));
        let _ = if was {
            writeln!(text, "Compute mode is already set to {name} for GPU {pci}.")
        } else {
            writeln!(text, "Set compute mode to {name} for GPU {pci}.")
        };
    }
    Ok(text + "All done.\n")
}

fn policy(
    driver: &mut Driver,
    cards: Vec<(u32, Result<Message, CallError>)>,
    slice: Option<&str>,
) -> Result<String, Failure> {
    const NAMES: [&str; 4] = ["DEFAULT", "SHORT", "MEDIUM", "LONG"];
    let mut text = String::new();
    for (minor, card) in cards {
        let card = card?;
        if let Some(slice) = slice {
            let number = slice
                .parse()
                .ok()
                .or_else(|| NAMES.iter().position(|n| n.eq_ignore_ascii_case(slice)));
            let number =
                number.ok_or_else(|| Failure(2, format!("Invalid time slice: {slice}")))?;
            driver.call(
                &Message::new("set-slice")
                    .with("index", minor)
                    .with("slice", number),
            )?;
            let name = NAMES.get(number).copied().unwrap_or_default();
            let _ = writeln!(
                text,
                "Successfully set the timeslice policy for GPU {} to {name}",
                value(&card, "pci")
            );
        } else {
            let now: usize = card.parsed("slice").unwrap_or(0);
            let _ = writeln!(
                text,
                "GPU {minor}: compute time slice: {}",
                NAMES.get(now).copied().unwrap_or_default()
            );
        }
    }
    Ok(text)
}

fn limits(
    driver: &mut Driver,
    machine: &Message,
    cards: Vec<(u32, Result<Message, CallError>)>,
    command: &LimitsCommand,
) -> Result<String, Failure> {
    let wrong = |text: &str| Err(Failure(2, text.to_owned()));
    if machine.get("memory_limits").is_none() {
        // Drivers 550.163.01 and 580.159.04 answer so.
        return wrong(
            "ERROR: Option memory-limits is not valid for this command. Please run 'nvidia-smi -h' for help.",
        );
    }
    if command.help {
        return Ok(
            "memory-limits: --set | --get, --namespace | -n, --soft-limit, --hard-limit, -i\n"
                .to_owned(),
        );
    }
    let Some(namespace) = &command.namespace else {
        return wrong("memory-limits needs --namespace");
    };
    let limits = match (command.set, command.get, &command.soft, &command.hard) {
        (true, false, Some(soft), Some(hard)) => Some((soft, hard)),
        (false, true, None, None) => None,
        _ => return wrong("memory-limits needs --set with both limits, or --get"),
    };
    let mut text = String::new();
    for (minor, card) in cards {
        card?;
        let mut request = Message::new("memory-limits")
            .with("index", minor)
            .with("namespace", namespace);
        if let Some((soft, hard)) = limits {
            request = request.with("soft", soft).with("hard", hard);
        }
        let told = driver.call(&request).map_err(|error| {
            let verb = if command.set { "set" } else { "get" };
            let Failure(code, why) = error.into();
            Failure(code, format!("Unable to {verb} memory limit: {why}"))
        })?;
        if command.get {
            // No page says what is printed of a limit that is not set.
            let limit = |name| match value(&told, name) {
                max if max == "max" => max,
                mib => format!("{mib} MiB"),
            };
            let _ = writeln!(
                text,
                "namespace: {namespace}\nsoft limit: {}\nhard limit: {}\ncurrent used: {} MiB",
                limit("soft"),
                limit("hard"),
                value(&told, "used")
            );
        }
    }
    Ok(text)
}

fn mode_name(number: &str) -> &'static str {
    match number {
        "2" => "Prohibited",
        "3" => "Exclusive_Process",
        _ => "Default",
    }
}

/// A cell: its text and its unit.
type Cell = (String, &'static str);

fn query(
    fields: &str,
    format: &str,
    rows: usize,
    cell: impl Fn(usize, &str) -> Option<Cell>,
) -> Result<String, Failure> {
    let options: Vec<&str> = format.split(',').map(str::trim).collect();
    if !options.contains(&"csv") {
        return Err(Failure(
            2,
            "\"--format=\" switch is missing. For list of valid formats run \"nvidia-smi -h\""
                .to_owned(),
        ));
    }
    let units = !options.contains(&"nounits");
    let fields: Vec<&str> = fields.split(',').map(str::trim).collect();
    let mut text = String::new();
    if !options.contains(&"noheader") {
        let header: Vec<String> = fields
            .iter()
            .map(|field| match unit(field) {
                unit if units && !unit.is_empty() => format!("{field} [{unit}]"),
                _ => (*field).to_owned(),
            })
            .collect();
        let _ = writeln!(text, "{}", header.join(", "));
    }
    for at in 0..rows {
        let mut cells = Vec::new();
        for field in &fields {
            let (value, unit) = cell(at, field).ok_or_else(|| {
                Failure(
                    2,
                    format!("Field \"{field}\" is not a valid field to query."),
                )
            })?;
            cells.push(if units && !unit.is_empty() {
                format!("{value} {unit}")
            } else {
                value
            });
        }
        let _ = writeln!(text, "{}", cells.join(", "));
    }
    Ok(text)
}

fn unit(field: &str) -> &'static str {
    match field {
        f if f.starts_with("memory.") || f.starts_with("used_") => "MiB",
        f if f.starts_with("utilization.") => "%",
        f if f.starts_with("power.") => "W",
        _ => "",
    }
}

fn gpu_field(machine: &Message, cards: &[(u32, Message)], at: usize, field: &str) -> Option<Cell> {
    let (_, card) = cards.get(at)?;
    let text = match field {
        "index" => at.to_string(),
        "count" => cards.len().to_string(),
        "uuid" | "gpu_uuid" => value(card, "gpu"),
        "name" | "gpu_name" => value(card, "name"),
        "serial" | "gpu_serial" => value(card, "serial"),
        "pci.bus_id" | "gpu_bus_id" => value(card, "pci"),
        "driver_version" => value(machine, "driver"),
        "memory.total" => value(card, "total_mib"),
        "memory.reserved" => value(card, "reserved_mib"),
        "memory.used" => value(card, "used_mib"),
        "memory.free" => value(card, "free_mib"),
        "compute_mode" => mode_name(&value(card, "mode")).to_owned(),
        "compute_cap" => format!("{}.{}", value(card, "cc_major"), value(card, "cc_minor")),
        "utilization.gpu" => value(card, "busy"),
        "utilization.memory" => value(card, "memory_busy"),
        "temperature.gpu" => value(card, "temperature"),
        "power.draw" => watts(card, "power_mw"),
        "power.limit" => watts(card, "power_limit_mw"),
        "persistence_mode" => "Enabled".to_owned(),
        "mig.mode.current" | "mig.mode.pending" => match (
            card.get("mig_capable").as_deref(),
            card.get("mig").as_deref(),
        ) {
            (Some("1"), Some("1")) => "Enabled".to_owned(),
            (Some("1"), _) => "Disabled".to_owned(),
            _ => "[N/A]".to_owned(),
        },
        "ecc.errors.uncorrected.volatile.total" => value(card, "ecc_uncorrected"),
        _ => return None,
    };
    Some((text, unit(field)))
}

fn watts(card: &Message, key: &'static str) -> String {
    let milliwatts: u64 = card.parsed(key).unwrap_or(0);
    format!("{}.{:02}", milliwatts / 1000, milliwatts % 1000 / 10)
}

fn app_field(app: Option<&(&Message, Vec<String>)>, field: &str) -> Option<Cell> {
    let (card, row) = app?;
    let text = match field {
        "pid" => row.first()?.clone(),
        "process_name" | "name" => row.get(4)?.clone(),
        "used_memory" | "used_gpu_memory" => row.get(2)?.clone(),
        "gpu_uuid" => value(card, "gpu"),
        "gpu_name" => value(card, "name"),
        "gpu_bus_id" => value(card, "pci"),
        "gpu_serial" => value(card, "serial"),
        _ => return None,
    };
    Some((text, unit(field)))
}

fn table(machine: &Message, cards: &[(u32, Message)]) -> String {
    let rule = format!("+{}+\n", "-".repeat(89));
    let columns = format!(
        "+{}+{}+{}+\n",
        "-".repeat(41),
        "-".repeat(24),
        "-".repeat(22)
    );
    let mut text = rule.clone();
    let driver = value(machine, "driver");
    let _ = writeln!(
        text,
        "| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {:<8} |",
        value(machine, "cuda")
    );
    text += &columns;
    let _ = writeln!(
        text,
        "| {:<40}| {:<23}| {:<21}|",
        "GPU  Name                 Persistence-M", "Bus-Id          Disp.A", "Volatile Uncorr. ECC"
    );
    let _ = writeln!(
        text,
        "| {:<40}| {:>22} | {:>20} |",
        "Fan  Temp   Perf          Pwr:Usage/Cap", "Memory-Usage", "GPU-Util  Compute M."
    );
    let _ = writeln!(text, "| {:<40}| {:>22} | {:>20} |", "", "", "MIG M.");
    let heavy = columns.replace('-', "=");
    let heavy = heavy.trim_matches(['+', '\n']);
    let _ = writeln!(text, "|{heavy}|");
    for (at, (_, card)) in cards.iter().enumerate() {
        let name: String = value(card, "name").chars().take(26).collect();
        let _ = writeln!(
            text,
            "| {at:>3}  {name:<27} {:>6} | {:>18} Off | {:>20} |",
            "On",
            value(card, "pci"),
            value(card, "ecc_uncorrected")
        );
        let power = |key: &'static str| card.parsed::<u64>(key).unwrap_or(0) / 1000;
        let usage = format!(
            "{}MiB / {:>6}MiB",
            value(card, "used_mib"),
            value(card, "total_mib")
        );
        let mode = match mode_name(&value(card, "mode")) {
            "Exclusive_Process" => "E. Process",
            other => other,
        };
        let draw = format!("{}W / {:>4}W", power("power_mw"), power("power_limit_mw"));
        let _ = writeln!(
            text,
            "| N/A  {:>3}C    P0  {draw:>22} | {usage:>22} | {:>6}% {mode:>12} |",
            value(card, "temperature"),
            value(card, "busy")
        );
        let mig = match (
            card.get("mig_capable").as_deref(),
            card.get("mig").as_deref(),
        ) {
            (Some("1"), Some("1")) => "Enabled",
            (Some("1"), _) => "Disabled",
            _ => "N/A",
        };
        let _ = writeln!(text, "| {:<40}| {:>22} | {mig:>20} |", "", "");
        text += &columns;
    }
    text.push('\n');
    text += &rule;
    let _ = writeln!(text, "| {:<87} |", "Processes:");
    let _ = writeln!(
        text,
        "| {:<74}   GPU Memory |",
        " GPU   GI   CI              PID   Type   Process name"
    );
    let _ = writeln!(text, "| {:<74}   Usage      |", "       ID   ID");
    text += &rule.replace('-', "=").replace('+', "|");
    let mut any = false;
    for (at, (_, card)) in cards.iter().enumerate() {
        for row in card.rows("processes") {
            any = true;
            if let [pid, kind, mib, _, name] = row.as_slice() {
                let name: String = name.chars().take(36).collect();
                let _ = writeln!(
                    text,
                    "| {at:>4}   N/A  N/A {pid:>16} {kind:>6}   {name:<36} {mib:>6}MiB |"
                );
            }
        }
    }
    if !any {
        let _ = writeln!(text, "| {:<87} |", " No running processes found");
    }
    text + &rule
}
