//! Aliquot and Kubernetes' own code, asked the same. Fails if they differ in anything.
//!
//! - [`filters`]: which nodes would let a pod in, and what they are worth to it.
//! - [`claims`]: which nodes have devices for a pod's claims (DRA), and which devices.
//! - [`selectors`]: which devices a CEL selector selects.
#![allow(clippy::print_stdout)] // What it prints is what it is for.

mod claims;
mod filters;
mod program;
mod selectors;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use serde::de::DeserializeOwned;
use serde_json::Value;
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

/// Each seed is a case.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Seeds {
    /// How many.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// The first.
    #[arg(long, default_value_t = 1)]
    base: u64,
}

impl Seeds {
    fn all(&self) -> std::ops::Range<u64> {
        self.base..self.base.saturating_add(self.seeds)
    }
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

fn objects<K: DeserializeOwned>(list: &Value) -> Result<Vec<Box<K>>> {
    let list = list.as_array().into_iter().flatten();
    list.map(|object| Ok(Box::new(serde_json::from_value(object.clone())?)))
        .collect()
}
