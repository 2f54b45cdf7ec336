//! Selectors of devices: CEL expressions over one device, as `DeviceClass`es and requests of
//! `ResourceClaim`s have them.
//!
//! In: an expression, a device. Out: whether it matches, or one sentence. Pure.
//! Kubernetes' own rules are `k8s.io/dynamic-resource-allocation/cel`; the API server has checked
//! an expression against them when it was written.
//! - `subject`: a device; `environment`: functions and macros; `quantity`, `semver`, `domains`: values.
//! - `cost`: what an expression may cost at most; `stack`: where it is evaluated.

#![allow(clippy::unnecessary_wraps, clippy::trivially_copy_pass_by_ref)] // Signatures of functions that an expression calls are the interpreter's.

mod cost;
mod domains;
mod environment;
mod quantity;
mod semver;
pub mod stack;
mod subject;

pub use stack::{Stack, deep};
pub use subject::{Attribute, Subject};

use cel::common::types::{CelBool, CelInt, CelMap, CelString};
use cel::{Context, Env, Program, Value};
use domains::{Boxed, Domains};
use std::sync::{Arc, LazyLock};

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(environment::new()));

/// Kubernetes' `CELSelectorExpressionMaxLength`.
const LONGEST: usize = 10 << 10;

/// A compiled expression.
pub struct Selector {
    program: Program,
}

impl std::fmt::Debug for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Selector")
    }
}

impl Selector {
    /// # Errors
    /// It is no expression, or may cost more than an expression may.
    pub fn compile(text: &str, _: &Stack) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("its CEL expression is longer than {LONGEST} bytes"));
        }
        let program = ENVIRONMENT
            .compile(text)
            .map_err(|error| format!("CEL compile error: {}", line(&error.to_string())))?;
        cost::of(program.expression(), None)?;
        Ok(Self { program })
    }

    /// Whether it matches.
    ///
    /// # Errors
    /// It has no answer for this device, or may cost more than an expression may.
    pub fn matches(&self, device: &Subject, stack: &Stack) -> Result<bool, String> {
        let cost = cost::of(self.program.expression(), Some(device))?;
        stack.spend(cost.steps);
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.add_variable_as_val("device", Box::new(variable(device)?));
        match self.program.execute(&context) {
            Ok(Value::Bool(matches)) => Ok(matches),
            Ok(_) => Err("CEL runtime error: it evaluates to no bool".to_owned()),
            Err(error) => Err(format!("CEL runtime error: {}", line(&error.to_string()))),
        }
    }
}

/// Errors of the interpreter are for programmers: their first line, and not all of it.
fn line(text: &str) -> String {
    const MOST: usize = 200;
    let one = text.split_whitespace().collect::<Vec<_>>().join(" ");
    one.chars().take(MOST).collect()
}

fn variable(device: &Subject) -> Result<CelMap<'_>, String> {
    let driver = device.driver.as_str();
    let mut attributes = Vec::with_capacity(device.attributes.len());
    for (name, value) in &device.attributes {
        attributes.push((name.as_str(), attribute(name, value)?));
    }
    let capacity = device.capacity.iter();
    let capacity = capacity.map(|(name, value)| {
        let value: Boxed = Box::new(quantity::Quantity(*value));
        (name.as_str(), value)
    });
    let entries: [(&str, Boxed); 4] = [
        ("driver", Box::new(CelString::from(driver))),
        (
            "allowMultipleAllocations",
            Box::new(CelBool::from(device.shared)),
        ),
        ("attributes", Box::new(Domains::new(driver, attributes))),
        ("capacity", Box::new(Domains::new(driver, capacity))),
    ];
    Ok(domains::map(entries))
}

fn attribute<'v>(name: &str, value: &'v Attribute) -> Result<Boxed<'v>, String> {
    Ok(match value {
        Attribute::Int(value) => Box::new(CelInt::from(*value)),
        Attribute::Bool(value) => Box::new(CelBool::from(*value)),
        Attribute::Text(value) => Box::new(CelString::from(value.as_str())),
        Attribute::Version(value) => {
            let version = semver::Version::parse(value);
            Box::new(
                version
                    .ok_or_else(|| format!("attribute {name}: {value:?} is no semantic version"))?,
            )
        }
        Attribute::Unknown => {
            return Err(format!("attribute {name}: unsupported attribute value"));
        }
    })
}

#[cfg(test)]
mod tests;
