//! Hidden and visible parts of secrets.

use super::*;

#[test]
fn a_command_is_shown_only_if_all_its_words_are_plain() {
    for text in [
        "while true; do date >> /data/out; sleep 1; done",
        "echo $(hostname) ${HOME}",
        "--log-level=debug",
        "",
        "curl -sSf -o x; ls -lah; kill -9 1",
        "curl http://auth:8080/path; env",
        "DB_PASSWORD_FILE=/run/secrets/db app",
        "--password",
        "-u",
    ] {
        assert!(is_plain_text(text), "{text}");
    }
    for text in [
        "curl -u bob:hunter2 http://web/path",
        "mysql -pS3cr3tP4ss shop",
        "export K=T024B0AbCd; env",
        "login --pin 1234 --retries 3",
        "--password swordfish",
        "login --password   swordfish",
        "PGPASSWORD=swordfish psql",
        "pw is Tr0ub4dor&3",
        "größe ist Zahl",
        "mysql -pswordfish -h db",
        "mysql -pabc1",
        "curl -u bob:12345 http://web",
        "curl --user bob:x http://web",
        "curl --user=bob:x http://web",
        r#"["curl", "-u", "bob:12345", "http://web"]"#,
        r#"["login", "--password", "correct horse"]"#,
        "login --password \\\n  swordfish",
        r#"PASSPHRASE="correct horse battery staple" app"#,
        "vault login --password 'correct horse'",
        "sh -c \"login --password 'correct horse' web\"",
        "sh -c 'login --password swordfish' web",
        "login --password hunter,swordfish web",
        "login --password=hunter=$swordfish&horse web",
        "PASSWORD=correct\\ horse web",
        "PASSWORD='correct'\" horse\" web",
        "PASSWORD=$(echo swordfish horse) web",
        "PASSWORD='correct horse",
        "PASSWORD='correct horse'; env",
        "password = correct horse\nweb",
        "password: swordfish\nweb",
        "password:swordfish",
        "password: |\n  swordfish\n",
        "Authorization: Bearer swordfish",
        "curl -H 'Authorization: Bearer swordfish' web",
        "curl -H 'Authorization: Bearer '\"swordfish\" web",
        r#"{"password":"swordfish"}"#,
        r#"{"password": "sword\"fish", "user": "bob"}"#,
        r#"curl -d "{\"password\":\"correct horse\"}" web"#,
        "read -p 'password: ' x; don't wait",
    ] {
        assert!(!is_plain_text(text), "{text}");
    }
}

#[test]
fn names_of_secrets_are_distinguished_from_names_of_their_places() {
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
fn a_state_that_is_called_after_its_type_is_no_password() {
    for name in ["Pass", "PassState", "Pass2", "Pass the order on", "Pass-on"] {
        assert!(is_pass_state_name(name), "{name}");
    }
    for name in ["pass", "PASS", "dbPass", "PassKey", "Passphrase", "PassWord", "Pass-token", "DB_PASS"] {
        assert!(!is_pass_state_name(name), "{name}");
    }
    let states = Path::ROOT.field("states");
    assert!(!is_secret_place(&states.field("Pass").field("end")));
    assert!(is_secret_place(&states.field("Pass")), "it may be its value");
}

#[test]
fn the_name_of_a_state_hides_nothing_below_it() {
    let spec = Path::ROOT.field("spec");
    let states = spec.field("states");
    for state in ["pass", "check-token", "args"] {
        assert!(!is_secret_place(&states.field(state).field("end")), "{state}");
        assert!(is_secret_place(&states.field(state)), "it may be its value");
    }
    assert!(is_secret_place(&states.field("ask").field("parameters").field("pass")));
    assert!(is_secret_place(&states.field("ask").field("token").field("text")));
    assert!(is_secret_place(&spec.field("pass").field("text")));
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

#[test]
fn only_what_is_plainly_a_password_or_private_key_is_an_error() {
    for (name, value) in [
        ("DB_PASSWORD", "hunter2"),
        ("MYSQL_ROOT_PASSWORD", "root"),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI"),
        ("KEY", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl"),
        ("X", "config: |\n  -----BEGIN RSA PRIVATE KEY-----\n"),
        ("X", "ghp_0123456789"),
    ] {
        assert!(is_clear_secret(name, value), "{name}={value}");
    }
    for (name, value) in [
        ("DB_PASSWORD", ""),
        ("DB_PASSWORD", "$(OTHER)"),
        ("DB_PASSWORD", "/run/secrets/db"),
        ("DB_PASSWORD_FILE", "/run/secrets/db"),
        ("ALLOW_EMPTY_PASSWORD", "yes"),
        ("MYSQL_RANDOM_ROOT_PASSWORD", "TRUE"),
        ("PASSWORD_MIN_LENGTH", "12"),
        ("TOKEN_TTL", "3600"),
        ("CERT", "-----BEGIN CERTIFICATE-----\nMIIB"),
        ("LOG_LEVEL", "info"),
    ] {
        assert!(!is_clear_secret(name, value), "{name}={value}");
    }
}
