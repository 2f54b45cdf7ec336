//! `aliquot-scheduler`: places the pods that ask for it.

use clap::Parser;
use scheduler::Config;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Aliquot's scheduler.
#[derive(Parser)]
#[command(name = "aliquot-scheduler", version)]
struct Arguments {
    #[command(flatten)]
    config: Config,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match serve(arguments.config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            trace::fatal(&error);
            ExitCode::FAILURE
        }
    }
}

fn serve(config: Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()?;
    let _inside = runtime.enter();
    let _traces = trace::start("aliquot-scheduler", config.otlp_endpoint.as_deref())?;
    runtime.block_on(async {
        let stop = stop_on_signals()?;
        let mut access = kube::Config::infer().await?;
        // Each write ends in one outcome event for the core, which decides on retries.
        access.default_retry = false;
        scheduler::run(config, access.into(), stop).await?;
        Ok(())
    })
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
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        told.cancel();
    });
    Ok(stop)
}
