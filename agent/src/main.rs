//! `aliquot-agent run`: the node agent. `aliquot-agent mps`: the MPS supervisor, a process
//! and a container of its own, so that an upgrade of the agent ends no server.

use agent::{Config, exit, mps, privilege};
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Aliquot's node agent.
#[derive(Parser)]
#[command(name = "aliquot-agent", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shares this node's cards.
    Run(Box<Config>),
    /// Owns this node's MPS servers.
    Mps(Box<Config>),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(config) => run(*config),
        Command::Mps(config) => serve_mps(*config),
    };
    result.unwrap_or_else(|error| {
        trace::fatal(&error);
        ExitCode::from(exit::NOT_STARTED)
    })
}

fn run(config: Config) -> anyhow::Result<ExitCode> {
    let priority = privilege::raise_priority();
    if config.drop_capabilities {
        // Before there is a second thread: each has its own.
        privilege::drop_all_but_needed(config.mig_strategy)?;
    }
    let runtime = runtime(2)?;
    let _inside = runtime.enter();
    let _traces = trace::start("aliquot-agent", config.otlp_endpoint.as_deref())?;
    if let Err(error) = priority {
        tracing::warn!(%error, "the watchdog has no higher priority than others");
    }
    runtime.block_on(async {
        let stop = stop_on_signals()?;
        let client = kube::Client::try_default().await?;
        let result = agent::run(config, client, stop).await;
        if let Err(error) = &result {
            tracing::error!(%error, "the agent ends");
        }
        Ok(exit::code(&result))
    })
}

fn serve_mps(config: Config) -> anyhow::Result<ExitCode> {
    let runtime = runtime(1)?;
    // The supervisor knows of no pods, and sends no spans.
    let _traces = trace::start("aliquot-mps", None)?;
    runtime.block_on(async {
        mps::serve(config, stop_on_signals()?).await?;
        Ok(ExitCode::from(exit::STOPPED))
    })
}

fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
}

/// Cancelled by SIGTERM or SIGINT.
fn stop_on_signals() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let told = stop.clone();
    // Ends with the runtime; it owns nothing.
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        told.cancel();
    });
    Ok(stop)
}
