//! What is hidden, and what is shown.

use super::*;

#[test]
fn of_a_command_only_plain_words_are_shown() {
    for (text, shown) in [
        ("curl -u bob:hunter2 http://web/path", "curl -u * http://web/path"),
        ("mysql -pS3cr3tP4ss shop", "mysql * shop"),
        ("export K=T024B0AbCd; env", "export K=*; env"),
        ("login --pin 1234 --retries 3", "login --pin * --retries 3"),
        ("login --password   swordfish", "login --password   *"),
        ("PGPASSWORD=swordfish psql", "PGPASSWORD=* psql"),
        ("pw is Tr0ub4dor&3", "pw is *&3"),
        (
            "while true; do date >> /data/out; sleep 1; done",
            "while true; do date >> /data/out; sleep 1; done",
        ),
        ("echo $(hostname) ${HOME}", "echo $(hostname) ${HOME}"),
        ("--log-level=debug", "--log-level=debug"),
        ("", ""),
        ("größe ist Zahl", "* ist Zahl"),
        // Flags and what is right behind them.
        ("mysql -pswordfish -h db", "mysql * -h db"),
        ("mysql -pabc1", "mysql *"),
        ("curl -sSf -o x; ls -lah; kill -9 1", "curl -sSf -o x; ls -lah; kill -9 1"),
        ("curl -u bob:12345 http://web", "curl -u * http://web"),
        ("curl --user bob:x http://web", "curl --user * http://web"),
        ("curl --user=bob:x http://web", "curl --user=* http://web"),
        (r#"["curl", "-u", "bob:12345", "http://web"]"#, r#"["curl", "-u", "*", "http://web"]"#),
        (r#"["login", "--password", "correct horse"]"#, r#"["login", "--password", "*"]"#),
        ("login --password \\\n  swordfish", "login --password \\\n  *"),
        // Values of many words, and with signs in them.
        (r#"PASSPHRASE="correct horse battery staple" app"#, r#"PASSPHRASE="*" app"#),
        ("vault login --password 'correct horse'", "vault login --password '*'"),
        ("sh -c \"login --password 'correct horse' web\"", "sh -c \"login --password '*' web\""),
        ("sh -c 'login --password swordfish' web", "sh -c 'login --password *' web"),
        ("login --password hunter,swordfish web", "login --password * web"),
        ("login --password=hunter=$swordfish&horse web", "login --password=* web"),
        ("PASSWORD=correct\\ horse web", "PASSWORD=* web"),
        ("PASSWORD='correct'\" horse\" web", "PASSWORD=* web"),
        ("PASSWORD=$(echo swordfish horse) web", "PASSWORD=* web"),
        ("PASSWORD='correct horse", "PASSWORD=*"),
        ("PASSWORD='correct horse'; env", "PASSWORD='*'; env"),
        ("password = correct horse\nweb", "password = *\nweb"),
        // Fields and headers.
        ("password: swordfish\nweb", "password: *\nweb"),
        ("password:swordfish", "password:*"),
        ("password: |\n  swordfish\n", "password: *\n"),
        ("Authorization: Bearer swordfish", "Authorization: *"),
        ("curl -H 'Authorization: Bearer swordfish' web", "curl -H 'Authorization: *' web"),
        ("curl -H 'Authorization: Bearer '\"swordfish\" web", "curl -H 'Authorization: * '\"*\" web"),
        (r#"{"password":"swordfish"}"#, r#"{"password":"*"}"#),
        (r#"{"password": "sword\"fish", "user": "bob"}"#, r#"{"password": "*", "user": "bob"}"#),
        (r#"curl -d "{\"password\":\"correct horse\"}" web"#, r#"curl -d "{\"password\":\"*\"}" web"#),
        ("read -p 'password: ' x; don't wait", "read -p 'password: ' x; don't wait"),
        ("curl http://auth:8080/path; env", "curl http://auth:8080/path; env"),
    ] {
        assert_eq!(masked(text, "*"), shown, "{text}");
    }
}

/// Whatever the text, it ends, and what is not hidden is as it was.
#[test]
fn odd_texts_do_no_harm() {
    let pieces = ["password", ":", "=", " ", "\"", "'", "\\", "\n", "(", "}", "--pin", "ö", "`", "-u", ","];
    for number in 0..pieces.len().pow(4) {
        let at = |place: u32| pieces[number / pieces.len().pow(place) % pieces.len()];
        let text = (0..4).map(at).collect::<String>();
        let shown = masked(&text, "");
        let mut rest = text.chars();
        assert!(shown.chars().all(|c| rest.any(|other| other == c)), "{text:?} {shown:?}");
    }
}

#[test]
fn names_of_secrets_are_told_from_names_of_their_places() {
    for name in [
        "DB_PASSWORD",
        "apiKey",
        "API_KEY",
        "--auth-token",
        "Authorization",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASS",
        "dbPass",
        "ENCRYPTION_KEY",
        "JWT_SIGNING_KEY",
        "MASTER_KEY",
        "masterkey",
        "REDIS_AUTH",
        "DATABASE_DSN",
    ] {
        assert!(is_secret_name(name), "{name}");
    }
    for name in [
        "secretName",
        "POSTGRES_PASSWORD_FILE",
        "secretKeyRef",
        "AUTHOR",
        "KEYBOARD",
        "image",
        "key",
        "PATH",
        "passenger",
    ] {
        assert!(!is_secret_name(name), "{name}");
    }
}

#[test]
fn a_name_of_a_place_hides_what_is_no_place() {
    for value in ["/run/secrets/db", "db-login", "./keys/Main.pem"] {
        assert!(!holds_secret("DB_PASSWORD_FILE", value), "{value}");
    }
    for value in ["Tr0ub4dor&3", "hunter2hunter2", "9f86d081884c7d659a2feaa0c55ad015"] {
        assert!(holds_secret("DB_PASSWORD_FILE", value), "{value}");
    }
}

#[test]
fn texts_that_are_secrets_are_known_by_their_look() {
    for text in [
        "ghu_16C7e42F292c6912E7",
        "ghr_16C7e42F292c6912E7",
        "sk-proj-abcdef",
        "npm_abcdef",
        "xoxp-1-2-3",
        "AIzaSyA-abc",
        "app:hunter2@tcp(db:3306)/shop",
        "postgres://app:hunter2@db/shop",
        "run --db-pass=hunter2",
    ] {
        assert!(is_secret_text(text), "{text}");
    }
    for text in ["registry.example:5000/app@sha256:ab", "git@github.com:org/repo", "http://web:8080/x"] {
        assert!(!is_secret_text(text), "{text}");
    }
}

#[test]
fn only_values_of_plain_shapes_are_plain() {
    for value in [
        "",
        "3",
        "8080",
        "-1",
        "0.5",
        "30s",
        "128Mi",
        "true",
        "INFO",
        "Debug",
        "web",
        "eu-west-1",
        "redis-0.redis.default",
        "web:8080",
        "http://web:8080/path",
        "/var/lib/data",
        "10.0.0.1:80",
        "v2",
    ] {
        assert!(is_plain_value(value), "{value}");
    }
    for value in [
        "12345678",
        "hunter2",
        "Tr0ub4dor&3",
        "9f86d081884c7d65",
        "a b",
        "postgres://a:b@db/x",
        "https://hooks.example/T024/B0AbCd",
        "http://web/?token=x",
        "Zm9vYmFyCg==",
        "ABCDEFGHIJKL",
    ] {
        assert!(!is_plain_value(value), "{value}");
    }
}

// Takes minutes where each backslash is a walk over all that follow.
#[test]
fn very_many_backslashes_are_walked_over_once() {
    for before in ["password=", "--password ", ""] {
        let text = format!("{before}{}", "\\".repeat(400_000));
        assert!(masked(&text, "***").len() <= text.len());
    }
    // As deep as anybody quotes.
    let quote = format!("{}\"", "\\".repeat(63));
    let text = format!("sh -c {quote}curl --password ");
    assert_eq!(masked(&format!("{text}hunter2{quote}"), "***"), format!("{text}***{quote}"));
}
