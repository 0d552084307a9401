//! The report for programs. Every key of a violation is always present. Pure.

use schema::violation::{Severity, Violation, visible};
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

// Violations as workflow commands, which GitHub, Gitea and Forgejo show next to the line. Pure.

/// Formats a violation as a command, with a line break at its end.
pub fn annotation(violation: &Violation) -> String {
    let command = match violation.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "notice",
    };
    let mut place = format!("file={}", property(&violation.file));
    if violation.line > 0 {
        place.push_str(&format!(",line={}", violation.line));
        if violation.column > 0 {
            place.push_str(&format!(",col={}", violation.column));
        }
    }
    let mut message = violation.message.clone();
    if !violation.help.is_empty() {
        message.push('\n');
        message.push_str(&violation.help);
    }
    format!("::{command} {place},title={}::{}\n", property(&violation.rule), data(&message))
}

/// Escapes a value after `=`: a colon or comma would end it.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Escapes the text after `::`: a line break would end the command and begin another.
fn data(text: &str) -> String {
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| visible(&line.replace('%', "%25").replace('\r', "%0D")).into_owned())
        .collect();
    lines.join("%0A")
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

#[cfg(test)]
mod github_tests {
    use super::*;

    fn violation() -> Violation {
        Violation {
            file: "apps/web.yaml".to_owned(),
            line: 7,
            column: 5,
            severity: Severity::Error,
            rule: "unknown-field".to_owned(),
            message: "spec.imagee: unknown field `imagee`".to_owned(),
            help: "did you mean `image`?".to_owned(),
            object: None,
        }
    }

    #[test]
    fn a_violation_is_one_command() {
        assert_eq!(
            annotation(&violation()),
            "::error file=apps/web.yaml,line=7,col=5,title=unknown-field::spec.imagee: unknown field \
             `imagee`%0Adid you mean `image`?\n"
        );
    }

    #[test]
    fn a_whole_file_or_line_has_no_place() {
        let whole = Violation { line: 0, column: 0, severity: Severity::Note, ..violation() };
        assert!(annotation(&whole).starts_with("::notice file=apps/web.yaml,title=unknown-field::"));
        let line = Violation { column: 0, severity: Severity::Warning, ..violation() };
        assert!(annotation(&line).starts_with("::warning file=apps/web.yaml,line=7,title="));
    }

    #[test]
    fn nothing_of_a_repository_makes_a_command_of_its_own() {
        let hostile = Violation {
            file: "a,line=1::b\n::set-env name=X::y%0A.yaml".to_owned(),
            message: "100 %\r\n::error::x\u{1b}[31m".to_owned(),
            help: String::new(),
            ..violation()
        };
        assert_eq!(
            annotation(&hostile),
            "::error file=a%2Cline=1%3A%3Ab%0A%3A%3Aset-env name=X%3A%3Ay%250A.yaml,line=7,col=5,\
             title=unknown-field::100 %25%0D%0A::error::x\\u{1b}[31m\n"
        );
    }
}
