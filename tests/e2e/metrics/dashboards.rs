//! The queries of the shipped dashboards.

use std::fs;
use std::path::{Path, PathBuf};

use harness::{Context, Result, ensure};
use serde_json::Value;

use super::shipped;

/// Range of rates in place of that which Grafana chooses.
const RANGE: &str = "10s";
/// The 0 in place of nothing, with which every query returns data.
const OR_ZERO: &str = " or vector(0)";
/// Panels whose query may return nothing else in the story, each with the reason.
const MAY_BE_EMPTY: [(&str, &str); 6] = [
    ("Minik8s / Cluster: Failed requests to etcd, failed runs of loops", "etcd answers every request"),
    ("Minik8s / Functions: Failed calls", "no call fails"),
    ("Minik8s / Functions: Failed jobs", "there are no jobs"),
    ("Minik8s / GitOps: Not in sync", "a commit may be applied between two scrapes"),
    ("Minik8s / GitOps: Deliveries", "there are no targets of notifications"),
    ("Minik8s / GitOps: Messages", "there are no targets of notifications"),
];

/// A query of a dashboard.
pub(super) struct Panel {
    /// Name of the dashboard and title of the panel, or the variable.
    pub(super) title: String,
    pub(super) query: String,
}

/// Returns the queries of all dashboards, for any value of their variables and without [`OR_ZERO`].
pub(super) fn panels() -> Result<Vec<Panel>> {
    let files = json_below(&shipped().join("grafana"))?;
    ensure!(!files.is_empty(), "there are no dashboards");
    let mut panels = Vec::new();
    for file in files {
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(&file)?)
            .with_context(|| format!("{} is no JSON", file.display()))?;
        let name = dashboard["title"].as_str().context("a dashboard has no title")?;
        let variables: Vec<&Value> =
            dashboard["templating"]["list"].as_array().into_iter().flatten().collect();
        let names: Vec<&str> = variables.iter().filter_map(|variable| variable["name"].as_str()).collect();
        let mut found = Vec::new();
        collect(&dashboard["panels"], "", &mut found);
        ensure!(!found.is_empty(), "{name} has no queries");
        found.extend(variables.iter().filter_map(|variable| values(variable)));
        let panel = |(title, query): (String, String)| {
            let title = format!("{name}: {title}");
            let query = filled(&query, &names);
            let may_be_empty = MAY_BE_EMPTY.iter().any(|(panel, _)| *panel == title);
            Panel { title, query: if may_be_empty { query } else { query.replace(OR_ZERO, "") } }
        };
        panels.extend(found.into_iter().map(panel));
    }
    for (title, why) in MAY_BE_EMPTY {
        ensure!(panels.iter().any(|panel| panel.title == title), "no panel is {title} ({why})");
    }
    Ok(panels)
}

fn json_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(json_below(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "json") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Collects the queries below a value, each with the title of its panel.
fn collect(value: &Value, title: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, title, found)),
        Value::Object(fields) => {
            let title = fields.get("title").and_then(Value::as_str).unwrap_or(title);
            let query = fields.get("expr").and_then(Value::as_str);
            found.extend(query.map(|query| (title.to_owned(), query.to_owned())));
            fields.values().for_each(|field| collect(field, title, found));
        }
        _ => {}
    }
}

/// Returns the query that lists the values of a variable: that of `label_values(series, label)`.
fn values(variable: &Value) -> Option<(String, String)> {
    let query = variable["query"]["query"].as_str().or(variable["query"].as_str())?;
    let (series, label) = query.strip_prefix("label_values(")?.strip_suffix(')')?.rsplit_once(',')?;
    Some((format!("${}", variable["name"].as_str()?), format!("count by ({}) ({series})", label.trim())))
}

/// Replaces variables by any value, and Grafana's ranges by [`RANGE`].
fn filled(query: &str, variables: &[&str]) -> String {
    let mut query = query.to_owned();
    for range in ["rate_interval", "interval", "range"] {
        query = query.replace(&format!("$__{range}"), RANGE).replace(&format!("${{__{range}}}"), RANGE);
    }
    for name in variables {
        for variable in [format!("\"${name}\""), format!("\"${{{name}}}\""), format!("\"${{{name}:regex}}\"")]
        {
            query = query.replace(&format!("={variable}"), "=~\".*\"");
            query = query.replace(&format!("=~{variable}"), "=~\".*\"");
        }
    }
    query
}
