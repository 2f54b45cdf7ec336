//! `tests/cluster/up`: a cluster with Aliquot on it, for a person.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::io::IsTerminal;
use std::process::ExitCode;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{DRIVER_ROOT, Hardware};
use aliquot_tests::namespace::Work;
use aliquot_tests::programs::Programs;
use anyhow::{Context, Result};

const HELLO: &str = "\
A Kubernetes node with simulated GPUs, in namespaces of its own; it ends with this shell.
Try:
  kubectl get nodes,gpunodes
  kubectl apply -f tests/seeds/004/queues.yaml
  kubectl create namespace gpu-workload
  kubectl apply -f tests/seeds/004/pod.yaml
  kubectl -n gpu-workload get pods -w
  kubectl -n gpu-workload logs gpu-pod
  kubectl get gpunodes -o yaml
  kubectl describe node n1
  nvidia-smi
Images: busybox, ubuntu, vllm/vllm-openai:latest and that of the pod above.
";

pub(crate) async fn up(
    programs: Programs,
    work: Work,
    hardware: Option<&Hardware>,
    command: Option<String>,
) -> Result<ExitCode> {
    let mut cluster = Cluster::start(programs, work).await?;
    if let Some(hardware) = hardware {
        cluster.aliquot(hardware).await?;
    }

    let interactive = command.is_none() && std::io::stdin().is_terminal();
    let shell = match command {
        Some(command) => vec!["-c".to_owned(), command],
        // Not a terminal: standard input is a script.
        None if !interactive => Vec::new(),
        None => {
            if hardware.is_some() {
                println!("{HELLO}");
            }
            println!("Logs: {}\n", cluster.work.logs().display());
            let greeting = cluster.work.state().join("bashrc");
            std::fs::write(&greeting, "PS1='aliquot \\w \\$ '\n")?;
            vec![
                "--rcfile".to_owned(),
                greeting.display().to_string(),
                "-i".to_owned(),
            ]
        }
    };
    let path = format!(
        "{}:{}:{DRIVER_ROOT}/usr/bin:{}",
        cluster.programs.daemons.display(),
        cluster.programs.ours.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let status = tokio::process::Command::new("bash")
        .args(shell)
        .env("KUBECONFIG", &cluster.kubectl.kubeconfig)
        .env("CONTAINERD_ADDRESS", aliquot_tests::node::SOCKET)
        .env("PATH", path)
        // nvidia-smi finds its driver by it.
        .env("SIM_ROOT", DRIVER_ROOT)
        .status()
        .await
        .context("bash")?;
    let code = status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1);
    cluster.clean().await?;
    // A person's last command may well have failed; that is no failure of the cluster.
    Ok(if interactive {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(code)
    })
}
