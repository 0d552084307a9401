//! Removes secrets from the engine's messages, which repeat a command that can't run. Pure.

/// Replaces a message that may contain a secret which is unavailable for redaction.
pub const UNSHOWN: &str = "Docker could not run it; its message is hidden because it may contain a secret of the container; see 'docker inspect' on the node";

/// Returns the text with `***` for each of the values. A value that the engine quotes in another form can't be
/// found: then nothing of the text is shown.
pub fn redact_secrets(text: &str, values: &[String]) -> String {
    let mut values: Vec<&str> = values.iter().map(|value| value.trim()).collect();
    values.retain(|value| !value.is_empty());
    let is_plain = |c: char| (c.is_ascii_graphic() || c == ' ') && !matches!(c, '"' | '\\');
    if !values.iter().all(|value| value.chars().all(is_plain)) {
        return UNSHOWN.to_owned();
    }
    // A value that contains another one is replaced as a whole.
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    values.iter().fold(text.to_owned(), |text, value| text.replace(value, "***"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_is_left_however_it_is_quoted() {
        let values = |list: &[&str]| list.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        for (said, secrets, shown) in [
            (r#"exec: "hunter2": not found"#, &["hunter2"][..], r#"exec: "***": not found"#),
            ("exec: hunter2", &["hunter2\n"], "exec: ***"),
            (r#"exec: "a\"b\n12": no"#, &["a\"b\n12"], UNSHOWN),
            ("stat /bin/hunter2: no", &["hunter2", "hunter"], "stat /bin/***: no"),
            ("line second is bad", &["first\nsecond\n"], UNSHOWN),
            ("nothing of it", &["", "\n", "hunter2"], "nothing of it"),
        ] {
            assert_eq!(redact_secrets(said, &values(secrets)), shown, "{said}");
        }
    }
}
