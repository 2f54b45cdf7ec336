//! What we write, byte for byte. A grant as the agent makes it.

use cdi::{ContainerEdits, Device, DeviceNode, Hook, Mount, Spec};

fn grant() -> Spec {
    let id = "00112233445566778899aabbccddeeff";
    let node = |path: &str, host: &str| DeviceNode {
        path: path.into(),
        host_path: host.into(),
        ..DeviceNode::default()
    };
    let mount = |host: &str, container: &str, options: &[&str]| Mount {
        host_path: host.into(),
        container_path: container.into(),
        options: options.iter().map(ToString::to_string).collect(),
        ..Mount::default()
    };
    let mut spec = Spec {
        kind: "aliquot.dev/grant".into(),
        devices: vec![Device {
            name: id.into(),
            container_edits: ContainerEdits {
                env: [
                    "NVIDIA_VISIBLE_DEVICES=void",
                    "CUDA_VISIBLE_DEVICES=GPU-1",
                    "CUDA_MPS_PIPE_DIRECTORY=/run/aliquot/mps/pipe",
                    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2000M",
                ]
                .map(str::to_owned)
                .to_vec(),
                device_nodes: vec![
                    node("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0"),
                    node("/dev/nvidiactl", ""),
                ],
                hooks: vec![Hook {
                    hook_name: "createRuntime".into(),
                    path: "/var/lib/aliquot/bin/aliquot-hook".into(),
                    args: [
                        "aliquot-hook",
                        "create-runtime",
                        "--alloc",
                        id,
                        "--digest",
                        "",
                    ]
                    .map(str::to_owned)
                    .to_vec(),
                    timeout: Some(5),
                    ..Hook::default()
                }],
                mounts: vec![
                    mount(
                        "/run/aliquot/mps/GPU-1/pipe",
                        "/run/aliquot/mps/pipe",
                        &["rw", "nosuid", "nodev", "rbind"],
                    ),
                    mount("/run/aliquot/mps/GPU-1/shm", "/dev/shm", &["rw", "rbind"]),
                ],
                ..ContainerEdits::default()
            },
            ..Device::default()
        }],
        ..Spec::default()
    }
    .with_lowest_version();
    cdi::seal(&mut spec);
    spec
}

#[test]
fn a_grant_is_written_as_the_golden_file_says() {
    let spec = grant();
    spec.check().unwrap();
    assert_eq!(spec.to_json(), include_str!("golden/grant.json"));
}

#[test]
fn the_golden_file_reads_back_as_it_was() {
    let spec: Spec = serde_json::from_str(include_str!("golden/grant.json")).unwrap();
    assert_eq!(spec, grant());
}
