//! Checks of a function beyond the schema.

use super::{FunctionSpec, Runtime};
use crate::kinds::{pod, repo_path, trigger};
use crate::quantity::Memory;
use crate::violation::{Findings, Path, rules};

/// Maximum body of a call or answer, which the gateway holds in memory.
const BODY_LIMIT_MAX: Memory = Memory { bytes: 64 << 20 };
/// Maximum size of `/tmp`, which is in memory.
const TMP_SIZE_MAX: Memory = Memory { bytes: 16 << 30 };

/// Checks a spec as written.
pub(super) fn validate(function: &FunctionSpec, at: &Path<'_>, findings: &mut Findings) {
    match (&function.source, &function.image) {
        (Some(source), None) => repo_path::check(source, &at.field("source"), findings),
        (None, Some(image)) => {
            if let Err(why) = pod::check_image(image) {
                findings.add(&rules::INVALID_IMAGE, &at.field("image"), why);
            }
        }
        (Some(_), Some(_)) => {
            let message = "Forbidden: may not be set beside `source`, from which the image is built";
            findings.add(&rules::EXCLUSIVE, &at.field("image"), message).on_key();
        }
        (None, None) => {
            let help = "write the folder with `main.py` or a `Dockerfile`, for example `functions/hello`, or an `image`";
            findings.add(&rules::REQUIRED, &at.field("source"), "Required value").help(help);
        }
    }
    if let (Some(_), Some(_)) = (&function.image, function.runtime) {
        let message = "Forbidden: may not be set beside `image`, from which nothing is built";
        findings.add(&rules::EXCLUSIVE, &at.field("runtime"), message).on_key();
    }
    handler(function, &at.field("handler"), findings);
    pod::check_env(&function.env, &at.field("env"), findings);
    pod::check_resources(&function.resources, &at.field("resources"), findings);
    if let Some(most) = function.max_scale
        && function.min_scale > most
    {
        let message = format!(
            "Invalid value: {}: must be less than or equal to maxScale of {most}",
            function.min_scale
        );
        findings.add(&rules::SCALING, &at.field("minScale"), message);
    }
    let sizes = [
        ("requestBodyLimit", function.request_body_limit),
        ("responseBodyLimit", function.response_body_limit),
    ];
    for (field, size) in sizes {
        size_between(size, BODY_LIMIT_MAX, &at.field(field), findings);
    }
    if let Some(auth) = &function.auth {
        if function.public {
            let message = "Forbidden: may not be set beside `public`, with which everyone may call";
            findings.add(&rules::EXCLUSIVE, &at.field("auth"), message).on_key();
        }
        let (auth_at, token) = (at.field("auth"), &auth.token_from);
        let from = auth_at.field("tokenFrom");
        let here = from.field("secretKeyRef");
        for (field, value) in [("name", &token.secret_key_ref.name), ("key", &token.secret_key_ref.key)] {
            if value.is_empty() {
                findings.add(&rules::REQUIRED, &here.field(field), "Required value");
            }
        }
    }
    let sandbox = at.field("sandbox");
    size_between(function.sandbox.tmp_size_limit, TMP_SIZE_MAX, &sandbox.field("tmpSizeLimit"), findings);
    trigger::validate(&function.triggers, at, findings);
}

fn size_between(size: Memory, most: Memory, at: &Path<'_>, findings: &mut Findings) {
    if size.bytes == 0 || size > most {
        let message = format!("Invalid value: `{size}`: must be more than 0 and at most {most}");
        findings.add(&rules::OUT_OF_RANGE, at, message);
    }
}

/// Checks for `name` or `module.name`, in Python's spelling.
fn handler(function: &FunctionSpec, at: &Path<'_>, findings: &mut Findings) {
    let Some(handler) = &function.handler else { return };
    if function.runtime == Some(Runtime::Dockerfile) || function.image.is_some() {
        let message =
            "Forbidden: may not be set with the runtime `dockerfile` or an `image`, which answers by itself";
        findings.add(&rules::EXCLUSIVE, at, message).on_key();
    } else if handler.len() > 255 || !handler.split('.').all(is_identifier) {
        let message = format!(
            "Invalid value: `{handler}`: must be a Python name, or module names and a name joined by '.'"
        );
        findings.add(&rules::INVALID_NAME, at, message).help("for example `main`, or `handlers.on_order`");
    }
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !text.starts_with(|c: char| c.is_ascii_digit())
}
