//! `minik8s invoke`: one call of a function, through a node's gateway.

use std::path::Path;
use std::process::ExitCode;

use reqwest::{StatusCode, Url};
use serde_json::Value;

use super::given;
use crate::args::InvokeArgs;
use crate::cli::error::CliError;
use crate::cli::print::output::{complain, write_out};
use crate::view::root_cause;

/// Where functions are called by default.
const GATEWAY_PORT: u16 = 8081;
/// The function failed.
const FAILED: u8 = 1;
/// The call was refused.
const REFUSED: u8 = 2;
/// The call did not run: it can be made again.
const NOT_RUN: u8 = 3;
/// The call may have run, or runs still.
const MAY_HAVE_RUN: u8 = 4;
/// What a gateway says whose replica was lost under way.
const REPLICA_LOST: &str = "ReplicaLost";

pub(in crate::cli) async fn run(args: &InvokeArgs) -> Result<ExitCode, CliError> {
    let body = body(args)?;
    let url = url(args)?;
    let http = reqwest::Client::builder().timeout(args.timeout).no_proxy().build();
    let http = http.map_err(|error| CliError::Usage(root_cause(&error)))?;
    let mut request =
        http.post(url.clone()).header("content-type", "application/json").header("x-timings", "1");
    if let Some(file) = &args.token_file {
        request = request.bearer_auth(token(file)?);
    }
    let answer = match request.body(body).send().await {
        Ok(answer) => answer,
        Err(error) => {
            return Ok(lost(&error, &url, args));
        }
    };
    let status = answer.status();
    let header = |name: &str| {
        answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned()
    };
    if args.verbose {
        complain(&format!("activation {}, {}", header("x-activation-id"), header("server-timing")));
    }
    let text = match answer.text().await {
        Ok(text) => text,
        Err(error) => return Ok(lost(&error, &url, args)),
    };
    if status.is_success() {
        write_out(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (kind, said) = failure(status, &text);
    complain(&said);
    Ok(ExitCode::from(match status.as_u16() {
        502 if kind == REPLICA_LOST => {
            complain("the call may have run, in part or whole");
            MAY_HAVE_RUN
        }
        500 | 502 | 504 => FAILED,
        429 | 503 => NOT_RUN,
        _ => REFUSED,
    }))
}

/// There is no answer. Only a gateway that was not reached has surely made no call.
fn lost(error: &reqwest::Error, url: &Url, args: &InvokeArgs) -> ExitCode {
    if error.is_connect() {
        let why = root_cause(error);
        complain(&format!(
            "cannot call {url}: {why}; name a node's gateway with --gateway or MINIK8S_GATEWAY; the call did not run"
        ));
        return ExitCode::from(NOT_RUN);
    }
    let why = match error.is_timeout() {
        true => format!("no answer within {:?}; the call may have run, or runs still", args.timeout),
        false => {
            format!("the connection was lost: {}; the call may have run, in part or whole", root_cause(error))
        }
    };
    complain(&format!("called {url}: {why}"));
    ExitCode::from(MAY_HAVE_RUN)
}

fn body(args: &InvokeArgs) -> Result<String, CliError> {
    let text = match given(args.data.as_ref(), args.file.as_deref())? {
        Some(text) => text,
        None => "{}".to_owned(),
    };
    match serde_json::from_str::<Value>(&text) {
        Ok(Value::Object(_)) => Ok(text),
        Ok(_) => Err(CliError::Usage(
            "a function is called with a JSON object, such as {\"name\": \"Ada\"}".to_owned(),
        )),
        Err(error) => Err(CliError::Usage(format!(
            "that is no JSON: {error}; write an object such as {{\"name\": \"Ada\"}}"
        ))),
    }
}

/// Without the end of its line.
fn token(file: &Path) -> Result<String, CliError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| CliError::Usage(format!("cannot read {}: {error}", file.display())))?;
    match text.trim() {
        "" => Err(CliError::Usage(format!("{} holds no token", file.display()))),
        token => Ok(token.to_owned()),
    }
}

fn url(args: &InvokeArgs) -> Result<Url, CliError> {
    let name = match args.function.split_once('/') {
        Some(_) => args.function.clone(),
        None => format!("{}/{}", args.namespace.selected().unwrap_or("default"), args.function),
    };
    let base = args.gateway.as_ref().unwrap_or(&args.server.server);
    let full = if base.contains("://") { base.clone() } else { format!("http://{base}") };
    let wrong = || CliError::Usage(format!("{base} is no address; write it as http://node:{GATEWAY_PORT}"));
    let mut url: Url = full.parse().map_err(|_| wrong())?;
    if args.gateway.is_none() {
        url.set_scheme("http").and_then(|()| url.set_port(Some(GATEWAY_PORT))).map_err(|()| wrong())?;
    }
    url.set_path(&name);
    Ok(url)
}

/// The type of an error, and what went wrong, with the traceback of the function if it gave one.
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
