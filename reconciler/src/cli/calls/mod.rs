//! Calls of functions and runs of workflows, and their input.

mod gateway;

use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use reqwest::StatusCode;
use schema::kinds::workflow::RunPhase;
use schema::meta::DEFAULT_NAMESPACE;
use serde::de::DeserializeOwned;
use serde_json::{Value, Value as Json};

use super::client::Client;
use super::error::CliError;
use super::output::{note, print_error, write_out};
use crate::args::{InvokeArgs, RunArgs};
use crate::text_file::read_text;
use crate::view::{RunAccepted, RunBody, RunDetail, RunView};
use gateway::{Answer, FunctionCall, LostCall, LostCallKind};

/// Input from `--data` or `--file`; `None` if neither is given.
fn read_input(data: Option<&String>, file: Option<&Path>) -> Result<Option<String>, CliError> {
    let Some(file) = file.filter(|_| data.is_none()) else { return Ok(data.cloned()) };
    let read = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        read_text(file)
    };
    read.map(Some).map_err(|error| CliError::Usage(format!("cannot read {}: {error}", file.display())))
}

// `minik8s invoke`: one call of a function, through a node's gateway.

/// Exit code if the function failed.
const FAILED: u8 = 1;
/// Exit code if the call was refused.
const REFUSED: u8 = 2;
/// Exit code if the call did not run and can be repeated.
const NOT_RUN: u8 = 3;
/// Exit code if the call may have run or is still running.
const MAY_HAVE_RUN: u8 = 4;
/// Error type of a gateway that lost the replica during the call.
const REPLICA_LOST: &str = "ReplicaLost";

pub(in crate::cli) async fn call_function(args: &InvokeArgs) -> Result<ExitCode, CliError> {
    let name = match args.function.split_once('/') {
        Some(_) => args.function.clone(),
        None => format!("{}/{}", args.namespace.selected().unwrap_or("default"), args.function),
    };
    let call = FunctionCall {
        path: format!("/{name}"),
        body: body(args)?,
        token: args.token_file.as_deref().map(token).transpose()?,
        timeout: args.timeout,
    };
    let Answer { status, headers, text } =
        match call.send(args.gateway.as_deref(), args.server.given()).await? {
            Ok(answer) => answer,
            Err(lost) => return Ok(report_lost_call(lost, args.timeout)),
        };
    if args.verbose {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        print_error(&format!("activation {}, {}", header("x-activation-id"), header("server-timing")));
    }
    if status.is_success() {
        write_out(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (kind, said) = failure(status, &text);
    print_error(&said);
    Ok(ExitCode::from(match status.as_u16() {
        502 if kind == REPLICA_LOST => {
            print_error("the call may have run, in whole or in part");
            MAY_HAVE_RUN
        }
        500 | 502 | 504 => FAILED,
        429 | 503 => NOT_RUN,
        _ => REFUSED,
    }))
}

/// Reports a call without an answer. Only a failed connection to the gateway proves that the call did not run.
fn report_lost_call(lost: LostCall, waited: Duration) -> ExitCode {
    let LostCall { url, kind } = lost;
    let why = match kind {
        LostCallKind::NotRun(why) => {
            print_error(&format!(
                "cannot call {url}: {why}; name a node's gateway with --gateway or MINIK8S_GATEWAY; the call did not run"
            ));
            return ExitCode::from(NOT_RUN);
        }
        LostCallKind::TimedOut => {
            format!("no answer within {waited:?}; the call may have run, or may still be running")
        }
        LostCallKind::Broken(why) => {
            format!("the connection was lost: {why}; the call may have run, in whole or in part")
        }
    };
    print_error(&format!("called {url}: {why}"));
    ExitCode::from(MAY_HAVE_RUN)
}

fn body(args: &InvokeArgs) -> Result<String, CliError> {
    let text = match read_input(args.data.as_ref(), args.file.as_deref())? {
        Some(text) => text,
        None => "{}".to_owned(),
    };
    match serde_json::from_str::<Value>(&text) {
        Ok(Value::Object(_)) => Ok(text),
        Ok(_) => Err(CliError::Usage(
            "the data of a call must be a JSON object, such as {\"name\": \"Ada\"}".to_owned(),
        )),
        Err(error) => Err(CliError::Usage(format!(
            "not valid JSON: {error}; write an object such as {{\"name\": \"Ada\"}}"
        ))),
    }
}

/// Reads the token from a file, without surrounding white space.
fn token(file: &Path) -> Result<String, CliError> {
    let text = read_text(file)
        .map_err(|error| CliError::Usage(format!("cannot read {}: {error}", file.display())))?;
    match text.trim() {
        "" => Err(CliError::Usage(format!("{} holds no token", file.display()))),
        token => Ok(token.to_owned()),
    }
}

/// Error type and message, with the function's stack trace if there is one.
fn failure(status: StatusCode, text: &str) -> (String, String) {
    let answer: Value = serde_json::from_str(text).unwrap_or_default();
    let error = &answer["error"];
    let part = |name: &str| error[name].as_str().unwrap_or_default();
    if error.is_null() {
        return (String::new(), format!("{status}: {text}"));
    }
    let trace: Vec<&str> =
        error["stackTrace"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let trace = if trace.is_empty() { String::new() } else { format!("\n{}", trace.join("\n")) };
    let kind = part("type").to_owned();
    let said = format!("{status}: {kind}: {}{trace}", part("message"));
    (kind, said)
}

// `minik8s run`: requests a run of a workflow, and with `--wait` waits for its end.

const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(in crate::cli) async fn start_run(args: &RunArgs) -> Result<ExitCode, CliError> {
    let client = Client::new(args.server.given())?;
    let input = input(args)?;
    let (namespace, name) = match args.workflow.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => (args.namespace.selected().unwrap_or(DEFAULT_NAMESPACE), args.workflow.as_str()),
    };
    let asked = RunBody { input, id: args.id.clone() };
    let accepted: RunAccepted = client.post_json(&["workflows", namespace, name, "runs"], &asked).await?;
    if !accepted.is_new {
        note(&format!("minik8s: run {} exists already; no second run was started", accepted.id));
    }
    if !args.wait {
        write_out(&format!("{}\n", accepted.id))?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = ["runs", namespace, name, &accepted.id];
    let mut has_begun = false;
    let ended = tokio::time::timeout(args.timeout, wait(&client, &path, &mut has_begun)).await;
    ended.unwrap_or_else(|_| {
        let (id, after) = (&accepted.id, args.timeout);
        Err(CliError::NotReached(if has_begun {
            format!("run {name}/{id} did not end within {after:?}; it is still running")
        } else {
            format!(
                "run {name}/{id} did not start within {after:?}; look for waiting runs with 'minik8s get \
                 workflows'"
            )
        }))
    })
}

/// Waits until the run has ended. Retries while the reconciler is unreachable or has lost etcd.
async fn wait(client: &Client, path: &[&str], has_begun: &mut bool) -> Result<ExitCode, CliError> {
    let summary = [path, &["summary"]].concat();
    let row =
        until_answered(client, &summary, has_begun, |row: &RunView| row.phase != RunPhase::Running).await?;
    if row.phase != RunPhase::Succeeded {
        let RunView { workflow, id, phase, state, error, cause, .. } = &row;
        print_error(&format!("run {workflow}/{id} {phase:?} in state {state}: {error} {cause}"));
        return Ok(ExitCode::FAILURE);
    }
    let run = until_answered(client, path, has_begun, |_: &RunDetail| true).await?;
    write_out(&format!("{}\n", run.output.unwrap_or_default()))?;
    Ok(ExitCode::SUCCESS)
}

async fn until_answered<T: DeserializeOwned>(
    client: &Client,
    path: &[&str],
    has_begun: &mut bool,
    is_it: impl Fn(&T) -> bool,
) -> Result<T, CliError> {
    loop {
        match client.get::<T>(path, &[]).await {
            Ok(answer) if is_it(&answer) => {
                *has_begun = true;
                return Ok(answer);
            }
            Ok(_) => *has_begun = true,
            Err(error) if error.is_not_found() && *has_begun => {
                let run = path[1..4].join("/");
                return Err(CliError::NotReached(format!(
                    "run {run} is no longer kept, so its outcome is unknown; see the workflow's \
                     ttlSecondsAfterFinished and runsHistoryLimit"
                )));
            }
            // The leader has not started the run yet.
            Err(error) if error.is_not_found() || error.is_transient() => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn input(args: &RunArgs) -> Result<Option<Json>, CliError> {
    let text = match read_input(args.data.as_ref(), args.file.as_deref())? {
        Some(text) => text,
        None => return Ok(None),
    };
    let wrong =
        |error| CliError::Usage(format!("not valid JSON: {error}; write an input such as {{\"n\": 1}}"));
    serde_json::from_str(&text).map(Some).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    const SILENT: &str = "the connection stays open, without an answer";

    /// Answers one call with a JSON object as its body; the thread returns the request.
    fn gateway(answer: String) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let (mut request, mut part) = (String::new(), [0; 4096]);
            while !request.ends_with('}') {
                let bytes = connection.read(&mut part).unwrap();
                assert!(bytes > 0, "{request}");
                request.push_str(std::str::from_utf8(&part[..bytes]).unwrap());
            }
            match answer.as_str() {
                SILENT => _ = connection.read(&mut part),
                answer => connection.write_all(answer.as_bytes()).unwrap(),
            }
            request
        });
        (address, asked)
    }

    fn answer(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    async fn invoke(gateway: &str, flags: &[&str]) -> Result<ExitCode, CliError> {
        let line = ["minik8s", "invoke", "hello", "--gateway", gateway];
        let Command::Invoke(args) = Cli::parse_from(line.iter().chain(flags)).command else {
            panic!("invoke is typed")
        };
        call_function(&args).await
    }

    // Seen red with each code changed.
    #[tokio::test]
    async fn the_exit_code_says_whether_the_call_ran() {
        let failed = |status, kind| answer(status, &format!(r#"{{"error": {{"type": "{kind}"}}}}"#));
        let cases = [
            (0, answer("200", "{}")),
            (1, failed("500", "ValueError")),
            (1, failed("502", "BadAnswer")),
            (1, failed("504", "Timeout")),
            (2, failed("400", "BadRequest")),
            (2, answer("404", "no JSON")),
            (3, failed("429", "TooMany")),
            (3, failed("503", "QueueFull")),
            (4, failed("502", "ReplicaLost")),
            (4, String::new()),
            (4, answer("200", "{}").replace("length: 2", "length: 9")),
            (4, SILENT.to_owned()),
        ];
        for (wanted, answer) in cases {
            let (address, _) = gateway(answer.clone());
            let timeout = if answer == SILENT { "100ms" } else { "60s" };
            let code = invoke(&address, &["--timeout", timeout]).await.unwrap();
            assert_eq!(code, ExitCode::from(wanted), "{answer}");
        }
        // A system port that no test server can be assigned.
        assert_eq!(invoke("127.0.0.1:1", &[]).await.unwrap(), ExitCode::from(3));
    }

    // Seen red with the body of a call without a file.
    #[tokio::test]
    async fn the_object_of_a_file_is_what_the_function_is_called_with() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(path, r#"{"name": "Ada"}"#).unwrap();
        let (address, asked) = gateway(answer("200", "{}"));
        assert_eq!(invoke(&address, &["-f", path]).await.unwrap(), ExitCode::SUCCESS);
        let asked = asked.join().unwrap();
        assert!(asked.starts_with("POST /default/hello "), "{asked}");
        assert!(asked.ends_with(r#"{"name": "Ada"}"#), "{asked}");
        let error = invoke(&address, &["-f", "/gone.json"]).await.unwrap_err().to_string();
        assert!(error.contains("cannot read /gone.json"), "{error}");
    }
}
