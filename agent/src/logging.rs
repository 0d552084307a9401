//! Logs of the daemon: on standard error, as text for people or JSON for collectors.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::args::{LogArguments, OutputFormat};

/// What is logged when nobody says otherwise: our own doings, and of libraries only trouble. Of the name
/// server not even that: whoever sends it junk would fill the disk.
const DEFAULT_FILTER: &str =
    "warn,hickory_server=off,hickory_net=off,agent=info,schema=info,minik8s_agent=info";

/// Libraries that would log the variables of containers, and so secrets.
const QUIET: [&str; 4] = ["bollard", "bollard::docker", "bollard::read", "bollard::uri"];

/// Logs from now on go to standard error. A second call changes nothing.
///
/// # Errors
/// One line when the filter can't be read.
pub fn init(arguments: &LogArguments) -> anyhow::Result<()> {
    let filter = filter(arguments.log_level.as_deref(), std::env::var("RUST_LOG").ok().as_deref())?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // Who reads them may be gone, and to tell that would be a panic.
    let logs = logs.log_internal_errors(false);
    // An error means that logs go somewhere already, as in a test.
    let _ = match arguments.log_format {
        OutputFormat::Text => logs.with_ansi(io::stderr().is_terminal()).try_init(),
        OutputFormat::Json => logs.json().flatten_event(true).try_init(),
    };
    Ok(())
}

/// The flag wins over `RUST_LOG`, which wins over the default. A bare level is for our own code.
fn filter(flag: Option<&str>, rust_log: Option<&str>) -> anyhow::Result<EnvFilter> {
    let text = match (flag, rust_log.filter(|text| !text.is_empty())) {
        (Some(level @ ("error" | "warn" | "info" | "debug" | "trace")), _) => {
            DEFAULT_FILTER.replace("info", level)
        }
        (Some(filter), _) | (None, Some(filter)) => filter.to_owned(),
        (None, None) => DEFAULT_FILTER.to_owned(),
    };
    let filter = EnvFilter::try_new(&text)
        .map_err(|error| anyhow::anyhow!("--log-level {text}: {error}; give a level, for example debug"))?;
    // What these say of themselves at lower levels are requests and answers, with all variables.
    let quiet = QUIET.iter().filter_map(|target| format!("{target}=warn").parse().ok());
    Ok(quiet.fold(filter, EnvFilter::add_directive))
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn the_flag_wins_over_the_environment() {
        let text = |flag, environment| filter(flag, environment).unwrap().to_string();
        assert!(text(None, Some("")).contains("agent=info"));
        assert!(text(Some("debug"), Some("error")).contains("agent=debug"));
        assert!(text(None, Some("error")).contains("error"));
        let noisy = text(Some("trace,bollard::docker=trace"), None);
        assert!(
            noisy.contains("bollard::docker=warn") && !noisy.contains("bollard::docker=trace"),
            "{noisy}"
        );
        assert!(!filter(Some("=,=nope=="), None).unwrap_err().to_string().contains('\n'));
    }
}
