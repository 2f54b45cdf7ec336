//! Aliquot and Kubernetes' own code, asked the same. Fails if they differ in anything.
//!
//! - [`filters`]: which nodes would let a pod in, and what they are worth to it.
//! - [`claims`]: which nodes have devices for a pod's claims (DRA), and which devices.
//! - [`selectors`]: which devices a CEL selector selects.
#![allow(clippy::print_stdout)] // What it prints is what it is for.

mod claims;
mod filters;
mod program;
mod seeds;
mod selectors;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use seeds::Seeds;
use std::process::ExitCode;

#[derive(Debug, Parser)]
struct Args {
    /// What is compared.
    #[arg(value_enum, default_value_t = Question::Filters)]
    question: Question,
    #[command(flatten)]
    seeds: Seeds,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Question {
    /// Which nodes let a pod in.
    Filters,
    /// Which nodes have devices for a pod's claims.
    Claims,
    /// Which devices a CEL expression selects.
    Selectors,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let alike = match args.question {
        Question::Filters => filters::compare(&args.seeds),
        Question::Claims => claims::compare(&args.seeds),
        Question::Selectors => selectors::compare(&args.seeds),
    }?;
    Ok(ExitCode::from(u8::from(!alike)))
}
