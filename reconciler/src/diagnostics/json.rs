//! The report for programs. Every key of a violation is always present. Pure.

use schema::violation::{Severity, Violation};
use serde::Serialize;

use super::Report;
use super::report::CaseCounts;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JsonReport<'a> {
    pub ok: bool,
    pub objects: usize,
    /// Omitted if no workflow test case was run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_tests: Option<CaseCounts>,
    pub violations: Vec<JsonViolation<'a>>,
}

#[derive(Debug, Serialize)]
pub struct JsonViolation<'a> {
    severity: Severity,
    rule: &'a str,
    message: &'a str,
    help: &'a str,
    file: &'a str,
    /// 1-based; 0 for the whole file.
    line: u32,
    /// 1-based; 0 for the whole line.
    column: u32,
    /// `Kind/namespace/name`, `Kind/name` for a cluster-scoped kind, or null.
    object: Option<&'a str>,
}

impl<'a> From<&'a Report> for JsonReport<'a> {
    fn from(report: &'a Report) -> Self {
        let violations = report.violations.iter().map(JsonViolation::from).collect();
        let workflow_tests = Some(report.cases).filter(|cases| *cases != CaseCounts::default());
        Self { ok: report.is_ok(), objects: report.objects, workflow_tests, violations }
    }
}

impl<'a> From<&'a Violation> for JsonViolation<'a> {
    fn from(violation: &'a Violation) -> Self {
        Self {
            severity: violation.severity,
            rule: &violation.rule,
            message: &violation.message,
            help: &violation.help,
            file: &violation.file,
            line: violation.line,
            column: violation.column,
            object: violation.object.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_there_in_a_fixed_order() {
        let violation = Violation {
            file: "a.yaml".to_owned(),
            line: 0,
            column: 0,
            severity: Severity::Warning,
            rule: "quantity".to_owned(),
            message: "m".to_owned(),
            help: String::new(),
            object: None,
        };
        let report = Report::new([violation], 2, 1);
        assert_eq!(
            serde_json::to_string(&JsonReport::from(&report)).unwrap(),
            "{\"ok\":true,\"objects\":2,\"violations\":[{\"severity\":\"warning\",\"rule\":\"quantity\",\
             \"message\":\"m\",\"help\":\"\",\"file\":\"a.yaml\",\"line\":0,\"column\":0,\"object\":null}]}"
        );
    }
}
