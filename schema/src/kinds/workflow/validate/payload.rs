//! Payload templates: JSON in which a field `x.$` takes its value from a path or an intrinsic function.

use serde_json::Value as Json;

use super::paths;
use crate::violation::{Findings, Path, rules};

/// Checks the template at `at`, if there is one.
pub(super) fn check(template: Option<&Json>, at: &Path<'_>, findings: &mut Findings) {
    match template {
        Some(Json::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                check(Some(item), &at.index(index), findings);
            }
        }
        Some(Json::Object(fields)) => {
            for (name, value) in fields {
                let here = at.field(name);
                let Some(plain) = name.strip_suffix(".$") else {
                    check(Some(value), &here, findings);
                    continue;
                };
                if fields.contains_key(plain) {
                    let message =
                        format!("Duplicate value: `{plain}` is there as well; both give the same field");
                    findings.add(&rules::PAYLOAD, &here, message).on_key().help("keep one of them");
                }
                match value.as_str() {
                    Some(text) => paths::expression(text, &here, findings),
                    None => {
                        let message = "Invalid value: the name ends in `.$`, so a path is expected";
                        findings
                            .add(&rules::PAYLOAD, &here, message)
                            .help(format!("call it `{plain}` if the value is meant as it is"));
                    }
                }
            }
        }
        _ => {}
    }
}
