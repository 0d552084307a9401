//! Signatures of each provider: published examples, and a push signed with `openssl`.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use schema::records::Provider;

use super::{PUSH, PUSH_SHA256, PUSH_SHA512, SECRET};
use crate::git::Reference;
use crate::webhooks::payload::{self, Hint};
use crate::webhooks::provider::{EventKind, NoClaim, claim, envelope, event_kind};
use crate::webhooks::verify::{CLOCK_SKEW_MAX_S, SecretError, Secrets, Verifier};

/// The time of the published Standard Webhooks example.
const THEN: i64 = 1_614_265_330;

fn headers(list: &[(&str, &str)]) -> HeaderMap {
    let parse = |(name, value): &(&str, &str)| {
        (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
    };
    let mut headers = HeaderMap::new();
    for (name, value) in list.iter().map(parse) {
        headers.append(name, value);
    }
    headers
}

/// Provider of a request; `None` if it is not authentic.
fn authentic(secret: &str, list: &[(&str, &str)], body: &[u8]) -> Option<Provider> {
    let claim = claim(&headers(list)).ok()?;
    let secrets = Secrets::parse(secret.as_bytes()).unwrap();
    let mut verifier = Verifier::begin(&claim, &secrets, THEN).ok()?;
    // In chunks, as a body arrives.
    body.chunks(7).for_each(|piece| verifier.update(piece));
    verifier.finish().is_ok().then_some(claim.provider)
}

/// Headers with which each provider sends [`PUSH`].
fn all() -> Vec<(Provider, Vec<(&'static str, String)>)> {
    let bare = PUSH_SHA256.to_owned();
    let sha256 = format!("sha256={PUSH_SHA256}");
    vec![
        (Provider::GitHub, vec![("x-hub-signature-256", sha256.clone())]),
        (Provider::Gitea, vec![("x-gitea-signature", bare.clone())]),
        (Provider::Forgejo, vec![("x-forgejo-signature", bare.clone())]),
        (Provider::Gogs, vec![("x-gogs-signature", bare)]),
        (Provider::GitLab, vec![("x-gitlab-token", SECRET.to_owned())]),
        (Provider::Generic, vec![("x-signature", sha256.clone())]),
        // As Bitbucket signs.
        (Provider::Generic, vec![("x-hub-signature", sha256)]),
        (Provider::Generic, vec![("x-signature", format!("sha512={PUSH_SHA512}"))]),
    ]
}

fn borrowed<'a>(list: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    list.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

#[test]
fn github_s_documented_example_is_authentic() {
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let list = [("X-Hub-Signature-256", signature)];
    assert_eq!(authentic("It's a Secret to Everybody", &list, b"Hello, World!"), Some(Provider::GitHub));
    assert_eq!(authentic("It's a Secret to Everybody", &list, b"Hello, World?"), None);
}

#[test]
fn the_example_of_standard_webhooks_is_authentic_as_gitlab_s_for_five_minutes() {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let body = br#"{"test": 2432232314}"#;
    let right = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    let with = |timestamp: i64, signature: &str| {
        let timestamp = timestamp.to_string();
        let list = [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", timestamp.as_str()),
            ("webhook-signature", signature),
        ];
        authentic(secret, &list, body)
    };
    assert_eq!(with(THEN, right), Some(Provider::GitLab));
    assert_eq!(with(THEN, &format!("v1,AAAA v2,zzz {right}")), Some(Provider::GitLab));
    assert_eq!(with(THEN, "v1,AAAA"), None);
    assert_eq!(with(THEN + 1, right), None, "the time is signed, too");
    let claim = claim(&headers(&[
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", right),
    ]))
    .unwrap();
    let secrets = Secrets::parse(secret.as_bytes()).unwrap();
    for (late, valid) in [(0, true), (CLOCK_SKEW_MAX_S, true), (CLOCK_SKEW_MAX_S + 1, false), (-301, false)] {
        assert_eq!(Verifier::begin(&claim, &secrets, THEN + late).is_ok(), valid, "{late} s late");
    }
    assert!(Verifier::begin(&claim, &secrets, i64::MIN).is_err());
}

#[test]
fn every_provider_s_own_form_is_authentic_and_no_other_body_is() {
    for (provider, list) in all() {
        let list = borrowed(&list);
        assert_eq!(authentic(SECRET, &list, PUSH.as_bytes()), Some(provider));
        assert_eq!(authentic("another-secret-of-enough-bytes", &list, PUSH.as_bytes()), None, "{provider}");
        if list[0].0 == "x-gitlab-token" {
            // This form signs nothing, which is why GitLab has the other one.
            continue;
        }
        for body in [&PUSH.as_bytes()[..PUSH.len() - 1], b"", format!("{PUSH} ").as_bytes()] {
            assert_eq!(authentic(SECRET, &list, body), None, "{provider}");
        }
    }
}

#[test]
fn while_a_secret_is_changed_the_old_and_the_new_one_are_valid() {
    for (provider, list) in all() {
        let list = borrowed(&list);
        for file in [
            format!("a-new-secret-0123456789\n{SECRET}\n"),
            format!("\r\n {SECRET}\r\nthe-old-secret-012345"),
        ] {
            assert_eq!(authentic(&file, &list, PUSH.as_bytes()), Some(provider), "{file:?}");
        }
    }
}

#[test]
fn a_secret_that_is_missing_short_or_one_too_many_is_none() {
    let table: [(&[u8], SecretError); 6] = [
        (b"", SecretError::Empty),
        (b" \r\n\n", SecretError::Empty),
        (b"123456789012345", SecretError::Short(1)),
        (b"1234567890123456\nshort", SecretError::Short(2)),
        (b"1234567890123456\n1234567890123457\n1234567890123458", SecretError::TooMany),
        (&[b'x'; 5000], SecretError::TooLarge),
    ];
    for (file, why) in table {
        assert_eq!(Secrets::parse(file).unwrap_err(), why);
    }
    assert!(!format!("{:?}", Secrets::parse(SECRET.as_bytes()).unwrap()).contains("secret-"));
}

#[test]
fn a_signature_in_the_wrong_form_or_place_is_none() {
    let sha256 = format!("sha256={PUSH_SHA256}");
    let sha1 = "sha1=a4f3bc42591e2661250a00f556f4b4e64f847b16";
    let upper = format!("SHA256={PUSH_SHA256}");
    let table: Vec<Vec<(&str, &str)>> = vec![
        vec![],
        vec![("x-hub-signature", sha1)],
        vec![("x-hub-signature-256", sha1)],
        vec![("x-signature", sha1)],
        vec![("x-hub-signature", PUSH_SHA256)],
        vec![("x-hub-signature", sha1), ("x-hub-signature", &sha256)],
        vec![("x-hub-signature-256", PUSH_SHA256)],
        vec![("x-hub-signature-256", &upper)],
        vec![("x-hub-signature-256", "sha256=")],
        vec![("x-hub-signature-256", &sha256[..70])],
        vec![("x-gitea-signature", &sha256)],
        vec![("x-gitea-signature", "")],
        vec![("x-signature", PUSH_SHA256)],
        vec![("x-gitlab-token", "")],
        vec![("x-gitlab-token", &SECRET[..SECRET.len() - 1])],
        vec![("x-gitlab-token", PUSH_SHA256)],
        vec![("webhook-signature", "v1,AAAA")],
        // The same header twice, one of them right.
        vec![("x-hub-signature-256", &sha256), ("x-hub-signature-256", &sha256)],
        // The first scheme decides; later ones do not rescue the request.
        vec![("x-forgejo-signature", "00"), ("x-hub-signature-256", &sha256)],
        vec![("x-hub-signature-256", "sha256=00"), ("x-gitlab-token", SECRET)],
    ];
    for list in table {
        assert_eq!(authentic(SECRET, &list, PUSH.as_bytes()), None, "{list:?}");
    }
    assert_eq!(claim(&headers(&[("x-hub-signature", sha1)])), Err(NoClaim::Missing));
}

#[test]
fn forgejo_sends_the_signatures_of_its_ancestors_along_and_is_known_all_the_same() {
    let sha256 = format!("sha256={PUSH_SHA256}");
    let list = [
        ("X-GitHub-Event", "push"),
        ("X-Gitea-Signature", PUSH_SHA256),
        ("X-Gogs-Signature", PUSH_SHA256),
        ("X-Hub-Signature", "sha1=a4f3bc42591e2661250a00f556f4b4e64f847b16"),
        ("X-Hub-Signature-256", &sha256),
        ("X-Forgejo-Signature", PUSH_SHA256),
    ];
    assert_eq!(authentic(SECRET, &list, PUSH.as_bytes()), Some(Provider::Forgejo));
    assert_eq!(authentic(SECRET, &list[..5], PUSH.as_bytes()), Some(Provider::Gitea));
}

#[test]
fn a_request_names_its_event_and_its_delivery() {
    let list = headers(&[
        ("X-GitHub-Event", "push"),
        ("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"),
        ("X-Gitlab-Event", "Push Hook"),
        ("X-Gitlab-Event-UUID", "u1"),
        ("Idempotency-Key", "k1"),
        ("X-Gogs-Delivery", "../leader/\u{e9}"),
    ]);
    let named = |provider| {
        let envelope = envelope(provider, &list);
        (envelope.event, envelope.id)
    };
    let id = |text: &str| Some(text.to_owned());
    assert_eq!(named(Provider::GitHub), ("push".into(), id("72d3162e-cc78-11e3-81ab-4c9367dc0958")));
    assert_eq!(named(Provider::GitLab), ("Push Hook".into(), id("k1")));
    assert_eq!(named(Provider::Generic), ("push".into(), None));
    // An id becomes part of a key.
    assert_eq!(named(Provider::Gogs).1, id(".._leader___"));
    for (event, kind) in [
        ("push", EventKind::Push),
        ("Push Hook", EventKind::Push),
        ("Tag Push Hook", EventKind::Push),
        ("ping", EventKind::Ping),
        ("issues", EventKind::Other),
    ] {
        assert_eq!(event_kind(event), kind, "{event}");
    }
}

#[test]
fn a_body_is_a_hint_and_one_that_cannot_be_read_is_none() {
    let hint = |body: &str| payload::read(body.as_bytes());
    let read = hint(PUSH);
    assert_eq!(read.reference.as_deref(), Some("refs/heads/main"));
    assert_eq!(read.commit.as_deref(), Some("1481a2de7b2a7d02428ad93446ab166be7793fbb"));
    assert_eq!(read.repository.as_deref(), Some("lab/cluster"));
    let gitlab = r#"{"ref":"refs/tags/v1","project":{"name":"cluster","path_with_namespace":"lab/cluster"}}"#;
    assert_eq!(hint(gitlab).repository.as_deref(), Some("lab/cluster"));
    let gone = r#"{"ref":"refs/heads/main","after":"0000000000000000000000000000000000000000"}"#;
    assert_eq!(hint(gone).commit, None);
    let made = r#"{"ref":"v1","ref_type":"tag"}"#;
    assert_eq!(hint(made).reference.as_deref(), Some("refs/tags/v1"));
    // Types that crashed other projects: CVE-2024-40634, GHSA-f9gq-prrc-hrhc.
    for body in [
        "",
        "{",
        "null",
        "[]",
        "7",
        "payload=%7B%7D",
        r#"{"ref":7,"after":[1,2],"repository":"x","project":null}"#,
        r#"{"ref":{"a":[{}]},"repository":{"full_name":{"full_name":{}},"links":{"clone":7}}}"#,
        r#"{"ref":"main"}"#,
    ] {
        assert_eq!(hint(body).reference, None, "{body}");
    }
    assert_eq!(
        hint(&format!("{{\"ref\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000))),
        Hint::default()
    );
    assert_eq!(hint(&format!("{{\"ref\":\"refs/heads/{}\"}}", "x".repeat(1_000))), Hint::default());
}

#[test]
fn a_push_to_another_branch_is_none_of_ours_and_one_without_a_branch_is() {
    let hint = |name: &str| Hint { reference: Some(name.to_owned()), ..Hint::default() };
    let main = Reference::Branch("main".to_owned());
    assert_eq!(payload::not_followed(&main, &hint("refs/heads/main")), None);
    assert_eq!(payload::not_followed(&main, &Hint::default()), None);
    for other in ["refs/heads/main2", "refs/tags/main", "main"] {
        assert!(payload::not_followed(&main, &hint(other)).is_some(), "{other}");
    }
    let tag = Reference::Tag("v1".to_owned());
    assert_eq!(payload::not_followed(&tag, &hint("refs/tags/v1")), None);
    assert!(payload::not_followed(&Reference::Commit("a".repeat(40)), &Hint::default()).is_some());
}

proptest! {
    #[test]
    fn no_bytes_are_authentic_or_bring_it_down(
        header in prop::sample::select(vec![
            "x-forgejo-signature", "x-gitea-signature", "x-gogs-signature", "x-hub-signature-256",
            "x-gitlab-token", "x-signature", "webhook-signature", "webhook-id", "webhook-timestamp",
        ]),
        value in prop::collection::vec(32_u8..=255, 0..150).prop_filter("no DEL", |v| !v.contains(&127)),
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut headers = HeaderMap::new();
        headers.insert(header.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(&value).unwrap());
        if let Ok(claim) = claim(&headers) {
            let secrets = Secrets::parse(SECRET.as_bytes()).unwrap();
            let verified = Verifier::begin(&claim, &secrets, THEN).and_then(|mut verifier| {
                verifier.update(&body);
                verifier.finish()
            });
            prop_assert!(verified.is_err());
            let _ = envelope(claim.provider, &headers);
        }
        let _ = payload::read(&body);
    }
}
