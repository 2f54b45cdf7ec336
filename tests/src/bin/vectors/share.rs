//! Fair share cases: one level of queues, one division per resource.

use crate::end::End;
use scheduler_core::fair_share::{Claim, divide};
use scheduler_core::units::Time;
use serde_json::Value;
use std::fmt::Write as _;

pub(crate) fn run(value: &Value) -> End {
    let k = value["k_value"].as_f64().unwrap_or(1.0);
    let empty = Vec::new();
    let mut queues: Vec<&Value> = value["queues"]
        .as_array()
        .unwrap_or(&empty)
        .iter()
        .collect();
    // The division wants its claims in order of name.
    queues.sort_by_key(|queue| queue["name"].as_str().unwrap_or_default());
    let mut wrong = String::new();
    for (key, total) in [
        ("gpu", "total_gpu"),
        ("cpu_milli", "total_cpu_milli"),
        ("memory", "total_memory"),
    ] {
        let claims: Vec<Claim> = queues.iter().map(|queue| claim(queue, key)).collect();
        if let Some(claim) = claims.iter().find(|claim| claim.weight < 0.0) {
            return End::Failed(format!("  {}: a weight of {}", claim.name, claim.weight));
        }
        let shares = divide(value[total].as_f64().unwrap_or(0.0), k, &claims);
        for (queue, share) in queues.iter().zip(shares) {
            let expected = queue[key]["fair_share"].as_f64().unwrap_or(0.0);
            if (share - expected).abs() > 1e-6 * expected.abs().max(1.0) {
                let _ = writeln!(
                    wrong,
                    "  {} {key}: expected {expected}, got {share}",
                    queue["name"]
                );
            }
        }
    }
    if wrong.is_empty() {
        End::Passed
    } else {
        End::Failed(wrong)
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn claim(queue: &Value, key: &str) -> Claim {
    let resource = &queue[key];
    let number = |field: &str| resource[field].as_f64().unwrap_or(0.0);
    #[allow(clippy::float_cmp)] // No bound is written as -1.
    let bound = |field: &str| Some(number(field)).filter(|value| *value != -1.0);
    Claim {
        name: queue["name"].as_str().unwrap_or_default().into(),
        priority: queue["priority"].as_i64().unwrap_or(100) as i32,
        created: Time(queue["created_s"].as_u64().unwrap_or(0)),
        quota: bound("quota"),
        limit: bound("limit"),
        weight: number("over_quota_weight"),
        request: number("requested"),
        usage: number("usage"),
    }
}
