//! A node's simulated GPU driver: a process of its own. In: its cards. Out: a driver root that the
//! agent can read.

use anyhow::{Context as _, bail};
use serde_json::json;
use sim_gpu::hardware::Preset;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// A recent branch: memory is handed over by descriptor, so MPS needs no `/dev/shm` of
/// its own, and no user namespace to mount one.
const DRIVER_VERSION: &str = "590.44.01";
const START: Duration = Duration::from_secs(10);

/// `PRESET[:COUNT]` of the command line.
#[derive(Clone, Debug)]
pub(crate) struct Cards {
    pub(crate) preset: String,
    pub(crate) count: u32,
}

impl std::str::FromStr for Cards {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (preset, count) = text.split_once(':').unwrap_or((text, "1"));
        Preset::parse(preset).map_err(|error| error.to_string())?;
        let count = count
            .parse()
            .ok()
            .filter(|count| (1..=16).contains(count))
            .ok_or_else(|| format!("`{count}` is not a number of cards: 1 to 16"))?;
        Ok(Self {
            preset: preset.to_owned(),
            count,
        })
    }
}

/// A driver that runs.
#[derive(Debug)]
pub(super) struct Driver {
    child: Child,
}

impl Driver {
    /// Starts it in its own process group, so that Ctrl-C reaches the demo first.
    pub(super) async fn start(
        root: &Path,
        node: &str,
        cards: &Cards,
        nvml: &Path,
        log: &Path,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(root)?;
        let hardware = root.with_extension("json");
        let document = json!({
            "driver_version": DRIVER_VERSION, "seed": node,
            "cards": [{"preset": cards.preset, "count": cards.count}],
        });
        std::fs::write(&hardware, document.to_string())?;
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let errors = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)?;
        let mut child = Command::new(&program)
            .args(["sim-gpu", "driver", "--nodes", "plain"])
            .arg("--root")
            .arg(root)
            .arg("--hardware")
            .arg(&hardware)
            .arg("--nvml-library")
            .arg(nvml)
            .arg("--binary")
            .arg(&program)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().context("the driver has no output")?;
        let mut lines = BufReader::new(output).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await? {
                if line == "ready" {
                    return Ok(());
                }
            }
            bail!("the simulated driver of {node} ended during its start")
        };
        tokio::time::timeout(START, ready)
            .await
            .with_context(|| format!("the simulated driver of {node} did not start in time"))??;
        Ok(Self { child })
    }

    /// Ends it.
    pub(super) async fn stop(mut self) {
        let _ = self.child.kill().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_a_preset_and_a_count() {
        let cards: Cards = "A100-80:8".parse().unwrap();
        assert_eq!((cards.preset.as_str(), cards.count), ("A100-80", 8));
        assert_eq!("T4".parse::<Cards>().unwrap().count, 1);
        for (text, word) in [
            ("A100", "unknown preset"),
            ("T4:0", "1 to 16"),
            ("T4:x", "1 to 16"),
            ("", "unknown preset"),
        ] {
            let error = text.parse::<Cards>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
