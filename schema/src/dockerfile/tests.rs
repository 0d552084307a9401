//! Refused Dockerfiles, and the text that the builder gets.

use super::*;

fn faults(text: &str) -> Vec<(u32, String)> {
    let faults = parse(text).err().unwrap_or_default();
    faults.into_iter().map(|fault| (fault.line, format!("{}; {}", fault.message, fault.help))).collect()
}

/// Returns the text for the builder, with `sha256:NAME` as the id of each image, labelled or not.
fn pinned(text: &str, has_agent_labels: bool) -> String {
    let dockerfile = parse(text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"));
    let pin =
        |name: &&str| ((*name).to_owned(), PinnedImage { id: format!("sha256:{name}"), has_agent_labels });
    let pins = dockerfile.images().iter().map(pin).collect();
    dockerfile.pinned(&pins, &["minik8s.io/uid", "minik8s.io/attempt"])
}

// Seen red without each of the checks.
#[test]
fn what_would_fetch_in_the_nodes_network_or_run_unchecked_is_refused_with_its_line() {
    for (text, line, says) in [
        ("FROM a\nADD http://127.0.0.1:7070/ /x", 2, "ADD would fetch http://127.0.0.1:7070/"),
        ("FROM a\nadd \\\n# note\n\n  --chown=1 \\\n HTTPS://h/x /x", 2, "ADD would fetch HTTPS://h/x"),
        ("FROM a\nADD [\"/f\", \"http://h/\", \"/x\"]", 2, "http://h/"),
        ("FROM a\nADD git@h:x.git /x", 2, "git@h:x.git"),
        ("FROM a\nARG U=http\nENV V=${U}://h\nADD ${V}/x \"$V\" /x", 4, "http://h/x"),
        ("ARG U=http://h\nFROM a\nARG U\nADD $U /x", 4, "http://h"),
        ("# syntax=docker/dockerfile:1\nFROM a", 1, "`# syntax=`"),
        ("\u{feff}#escape=`\n# SYNTAX = h/x\nFROM a", 2, "`# syntax=`"),
        ("FROM a AS b\nRUN --mount=type=bind,from=h/c,target=/m ls", 2, "--mount takes files from h/c"),
        ("FROM a\nONBUILD ADD http://h /x\nFROM b", 2, "would run unchecked"),
        ("FROM a\nRUN <<EOF\nADD http://h /x\nEOF", 2, "here-documents"),
        ("FROM a\nCOPY <<-'EOF' /x\ntext\nEOF", 2, "here-documents"),
        ("FROM a\nLABEL \"minik8s.io/uid\"=1", 2, "belong to Minik8s"),
        ("FROM a\nCOPY --from=0 /a /b", 2, "no earlier stage 0"),
        ("FROM a\nCOPY --from=$X /a /b", 2, "expands no variables in --from"),
        ("FROM a\nCOPY --fr\"om\"=h/b /a /b", 2, "without quotes"),
        ("FROM $X", 1, "the variable X has no value"),
        ("FROM http://h/x", 1, "no scheme"),
        ("FROM a AS 0", 1, "not the name of a stage"),
        ("FROM a\nFETCH x", 2, "unknown instruction FETCH"),
        ("RUN ls\nFROM a", 1, "before the first FROM"),
        ("FROM a\nADD\u{a0}http://h /x", 2, "it has the character \\u{a0}"),
        ("FROM a\nRUN ls \\\\\n", 2, "joins it to the next line"),
        ("# nothing", 1, "no FROM"),
    ] {
        let found = faults(text);
        let Some((at, said)) = found.first() else { panic!("{text} is accepted") };
        assert!(*at == line && said.contains(says), "{text}: {found:?}");
    }
    assert_eq!(faults("FROM a\nADD http://h /x\nONBUILD RUN ls").len(), 2);
}

#[test]
fn the_builder_gets_ids_in_place_of_names_and_one_line_for_each_instruction() {
    let text = "ARG TAG=1\nARG BASE=${REPO:-h/app}:$TAG\n# base\nFROM $BASE as Build\n\
                FROM \"h/tools\" AS tools\nFROM --platform=linux/amd64 build\n\
                COPY --chown=1:1 --from=BUILD a \\\n  # note\n  /a\nCOPY --from=h/other:2 /b /b\n\
                ADD [\"a b\", \"/abs\", \"/d/\"]\nADD \"$X\" . /d/\nFROM scratch\nCOPY --from=1 /c /c\n";
    let images: Vec<String> = parse(text).unwrap().images().iter().map(|image| (*image).to_owned()).collect();
    assert_eq!(images, ["h/app:1", "h/other:2", "h/tools"]);
    assert_eq!(
        pinned(text, false),
        "ARG TAG=1\nARG BASE=${REPO:-h/app}:$TAG\nFROM sha256:h/app:1 AS build\n\
         FROM sha256:h/tools AS tools\nFROM --platform=linux/amd64 build\n\
         COPY --chown=1:1 --from=build a   /a\nCOPY --from=sha256:h/other:2 /b /b\n\
         ADD [\"./a b\",\"./abs\",\"/d/\"]\nADD ./\"$X\" ./. /d/\nFROM scratch\nCOPY --from=1 /c /c\n"
    );
    let text = "# escape=`\nFROM a`\n:1\nRUN dir c:\\";
    assert_eq!(pinned(text, false), "# escape=`\nFROM sha256:a:1\nRUN dir c:\\\n");
}

// Seen red without `resets_labels`, and without `has_agent_labels`.
#[test]
fn labels_of_agents_are_emptied_where_a_base_or_the_file_may_set_them() {
    let reset = "LABEL minik8s.io/uid=\"\" minik8s.io/attempt=\"\"\n";
    assert_eq!(pinned("FROM a\nLABEL x=y", false), "FROM sha256:a\nLABEL x=y\n");
    assert_eq!(pinned("FROM a", true), format!("FROM sha256:a\n{reset}"));
    for label in ["$X=1", "\"mini\"k8s.io/uid=1", "minik8s\\.io/uid=1"] {
        let text = pinned(&format!("FROM a\nLABEL {label}\nRUN ls"), false);
        assert_eq!(text, format!("FROM sha256:a\nLABEL {label}\n{reset}RUN ls\n"));
    }
}

#[test]
fn variables_are_expanded_as_the_builder_does() {
    let known: Variables =
        [("A".to_owned(), Some("1".to_owned())), ("E".to_owned(), Some(String::new()))].into();
    for (word, expanded) in [
        ("x$A-y", "x1-y"),
        ("${A}2", "12"),
        ("'$A'\"$A\"\\$A", "$A1$A"),
        ("${E:-d}${E-d}${N-d}${N:-d}", "ddd"),
        ("${A:+s}${E:+s}${E+s}${N+s}", "ss"),
        ("\"a\\b\\\"\"", "a\\b\""),
    ] {
        assert_eq!(expand(word, '\\', &known).as_deref(), Ok(expanded), "{word}");
    }
    for word in ["$N", "${A#1}", "${A:\u{e9}}", "${\u{e9}}", "$", "${A", "'x", "${N:-$A}"] {
        assert!(expand(word, '\\', &known).is_err(), "{word}");
    }
}
