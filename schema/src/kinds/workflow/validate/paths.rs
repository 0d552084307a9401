//! Checks of fields that hold a path.

use serde_json::Value as Json;

use crate::document::nearest::suggestion;
use crate::kinds::workflow::{
    Expression, ExpressionError, Intrinsic, JsonPath, NullablePath, PathError, PathRoot,
};
use crate::violation::{Findings, Path, rules};

/// Paths that a field accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathKind {
    /// Any path, including into the context object.
    Any,
    /// A path to a single place, including in the context object.
    Single,
    /// A path to a single place in the state's data.
    Reference,
}

/// Checks a field that may be null.
pub(super) fn nullable(path: Option<&NullablePath>, sort: PathKind, at: &Path<'_>, findings: &mut Findings) {
    optional(path.and_then(|path| path.0.as_deref()), sort, at, findings);
}

/// Checks a field that may be absent.
pub(super) fn optional(path: Option<&str>, sort: PathKind, at: &Path<'_>, findings: &mut Findings) {
    if let Some(path) = path {
        check(path, sort, at, findings);
    }
}

/// Checks a path.
pub(super) fn check(text: &str, sort: PathKind, at: &Path<'_>, findings: &mut Findings) {
    match JsonPath::parse(text) {
        Err(PathError::Intrinsic) => intrinsic(text, at, findings),
        Err(error) => {
            let message = format!("Invalid value: `{text}` is not a path: {error}");
            findings.add(&rules::JSON_PATH, at, message).help("for example `$.items[0].name`");
        }
        Ok(path) if sort != PathKind::Any && !path.is_reference() => {
            let message = format!("Invalid value: `{text}`: expected a path to exactly one place");
            findings.add(&rules::JSON_PATH, at, message).help("use names and indices only");
        }
        Ok(path) if sort == PathKind::Reference && path.root == PathRoot::Context => {
            let message = format!("Invalid value: `{text}`: expected a path into the state's own data");
            findings.add(&rules::JSON_PATH, at, message).help("begin it with a single `$`");
        }
        Ok(_) => {}
    }
}

/// Checks the text of a field `x.$`: a path, or an intrinsic function.
pub(super) fn expression(text: &str, at: &Path<'_>, findings: &mut Findings) {
    let Err(error) = Expression::parse(text) else { return };
    let (rule, message, help) = match error {
        ExpressionError::Path(_) if !text.starts_with("States.") => {
            return check(text, PathKind::Any, at, findings);
        }
        ExpressionError::Variable(name) => (
            &rules::WORKFLOW_UNSUPPORTED,
            format!("Minik8s does not support variables of the Amazon States Language (`{name}`, Assign)"),
            "keep the value in the state's data: put it there with resultPath, read it with a path"
                .to_owned(),
        ),
        ExpressionError::Unknown(name) => {
            let help = suggestion(&name, Intrinsic::ALL.iter().map(|function| function.as_str()));
            (&rules::INTRINSIC, format!("Invalid value: unknown intrinsic function `{name}`"), help)
        }
        error => {
            let help = "for example `States.Format('{} of {}', $.part, $.whole)`".to_owned();
            (&rules::INTRINSIC, format!("Invalid value: `{text}`: {error}"), help)
        }
    };
    findings.add(rule, at, message).help(help);
}

fn intrinsic(text: &str, at: &Path<'_>, findings: &mut Findings) {
    let name = text.split('(').next().unwrap_or(text);
    let message = format!("Invalid value: expected a path here, not the intrinsic function `{name}`");
    findings
        .add(&rules::JSON_PATH, at, message)
        .help("first compute the value in a Pass, in a parameter whose name ends in `.$`");
}

// Payload templates: JSON in which a field `x.$` takes its value from a path or an intrinsic function.

/// Checks the template at `at`, if there is one.
pub(super) fn check_payload(template: Option<&Json>, at: &Path<'_>, findings: &mut Findings) {
    match template {
        Some(Json::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                check_payload(Some(item), &at.index(index), findings);
            }
        }
        Some(Json::Object(fields)) => {
            for (name, value) in fields {
                let here = at.field(name);
                let Some(plain) = name.strip_suffix(".$") else {
                    check_payload(Some(value), &here, findings);
                    continue;
                };
                if fields.contains_key(plain) {
                    let message =
                        format!("Duplicate value: `{plain}` is set as well; both give the same field");
                    findings.add(&rules::PAYLOAD, &here, message).on_key().help("keep one of them");
                }
                match value.as_str() {
                    Some(text) => expression(text, &here, findings),
                    None => {
                        let message = "Invalid value: the name ends in `.$`, so a path is expected";
                        findings
                            .add(&rules::PAYLOAD, &here, message)
                            .help(format!("name it `{plain}` to use the value as it is"));
                    }
                }
            }
        }
        _ => {}
    }
}
