//! Trust between machines, at length: wrong tokens, wrong clocks, nodes that are removed or away, machines that are lost,
//! a new authority under load, and the packets on the links. `just soak trust` plays all of it; a check plays small parts
//! of most stories, and leaves the new authority out.

mod away;
mod machines;
mod nodes;
mod packets;
mod tokens;

use harness::{Result, anonymous_post, rounds, run};
use schema::trust::{RenewRequest, TrustDir};

/// Returns true in a soak.
fn is_soak() -> bool {
    rounds(0, 1) == 1
}

/// Copies all files of an identity.
fn copied(pki: &TrustDir, to: std::path::PathBuf) -> Result<TrustDir> {
    run("cp", &["--archive", &pki.path().to_string_lossy(), &to.to_string_lossy()])?;
    Ok(TrustDir::new(to))
}

/// Status and answer to a renewal of this certificate by its key. `trusted` names the authorities.
fn renewed(api: &str, pki: &TrustDir, trusted: &TrustDir) -> Result<(u16, String)> {
    let certificate = pki.certificate()?;
    let request = RenewRequest {
        certificate: certificate.to_pem()?,
        signing_request: pki.key()?.signing_request(&certificate.identity()?)?,
    };
    anonymous_post(api, "/v1/renew", trusted, &serde_json::to_string(&request)?)
}
