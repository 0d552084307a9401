//! The programs `iptables-save`, `iptables-restore`, `conntrack` and `nft`, each with a deadline.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use iptables::IPTables;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::ledger::{Ledger, bridged_frames, generation, is_counted_by_kernel, udp_flows};
use super::{Iptables, IptablesError, StaleUdp, UdpFlow};
use crate::metrics::METRICS;
use crate::worlds::netlink::in_namespace;

/// Longest run of a program. A full set of 43,000 rules takes 2 s; a busy machine takes longer.
pub(super) const RUN_MAX: Duration = Duration::from_secs(30);

/// Seconds that a program waits for another that holds the lock (only the legacy backend has one).
const LOCK_WAIT_SECONDS: &str = "10";

/// Maximum characters kept of a program's error message: some lines of refused rules.
const MESSAGE_MAX: usize = 1000;

/// The rules of this node, or of a network namespace.
#[derive(Debug, Clone, Default)]
pub struct RealIptables {
    /// Command to run each program with: empty on the node itself.
    prefix: Vec<String>,
    /// The network namespace, if it is not the node's own.
    pub(super) namespace: Option<PathBuf>,
    /// Queried once.
    version: Arc<tokio::sync::OnceCell<String>>,
    /// Held while rules are written, so that the generation is read before or after.
    ledger: Arc<tokio::sync::Mutex<Ledger>>,
    /// Held while rules are read; keeps the last text for callers that wait for it.
    read: Arc<tokio::sync::Mutex<Option<CachedRules>>>,
    /// Number of callers that wait for the text.
    waiting: Arc<AtomicUsize>,
}

/// The text of the rules, and the kernel's generation for which it is valid.
type CachedRules = (u32, String);

/// Registers a caller that waits for the text.
struct WaiterGuard(Arc<AtomicUsize>);

impl WaiterGuard {
    fn new(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(waiting))
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RealIptables {
    /// The node's own rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// The rules of the network namespace at `path`, such as `/var/run/netns/NAME`.
    pub fn at(path: PathBuf) -> Self {
        let prefix = vec!["nsenter".to_owned(), format!("--net={}", path.display())];
        Self { prefix, namespace: Some(path), ..Self::default() }
    }

    /// Output of `iptables --version`, including the backend.
    pub async fn version(&self) -> Result<&str, IptablesError> {
        let ask = || self.run("iptables", "iptables", &["--version"], "");
        self.version.get_or_try_init(ask).await.map(String::as_str)
    }

    /// Runs every program through `runner`.
    #[cfg(test)]
    pub(super) fn through(self, runner: &[String]) -> Self {
        Self { prefix: [runner, &self.prefix].concat(), ..self }
    }

    /// True while someone reads the rules.
    #[cfg(test)]
    pub(super) fn is_read(&self) -> bool {
        self.read.try_lock().is_err()
    }

    async fn run(
        &self,
        program: &'static str,
        package: &'static str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, IptablesError> {
        let named = || program.to_owned();
        let mut words: Vec<&str> = self.prefix.iter().map(String::as_str).collect();
        words.push(program);
        words.extend(arguments);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("LC_ALL", "C").kill_on_drop(true);
        let talk = async {
            let mut child = command.spawn().map_err(|source| match source.kind() {
                std::io::ErrorKind::NotFound => IptablesError::NotInstalled { program: named(), package },
                _ => IptablesError::Run { program: named(), source },
            })?;
            if let Some(mut stdin) = child.stdin.take() {
                // A program that ends early closes its input; its own message gives the reason.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            let output = child.wait_with_output().await;
            output.map_err(|source| IptablesError::Run { program: named(), source })
        };
        let output = tokio::time::timeout(RUN_MAX, talk)
            .await
            .map_err(|_| IptablesError::Timeout { program: named(), after: RUN_MAX })??;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let message = match lines.join("; ") {
            silent if silent.is_empty() => output.status.to_string(),
            message => message.chars().take(MESSAGE_MAX).collect(),
        };
        Err(IptablesError::Refused { program: named(), message, lines: lines_of(&text) })
    }
}

#[async_trait]
impl Iptables for RealIptables {
    async fn save(&self) -> Result<String, IptablesError> {
        let waits = WaiterGuard::new(&self.waiting);
        let mut read = self.read.lock().await;
        drop(waits);
        let count = self.kernel_count().await;
        // Two loops read when somebody else has changed a rule; at the same generation all read the same.
        let text = match read.take().filter(|(at, _)| Some(*at) == count) {
            Some((_, text)) => text,
            None => self.run("iptables-save", "iptables", &[], "").await?,
        };
        // Several MB, kept only while another loop waits.
        let others_wait = self.waiting.load(Ordering::Relaxed) > 0;
        *read = count.filter(|_| others_wait).map(|count| (count, text.clone()));
        Ok(text)
    }

    async fn restore(&self, input: &str) -> Result<(), IptablesError> {
        let arguments = ["--noflush", "--wait", LOCK_WAIT_SECONDS];
        let mut ledger = self.ledger.lock().await;
        let before = self.kernel_count().await;
        let began = Instant::now();
        let restored = self.run("iptables-restore", "iptables", &arguments, input).await;
        METRICS.rules.count(restored.is_ok(), began.elapsed());
        restored?;
        if let (Some(before), Some(after)) = (before, self.kernel_count().await) {
            ledger.applied(input, before, after);
        }
        Ok(())
    }

    async fn has_random_fully(&self) -> Result<bool, IptablesError> {
        Ok(version_of(self.version().await?).is_some_and(|version| version >= (1, 6, 2)))
    }

    async fn forget_udp(&self, stale: &StaleUdp) -> Result<(), IptablesError> {
        let port = stale.port.to_string();
        let mut arguments = vec!["-D", "-p", "udp", "--orig-port-dst", port.as_str()];
        let target = stale.former_target.map(|address| address.to_string());
        if let Some(target) = &target {
            arguments.extend(["--reply-src", target]);
        }
        self.forget(&arguments).await
    }

    async fn generation(&self) -> Option<u32> {
        let ledger = self.ledger.lock().await;
        self.kernel_count().await.map(|count| ledger.counted(count))
    }

    async fn sees_bridged_frames(&self) -> bool {
        bridged_frames(self.namespace.as_deref())
    }

    async fn udp_flows(&self) -> Result<BTreeSet<UdpFlow>, IptablesError> {
        Ok(udp_flows(&self.run("conntrack", "conntrack", &["-L", "-p", "udp"], "").await?))
    }

    async fn forget_flow(&self, flow: &UdpFlow) -> Result<(), IptablesError> {
        let words = [flow.to.ip().to_string(), flow.to.port().to_string()];
        let back = [flow.from.ip().to_string(), flow.from.port().to_string()];
        let arguments = ["-D", "-p", "udp", "--orig-dst", &words[0], "--orig-port-dst", &words[1]];
        let arguments = [&arguments[..], &["--reply-src", &back[0], "--reply-port-src", &back[1]]].concat();
        self.forget(&arguments).await
    }

    async fn frame_table(&self, name: &str) -> Result<Option<String>, IptablesError> {
        match self.run("nft", "nftables", &["list", "table", "bridge", name], "").await {
            Err(IptablesError::Refused { message, .. }) if message.contains("No such file") => Ok(None),
            other => other.map(Some),
        }
    }

    async fn change_frame_tables(&self, input: &str) -> Result<(), IptablesError> {
        self.run("nft", "nftables", &["-f", "-"], input).await.map(drop)
    }
}

impl RealIptables {
    /// The kernel's generation, if these programs write rules that it counts.
    async fn kernel_count(&self) -> Option<u32> {
        let version = self.version().await.ok().filter(|version| is_counted_by_kernel(version));
        version.and_then(|_| generation(self.namespace.as_deref()).ok())
    }

    async fn forget(&self, arguments: &[&str]) -> Result<(), IptablesError> {
        match self.run("conntrack", "conntrack", arguments, "").await {
            // The program fails if there was nothing to forget, and says so.
            Err(IptablesError::Refused { message, .. }) if message.contains("0 flow entries") => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

/// Line numbers in an error message: `Error occurred at line: 4` for a rule that can't be parsed, `line 4:
/// RULE_APPEND failed` for each rule that the kernel rejects.
pub(super) fn lines_of(text: &str) -> Vec<usize> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let numbers = words.windows(2).filter_map(|pair| match pair {
        ["line" | "line:", number] => number.trim_end_matches(':').parse().ok(),
        _ => None,
    });
    numbers.collect::<BTreeSet<usize>>().into_iter().collect()
}

/// Parses the version in `iptables v1.8.9 (nf_tables)`.
pub(super) fn version_of(text: &str) -> Option<(u32, u32, u32)> {
    let word = text.split_whitespace().find_map(|word| word.strip_prefix('v'))?;
    let mut numbers = word.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

// The kernel's own chains, one rule at a time, through the crate `iptables`: for changes that need not be in one
// transaction with our chains.

impl RealIptables {
    /// Policy of a chain: the fate of packets that no rule decides on.
    pub async fn policy(&self, table: &'static str, chain: &'static str) -> Result<String, IptablesError> {
        self.direct(move |iptables| iptables.get_policy(table, chain)).await
    }

    /// True if the rule is in the chain.
    pub async fn exists(&self, table: String, chain: String, rule: String) -> Result<bool, IptablesError> {
        self.direct(move |iptables| iptables.exists(&table, &chain, &rule)).await
    }

    /// Deletes the rule from the chain, once.
    pub async fn delete(&self, table: String, chain: String, rule: String) -> Result<(), IptablesError> {
        self.direct(move |iptables| iptables.delete(&table, &chain, &rule)).await
    }

    /// Runs `work` on a blocking thread: the crate waits for the program.
    async fn direct<T: Send + 'static>(
        &self,
        work: impl FnOnce(&IPTables) -> Result<T, Box<dyn std::error::Error>> + Send + 'static,
    ) -> Result<T, IptablesError> {
        let run = move || {
            let mut iptables = iptables::new(false)?;
            // Without it each address is looked up in DNS.
            iptables.set_numeric(true);
            work(&iptables)
        };
        let run = move || run().map_err(|error| std::io::Error::other(error.to_string()));
        let namespace = self.namespace.clone();
        let work = tokio::task::spawn_blocking(move || in_namespace(namespace.as_deref(), run));
        let program = || "iptables".to_owned();
        let timeout = |_| IptablesError::Timeout { program: program(), after: RUN_MAX };
        let done = tokio::time::timeout(RUN_MAX, work).await.map_err(timeout)?;
        let refused = |error: std::io::Error| IptablesError::Refused {
            program: program(),
            message: error.to_string().lines().collect::<Vec<_>>().join("; "),
            lines: Vec::new(),
        };
        done.unwrap_or_else(|panicked| Err(panicked.into())).map_err(refused)
    }
}
