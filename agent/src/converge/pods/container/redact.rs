//! The engine's words about containers that hold secrets: it repeats what it can't run. Pure.

/// In the place of words that may hold a secret which is not at hand.
pub const UNSHOWN: &str = "Docker could not run it, and its words are not shown here, for they may hold a secret of the container; see 'docker inspect' on the node";

/// Lines of fewer characters are not looked for on their own: they would blot out the message.
const LINE_MIN: usize = 4;

/// The text with `***` for each of the values, also as Go and JSON quote them, and for each longer line
/// of one.
pub fn hushed(text: &str, values: &[String]) -> String {
    let mut hidden: Vec<String> = Vec::new();
    for value in values {
        let lines = value.lines().map(str::trim).filter(|line| line.chars().count() >= LINE_MIN);
        for part in [value.as_str(), value.trim()].into_iter().chain(lines) {
            let quoted = format!("{part:?}");
            let quoted = quoted.trim_start_matches('"').strip_suffix('"').unwrap_or_default().to_owned();
            let json = serde_json::Value::from(part).to_string();
            let json = json.get(1..json.len().saturating_sub(1)).unwrap_or_default().to_owned();
            hidden.extend([part.to_owned(), quoted, json]);
        }
    }
    hidden.retain(|part| !part.is_empty());
    // A value that holds another one goes as a whole.
    hidden.sort_by_key(|part| std::cmp::Reverse(part.len()));
    hidden.iter().fold(text.to_owned(), |text, part| text.replace(part.as_str(), "***"))
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
            (r#"exec: "a\"b\n12": no"#, &["a\"b\n12"], r#"exec: "***": no"#),
            ("stat /bin/hunter2: no", &["hunter2", "hunter"], "stat /bin/***: no"),
            ("line second is bad", &["first\nsecond\n"], "line *** is bad"),
            ("nothing of it", &["", "\n", "hunter2"], "nothing of it"),
        ] {
            assert_eq!(hushed(said, &values(secrets)), shown, "{said}");
        }
    }
}
