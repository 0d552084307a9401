//! Debian's Prometheus on loopback, asked through its HTTP API.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::form_urlencoded::Serializer;

use crate::http::http_get;
use crate::process::{Daemon, run};
use crate::wait::{eventually, secs};

/// A running Prometheus. It ends when dropped.
#[derive(Debug)]
pub struct Prometheus {
    address: String,
    /// Unix time of its start.
    began: f64,
    _daemon: Daemon,
}

/// A series of an answer, with its value at present.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

#[derive(Deserialize)]
struct Answer<T> {
    data: Option<T>,
    #[serde(default)]
    error: String,
}

#[derive(Deserialize)]
struct Found<T> {
    result: Vec<T>,
}

#[derive(Deserialize)]
struct Instant {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

#[derive(Deserialize)]
struct Line {
    values: Vec<(f64, String)>,
}

#[derive(Deserialize)]
struct Alerts {
    alerts: Vec<Alert>,
}

#[derive(Deserialize)]
struct Alert {
    labels: BTreeMap<String, String>,
    state: String,
}

impl Prometheus {
    /// True if it is installed.
    pub fn is_installed() -> bool {
        run("prometheus", &["--version"]).is_ok()
    }

    /// Starts one, with its files in `dir`: this configuration, and these rules next to it as `alerts.yml`.
    pub fn start(dir: &Path, port: u16, config: &str, rules: &str) -> Result<Self> {
        let files = dir.join("prometheus");
        fs::create_dir_all(&files)?;
        fs::write(files.join("prometheus.yml"), config)?;
        fs::write(files.join("alerts.yml"), rules)?;
        let address = format!("127.0.0.1:{port}");
        let command = vec![
            "prometheus".to_owned(),
            format!("--config.file={}/prometheus.yml", files.display()),
            format!("--storage.tsdb.path={}/data", files.display()),
            format!("--web.listen-address={address}"),
            "--log.level=warn".to_owned(),
        ];
        let mut daemon = Daemon::new("prometheus", dir, command);
        let began = now()?;
        daemon.start()?;
        eventually("Prometheus is ready", secs(30), || {
            let (code, text) = http_get(&address, "/-/ready")?;
            ensure!(code == 200, "{code} {text}");
            Ok(())
        })
        .with_context(|| daemon.log_tail())?;
        Ok(Self { address, began, _daemon: daemon })
    }

    /// Series that a query returns at present.
    pub fn query(&self, query: &str) -> Result<Vec<Sampled>> {
        let found: Found<Instant> = self.ask("query", &[("query", query)])?;
        let found = found.result.into_iter();
        found.map(|one| Ok(Sampled { labels: one.metric, value: one.value.1.parse()? })).collect()
    }

    /// Value of a query that returns one series.
    pub fn value(&self, query: &str) -> Result<f64> {
        let found = self.query(query)?;
        ensure!(found.len() == 1, "{query} returns {found:?}");
        Ok(found[0].value)
    }

    /// Checks that a query has returned a number at some second since the start, as a panel shows it.
    pub fn has_returned(&self, query: &str) -> Result<()> {
        let (start, end) = (self.began.to_string(), now()?.to_string());
        let pairs = [("query", query), ("start", start.as_str()), ("end", end.as_str()), ("step", "1")];
        let found: Found<Line> = self.ask("query_range", &pairs)?;
        ensure!(!found.result.is_empty(), "no series");
        let mut values = found.result.iter().flat_map(|line| &line.values);
        ensure!(values.any(|(_, value)| value != "NaN"), "no number in {} series", found.result.len());
        Ok(())
    }

    /// Names of the firing alerts.
    pub fn firing(&self) -> Result<BTreeSet<String>> {
        let Alerts { alerts } = self.ask("alerts", &[])?;
        let firing = alerts.into_iter().filter(|alert| alert.state == "firing");
        Ok(firing.filter_map(|mut alert| alert.labels.remove("alertname")).collect())
    }

    /// Returns the value of a metric that Prometheus has of itself, without labels.
    pub fn own(&self, name: &str) -> Result<f64> {
        let (_, text) = http_get(&self.address, "/metrics")?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("Prometheus has no {name}"))?.parse()?)
    }

    fn ask<T: DeserializeOwned>(&self, what: &str, pairs: &[(&str, &str)]) -> Result<T> {
        let query = Serializer::new(String::new()).extend_pairs(pairs).finish();
        let (code, text) = http_get(&self.address, &format!("/api/v1/{what}?{query}"))?;
        let answer: Answer<T> = serde_json::from_str(&text).with_context(|| format!("{code} {text}"))?;
        answer.data.with_context(|| format!("{code} {}", answer.error))
    }
}

fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}
