//! Accepted command lines, and the messages for rejected ones.

use clap::CommandFactory;
use schema::kinds::Kind;

use super::*;

fn refusal(arguments: &[&str]) -> String {
    let error = Cli::try_parse_from(arguments).expect_err("these arguments must be refused");
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    one_line(&error.render().to_string(), &command_of(&arguments))
}

#[test]
fn the_command_tree_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_subcommand_has_an_example() {
    for command in Cli::command().get_subcommands() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains(&format!("minik8s {}", command.get_name())), "{}", command.get_name());
    }
}

#[test]
fn wrong_words_are_answered_in_one_line_with_the_nearest() {
    for (arguments, words) in [
        (&["minik8s", "stauts"][..], &["unrecognized subcommand 'stauts'", "'status'"][..]),
        (&["minik8s", "get", "podz"], &["'podz'", "did you mean `pods`?"]),
        (
            &["minik8s", "get", "secrets"],
            &["Minik8s has no Secret; seal it: 'minik8s secrets seal --from FILE --remove'"],
        ),
        (&["minik8s", "get", "sts"], &["Minik8s has no StatefulSet; write one Pod"]),
        (&["minik8s", "describe", "ingresses/web"], &["Minik8s has no Ingress; use a Dns object"]),
        (&["minik8s", "get", "lists"], &["unknown kind `lists`; kinds are"]),
        (
            &["minik8s", "get", "xyzzy"],
            &["kinds are clusters, nodes, ", "pods, ", "sources, revisions, requests, notifications, events"],
        ),
        (&["minik8s", "get", "pods", "--wach"], &["'--wach'", "'--watch'"]),
        (&["minik8s", "get", "pods", "-o", "ymal"], &["'ymal'", "'yaml'"]),
        (&["minik8s", "wait"], &["--for <GOAL>", "see 'minik8s wait --help'"]),
        (&["minik8s", "wait", "--for", "synced", "--timeout", "5"], &["for example 5s"]),
        (&["minik8s", "explain", "--xyzzy"], &["argument '--xyzzy' found; see 'minik8s explain --help'"]),
        (
            &["minik8s", "validate", "-o", "xyzzy"],
            &["possible values: text", "see 'minik8s validate --help'"],
        ),
        (&["minik8s", "schema", "a", "b"], &["unexpected argument 'b'", "see 'minik8s schema --help'"]),
        (&["minik8s", "get", "pods", "-A", "-n", "x"], &["cannot be used with"]),
    ] {
        let line = refusal(arguments);
        assert!(!line.contains('\n'), "{line}");
        for word in words {
            assert!(line.contains(word), "{line}");
        }
    }
}

#[test]
fn a_plan_needs_a_base_or_a_reconciler_which_needs_no_address() {
    let server = |flags: &[&str]| {
        let line = ["minik8s", "plan", "--head", "HEAD"].iter().chain(flags);
        match Cli::try_parse_from(line).map(|cli| cli.command) {
            Ok(Command::Plan(args)) => Ok(args.server),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    };
    assert_eq!(server(&["--base", "main"]), Ok(None));
    assert_eq!(server(&["--server"]), Ok(Some(None)));
    assert_eq!(server(&["--server", "https://r1:7070"]), Ok(Some(Some("https://r1:7070".to_owned()))));
    assert!(server(&[]).is_err_and(|error| error.contains("--base")));
}

#[test]
fn wrong_usage_ends_with_code_2_and_help_with_0() {
    let code = |arguments: &[&str]| format!("{:?}", parse(arguments).map(|_| ()).unwrap_err());
    assert_eq!(code(&["minik8s", "get", "podz"]), format!("{:?}", ExitCode::from(2)));
    for arguments in
        [&["minik8s", "help"][..], &["minik8s", "help", "get"], &["minik8s", "help", "get", "pods"]]
    {
        assert_eq!(code(arguments), format!("{:?}", ExitCode::SUCCESS), "{arguments:?}");
    }
    assert_eq!(code(&["minik8s", "help", "gte"]), format!("{:?}", ExitCode::from(2)));
    assert_eq!(code(&["minik8s", "--version"]), format!("{:?}", ExitCode::SUCCESS));
}

#[test]
fn help_is_that_of_the_subcommand() {
    let typed = |words: &[&str]| help_as_flag(words.iter().map(OsString::from).collect());
    assert_eq!(typed(&["minik8s", "help"]), ["minik8s", "--help"]);
    assert_eq!(typed(&["minik8s", "help", "get", "pods"]), ["minik8s", "get", "--help"]);
    assert_eq!(typed(&["minik8s", "get", "help"]), ["minik8s", "get", "help"]);
}

#[test]
fn kinds_are_known_by_their_short_names_and_with_a_name() {
    for (text, kind, name) in [
        ("po", ResourceKind::Object(Kind::Pod), None),
        ("PODS", ResourceKind::Object(Kind::Pod), None),
        ("pod/web", ResourceKind::Object(Kind::Pod), Some("web")),
        ("no/n1", ResourceKind::Object(Kind::Node), Some("n1")),
        ("rev", ResourceKind::Revision, None),
    ] {
        assert_eq!(text.parse(), Ok(Resource { kind, name: name.map(str::to_owned) }), "{text}");
    }
}
