//! `minik8s top`: usage of pods and nodes, and calls of functions.

use std::cmp::Reverse;
use std::time::Duration;

use schema::quantity::{Cpu, Memory};
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::error::CliError;
use super::output::{Row, TableItem, TableOptions, list_text, watch, write_out};
use crate::args::{Format, SortBy, TopArgs, TopKind};
use crate::view::{FunctionView, List, NodeUsageView, PodUsageView, ResourceUsage};

/// Interval of `-w`: nodes report every 15 s, gateways each second.
const WATCH_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn run(args: &TopArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    if args.watch {
        return watch(args.output.output, WATCH_EVERY, async || page(&client, args).await).await;
    }
    write_out(&page(&client, args).await?)
}

async fn page(client: &Client, args: &TopArgs) -> Result<String, CliError> {
    let format = args.output.output;
    let mut shape =
        TableOptions { wide: format == Format::Wide, bare: args.no_headers, ..TableOptions::default() };
    match args.kind {
        TopKind::Nodes => {
            if args.containers {
                return Err(CliError::Usage("nodes have no containers; leave out --containers".to_owned()));
            }
            let List { mut items } = client.get::<List<NodeUsageView>>(&["usage", "nodes"], &[]).await?;
            sort(&mut items, args.sort_by, |node| &node.total);
            list_text(&items, format, shape)
        }
        TopKind::Pods => {
            let namespace = args.namespace.selected();
            let query: Vec<_> = namespace.map(|namespace| ("namespace", namespace)).into_iter().collect();
            let List { mut items } = client.get::<List<PodUsageView>>(&["usage", "pods"], &query).await?;
            shape.namespaces = namespace.is_none();
            if !args.containers {
                sort(&mut items, args.sort_by, |pod| &pod.total);
                return list_text(&items, format, shape);
            }
            let mut rows: Vec<ContainerRow> = items.into_iter().flat_map(containers).collect();
            sort(&mut rows, args.sort_by, |row| &row.used);
            list_text(&rows, format, shape)
        }
        TopKind::Functions => {
            if args.containers || args.sort_by.is_some() {
                let why = "--containers and --sort-by do not apply to functions; leave them out";
                return Err(CliError::Usage(why.to_owned()));
            }
            let namespace = args.namespace.selected();
            let query: Vec<_> = namespace.map(|namespace| ("namespace", namespace)).into_iter().collect();
            let List { items } = client.get::<List<CallsRow>>(&["functions"], &query).await?;
            shape.namespaces = namespace.is_none();
            list_text(&items, format, shape)
        }
    }
}

/// Row of a function's calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct CallsRow(FunctionView);

impl TableItem for CallsRow {
    fn id(&self) -> String {
        format!("function/{}", self.0.name)
    }

    fn row(&self, row: Row) -> Row {
        let function = &self.0;
        row.namespace(&function.namespace)
            .col("NAME", &function.name)
            .col("CALLS/S", format!("{:.1}", function.calls_per_second))
            .col("MEAN", function.mean_millis.map(|millis| format!("{millis:.1}ms")).unwrap_or_default())
            .col("IN-FLIGHT", function.in_flight)
            .col("WAITING", function.waiting)
            .col("REPLICAS", format!("{}/{}", function.ready, function.wanted))
    }
}

/// Sorts by usage, highest first, items without a sample last. Equal items stay sorted by name.
fn sort<T>(items: &mut [T], by: Option<SortBy>, used: impl Fn(&T) -> &ResourceUsage) {
    match by {
        None => {}
        Some(SortBy::Cpu) => items.sort_by_key(|item| Reverse(used(item).cpu)),
        Some(SortBy::Memory) => items.sort_by_key(|item| Reverse(used(item).memory)),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerRow {
    namespace: String,
    pod: String,
    container: String,
    #[serde(flatten)]
    used: ResourceUsage,
    sample_age: String,
    why: String,
}

fn containers(pod: PodUsageView) -> Vec<ContainerRow> {
    let PodUsageView { namespace, name, containers, sample_age, why, .. } = pod;
    let row = |(container, used): (String, ResourceUsage)| {
        let missing = why.is_empty() && used.cpu.is_none();
        ContainerRow {
            namespace: namespace.clone(),
            pod: name.clone(),
            container,
            sample_age: if used.cpu.is_some() { sample_age.clone() } else { String::new() },
            why: if missing { format!("it was not running {sample_age} ago") } else { why.clone() },
            used,
        }
    };
    containers.into_iter().map(row).collect()
}

fn millis(cpu: Option<Cpu>) -> String {
    // Always in thousandths, so that a column can be compared by eye.
    cpu.map(|cpu| format!("{}m", cpu.millis)).unwrap_or_default()
}

fn bytes(of: Option<Memory>) -> String {
    of.map(Memory::readable).unwrap_or_default()
}

/// Request and limit as `100m/500m`.
fn bounds(requested: String, limit: String) -> String {
    let shown = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    format!("{}/{}", shown(requested), shown(limit))
}

fn percent(of: Option<u64>) -> String {
    of.map(|percent| format!("{percent}%")).unwrap_or_default()
}

fn with_use(row: Row, used: &ResourceUsage) -> Row {
    row.col("CPU", millis(used.cpu))
        .col("REQ/LIM", bounds(millis(used.cpu_requested), millis(used.cpu_limit)))
        .col("CPU%", percent(used.cpu_percent))
        .col("MEMORY", bytes(used.memory))
        .col("REQ/LIM", bounds(bytes(used.memory_requested), bytes(used.memory_limit)))
        .col("MEM%", percent(used.memory_percent))
}

impl TableItem for PodUsageView {
    fn id(&self) -> String {
        format!("pod/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        let volumes = self.volumes.iter().map(|(name, bytes)| {
            let more = if self.at_least.contains(name) { ">" } else { "" };
            format!("{name}={more}{}", bytes.readable())
        });
        with_use(row.namespace(&self.namespace).col("NAME", &self.name), &self.total)
            .col("SAMPLE", &self.sample_age)
            .wide("NODE", self.node.as_deref().unwrap_or_default())
            .wide_cut("VOLUMES", volumes.collect::<Vec<_>>().join(","))
            .remark("WHY", &self.why)
    }
}

impl TableItem for ContainerRow {
    fn id(&self) -> String {
        format!("pod/{}/{}", self.pod, self.container)
    }

    fn row(&self, row: Row) -> Row {
        let row = row.namespace(&self.namespace).col("POD", &self.pod).col("NAME", &self.container);
        with_use(row, &self.used).col("SAMPLE", &self.sample_age).remark("WHY", &self.why)
    }
}

impl TableItem for NodeUsageView {
    fn id(&self) -> String {
        format!("node/{}", self.name)
    }

    fn row(&self, row: Row) -> Row {
        let of = |used: String, all: String| format!("{}/{all}", if used.is_empty() { "-" } else { &used });
        row.col("NAME", &self.name)
            .col("CPU", of(millis(self.total.cpu), self.cpu_capacity.to_string()))
            .col("CPU%", percent(self.total.cpu_percent))
            .col("REQUESTED", millis(self.total.cpu_requested))
            .col("MEMORY", of(bytes(self.total.memory), self.memory_capacity.readable()))
            .col("MEM%", percent(self.total.memory_percent))
            .col("REQUESTED", bytes(self.total.memory_requested))
            .col("PODS", self.pods)
            .col("SAMPLE", &self.sample_age)
            .remark("WHY", &self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::{Layout, Screen, table};
    use super::*;

    fn used(cpu: u64, memory: u64) -> ResourceUsage {
        ResourceUsage {
            cpu: Some(Cpu { millis: cpu }),
            cpu_requested: Some(Cpu { millis: 100 }),
            cpu_limit: Some(Cpu { millis: 500 }),
            cpu_percent: Some(cpu / 20),
            memory: Some(Memory { bytes: memory }),
            memory_percent: Some(1),
            ..ResourceUsage::default()
        }
    }

    fn pods() -> Vec<PodUsageView> {
        let pod = |name: &str, total: ResourceUsage, why: &str| PodUsageView {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            containers: [("app".to_owned(), total.clone())].into(),
            total,
            sample_age: if why.is_empty() { "7s" } else { "" }.to_owned(),
            why: why.to_owned(),
            ..PodUsageView::default()
        };
        vec![
            pod("idle", used(3, 900 << 20), ""),
            pod("new", ResourceUsage::default(), "started after the last sample"),
            pod("busy", used(498, 12_345_678), ""),
        ]
    }

    fn drawn<T: TableItem>(rows: &[T]) -> String {
        let screen = Screen { width: Some(100), color: false };
        table(&rows.iter().collect::<Vec<_>>(), TableOptions::default(), screen, &mut Layout::default())
    }

    #[test]
    fn pods_by_cpu_with_the_unknown_last() {
        let mut rows = pods();
        sort(&mut rows, Some(SortBy::Cpu), |pod| &pod.total);
        insta::assert_snapshot!(drawn(&rows), @r"
        NAME   CPU    REQ/LIM     CPU%   MEMORY   REQ/LIM   MEM%   SAMPLE   WHY
        busy   498m   100m/500m   24%    11.7Mi   -/-       1%     7s       -
        idle   3m     100m/500m   0%     900Mi    -/-       1%     7s       -
        new    -      -/-         -      -        -/-       -      -        started after the last sample
        ");
        sort(&mut rows, Some(SortBy::Memory), |pod| &pod.total);
        assert_eq!(rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["idle", "busy", "new"]);
    }

    #[test]
    fn functions_by_their_calls() {
        let row = |name: &str, calls_per_second: f64, mean_millis: Option<f64>| {
            CallsRow(FunctionView {
                namespace: "default".to_owned(),
                name: name.to_owned(),
                ready: 2,
                wanted: 3,
                waiting: 4,
                in_flight: 20,
                calls_per_second,
                mean_millis,
                image: "Ready".to_owned(),
                source: String::new(),
                health: "Healthy".to_owned(),
                note: String::new(),
                age: "7s".to_owned(),
                labels: std::collections::BTreeMap::new(),
            })
        };
        insta::assert_snapshot!(drawn(&[row("busy", 1234.56, Some(1.25)), row("idle", 0.0, None)]), @r"
        NAME   CALLS/S   MEAN    IN-FLIGHT   WAITING   REPLICAS
        busy   1234.6    1.2ms   20          4         2/3
        idle   0.0       -       20          4         2/3
        ");
    }

    #[test]
    fn containers_are_rows_of_their_own() {
        let rows: Vec<ContainerRow> = pods().into_iter().flat_map(containers).collect();
        insta::assert_snapshot!(drawn(&rows), @r"
        POD    NAME   CPU    REQ/LIM     CPU%   MEMORY   REQ/LIM   MEM%   SAMPLE   WHY
        idle   app    3m     100m/500m   0%     900Mi    -/-       1%     7s       -
        new    app    -      -/-         -      -        -/-       -      -        started after the last s…
        busy   app    498m   100m/500m   24%    11.7Mi   -/-       1%     7s       -
        ");
    }
}
