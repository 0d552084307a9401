//! Everything on a node in which a pod could leave traces, as comparable lines.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::node::Node;
use crate::slot::Slot;
use crate::wait::{eventually, secs};

/// Listing of a node: containers, Docker volumes, links, rules, mounts, the agent's files. For a node in
/// a namespace, which has its own set of all of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing(BTreeSet<String>);

impl Listing {
    /// Lists the present state.
    pub fn of(node: &Node, slot: &Slot) -> Result<Self> {
        let mut lines = BTreeSet::new();
        for (what, args) in [
            ("container", &["ps", "-a", "--no-trunc", "--format", "{{.Names}} {{.State}}"][..]),
            ("volume", &["volume", "ls", "--format", "{{.Name}}"]),
        ] {
            lines.extend(node.docker.run(args)?.lines().map(|line| format!("{what} {line}")));
        }
        lines.extend(node.net.links()?.into_iter().map(|link| format!("link {link}")));
        lines.extend(rules_without_addresses(&node.net.rules()?));
        let tables = node.net.run("nft", &["list", "tables", "bridge"])?;
        lines.extend(tables.lines().filter(|table| table.contains(&slot.instance())).map(str::to_owned));
        let below = slot.dir().display().to_string();
        // The machine's own mounts are visible in the node, too, and those of other tests come and go.
        let mounts = node.mounts()?;
        lines.extend(mounts.into_iter().filter(|at| at.starts_with(&below)).map(|at| format!("mount {at}")));
        files(node.state_dir(), &mut lines)?;
        Ok(Self(lines))
    }

    /// Lists the state once the agent has written its knowledge of the cluster to disk: a second after its first list
    /// of etcd.
    pub fn at_rest(node: &Node, slot: &Slot) -> Result<Self> {
        let catalog = node.state_dir().join("agent/catalog.json");
        eventually("the catalog is on disk", secs(10), || {
            ensure!(catalog.exists(), "there is no {}", catalog.display());
            Ok(())
        })?;
        Self::of(node, slot)
    }

    /// Leaves out paths with random names from Docker: the mounts of its containers' own file systems.
    #[must_use]
    pub fn without_layers(mut self) -> Self {
        self.0.retain(|line| !(line.starts_with("mount ") && line.contains("/data/")));
        self
    }

    /// Checks that nothing is new and nothing is missing.
    pub fn ensure_equals(&self, before: &Self) -> Result<()> {
        let new: Vec<_> = self.0.difference(&before.0).take(20).collect();
        let gone: Vec<_> = before.0.difference(&self.0).take(20).collect();
        ensure!(new.is_empty() && gone.is_empty(), "new: {new:#?}, gone: {gone:#?}");
        Ok(())
    }

    /// Number of lines with this prefix.
    pub fn count(&self, prefix: &str) -> usize {
        self.0.iter().filter(|line| line.starts_with(prefix)).count()
    }
}

/// Counts the rules of each form: a recreated pod may have another address.
fn rules_without_addresses(rules: &[String]) -> Vec<String> {
    let is_address = |word: &str| word.starts_with("10.") && word.split('.').count() == 4;
    let mut plain: Vec<String> = rules
        .iter()
        .map(|rule| {
            let words = rule.split(' ').map(|word| if is_address(word) { "ADDRESS" } else { word });
            format!("rule {}", words.collect::<Vec<_>>().join(" "))
        })
        .collect();
    plain.sort();
    let mut numbered: Vec<String> = Vec::new();
    let mut same = 0;
    for (index, rule) in plain.iter().enumerate() {
        same = if index > 0 && plain[index - 1] == *rule { same + 1 } else { 0 };
        numbered.push(format!("{rule} #{same}"));
    }
    numbered
}

fn files(folder: &Path, lines: &mut BTreeSet<String>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        lines.insert(format!("file {}", entry.path().display()));
        if entry.file_type()?.is_dir() {
            files(&entry.path(), lines)?;
        }
    }
    Ok(())
}
