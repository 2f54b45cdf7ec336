//! Requests as users write them, and the refusals of those that mean nothing.

use super::*;
use crate::units::{Mib, Mode};
use serde_json::json;

fn pod(annotations: serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"initContainers": [{"name": "prepare"}], "containers": [{"name": "main"}, {"name": "side"}]},
    }))
    .unwrap()
}

fn only(pod: &Pod) -> ContainerRequest {
    let mut request = of(pod).unwrap();
    assert_eq!(request.containers.len(), 1);
    request.containers.remove(0)
}

#[test]
fn refusals_are_kais_sentences() {
    use RequestError as E;
    for (annotations, error) in [
        (json!({"gpu-memory": "0"}), E::Memory("0".into())),
        (json!({"gpu-memory": "-5"}), E::Memory("-5".into())),
        (json!({"gpu-memory": "+5"}), E::Memory("+5".into())),
        (json!({"gpu-memory": "abc"}), E::Memory("abc".into())),
        (json!({"gpu-memory": ""}), E::Memory(String::new())),
        (json!({"gpu-memory": "2Gi"}), E::Memory("2Gi".into())),
        (
            json!({"gpu-memory": "99999999999999999999999"}),
            E::Memory("99999999999999999999999".into()),
        ),
        (json!({"gpu-fraction": "1.5"}), E::Fraction("1.5".into())),
        (json!({"gpu-fraction": "1"}), E::Fraction("1".into())),
        (json!({"gpu-fraction": "0"}), E::Fraction("0".into())),
        (json!({"gpu-fraction": "-0.5"}), E::Fraction("-0.5".into())),
        (json!({"gpu-fraction": "NaN"}), E::Fraction("NaN".into())),
        (json!({"gpu-fraction": "inf"}), E::Fraction("inf".into())),
        (json!({"gpu-fraction": "x"}), E::Fraction("x".into())),
        (json!({"gpu-fraction": "0.5", "gpu-memory": "5"}), E::Both),
        (json!({"gpu-fraction-num-devices": "2"}), E::DevicesAlone),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}),
            E::Devices("0".into()),
        ),
        (json!({"mps": "true"}), E::MpsAlone),
        (json!({"mps": "true", "gpu-memory": "5"}), E::MpsAlone),
        (
            json!({"gpu-memory": "5", "gpu-fraction-container-name": "x"}),
            E::Container {
                name: "x".into(),
                there: "main, prepare, side".into(),
            },
        ),
        (json!({"aliquot.dev/gpu-compute": "25"}), E::ComputeAlone),
        (
            json!({"gpu-memory": "5", "aliquot.dev/gpu-compute": "0"}),
            E::Compute("0".into()),
        ),
        (
            json!({"gpu-memory": "5", "aliquot.dev/gpu-compute": "101"}),
            E::Compute("101".into()),
        ),
        (
            json!({"nvidia.com/container.x.gpu-memory.request": "1Gi"}),
            E::PerContainer("x".into()),
        ),
    ] {
        assert_eq!(of(&pod(annotations.clone())), Err(error), "{annotations}");
    }
}

/// A refusal begins with KAI's sentence, then shows the value that was read and what to write.
#[test]
fn a_refused_value_is_shown_with_what_to_write_after_kais_sentence() {
    for (annotations, sentence) in [
        (
            json!({"gpu-memory": "2GB"}),
            "gpu-memory annotation value must be a positive integer greater than 0; it is \"2GB\": write \"1908\" for 1908 MiB",
        ),
        (
            json!({"gpu-fraction": "50%"}),
            "gpu-fraction annotation value must be a positive number smaller than 1.0; it is \"50%\": write \"0.5\"",
        ),
        (
            json!({"gpu-memory": "5", "gpu-fraction-container-name": "mainn"}),
            "failed to get fraction container ref: container with name mainn not found for fraction request; gpu-fraction-container-name may be main, prepare, side",
        ),
        (
            json!({"nvidia.com/container.main.gpu-memory.request": "2GB"}),
            "nvidia.com/container.main.gpu-memory.request annotation value must be a valid Kubernetes memory quantity greater than 0; it is \"2GB\": write an amount such as \"2Gi\"",
        ),
        (
            json!({"nvidia.com/container.main.gpu-memory.request": "2000"}),
            "nvidia.com/container.main.gpu-memory.request annotation value is a Kubernetes memory quantity; \"2000\" is less than 1 MB: write an amount with a unit, such as \"2000Mi\"",
        ),
        (
            json!({"nvidia.com/container.main.gpu-memory.limit": "900Ki"}),
            "nvidia.com/container.main.gpu-memory.limit annotation value is a Kubernetes memory quantity; \"900Ki\" is less than 1 MB: write an amount with a unit, such as \"2Gi\"",
        ),
        (
            json!({"gpu-memory": "5", "gpu-memory.limit": "4000"}),
            "gpu-memory.limit annotation value must be a positive Kubernetes memory quantity with a unit; it is \"4000\": write an amount such as \"4Gi\"",
        ),
    ] {
        let refused = of(&pod(annotations)).unwrap_err();
        assert_eq!(refused.to_string(), sentence);
    }
    // The refusal shows a tenant's text in one line of bounded length.
    let long = of(&pod(json!({"gpu-memory": "x\n".repeat(100_000)}))).unwrap_err();
    let long = long.to_string();
    assert!(long.len() < 300 && long.lines().count() == 1, "{long}");
}

#[test]
fn a_large_value_is_a_request_and_waits() {
    let request = only(&pod(json!({"gpu-memory": "99999999"})));
    assert!(matches!(
        request.gpus,
        GpuRequest::Share(ShareRequest {
            amount: Amount::Memory(Mib(99_999_999)),
            ..
        })
    ));
}

#[test]
fn the_first_container_takes_the_share_unless_one_is_named() {
    assert_eq!(only(&pod(json!({"gpu-memory": "2000"}))).name, "main");
    let init = only(&pod(
        json!({"gpu-memory": "2000", "gpu-fraction-container-name": "prepare"}),
    ));
    assert_eq!((init.name.as_str(), init.init), ("prepare", true));
}

#[test]
fn fractions_are_exact_billionths() {
    for (text, nano) in [
        ("0.5", 500_000_000),
        ("0.7", 700_000_000),
        (".25", 250_000_000),
        ("1e-12", 1),
        ("0.9999999999", 999_999_999),
    ] {
        let GpuRequest::Share(share) = only(&pod(json!({"gpu-fraction": text}))).gpus else {
            panic!()
        };
        assert_eq!(share.amount, Amount::Fraction(nano), "{text}");
    }
}

#[test]
fn the_per_container_form_serves_several_containers_and_rounds_up() {
    let request = of(&pod(json!({
        "nvidia.com/container.main.gpu-memory.request": "1Gi",
        "nvidia.com/container.side.gpu-memory.limit": "1M",
        "nvidia.com/container.side.gpu-compute.mode": "sm-sharing",
    })))
    .unwrap();
    let sizes: Vec<_> = request
        .containers
        .iter()
        .map(|container| match &container.gpus {
            GpuRequest::Share(share) => (container.name.as_str(), share.amount, share.mode),
            GpuRequest::Whole(_) => panic!(),
        })
        .collect();
    assert_eq!(
        sizes,
        [
            ("main", Amount::Memory(Mib(1024)), None),
            ("side", Amount::Memory(Mib(1)), Some(Mode::Mps))
        ]
    );
}

#[test]
fn whole_gpus_are_read_from_limits_and_zero_asks_for_none() {
    let mut whole = pod(json!({}));
    let limit =
        |count: &str| serde_json::from_value(json!({"limits": {"nvidia.com/gpu": count}})).unwrap();
    whole.spec.as_mut().unwrap().containers[0].resources = Some(limit("2"));
    assert_eq!(only(&whole).gpus, GpuRequest::Whole(2));
    whole.spec.as_mut().unwrap().containers[0].resources = Some(limit("0"));
    assert_eq!(of(&whole), Ok(PodRequest::default()));
}

#[test]
fn a_share_and_a_whole_gpu_in_one_pod_are_refused() {
    let mut both = pod(json!({"gpu-memory": "5"}));
    both.spec.as_mut().unwrap().containers[1].resources =
        Some(serde_json::from_value(json!({"limits": {"nvidia.com/gpu": "1"}})).unwrap());
    assert_eq!(of(&both), Err(RequestError::ShareAndWhole("side".into())));
}
