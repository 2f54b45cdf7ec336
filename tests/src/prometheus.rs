//! A real Prometheus that reads the pages of the programs under test, as a cluster's does.
//!
//! In: where pages are, with the labels of their targets. Out: what it answers to a query. Needs
//! what `tests/cluster/tools/extended` builds.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::daemon::{Command, Daemon};
use crate::http;
use crate::wait::{Seen, until};

const ADDRESS: &str = "127.0.0.1:9490";

/// It runs for as long as it lives.
#[derive(Debug)]
pub struct Prometheus {
    daemon: Daemon,
}

impl Prometheus {
    /// Reads these pages each second; `labels` are those that a cluster gives to the targets.
    pub async fn start(cluster: &Cluster, pages: &[(&str, Value)]) -> Result<Self> {
        let built = cluster.programs.extended.as_ref();
        let built = built.context("prometheus was not built: run with --extended")?;
        let folder = cluster.work.state().join("prometheus");
        fs::create_dir_all(&folder)?;
        let targets: Vec<Value> = pages
            .iter()
            .map(|(page, labels)| json!({ "targets": [page], "labels": labels }))
            .collect();
        // YAML reads JSON.
        let config = json!({
            "global": { "scrape_interval": "1s", "scrape_timeout": "1s" },
            "scrape_configs": [{ "job_name": "aliquot", "static_configs": targets }],
        });
        let file = folder.join("prometheus.yml");
        fs::write(&file, config.to_string())?;
        let daemon = Command::new("prometheus", built.join("bin/prometheus"))
            .flag("--config.file", file)
            .flag("--storage.tsdb.path", folder.join("data"))
            .flag("--web.listen-address", ADDRESS)
            .start(&cluster.work.logs())?;
        let mut prometheus = Self { daemon };
        prometheus.ready().await?;
        Ok(prometheus)
    }

    async fn ready(&mut self) -> Result<()> {
        until("prometheus ready", Duration::from_secs(30), || {
            let alive = self.daemon.alive();
            async move {
                if let Err(dead) = alive {
                    return Ok(Seen::Never(dead));
                }
                http::get(ADDRESS, "/-/ready").await.map(|_| Seen::Done(()))
            }
        })
        .await
    }

    /// Where it answers.
    pub fn url(&self) -> String {
        format!("http://{ADDRESS}")
    }

    /// The values of a query's series, now.
    pub async fn query(&self, query: &str) -> Result<Vec<f64>> {
        let answer = self.ask(&format!("query?query={}", encoded(query))).await?;
        let series = answer["result"].as_array().context("no result")?;
        let value = |one: &Value| one["value"][1].as_str()?.parse().ok();
        Ok(series.iter().filter_map(value).collect())
    }

    /// The values that a label has among these series.
    pub async fn label_values(&self, label: &str, series: &str) -> Result<Vec<String>> {
        let path = format!("label/{label}/values?match[]={}", encoded(series));
        Ok(serde_json::from_value(self.ask(&path).await?)?)
    }

    async fn ask(&self, path: &str) -> Result<Value> {
        let text = http::get(ADDRESS, &format!("/api/v1/{path}")).await?;
        let mut answer: Value = serde_json::from_str(&text)?;
        ensure!(answer["status"] == "success", "{path}: {text}");
        Ok(answer["data"].take())
    }

    /// Ends it.
    pub async fn stop(mut self) -> Result<()> {
        self.daemon.stop().await
    }
}

/// For a query string.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(byte).collect()
}
