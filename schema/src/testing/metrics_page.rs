//! Sections of docs/metrics.md. Each is checked, and rewritten, by a test of the crate that has the families.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::metrics::{FamilyInfo, FamilyType};

/// Starts of the names of families that both daemons have.
const COMMON: [&str; 4] = ["minik8s_build_info", "minik8s_loop_", "minik8s_store_", "process_"];

/// True for a family that both daemons have; it is in the section `both`.
pub fn is_common_family(info: &FamilyInfo) -> bool {
    COMMON.iter().any(|start| info.name.starts_with(start))
}

/// Fails unless this section of docs/metrics.md has exactly these families. `MINIK8S_UPDATE=1` rewrites the section.
#[track_caller]
pub fn check_metrics_page<'a>(section: &str, families: impl IntoIterator<Item = &'a FamilyInfo>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {section} -->\n"), format!("<!-- end of {section} -->\n"));
    let (before, rest) = page.split_once(&begin).expect("the section has a begin");
    let (_, after) = rest.split_once(&end).expect("the section has an end");
    let wanted = [before, &begin, &table(families), &end, after].concat();
    if std::env::var_os("MINIK8S_UPDATE").is_some() {
        fs::write(&path, wanted).unwrap();
    } else {
        let why = "is not what the families say: set MINIK8S_UPDATE=1 to rewrite it";
        assert!(page == wanted, "section {section} of docs/metrics.md {why}");
    }
}

fn table<'a>(families: impl IntoIterator<Item = &'a FamilyInfo>) -> String {
    let mut table = String::from("| name | type | labels | meaning |\n|---|---|---|---|\n");
    let mut names = BTreeSet::new();
    for info in families {
        assert!(names.insert(info.name), "{} is there twice", info.name);
        let kind = match info.kind {
            FamilyType::Counter => "counter",
            FamilyType::Gauge => "gauge",
            FamilyType::Histogram => "histogram",
        };
        let labels: Vec<String> = info.labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(table, "| `{}` | {kind} | {} | {} |", info.full_name(), labels.join(", "), info.help)
            .unwrap();
    }
    table
}
