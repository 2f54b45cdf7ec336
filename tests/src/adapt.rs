//! What is installed, fitted to the cluster of these tests.
//!
//! In: an object of `deploy/` or of the chart. Out: the same, with what the cluster lacks: nothing
//! routes Services here, there is no DNS, and the driver is the simulated one. Must never touch
//! what a claim is about.

use anyhow::{Context, Result};
use proto::names::{NAMESPACE, object};
use serde_json::{Value, json};

use crate::gpu;
use crate::machine::ADDRESS;
use crate::ports::{ADMISSION_METRICS_PORT, ANSWERS_PORT, WEBHOOK_PORT};

/// Whether it makes pods.
pub fn is_workload(object: &Value) -> bool {
    object["kind"] == "Deployment" || object["kind"] == "DaemonSet"
}

/// Where the API server calls the webhook.
pub(crate) fn webhook_url() -> String {
    format!("https://{ADDRESS}:{WEBHOOK_PORT}")
}

/// Webhooks are called by URL.
pub(crate) fn webhooks(object: &mut Value) {
    let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
    for webhook in webhooks.into_iter().flatten() {
        let client = &mut webhook["clientConfig"];
        let path = client["service"]["path"].as_str().unwrap_or_default();
        *client = json!({ "url": format!("{}{path}", webhook_url()) });
    }
}

/// Fits a workload and webhooks; leaves every other object as it is.
pub fn adapt(object: &mut Value) -> Result<()> {
    webhooks(object);
    if !is_workload(object) {
        return Ok(());
    }
    let deployment = object["kind"] == "Deployment";
    let admits = object["metadata"]["name"] == "aliquot-admission";
    if deployment {
        // The node's ports are there once.
        object["spec"]["replicas"] = json!(1);
        object["spec"]["strategy"] = json!({"type": "Recreate"});
    }
    let spec = &mut object["spec"]["template"]["spec"];
    spec["hostAliases"] = json!([{
        "ip": ADDRESS,
        "hostnames": [format!("{}.{NAMESPACE}.svc", object::TELEMETRY_SERVICE)],
    }]);
    if deployment {
        spec["hostNetwork"] = json!(true);
    }
    let container = &mut spec["containers"][0];
    if admits {
        listens_at(container, "metrics", ADMISSION_METRICS_PORT)?;
        let args = container["args"].as_array_mut().context("its args")?;
        args.push(json!(format!("--webhook-url={}", webhook_url())));
    } else if deployment {
        listens_at(container, "webhook", ANSWERS_PORT)?;
    }
    if deployment {
        return Ok(());
    }
    // The stand-ins of NVIDIA's programs find their driver by it.
    let env = container["env"].as_array_mut().context("its env")?;
    env.push(json!({"name": "SIM_ROOT", "value": gpu::DRIVER_ROOT}));
    Ok(())
}

/// A port of the node that no other of these programs has.
fn listens_at(container: &mut Value, name: &str, port: u16) -> Result<()> {
    let ports = container["ports"].as_array_mut().context("its ports")?;
    let of_name = ports.iter_mut().find(|one| one["name"] == name);
    of_name.context("no such port")?["containerPort"] = json!(port);
    let args = container["args"].as_array_mut().context("its args")?;
    let flag = format!("--{name}=");
    args.retain(|arg| !arg.as_str().is_some_and(|arg| arg.starts_with(&flag)));
    args.push(json!(format!("{flag}0.0.0.0:{port}")));
    Ok(())
}
