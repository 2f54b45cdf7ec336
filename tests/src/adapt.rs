//! What is installed, fitted to the cluster of these tests.
//!
//! Comes in: an object of `deploy/` or of the chart. Goes out: the same, with what the
//! cluster lacks: nothing routes Services here, there is no DNS, and the driver is the
//! simulated one. Must never touch what a claim is about.

use anyhow::{Context, Result};
use proto::names::{NAMESPACE, object};
use serde_json::{Value, json};

use crate::gpu;
use crate::machine::ADDRESS;

/// Whether it makes pods.
pub fn is_workload(object: &Value) -> bool {
    object["kind"] == "Deployment" || object["kind"] == "DaemonSet"
}

/// Fits a workload; leaves every other object as it is.
pub fn adapt(object: &mut Value) -> Result<()> {
    if !is_workload(object) {
        return Ok(());
    }
    let scheduler = object["kind"] == "Deployment";
    if scheduler {
        // The node's ports are there once.
        object["spec"]["replicas"] = json!(1);
        object["spec"]["strategy"] = json!({"type": "Recreate"});
    }
    let spec = &mut object["spec"]["template"]["spec"];
    spec["hostAliases"] = json!([{
        "ip": ADDRESS,
        "hostnames": [format!("{}.{NAMESPACE}.svc", object::TELEMETRY_SERVICE)],
    }]);
    if scheduler {
        spec["hostNetwork"] = json!(true);
    }
    let container = &mut spec["containers"][0];
    let args = container["args"].as_array_mut().context("its args")?;
    if scheduler {
        args.push(json!(format!("--webhook-url=https://{ADDRESS}:8443")));
        return Ok(());
    }
    // Where the stand-in has the driver's library.
    for arg in args {
        if let Some(text) = arg.as_str() {
            let text = text.replace(
                "usr/lib/x86_64-linux-gnu/libnvidia-ml",
                "usr/lib64/libnvidia-ml",
            );
            *arg = json!(text);
        }
    }
    // The stand-ins of NVIDIA's programs find their driver by it.
    let env = container["env"].as_array_mut().context("its env")?;
    env.push(json!({"name": "SIM_ROOT", "value": gpu::DRIVER_ROOT}));
    Ok(())
}
