//! `ShareConfig`: requests of a `ResourceClaim` or its `DeviceClass` to the driver `aliquot.dev`
//! besides cards and memory, as an opaque configuration of the claim's devices.

use crate::gpu_node::Reaction;
use crate::units::{Fence, Mode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The only version so far.
pub const API_VERSION: &str = "aliquot.dev/v1alpha1";
/// Its kind.
pub const KIND: &str = "ShareConfig";

/// Every field may be left out; what a claim says wins over what its class says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShareConfig {
    /// How the cards are shared; `exclusive`: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// No weaker fence, whatever share is placed beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_fence: Option<Fence>,
    /// Compute ceiling, 1 to 100 per cent; no ceiling when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_percent: Option<u8>,
    /// What happens to its containers where they hold more than the share. A class may say
    /// anything; a claim only what is at least as strict as what would hold without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_violation: Option<Reaction>,
}

impl ShareConfig {
    /// Reads the parameters of an opaque configuration.
    ///
    /// # Errors
    /// One sentence: they are of another version or kind, or have a field or value that is not
    /// known.
    pub fn parse(parameters: &Value) -> Result<Self, String> {
        let Value::Object(fields) = parameters else {
            return Err(format!("the configuration is no object, but {parameters}"));
        };
        let mut fields = fields.clone();
        for (key, known) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            match fields.remove(key) {
                Some(Value::String(found)) if found == known => {}
                found => {
                    let found = found.unwrap_or_default();
                    return Err(format!(
                        "the configuration's {key} is {found}, this release reads {known}"
                    ));
                }
            }
        }
        let read: Self = serde_json::from_value(Value::Object(fields))
            .map_err(|error| format!("the configuration is not understood: {error}"))?;
        if read
            .compute_percent
            .is_some_and(|percent| !(1..=100).contains(&percent))
        {
            return Err("the configuration's computePercent is not from 1 to 100".to_owned());
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_configuration_is_read_whole_or_refused_with_a_sentence() {
        let whole = json!({"apiVersion": API_VERSION, "kind": KIND, "mode": "mps-isolated",
            "minimumFence": "ServerLimit", "computePercent": 25, "onViolation": "Evict"});
        let read = ShareConfig {
            mode: Some(Mode::MpsIsolated),
            minimum_fence: Some(Fence::ServerLimit),
            compute_percent: Some(25),
            on_violation: Some(Reaction::Evict),
        };
        assert_eq!(ShareConfig::parse(&whole), Ok(read));
        let empty = json!({"apiVersion": API_VERSION, "kind": KIND});
        assert_eq!(ShareConfig::parse(&empty), Ok(ShareConfig::default()));
        for (field, value, words) in [
            (
                "apiVersion",
                json!("aliquot.dev/v2"),
                "apiVersion is \"aliquot.dev/v2\", this release reads aliquot.dev/v1alpha1",
            ),
            ("apiVersion", Value::Null, "apiVersion is null"),
            ("kind", json!("GpuConfig"), "kind is \"GpuConfig\""),
            ("memory", json!("2Gi"), "unknown field `memory`"),
            ("mode", json!("mig"), "unknown variant `mig`"),
            ("minimumFence", json!("Best"), "unknown variant"),
            ("computePercent", json!(0), "from 1 to 100"),
            ("computePercent", json!(300), "300"),
            ("onViolation", json!("Ignore"), "unknown variant"),
        ] {
            let mut bad = whole.clone();
            bad[field] = value;
            let why = ShareConfig::parse(&bad).unwrap_err();
            assert!(why.contains(words), "{field}: {why}");
        }
        assert!(ShareConfig::parse(&json!([])).is_err());
    }
}
