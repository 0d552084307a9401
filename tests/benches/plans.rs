//! The plan of a pull request: 1,000 documents read from Git, planned, reviewed and hashed, by the
//! program as CI runs it, including its startup time.

use std::process::Command;
use std::time::Instant;

use harness::manifests::sleeper;
use harness::{Change, GitRepo, Result, ensure, minik8s_binary, outcome, secs};

use crate::Scale;
use crate::figures::{Row, Series, Table, ms};

const DOCUMENTS: usize = 1_000;

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("minik8s-plans-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = plans(scale, table, &folder);
    std::fs::remove_dir_all(&folder)?;
    measured
}

fn plans(scale: Scale, table: &mut Table, folder: &std::path::Path) -> Result<()> {
    let repo = GitRepo::create(folder)?;
    let write = |index, seconds: &str| {
        let text = sleeper(&format!("pod-{index}")).replace("100000", seconds);
        Change::write(format!("apps/pod-{index}.yaml"), text)
    };
    let all = |seconds: &str| (0..DOCUMENTS).map(|index| write(index, seconds)).collect::<Vec<_>>();
    let base = repo.push(&all("100000"), "Many")?;
    let one = repo.push(&[write(7, "200000")], "One")?;
    let every = repo.push(&all("300000"), "All")?;
    for (what, head) in
        [("plan of 1,000 documents, one changed", &one), ("plan of 1,000 documents, all changed", &every)]
    {
        let mut series = Series::default();
        for _ in 0..scale.changes {
            let mut command = Command::new(minik8s_binary());
            command.current_dir(repo.work()).args(["plan", "--base", &base, "--head", head, "-o", "json"]);
            // As on stock Debian: if the environment names a CA file, libgit2 reads it (25 ms).
            command.env("SSL_CERT_FILE", "/dev/null");
            let start = Instant::now();
            let ran = outcome(&mut command, secs(60))?;
            series.add(start.elapsed());
            ensure!(ran.code == 2, "{ran:?}");
        }
        let ours = format!("p50 {}, p95 {}", ms(series.percentile(50)), ms(series.percentile(95)));
        table.add(Row { what, ours, budget: "≤ 100 ms", ..Row::default() });
    }
    Ok(())
}
