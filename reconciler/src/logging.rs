//! Logs of the daemon: on standard error, as text for people or JSON for collectors.

use std::io::{self, IsTerminal as _};

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// What is logged when nobody says otherwise: our own doings, and of libraries only trouble.
const DEFAULT_LEVEL: &str = "warn,reconciler=info,schema=info,minik8s=info";

/// Flags about logs.
#[derive(Debug, Clone, Default, Args)]
pub struct LogArgs {
    /// How logs are written
    #[arg(long, env = "MINIK8S_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or a filter as in RUST_LOG
    #[arg(long, env = "MINIK8S_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// How logs are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line per record, coloured on a terminal.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

/// Logs from now on go to standard error. A second call changes nothing.
///
/// # Errors
/// One line when the filter can't be read.
pub fn init(args: &LogArgs) -> anyhow::Result<()> {
    let filter = filter(args.log_level.as_deref(), std::env::var("RUST_LOG").ok().as_deref())?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // An error means that logs go somewhere already, as in a test or within `up`.
    let _ = match args.log_format {
        LogFormat::Text => logs.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    };
    Ok(())
}

/// The flag wins over `RUST_LOG`, which wins over the default. A bare level is for our own code.
fn filter(flag: Option<&str>, rust_log: Option<&str>) -> anyhow::Result<EnvFilter> {
    let text = match (flag, rust_log.filter(|text| !text.is_empty())) {
        (Some(level @ ("error" | "warn" | "info" | "debug" | "trace")), _) => {
            DEFAULT_LEVEL.replace("info", level)
        }
        (Some(filter), _) | (None, Some(filter)) => filter.to_owned(),
        (None, None) => DEFAULT_LEVEL.to_owned(),
    };
    EnvFilter::try_new(&text).map_err(|error| {
        anyhow::anyhow!("cannot read the log filter `{text}`: {error}; give a level as in --log-level debug")
    })
}

#[cfg(test)]
mod tests {
    use super::filter;

    fn text(flag: Option<&str>, rust_log: Option<&str>) -> String {
        filter(flag, rust_log).unwrap().to_string()
    }

    #[test]
    fn the_flag_wins_over_the_environment_and_a_level_is_for_our_own_code() {
        assert!(text(None, None).contains("reconciler=info"));
        assert!(text(Some("debug"), Some("error")).contains("reconciler=debug"));
        assert_eq!(text(None, Some("error")), "error");
        assert_eq!(text(Some("git2=trace"), None), "git2=trace");
        assert!(text(None, Some("")).contains("reconciler=info"));
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_one_line() {
        let error = filter(Some("=,=nope=="), None).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
