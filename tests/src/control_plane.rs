//! etcd, the API server and the controller manager.
//!
//! In: the folder of the built daemons and the work folder. Out: an API server that answers, and
//! the kubeconfigs of its three first users. Must never sync to disk: the store ends with the
//! cluster.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use ring::rand::{SecureRandom, SystemRandom};

use crate::daemon::{Command, Daemon};
use crate::machine::{ADDRESS, API_SERVICE};
use crate::token::{self, Credential};
use crate::wait::{Seen, until};

/// Port of the API server: that of its Service, whose address is one of the machine's,
/// so that pods reach it as they would in any cluster.
const PORT: u16 = 443;
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEER: &str = "http://127.0.0.1:2380";

/// The running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    etcd: Daemon,
    api_server: Daemon,
    /// How the API server was first started.
    plain: Command,
    controller_manager: Option<Daemon>,
    folder: PathBuf,
}

impl ControlPlane {
    /// Starts etcd and the API server; neither answers yet.
    pub fn start(bin: &Path, state: &Path, logs: &Path) -> Result<Self> {
        let folder = state.join("control-plane");
        fs::create_dir_all(&folder)?;
        write_certificates(&folder)?;
        // ECDSA: made in no time, where RSA takes a good part of a second.
        let accounts = KeyPair::generate()?;
        fs::write(folder.join("accounts.key"), accounts.serialize_pem())?;
        fs::write(folder.join("accounts.pub"), accounts.public_key_pem())?;

        let etcd = Command::new("etcd", bin.join("etcd"))
            .flag("--data-dir", folder.join("etcd"))
            .flag("--listen-client-urls", ETCD)
            .flag("--advertise-client-urls", ETCD)
            .flag("--listen-peer-urls", ETCD_PEER)
            .flag("--initial-advertise-peer-urls", ETCD_PEER)
            .flag("--initial-cluster", format!("default={ETCD_PEER}"))
            .arg("--unsafe-no-fsync")
            .start(logs)?;

        // The controller manager as its plain user may not publish `kube-root-ca.crt`,
        // and without that no pod starts.
        let users = [
            ("admin", "admin", "system:masters"),
            ("controller-manager", "controller-manager", "system:masters"),
            ("kubelet", "system:node:n1", "system:nodes"),
        ];
        let mut table = String::new();
        for (name, user, group) in users {
            let token = random_token()?;
            writeln!(table, "{token},{user},{user},{group}")?;
            token::write_kubeconfig(
                &folder.join(format!("{name}.kubeconfig")),
                &url(),
                &authority(&folder),
                &Credential::Token(token),
            )?;
        }
        fs::write(folder.join("tokens.csv"), table)?;

        let api_server = Command::new("kube-apiserver", bin.join("kube-apiserver"))
            .flag("--etcd-servers", ETCD)
            .flag("--bind-address", "0.0.0.0")
            .flag("--secure-port", PORT.to_string())
            .flag("--advertise-address", ADDRESS)
            .flag("--endpoint-reconciler-type", "none")
            .flag("--tls-cert-file", folder.join("server.crt"))
            .flag("--tls-private-key-file", folder.join("server.key"))
            .flag("--authorization-mode", "Node,RBAC")
            .flag("--token-auth-file", folder.join("tokens.csv"))
            .flag("--enable-admission-plugins", "NodeRestriction")
            .flag("--allow-privileged", "true")
            // Webhooks are called at their pods' addresses: nothing routes Services here.
            .flag("--enable-aggregator-routing", "true")
            // Else logs and exec try to resolve the node's name.
            .flag("--kubelet-preferred-address-types", "InternalIP")
            .flag("--service-cluster-ip-range", "10.96.0.0/16")
            .flag("--service-account-issuer", "https://kubernetes.default.svc")
            .flag("--service-account-key-file", folder.join("accounts.pub"))
            .flag(
                "--service-account-signing-key-file",
                folder.join("accounts.key"),
            )
            .start(logs)?;
        Ok(Self {
            etcd,
            plain: api_server.command(),
            api_server,
            controller_manager: None,
            folder,
        })
    }

    /// Waits until the API server answers, then starts the controller manager.
    pub async fn ready(&mut self, bin: &Path, logs: &Path) -> Result<Client> {
        let manager = self.manager(bin);
        let client = token::client(&self.kubeconfig("admin")).await?;
        until("the API server ready", Duration::from_mins(1), || {
            let alive = self.alive();
            let client = &client;
            async move {
                if let Err(dead) = alive {
                    return Ok(Seen::Never(dead));
                }
                let request = http::Request::get("/readyz").body(Vec::new())?;
                Ok(Seen::Done(
                    client.request_text(request).await.context("readyz")?,
                ))
            }
        })
        .await?;
        self.controller_manager = Some(manager.start(logs)?);
        Ok(client)
    }

    fn manager(&self, bin: &Path) -> Command {
        Command::new(
            "kube-controller-manager",
            bin.join("kube-controller-manager"),
        )
        .flag("--kubeconfig", self.kubeconfig("controller-manager"))
        .flag(
            "--service-account-private-key-file",
            self.folder.join("accounts.key"),
        )
        .flag("--root-ca-file", self.authority())
        .flag("--use-service-account-credentials", "false")
        .flag("--leader-elect", "false")
    }

    /// From now on Jobs get their pods, as fast as the API server makes them, and nothing else
    /// is minded.
    pub fn employ_job_controller(&mut self, bin: &Path, logs: &Path) -> Result<()> {
        let manager = self
            .manager(bin)
            .flag("--controllers", "job-controller")
            .flag("--concurrent-job-syncs", "32")
            .flag("--kube-api-qps", "1000")
            .flag("--kube-api-burst", "1000");
        self.controller_manager = Some(manager.start(logs)?);
        Ok(())
    }

    /// Kills the API server and starts it again; it answers some seconds later.
    pub async fn restart_api_server(&mut self) -> Result<()> {
        self.api_server.kill().await?;
        self.api_server.start_again()
    }

    /// The same with more flags than those that it was first started with.
    pub async fn serve_with(&mut self, flags: &[(&str, &str)]) -> Result<()> {
        let mut command = self.plain.clone();
        for (flag, value) in flags {
            command = command.flag(flag, value);
        }
        self.api_server.kill().await?;
        self.api_server.start_again_with(|_| command)
    }

    /// From now on no controller watches the nodes' heartbeats or cleans up after pods: nodes
    /// without a kubelet stay as they were created.
    pub async fn dismiss_controllers(&mut self) -> Result<()> {
        match &mut self.controller_manager {
            Some(manager) => manager.stop().await,
            None => Ok(()),
        }
    }

    /// The opposite.
    pub fn recall_controllers(&mut self) -> Result<()> {
        match &mut self.controller_manager {
            Some(manager) if manager.pid().is_none() => manager.start_again(),
            _ => Ok(()),
        }
    }

    /// Process ids of the API server and of etcd.
    pub fn pids(&self) -> Option<[u32; 2]> {
        Some([self.api_server.pid()?, self.etcd.pid()?])
    }

    /// Certificate and key with which the API server answers.
    pub fn certificate(&self) -> [PathBuf; 2] {
        ["server.crt", "server.key"].map(|name| self.folder.join(name))
    }

    /// The kubeconfig of `admin`, `controller-manager` or `kubelet`.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.folder.join(format!("{user}.kubeconfig"))
    }

    /// The certificate authority of the API server.
    pub fn authority(&self) -> PathBuf {
        authority(&self.folder)
    }

    /// Fails if one of the daemons has ended.
    pub fn alive(&mut self) -> Result<()> {
        self.etcd.alive()?;
        self.api_server.alive()?;
        self.controller_manager
            .as_mut()
            .map_or(Ok(()), Daemon::alive)
    }
}

/// Address of the API server, for all parts of the cluster.
pub fn url() -> String {
    format!("https://{ADDRESS}:{PORT}")
}

fn authority(folder: &Path) -> PathBuf {
    folder.join("ca.crt")
}

/// An authority of our own, so that every kubeconfig can be written before the API
/// server has started.
fn write_certificates(folder: &Path) -> Result<()> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "aliquot-tests");
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let key = KeyPair::generate()?;
    fs::write(authority(folder), params.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(params, key);

    let names = [
        ADDRESS,
        "127.0.0.1",
        API_SERVICE,
        "localhost",
        "kubernetes.default.svc",
    ];
    let mut params = CertificateParams::new(names.map(str::to_owned))?;
    params
        .distinguished_name
        .push(DnType::CommonName, "kube-apiserver");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    fs::write(
        folder.join("server.crt"),
        params.signed_by(&key, &issuer)?.pem(),
    )?;
    fs::write(folder.join("server.key"), key.serialize_pem())?;
    Ok(())
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| anyhow::anyhow!("no randomness"))?;
    Ok(crate::image::hex(&bytes))
}
