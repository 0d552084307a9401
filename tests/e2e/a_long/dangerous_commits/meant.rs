//! The other side of the table: intended removals happen immediately, and nothing else is removed; a commit that only
//! looks like a change changes nothing.

use std::collections::BTreeSet;

use harness::{Context, Result, Slot, ensure};

use super::Stage;
use super::access::Access;
use super::site::{FIRST, Site};

/// A commit that removes exactly `gone`, given as `Kind/name`.
struct Meant {
    name: &'static str,
    gone: &'static [&'static str],
    change: fn(&Site) -> Result<String>,
    /// True if the file [`FIRST`] has the annotation that keeps its object.
    protected: bool,
}

fn meant(name: &'static str, gone: &'static [&'static str], change: fn(&Site) -> Result<String>) -> Meant {
    Meant { name, gone, change, protected: false }
}

const TEN: &[&str] = &[
    "Pod/p02", "Pod/p03", "Pod/p04", "Pod/p05", "Pod/p06", "Pod/p07", "Pod/p08", "Pod/p09", "Pod/p10",
    "Pod/p11",
];
const RELEASE: &str = "Clean up\n\nMinik8s-Allow-Prune: true";

#[rustfmt::skip]
fn table() -> Vec<Meant> {
    vec![
        meant("one file removed", &["Pod/p05"], |s| { s.remove(FIRST)?; s.commit("One less") }),
        meant("ten files removed", TEN, |s| { for n in 2..12 { s.remove(&format!("apps/p{n:02}.yaml"))?; } s.commit("Ten less") }),
        meant("a host and its services", &["Dns/shop", "Service/web", "Service/api"], |s| { s.remove("dns/shop.yaml")?; s.remove("services")?; s.commit("No shop") }),
        meant("a workflow and its function", &["Function/resize", "Workflow/order"], |s| { s.remove("workflows")?; s.remove("functions/resize.yaml")?; s.commit("No orders") }),
        meant("eleven, released", &["Pod/p02", "Pod/p03", "Pod/p04", "Pod/p05", "Pod/p06", "Pod/p07", "Pod/p08", "Pod/p09", "Pod/p10", "Pod/p11", "Workflow/order"], |s| { s.remove("workflows")?; for n in 2..12 { s.remove(&format!("apps/p{n:02}.yaml"))?; } s.commit(RELEASE) }),
        Meant { protected: true, ..meant("a protected object stays", &["Pod/p06"], |s| { s.remove(FIRST)?; s.remove("apps/p06.yaml")?; s.commit("Two less") }) },
        meant("a file renamed", &[], |s| { std::fs::rename(s.at(FIRST), s.at("apps/renamed.yml"))?; s.commit("Move") }),
        meant("every line ending another", &[], |s| { s.edit_all(|t| format!("\u{feff}{}", t.replace('\n', "\r\n")))?; s.commit("Windows") }),
        meant("all files in one", &[], |s| {
            let all: Vec<String> = s.files().into_iter().map(|(_, text)| text).collect();
            for folder in ["apps", "services", "sets", "scale", "dns", "functions", "workflows"] { s.remove(folder)?; }
            s.write("all.yaml", all.join("---\n"))?;
            s.commit("One file")
        }),
        meant("comments and order of keys", &[], |s| { s.edit_all(|t| format!("# Reviewed.\n{t}# End.\n"))?; s.commit("Comments") }),
    ]
}

#[test]
fn what_is_meant_to_go_goes_and_nothing_else() -> Result<()> {
    let slot = Slot::take()?;
    let root = slot.dir().join("repositories");
    let site = |(number, meant): (usize, Meant)| {
        let mut site = Site::create(&root, &format!("meant-{number:02}"))?;
        if meant.protected {
            site.edit(FIRST, |t| {
                t.replace("  labels:", "  annotations: {minik8s.io/prune: \"false\"}\n  labels:")
            })?;
            site.good = site.commit("Protect it")?;
        }
        Ok((site, meant))
    };
    let sites: Vec<(Site, Meant)> = table().into_iter().enumerate().map(site).collect::<Result<_>>()?;
    let stage = Stage::open(Access::http, &sites.iter().map(|(site, _)| site).collect::<Vec<_>>(), slot)?;
    let mut before = Vec::new();
    for (site, _) in &sites {
        stage.wait_good(site)?;
        before.push(stage.objects(site)?);
    }
    let mut commits = Vec::new();
    for (site, meant) in &sites {
        commits.push((meant.change)(site).with_context(|| meant.name)?);
    }
    stage.sync()?;
    for (((site, meant), commit), before) in sites.iter().zip(&commits).zip(&before) {
        stage.wait_synced(site, meant.name, commit)?;
        let now = stage.objects(site)?;
        let gone: BTreeSet<String> = before
            .iter()
            .filter(|(key, at)| now.get(*key) != Some(at))
            .map(|(key, _)| kind_and_name(key))
            .collect();
        let wanted: BTreeSet<String> = meant.gone.iter().map(|&object| object.to_owned()).collect();
        ensure!(gone == wanted, "{}: gone are {gone:?}", meant.name);
        ensure!(now.len() + gone.len() == before.len(), "{}: {now:?}", meant.name);
    }
    Ok(())
}

/// Turns `/minik8s/objects/Pod/meant-00/p05` into `Pod/p05`.
fn kind_and_name(key: &str) -> String {
    let parts: Vec<&str> = key.rsplitn(4, '/').collect();
    format!("{}/{}", parts[2], parts[0])
}
