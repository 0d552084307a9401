//! Prints a streamed response.

use futures::StreamExt as _;
use reqwest::Response;

use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::print::output::write_bytes;
use crate::view::root_cause;

pub(super) async fn print_as_it_comes(client: &Client, answer: Response) -> Result<(), CliError> {
    let mut chunks = answer.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        write_bytes(&chunk.map_err(|error| broken_off(client, &error))?)?;
    }
    Ok(())
}

pub(super) fn broken_off(client: &Client, error: &reqwest::Error) -> CliError {
    client.unreachable(format!("the log broke off: {}", root_cause(error)))
}
