//! Every form in which KAI 0.18 to 0.20 asks for a share, and what becomes of it.
//!
//! One table for all implementations of the rules: the parser and the webhook
//! (`tests/tests/forms.rs`), and the API server with the policies of `deploy/` (the claim
//! `forms::...`). Sources of the rules: KAI's `pkg/common/resources/gpu_sharing*.go`,
//! `pkg/admission`, `docs/gpu-sharing`.

use api::Mode;
use api::request::{Amount, GpuRequest, ShareRequest};
use serde_json::{Map, Value, json};

/// Annotations of a pod with the init container `prepare` and the containers `main` and `side`.
pub type Annotations = &'static [(&'static str, &'static str)];

/// One form.
#[derive(Debug)]
pub struct Form {
    /// What the user writes.
    pub says: Annotations,
    /// What becomes of it.
    pub becomes: Becomes,
}

/// What becomes of a form.
#[derive(Debug)]
pub enum Becomes {
    /// Shares, and warnings that name these annotations.
    Taken(&'static [Share], &'static [&'static str]),
    /// A refusal with these words.
    Refused(&'static str),
    /// A refusal with these words by the webhook, and by the policy `aliquot-grant` for a pod
    /// that no webhook sees.
    RefusedByPolicy(&'static str),
}

/// What one container gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Which.
    pub container: &'static str,
    /// Of each card.
    pub amount: Amount,
    /// The most of each card, where that is more.
    pub limit: Option<Amount>,
    /// How many cards.
    pub devices: u32,
    /// Compute ceiling.
    pub compute: Option<u8>,
    /// Named mode.
    pub mode: Option<Mode>,
}

impl Share {
    /// Whether that is the expected result.
    pub fn is(&self, container: &str, gpus: &GpuRequest) -> bool {
        let wanted = GpuRequest::Share(ShareRequest {
            amount: self.amount,
            limit: self.limit,
            devices: self.devices,
            compute_percent: self.compute,
            mode: self.mode,
        });
        self.container == container && wanted == *gpus
    }
}

const fn mib(mib: u64) -> Share {
    Share {
        container: "main",
        amount: Amount::Memory(api::Mib(mib)),
        limit: None,
        devices: 1,
        compute: None,
        mode: None,
    }
}

const fn milli(part: u64) -> Share {
    Share {
        amount: Amount::Fraction(part * 1_000_000),
        ..mib(0)
    }
}

const fn to_mib(limit: u64, share: Share) -> Share {
    Share {
        limit: Some(Amount::Memory(api::Mib(limit))),
        ..share
    }
}

const fn to_milli(part: u64, share: Share) -> Share {
    Share {
        limit: Some(Amount::Fraction(part * 1_000_000)),
        ..share
    }
}

const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";
const LIMIT: &str = "nvidia.com/container.main.gpu-memory.limit";
const MODE: &str = "nvidia.com/container.main.gpu-compute.mode";
const COMPUTE: &str = "nvidia.com/container.main.gpu-compute.request";
const SIDE: &str = "nvidia.com/container.side.gpu-memory.request";
const SIDE_MODE: &str = "nvidia.com/container.side.gpu-compute.mode";
const DEVICES: &str = "nvidia.com/container.main.gpus.devices";
const PORTION: &str = "nvidia.com/container.main.gpu-compute.portion";
const PORTION_LIMIT: &str = "kai.scheduler/container.main.gpu-memory.portion.limit";
const INTERIM_MODE: &str = "kai.scheduler/gpu-compute-sharing-mode";
const COUNT: &str = "gpu-fraction-num-devices";
const NAME: &str = "gpu-fraction-container-name";

/// All of them.
pub const FORMS: &[Form] = &[
    // The pod's form.
    taken(&[("gpu-memory", "2000")], &[mib(2000)], &[]),
    taken(&[("gpu-fraction", "0.5")], &[milli(500)], &[]),
    taken(
        &[("gpu-fraction", "0.5"), (COUNT, "2")],
        &[Share {
            devices: 2,
            ..milli(500)
        }],
        &[],
    ),
    taken(
        &[("gpu-memory", "2000"), (NAME, "side")],
        &[Share {
            container: "side",
            ..mib(2000)
        }],
        &[],
    ),
    // The containers' form, in quantities as Kubernetes reads them.
    taken(&[(REQUEST, "2Gi")], &[mib(2048)], &[]),
    taken(&[(REQUEST, "1.5Gi")], &[mib(1536)], &[]),
    taken(&[(REQUEST, "1e9")], &[mib(954)], &[]),
    taken(&[(REQUEST, "1G")], &[mib(954)], &[]),
    taken(&[(REQUEST, "0.001Ti")], &[mib(1049)], &[]),
    taken(&[(LIMIT, "2000Mi")], &[mib(2000)], &[]),
    taken(&[(REQUEST, "2Gi"), (LIMIT, "2048Mi")], &[mib(2048)], &[]),
    taken(
        &[(REQUEST, "2Gi"), (LIMIT, "4Gi")],
        &[to_mib(4096, mib(2048))],
        &[],
    ),
    taken(
        &[(REQUEST, "2Gi"), (COUNT, "2")],
        &[Share {
            devices: 2,
            ..mib(2048)
        }],
        &[],
    ),
    taken(
        &[(LIMIT, "2Gi"), (COUNT, "2")],
        &[Share {
            devices: 2,
            ..mib(2048)
        }],
        &[],
    ),
    taken(
        &[(REQUEST, "2Gi"), (SIDE, "1Gi")],
        &[
            mib(2048),
            Share {
                container: "side",
                ..mib(1024)
            },
        ],
        &[],
    ),
    taken(&[(REQUEST, "2Gi"), (NAME, "main")], &[mib(2048)], &[]),
    // Both: KAI's webhook writes the one beside the other.
    taken(
        &[("gpu-memory", "2048"), (REQUEST, "2Gi")],
        &[mib(2048)],
        &[],
    ),
    taken(
        &[
            ("gpu-memory", "2048"),
            ("gpu-memory.limit", "4Gi"),
            (REQUEST, "2Gi"),
            (LIMIT, "4Gi"),
        ],
        &[to_mib(4096, mib(2048))],
        &[],
    ),
    taken(
        &[("gpu-fraction", "0.5"), (REQUEST, "2Gi")],
        &[mib(2048)],
        &["gpu-fraction"],
    ),
    // More than is kept.
    taken(
        &[("gpu-memory", "2000"), ("gpu-memory.limit", "4Gi")],
        &[to_mib(4096, mib(2000))],
        &[],
    ),
    taken(
        &[("gpu-memory", "2000"), ("gpu-memory.limit", "2000Mi")],
        &[mib(2000)],
        &[],
    ),
    taken(
        &[("gpu-fraction", "0.25"), ("gpu-fraction.limit", "0.5")],
        &[to_milli(500, milli(250))],
        &[],
    ),
    taken(
        &[("gpu-fraction", "0.25"), (PORTION_LIMIT, "0.5")],
        &[to_milli(500, milli(250))],
        &[],
    ),
    taken(
        &[
            ("gpu-fraction", "0.25"),
            ("gpu-fraction.limit", "0.5"),
            (PORTION_LIMIT, "0.5"),
        ],
        &[to_milli(500, milli(250))],
        &[],
    ),
    // Compute.
    taken(
        &[(REQUEST, "2Gi"), (MODE, "sm-sharing")],
        &[Share {
            mode: Some(Mode::Mps),
            ..mib(2048)
        }],
        &[],
    ),
    taken(
        &[("gpu-fraction", "0.5"), (MODE, "time-slicing")],
        &[Share {
            mode: Some(Mode::TimeSlicing),
            ..milli(500)
        }],
        &[],
    ),
    taken(
        &[("gpu-fraction", "0.5"), (INTERIM_MODE, "time-slicing")],
        &[Share {
            mode: Some(Mode::TimeSlicing),
            ..milli(500)
        }],
        &[],
    ),
    taken(
        &[
            (REQUEST, "2Gi"),
            (MODE, "sm-sharing"),
            (INTERIM_MODE, "time-slicing"),
        ],
        &[Share {
            mode: Some(Mode::Mps),
            ..mib(2048)
        }],
        &[INTERIM_MODE],
    ),
    taken(
        &[(REQUEST, "2Gi"), (COMPUTE, "0.29")],
        &[Share {
            compute: Some(29),
            ..mib(2048)
        }],
        &[COMPUTE],
    ),
    taken(
        &[("gpu-fraction", "0.5"), (COMPUTE, "1")],
        &[Share {
            compute: Some(100),
            ..milli(500)
        }],
        &[COMPUTE],
    ),
    taken(
        &[(REQUEST, "2Gi"), (COMPUTE, "0.5"), (MODE, "time-slicing")],
        &[Share {
            compute: Some(50),
            mode: Some(Mode::TimeSlicing),
            ..mib(2048)
        }],
        &[COMPUTE],
    ),
    taken(
        &[
            (REQUEST, "2Gi"),
            (COMPUTE, "0.5"),
            ("aliquot.dev/gpu-compute", "20"),
        ],
        &[Share {
            compute: Some(50),
            ..mib(2048)
        }],
        &["aliquot.dev/gpu-compute", COMPUTE],
    ),
    // What is not followed.
    taken(
        &[(REQUEST, "2Gi"), (SIDE_MODE, "sm-sharing")],
        &[mib(2048)],
        &[SIDE_MODE],
    ),
    taken(&[(INTERIM_MODE, "sm-sharing")], &[], &[INTERIM_MODE]),
    taken(&[(NAME, "main")], &[], &[NAME]),
    taken(
        &[
            ("gpu-memory", "2000"),
            ("kai-resource-isolator.io/inject", "false"),
        ],
        &[mib(2000)],
        &["kai-resource-isolator.io/inject"],
    ),
    taken(
        &[
            ("gpu-memory", "2000"),
            ("kai.scheduler/container.main.gpu-memory.portion", "0.5"),
        ],
        &[mib(2000)],
        &["kai.scheduler/container.main.gpu-memory.portion"],
    ),
    // What is refused.
    refused(
        &[(REQUEST, "0")],
        "nvidia.com/container.main.gpu-memory.request annotation value must be a valid Kubernetes memory quantity greater than 0",
    ),
    refused(&[(REQUEST, "2GB")], "valid Kubernetes memory quantity"),
    refused(&[(REQUEST, "500m")], "is less than 1 MB"),
    refused(&[(LIMIT, "4000")], "such as \"4000Mi\""),
    refused(&[(LIMIT, "-1Gi")], "valid Kubernetes memory quantity"),
    refused(
        &[(REQUEST, "4Gi"), (LIMIT, "2Gi")],
        "invalid fraction request for container main: request is greater than limit",
    ),
    refused(
        &[("nvidia.com/container.other.gpu-memory.limit", "2Gi")],
        "container other not found in pod spec, but a fractional annotation referencing it was found",
    ),
    refused(
        &[(REQUEST, "2Gi"), (NAME, "side")],
        "gpu-fraction-container-name annotation value side does not match container name main",
    ),
    refused(
        &[(REQUEST, "2Gi"), (COUNT, "0")],
        "fraction count annotation value must be a positive integer greater than 0",
    ),
    refused(
        &[(COUNT, "2")],
        "cannot request multiple fractional devices",
    ),
    refused(
        &[("gpu-memory", "2000"), (REQUEST, "2Gi")],
        "NvFractions memory request (2048 MiB) does not match gpu-memory annotation value (2000 MiB)",
    ),
    refused(
        &[("gpu-memory", "2000"), (LIMIT, "2Gi")],
        "cannot combine nvidia.com/container. limit annotation with gpu-fraction or gpu-memory annotation",
    ),
    refused(
        &[("gpu-fraction", "0.5"), (LIMIT, "2Gi")],
        "cannot combine nvidia.com/container. limit annotation with gpu-fraction or gpu-memory annotation",
    ),
    refused(
        &[("gpu-memory", "2000"), (REQUEST, "2000Mi"), (SIDE, "1Gi")],
        "gpu-memory applies to one container, and several have annotations of their own",
    ),
    refused(
        &[("gpu-memory.limit", "4Gi")],
        "gpu-memory.limit annotation can only be used together with the gpu-memory annotation",
    ),
    refused(
        &[("gpu-memory", "2000"), ("gpu-memory.limit", "4000")],
        "gpu-memory.limit annotation value must be a positive Kubernetes memory quantity with a unit",
    ),
    refused(
        &[("gpu-memory", "2000"), ("gpu-memory.limit", "1Gi")],
        "gpu-memory.limit annotation value (1024 MiB) must not be smaller than gpu-memory annotation value (2000 MiB)",
    ),
    refused(
        &[
            ("gpu-memory", "2048"),
            ("gpu-memory.limit", "4Gi"),
            (REQUEST, "2Gi"),
            (LIMIT, "3Gi"),
        ],
        "gpu-memory.limit annotation conflicts with nvidia.com/container.main.gpu-memory.limit annotation",
    ),
    refused(
        &[("gpu-fraction.limit", "0.5")],
        "gpu-fraction.limit annotation can only be used together with the gpu-fraction annotation",
    ),
    refused(
        &[("gpu-memory", "2000"), (PORTION_LIMIT, "0.5")],
        "can only be used together with the gpu-fraction annotation",
    ),
    refused(
        &[("gpu-fraction", "0.5"), ("gpu-fraction.limit", "0.25")],
        "gpu-fraction.limit annotation value (0.25) must be greater than gpu-fraction annotation value (0.5)",
    ),
    refused(
        &[("gpu-fraction", "0.5"), (PORTION_LIMIT, "0.5")],
        "must be greater than gpu-fraction annotation value (0.5)",
    ),
    refused(
        &[("gpu-fraction", "0.5"), (PORTION_LIMIT, "1")],
        "kai.scheduler/container.main.gpu-memory.portion.limit annotation value must be a positive number smaller than 1.0",
    ),
    refused(
        &[("gpu-fraction", "0.5"), (PORTION_LIMIT, "0.123456")],
        "annotation value must have at most 5 digits after the decimal point",
    ),
    refused(
        &[
            ("gpu-fraction", "0.5"),
            (
                "kai.scheduler/container.side.gpu-memory.portion.limit",
                "0.75",
            ),
        ],
        "annotation container name side does not match the gpu-fraction target container",
    ),
    refused(
        &[
            ("gpu-fraction", "0.25"),
            ("gpu-fraction.limit", "0.5"),
            (PORTION_LIMIT, "0.75"),
        ],
        "gpu-fraction.limit annotation conflicts with kai.scheduler/container.main.gpu-memory.portion.limit annotation",
    ),
    refused(
        &[(REQUEST, "2Gi"), (MODE, "mps")],
        "must be time-slicing or sm-sharing",
    ),
    refused(
        &[("gpu-memory", "2000"), (INTERIM_MODE, "mps")],
        "kai.scheduler/gpu-compute-sharing-mode annotation value must be time-slicing or sm-sharing",
    ),
    refused(
        &[(REQUEST, "2Gi"), (COMPUTE, "0")],
        "nvidia.com/container.main.gpu-compute.request annotation value must be a positive number no greater than 1.0",
    ),
    refused(
        &[(REQUEST, "2Gi"), (COMPUTE, "1.0000001")],
        "no greater than 1.0",
    ),
    refused(&[(REQUEST, "2Gi"), (COMPUTE, "50")], "no greater than 1.0"),
    refused(&[(REQUEST, "2Gi"), (COMPUTE, "NaN")], "no greater than 1.0"),
    refused(
        &[("nvidia.com/container.main.gpu-memory.requests", "2Gi")],
        "annotation nvidia.com/container.main.gpu-memory.requests is unknown for a container",
    ),
    Form {
        says: &[("gpu-memory", "2000"), (DEVICES, "GPU-1")],
        becomes: Becomes::RefusedByPolicy(DEVICES),
    },
    Form {
        says: &[("gpu-memory", "2000"), (PORTION, "0.5")],
        becomes: Becomes::RefusedByPolicy(PORTION),
    },
];

const fn taken(
    says: Annotations,
    shares: &'static [Share],
    warns: &'static [&'static str],
) -> Form {
    Form {
        says,
        becomes: Becomes::Taken(shares, warns),
    }
}

const fn refused(says: Annotations, words: &'static str) -> Form {
    Form {
        says,
        becomes: Becomes::Refused(words),
    }
}

/// A pod of Aliquot's scheduler that says so.
pub fn pod(namespace: &str, says: Annotations) -> Value {
    let annotations: Map<String, Value> = says
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    let container = |name: &str| json!({ "name": name, "image": "busybox" });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": namespace, "name": "form", "annotations": annotations },
        "spec": {
            "schedulerName": proto::names::kai::SCHEDULER_NAME,
            "initContainers": [container("prepare")],
            "containers": [container("main"), container("side")],
        },
    })
}
