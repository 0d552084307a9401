//! Logging of both daemons: to standard error, as text for people or JSON for collectors.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Default filter: our own crates at info, libraries at warn, the name server off, because anyone who sends it junk
/// could fill the disk.
const DEFAULT_FILTER: &str = "warn,hickory_server=off,hickory_net=off,agent=info,reconciler=info,schema=info,\
                              minik8s=info,minik8s_agent=info";

/// Libraries kept at warn because they would log requests and responses with the variables of containers, and so
/// secrets.
const NOISY_TARGETS: [&str; 4] = ["bollard", "bollard::docker", "bollard::read", "bollard::uri"];

/// Error from parsing a log filter.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the log filter `{filter}`: {source}; give a level, as in --log-level debug")]
pub struct LogFilterError {
    filter: String,
    source: ParseError,
}

/// Starts logging to standard error with this level or filter (`--log-level`). A second call changes nothing.
///
/// # Errors
/// A single line if the filter can't be parsed.
pub fn init(level: Option<&str>, as_json: bool) -> Result<(), LogFilterError> {
    let filter = filter(level, std::env::var("RUST_LOG").ok().as_deref())?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // The reader may be gone, and reporting that would panic.
    let logs = logs.log_internal_errors(false);
    // An error means that logging is set up already, as in a test or within `up`.
    let _ = match as_json {
        false => logs.with_ansi(io::stderr().is_terminal()).try_init(),
        true => logs.json().flatten_event(true).try_init(),
    };
    Ok(())
}

/// Builds the filter: the flag overrides `RUST_LOG`, which overrides the default. A bare level applies to our own
/// crates.
fn filter(flag: Option<&str>, rust_log: Option<&str>) -> Result<EnvFilter, LogFilterError> {
    let text = match (flag, rust_log.filter(|text| !text.is_empty())) {
        (Some(level @ ("error" | "warn" | "info" | "debug" | "trace")), _) => {
            DEFAULT_FILTER.replace("info", level)
        }
        (Some(filter), _) | (None, Some(filter)) => filter.to_owned(),
        (None, None) => DEFAULT_FILTER.to_owned(),
    };
    let filter = EnvFilter::try_new(&text).map_err(|source| LogFilterError { filter: text, source })?;
    let quiet = NOISY_TARGETS.iter().filter_map(|target| format!("{target}=warn").parse().ok());
    Ok(quiet.fold(filter, EnvFilter::add_directive))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(flag: Option<&str>, rust_log: Option<&str>) -> String {
        filter(flag, rust_log).unwrap().to_string()
    }

    #[test]
    fn the_flag_wins_over_the_environment_and_a_level_is_for_our_own_code() {
        for own in ["agent", "reconciler"] {
            assert!(text(None, None).contains(&format!("{own}=info")));
            assert!(text(Some("debug"), Some("error")).contains(&format!("{own}=debug")));
            assert!(text(None, Some("")).contains(&format!("{own}=info")));
        }
        let from_environment = text(None, Some("error"));
        assert!(from_environment.contains("error") && !from_environment.contains("info"));
        let whole = text(Some("git2=trace"), None);
        assert!(whole.contains("git2=trace") && !whole.contains("info"), "{whole}");
    }

    #[test]
    fn no_filter_makes_a_library_log_secrets() {
        let noisy = text(Some("trace,bollard::docker=trace"), None);
        assert!(
            noisy.contains("bollard::docker=warn") && !noisy.contains("bollard::docker=trace"),
            "{noisy}"
        );
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_one_line() {
        let error = filter(Some("=,=nope=="), None).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
