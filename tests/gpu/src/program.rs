//! `gpu cuda`: a scripted CUDA program, one JSON line for each word.
//!
//! Words are arguments, and lines on standard input after `ask`:
//!
//! ```text
//! context | info | alloc MIB | managed MIB | fill STEP | free | touch | kernel | fault
//! beat N | sleep MS | control COMMAND | graphics MIB | files | log LINE | ask | hold | end
//! ```
//!
//! `env NAME=VALUE` before them is for the libraries' own start.
//!
//! Owns nothing but its process. `code` 0 is success; a refused word is reported and the next one
//! is tried.

use crate::control;
use crate::cuda::{Card, Code, Cuda};
use crate::files;
use crate::gl::Graphics;
use anyhow::{Context as _, bail};
use clap::Args;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setgid, setuid};
use proto::names::env::MPS_PIPE_DIRECTORY;
use serde_json::{Value, json};
use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const MIB: usize = 1 << 20;
/// For the control program to end.
const DRIVEN: Duration = Duration::from_secs(8);
/// Between two touches of `beat`.
const BEAT: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The library.
    #[arg(long, default_value = "libcuda.so.1")]
    library: PathBuf,
    /// `nvidia-cuda-mps-control`, for the word `control`.
    #[arg(long)]
    control: Option<PathBuf>,
    /// `libEGL.so.1`, for the word `graphics`.
    #[arg(long)]
    egl: Option<PathBuf>,
    /// This folder cannot be written to.
    #[arg(long)]
    read_only: Option<PathBuf>,
    /// An empty `/dev/shm` of its own.
    #[arg(long)]
    fresh_shm: bool,
    /// Runs as this user.
    #[arg(long)]
    uid: Option<u32>,
    /// What to do.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// A running program.
struct Program<'a> {
    cuda: &'a Cuda,
    control: Option<&'a Path>,
    egl: Option<&'a Path>,
    graphics: Option<Graphics>,
    card: Option<Card<'a>>,
    taken: Vec<(u64, usize)>,
}

/// What comes after a word.
enum Next {
    Word,
    End,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if let [first, setting, ..] = options.words.as_slice()
        && first == "env"
    {
        return Err(with_setting(setting)?.exec()).context("the program cannot be started");
    }
    isolation(options)?;
    let cuda = Cuda::load(&options.library)?;
    let mut program = Program {
        cuda: &cuda,
        control: options.control.as_deref(),
        egl: options.egl.as_deref(),
        graphics: None,
        card: None,
        taken: Vec::new(),
    };
    // A word and its operand are one argument, or two.
    let words = options.words.join(" ");
    let mut words = words.split_whitespace();
    while let Some(word) = words.next() {
        if word == "ask" {
            for line in std::io::stdin().lock().lines() {
                let line = line?;
                let (word, operand) = line.split_once(' ').unwrap_or((&line, ""));
                if let Next::End = program.step(word, operand)? {
                    break;
                }
            }
            break;
        }
        let operand = match word {
            "alloc" | "managed" | "fill" | "beat" | "sleep" | "graphics" => {
                words.next().unwrap_or_default()
            }
            _ => "",
        };
        if let Next::End = program.step(word, operand)? {
            break;
        }
    }
    if let Some(card) = program.card.take() {
        // A card that broke cannot be left in order.
        let _ = card.end();
    }
    Ok(())
}

/// This program again, with a setting in its environment instead of its first two words.
fn with_setting(setting: &str) -> anyhow::Result<Command> {
    let (name, value) = setting.split_once('=').context("env NAME=VALUE")?;
    let mut command = Command::new(std::env::current_exe()?);
    let mut args = std::env::args_os().skip(1);
    command.args(args.by_ref().take_while(|arg| arg != "env"));
    command.args(args.skip(1)).env(name, value);
    Ok(command)
}

/// Puts up what the options ask for, before the library is there.
fn isolation(options: &Options) -> anyhow::Result<()> {
    let nothing = None::<&str>;
    if options.read_only.is_some() || options.fresh_shm {
        own_mounts()?;
    }
    if let Some(folder) = &options.read_only {
        mount(Some(folder), folder, nothing, MsFlags::MS_BIND, nothing)?;
        let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(Some(folder), folder, nothing, again, nothing)?;
    }
    if options.fresh_shm {
        let none = MsFlags::empty();
        mount(Some("tmpfs"), "/dev/shm", Some("tmpfs"), none, nothing)?;
    }
    if let Some(uid) = options.uid {
        setgid(Gid::from_raw(uid))?;
        setuid(Uid::from_raw(uid))?;
    }
    Ok(())
}

/// A mount namespace of this process's own.
pub(crate) fn own_mounts() -> anyhow::Result<()> {
    let nothing = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).context("no mount namespace")?;
    let follow = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(nothing, "/", nothing, follow, nothing)?;
    Ok(())
}

impl Program<'_> {
    fn step(&mut self, word: &str, operand: &str) -> anyhow::Result<Next> {
        let number = || {
            operand
                .parse::<usize>()
                .with_context(|| format!("{word} needs a number"))
        };
        let begin = Instant::now();
        let mut told = json!({"do": word, "pid": std::process::id()});
        let result = match word {
            "context" => self.context(&mut told),
            "info" => Ok(()),
            "alloc" => self.take(number()?, false),
            "managed" => self.take(number()?, true),
            "fill" => self.fill(number()?.max(1)),
            "free" => self.free(),
            "touch" => self.touch(),
            "kernel" => self.on_card(|card| card.run(false)),
            "fault" => self.on_card(|card| card.run(true)),
            "beat" => self.beat(number()?),
            "sleep" => {
                std::thread::sleep(Duration::from_millis(number()? as u64));
                Ok(())
            }
            "control" => {
                let (exit, said) = self.drive(operand)?;
                told["exit"] = json!(exit);
                told["said"] = json!(said);
                Ok(())
            }
            "graphics" => {
                let mib = number()?;
                told["error"] = match self.draw(mib) {
                    Ok(()) => Value::Null,
                    Err(error) => json!(format!("{error:#}")),
                };
                Ok(())
            }
            "files" => {
                let folder = std::env::var_os(MPS_PIPE_DIRECTORY).context("no pipe directory")?;
                told["files"] = json!(files::tried(Path::new(&folder)));
                Ok(())
            }
            "log" => {
                let folder = std::env::var_os(MPS_PIPE_DIRECTORY).context("no pipe directory")?;
                told["log"] = json!(files::logged(Path::new(&folder), operand));
                Ok(())
            }
            "hold" => {
                say(&told)?;
                loop {
                    std::thread::park();
                }
            }
            "end" => return Ok(Next::End),
            other => bail!("{other:?} is no word"),
        };
        told["ms"] = json!(begin.elapsed().as_millis());
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        told["at_us"] = json!(u64::try_from(now.as_micros())?);
        told["taken_mib"] = json!(self.taken_mib());
        match result {
            Ok(()) => told["code"] = json!(0),
            Err(code) => {
                told["code"] = json!(code.0);
                told["name"] = json!(self.cuda.name(code));
            }
        }
        if let Some(Ok((total, free))) = self.card.as_ref().map(Card::memory) {
            told["total_mib"] = json!(total / MIB);
            told["free_mib"] = json!(free / MIB);
        }
        say(&told)?;
        Ok(Next::Word)
    }

    fn context(&mut self, told: &mut Value) -> Result<(), Code> {
        let card = self.cuda.begin()?;
        told["gpu"] = json!(card.uuid()?);
        told["cuda"] = json!(self.cuda.version()?);
        self.card = Some(card);
        Ok(())
    }

    /// `CUDA_ERROR_INVALID_CONTEXT` without one.
    fn on_card(&self, run: impl FnOnce(&Card<'_>) -> Result<(), Code>) -> Result<(), Code> {
        self.card.as_ref().map_or(Err(Code(201)), run)
    }

    fn take(&mut self, mib: usize, managed: bool) -> Result<(), Code> {
        let card = self.card.as_ref().ok_or(Code(201))?;
        let address = if managed {
            card.allocate_managed(mib * MIB)?
        } else {
            card.allocate(mib * MIB)?
        };
        self.taken.push((address, mib));
        Ok(())
    }

    /// Until it is refused; the refusal is the answer.
    fn fill(&mut self, step: usize) -> Result<(), Code> {
        loop {
            self.take(step, false)?;
        }
    }

    fn taken_mib(&self) -> usize {
        self.taken.iter().map(|(_, mib)| mib).sum()
    }

    fn free(&mut self) -> Result<(), Code> {
        while let Some((address, _)) = self.taken.pop() {
            self.on_card(|card| card.free(address))?;
        }
        Ok(())
    }

    /// Writes to what it holds.
    fn touch(&self) -> Result<(), Code> {
        self.on_card(|card| match self.taken.first() {
            Some((address, mib)) => card.touch(*address, mib * MIB),
            None => card.synchronize(),
        })
    }

    fn beat(&self, times: usize) -> Result<(), Code> {
        for _ in 0..times {
            self.touch()?;
            std::thread::sleep(BEAT);
        }
        Ok(())
    }

    /// Takes memory by a graphics context.
    fn draw(&mut self, mib: usize) -> anyhow::Result<()> {
        if self.graphics.is_none() {
            let library = self.egl.context("no EGL was named")?;
            self.graphics = Some(Graphics::begin(library)?);
        }
        self.graphics
            .as_ref()
            .map_or(Ok(()), |graphics| graphics.take(mib))
    }

    /// The control program, as a tenant could start it.
    fn drive(&self, command: &str) -> anyhow::Result<(Option<i32>, String)> {
        let program = self.control.context("no control program was named")?;
        control::tell(&mut Command::new(program), command, DRIVEN)
    }
}

fn say(line: &Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}
