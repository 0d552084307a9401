//! Answers to calls that no replica takes, and the parts common to every answer.

use harness::{NetWorld, eventually, secs};

use super::*;

/// Code that loads for longer than its callers wait.
const LASTING: &str = "import time\n\ntime.sleep(3600)\n\n\ndef main(params):\n    return {}\n";

/// Functions pushed for this by the story in `contract.rs`, with the code of `slow`.
pub(super) fn narrow() -> Change {
    let text = "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: narrow}\nspec:\n  source: code/shared\n  \
        handler: main.slow\n  maxScale: 1\n  queueLength: 1\n";
    Change::write("narrow.yaml", text)
}

/// Whole answer, with its head in lower case.
pub(super) fn whole(net: &NetWorld, at: &str, name: &str, more: &[&str]) -> Result<(u16, String)> {
    let url = format!("http://{at}:8081/default/{name}");
    let args = [&["-s", "-i", "-m", "100"], more, &[&url]].concat();
    let said = net.run("curl", &args)?.to_lowercase();
    let status = said.split_whitespace().nth(1).context("no status")?.parse()?;
    Ok((status, said))
}

pub(super) fn are_said(cluster: &Cluster) -> Result<()> {
    let net = &cluster.node().net;
    let ask = |name: &str, more: &[&str]| whole(net, "127.0.0.1", name, more);
    let expect = |name: &str, more: &[&str], status: u16, words: &[&str]| -> Result<String> {
        let (found, said) = ask(name, more)?;
        let has_all = words.iter().all(|word| said.contains(word)) && said.contains("x-activation-id: ");
        ensure!(found == status && has_all, "{name} {more:?} {words:?}: {said}");
        Ok(said)
    };
    // Pushed only now: without progress for two minutes it is given up, and the answer changes.
    let lasting = manifest("lasting", "  coldStartTimeoutSeconds: 1\n");
    cluster.push(&[lasting, code("lasting", "main.py", LASTING)], "It loads for long")?;
    eventually("no replica comes in time", secs(30), || {
        expect("lasting", &["-d", "{}"], 503, &["noreplica", "retry-after: 1\r"])
    })?;
    expect("echo", &["-X", "PUT", "-d", "{}"], 405, &["methodnotallowed", "allow: get, post\r"])?;
    expect("nobody", &["-d", "{}"], 404, &["notfound"])?;
    let big = "123456789012345678901234567890";
    expect("echo", &["-d", &format!("{{\"n\": {big}}}")], 200, &[big])?;
    // A pod may call through the node's address.
    let pod = Cluster::net_of(&cluster.pod("plain")?);
    let (status, said) = whole(&pod, cluster.node().address()?, "echo", &["-d", "{}"])?;
    ensure!(status == 200, "{said}");
    when_the_queue_is_full(&ask)?;
    let state = expect("narrow", &[], 200, &["\"state\":\"ready\""])?;
    ensure!(state.contains("\"answers\":{\"200\":") && state.contains("\"503\":"), "{state}");
    Ok(())
}

/// Checks that one call runs, one waits, and no other is accepted.
fn when_the_queue_is_full(ask: &(impl Fn(&str, &[&str]) -> Result<(u16, String)> + Sync)) -> Result<()> {
    let here = |waiting: u32, in_flight: u32| -> Result<()> {
        let (_, state) = ask("narrow", &[])?;
        let wanted = [format!("\"waiting\":{waiting}"), format!("\"inflight\":{in_flight}")]
            .map(|one| state.contains(&one));
        ensure!(wanted == [true, true], "{state}");
        Ok(())
    };
    ensure!(ask("narrow", &["-d", "{}"])?.0 == 200, "it is there");
    std::thread::scope(|threads| {
        let slow = || ask("narrow", &["-d", r#"{"for": 4}"#]);
        let first = threads.spawn(slow);
        let outcome = eventually("it runs", secs(20), || here(0, 1)).and_then(|()| {
            let second = threads.spawn(slow);
            eventually("the second waits", secs(3), || here(1, 1))?;
            let (status, said) = ask("narrow", &["-d", "{}"])?;
            ensure!(
                status == 503 && said.contains("queuefull") && said.contains("retry-after: 1\r"),
                "{said}"
            );
            second.join().map_err(|_| harness::Error::msg("a caller panicked"))?
        });
        let first = first.join().map_err(|_| harness::Error::msg("a caller panicked"))??;
        let second = outcome?;
        ensure!(first.0 == 200 && second.0 == 200, "{first:?} {second:?}");
        Ok(())
    })
}
